"""SpecForge's benchmark results, in its three forms.

``benchmarks/bench_eagle3.py`` (one JSON document in a ``.jsonl``), the report of
``specforge benchmark``, and the ``--output-json`` of its client-only form.
Every benchmark (mtbench, gsm8k, ...) is one figure; arms are paired by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectune.domain.arm import Knobs
from spectune.domain.measurement import LoadResult, LoadTotals
from spectune.domain.workload import LoadPoint, Sampling
from spectune.errors import BadInput
from spectune.exchange.imports.reading import Fields, SourceFile, json_documents, numbered
from spectune.exchange.imports.results import (
    NOT_RECORDED,
    UNKNOWN_METHOD,
    ArmHints,
    ImportedResults,
    ImportedRun,
    arm_name,
    hinted,
)
from spectune.exchange.imports.sglang import stated_length, tree_knobs

TOOL = "specforge"


def is_result(document: Any) -> bool:
    return isinstance(document, dict) and (_is_report(document) or _is_flat(document) or _is_bench(document))


def _is_report(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("runs"), list) and "sampling" in document and "concurrency" in document


def _is_flat(document: Mapping[str, Any]) -> bool:
    return "throughput_tokens_per_second" in document and "dataset" in document


def _is_bench(document: Mapping[str, Any]) -> bool:
    lists = [value for key, value in document.items() if key != "model"]
    return "model" in document and bool(lists) and all(_is_bench_list(value) for value in lists)


def _is_bench_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, dict) and "metrics" in v for v in value)


@dataclass(frozen=True)
class _Figure:
    """One benchmark under one server setting."""

    name: str
    knobs: Knobs
    target: str
    batch: int
    benchmark: str
    throughput: float
    tokens: float
    duration_s: float
    length: float | None
    num_requests: int | None
    place: str
    says_one: bool = False
    """Speculated, with an acceptance length of exactly 1, which may stand for "none"."""


def read_specforge(sources: list[SourceFile], names: Mapping[Path, str], hints: ArmHints) -> ImportedResults:
    results = ImportedResults(TOOL, sources, [], unknown=("machine", "prompts", "sampling"))
    figures: list[_Figure] = []
    samplings: list[Sampling] = []
    for source in sources:
        for fields in numbered(json_documents(source), source):
            given = names.get(source.path)
            if _is_report(fields.values):
                figures += _report(fields, given, hints)
                samplings.append(_sampling(fields))
            elif _is_flat(fields.values):
                figures.append(_flat(fields, given or source.path.stem, hints))
            elif _is_bench(fields.values):
                figures += _bench(fields, given, hints)
            else:
                raise BadInput(
                    f"{fields.place}: is no SpecForge result: neither a report with runs and sampling, nor "
                    "benchmarks with metrics, nor one result with throughput_tokens_per_second"
                )
    if samplings and len({s.model_dump_json() for s in samplings}) == 1 and len(samplings) == len(sources):
        results.sampling, results.unknown = samplings[0], ("machine", "prompts")
    results.runs += _runs(figures, hints)
    results.missing += [
        "acceptance lengths of exactly 1, which older versions also write where they have none",
    ]
    return results


def _sampling(fields: Fields) -> Sampling:
    given = fields.object("sampling")
    extra = {k: v for k in ("top_p", "top_k") if (v := given.number(k, minimum=-1)) is not None}
    return Sampling(
        temperature=given.number("temperature") or 0.0,
        max_tokens=given.whole("max_new_tokens", minimum=1) or Sampling().max_tokens,
        seed=None,
        extra_body=extra,
    )


def _report(fields: Fields, given: str | None, hints: ArmHints) -> list[_Figure]:
    target, drafter = fields.text("model"), fields.text("draft_model")
    default = fields.whole("concurrency", minimum=1) or 1
    found = []
    for run in fields.objects("runs"):
        config = run.object("config") if run.values.get("config") is not None else None
        metrics, task = run.object("metrics"), run.object("task")
        knobs, label = _config_knobs(config, drafter, metrics)
        length = metrics.positive("accept_length")
        found.append(
            _Figure(
                name=arm_name(given or label),
                knobs=hinted(knobs, hints),
                target=hints.target or target or NOT_RECORDED,
                batch=(config.whole("batch_size", minimum=1) if config else None) or default,
                benchmark=arm_name(task.text("name") or "benchmark"),
                throughput=metrics.required("throughput_tokens_per_second"),
                tokens=metrics.required("output_tokens"),
                duration_s=metrics.required("latency_seconds"),
                length=stated_length(length, speculates=knobs.method != "none", fields=metrics),
                num_requests=metrics.whole("num_requests"),
                place=run.place,
            )
        )
    return found


def _config_knobs(config: Fields | None, drafter: str | None, metrics: Fields) -> tuple[Knobs, str]:
    if config is None:
        speculated = metrics.whole("spec_verify_count")
        return Knobs(method=UNKNOWN_METHOD if speculated else "none", drafter=drafter), "server"
    label = config.text("label") or "server"
    if not config.whole("steps"):
        return Knobs(), label
    knobs = tree_knobs(
        steps=config.whole("steps"),
        topk=config.whole("topk"),
        with_root=config.whole("draft_tokens"),
        method=(config.text("algorithm") or UNKNOWN_METHOD).lower(),
    )
    return knobs.model_copy(update={"drafter": drafter}), label


def _flat(fields: Fields, name: str, hints: ArmHints) -> _Figure:
    speculated = fields.whole("spec_verify_count")
    knobs = Knobs(method=UNKNOWN_METHOD if speculated else "none")
    return _Figure(
        name=arm_name(name),
        knobs=hinted(knobs, hints),
        target=hints.target or NOT_RECORDED,
        batch=1,
        benchmark=arm_name(fields.text("dataset") or "benchmark"),
        throughput=fields.required("throughput_tokens_per_second"),
        tokens=fields.required("output_tokens"),
        duration_s=fields.required("latency_seconds"),
        length=stated_length(
            fields.positive("average_acceptance_length"), speculates=bool(speculated), fields=fields
        ),
        num_requests=fields.whole("samples"),
        place=fields.place,
    )


def _bench(fields: Fields, given: str | None, hints: ArmHints) -> list[_Figure]:
    drafter = fields.text("model")
    found = []
    for benchmark in fields.values:
        if benchmark == "model":
            continue
        for run in fields.objects(benchmark):
            steps, drafted = run.whole("steps"), run.whole("num_draft_tokens")
            topk = run.whole("topk")
            unknown = steps is None
            knobs = Knobs(method=UNKNOWN_METHOD) if unknown else Knobs()
            if steps:
                knobs = tree_knobs(steps=steps, topk=topk, with_root=drafted, method=hints.method or "eagle3")
            shape = "server" if unknown else f"s{steps}-k{topk}-d{drafted}" if steps else "plain"
            for metrics in run.objects("metrics"):
                throughput, duration_s = metrics.required("output_throughput"), metrics.required("latency")
                stated = metrics.positive("accept_length")
                found.append(
                    _Figure(
                        name=arm_name(shape if given is None else f"{given} {shape}"),
                        knobs=hinted(
                            knobs.model_copy(update={"drafter": drafter if knobs.method != "none" else None}),
                            hints,
                        ),
                        target=hints.target or NOT_RECORDED,
                        batch=run.whole("batch_size", minimum=1) or 1,
                        benchmark=arm_name(benchmark),
                        throughput=throughput,
                        tokens=throughput * duration_s,
                        duration_s=duration_s,
                        length=stated_length(stated, speculates=knobs.method != "none", fields=metrics),
                        num_requests=metrics.whole("num_questions"),
                        place=metrics.place,
                        says_one=stated == 1 and knobs.method != "none",
                    )
                )
    return found


def _runs(figures: list[_Figure], hints: ArmHints) -> list[ImportedRun]:
    """All benchmarks of one setting at one batch size together."""
    groups: dict[tuple[str, str, str, int], list[_Figure]] = {}
    for figure in figures:
        key = (figure.name, figure.target, figure.knobs.model_dump_json(), figure.batch)
        groups.setdefault(key, []).append(figure)
    return [_run(found, hints) for found in groups.values()]


def _run(figures: list[_Figure], hints: ArmHints) -> ImportedRun:
    first = figures[0]
    duration_s = sum(f.duration_s for f in figures)
    tokens = sum(f.tokens for f in figures)
    counts = [f.num_requests for f in figures if f.num_requests is not None]
    return ImportedRun(
        name=first.name,
        knobs=first.knobs,
        target=first.target,
        engine=hints.engine or "sglang",
        result=LoadResult(
            load=LoadPoint.closed(first.batch),
            requests=(),
            duration_s=duration_s,
            totals=LoadTotals(
                num_completed=sum(counts) if len(counts) == len(figures) else None,
                output_tokens=round(tokens),
                output_tok_per_s=tokens / duration_s if duration_s > 0 and tokens > 0 else None,
                stream_tok_per_s_by_group=_by_benchmark(figures),
                acceptance_length=_pooled_length(figures),
            ),
        ),
        place=first.place,
    )


def _by_benchmark(figures: list[_Figure]) -> dict[str, float]:
    """Tok/s of one of the streams, all of which are taken to be busy throughout."""
    tokens: dict[str, float] = {}
    time_s: dict[str, float] = {}
    for figure in figures:
        tokens[figure.benchmark] = tokens.get(figure.benchmark, 0.0) + figure.tokens
        time_s[figure.benchmark] = time_s.get(figure.benchmark, 0.0) + figure.duration_s
    batch = figures[0].batch
    return {b: tokens[b] / time_s[b] / batch for b in tokens if tokens[b] > 0 and time_s[b] > 0}


def _pooled_length(figures: list[_Figure]) -> float | None:
    """Over all verify steps; ``None`` unless every benchmark has one.

    Exactly 1 counts where another benchmark of the same server has more: it reports its steps.
    """
    reports = any(f.length is not None for f in figures)
    lengths = [1.0 if f.length is None and f.says_one and reports else f.length for f in figures]
    steps = [f.tokens / n for f, n in zip(figures, lengths, strict=True) if n is not None]
    if len(steps) != len(figures) or sum(steps) <= 0:
        return None
    return max(1.0, sum(f.tokens for f in figures) / sum(steps))
