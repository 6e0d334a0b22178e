"""SGLang's serving benchmark (JSON lines, read from 0.5.23) and ``bench_speculative.py`` (``output.jsonl``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spectune.domain.arm import Knobs
from spectune.domain.measurement import LoadResult, LoadTotals
from spectune.domain.trial import ServerFacts
from spectune.domain.workload import LoadPoint
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput
from spectune.exchange.imports.reading import Fields, SourceFile, json_documents, numbered
from spectune.exchange.imports.requests import read_requests
from spectune.exchange.imports.results import (
    NOT_RECORDED,
    UNKNOWN_METHOD,
    ArmHints,
    ImportedResults,
    ImportedRun,
    arm_name,
    hinted,
    load_point,
)
from spectune.exchange.imports.vllm import latencies_s, stream_speed

SERVING, SPECULATIVE = "sglang-bench-serving", "sglang-bench-speculative"
_ASKED = (
    "dataset_name",
    "sharegpt_output_len",
    "random_input_len",
    "random_output_len",
    "random_range_ratio",
)


def is_serving_result(document: Any) -> bool:
    return isinstance(document, dict) and "accept_length" in document and "mean_e2e_latency_ms" in document


def is_speculative_result(document: Any) -> bool:
    return isinstance(document, dict) and {"acc_length", "step_time", "speed", "steps"} <= document.keys()


def read_serving(sources: list[SourceFile], names: Mapping[Path, str], hints: ArmHints) -> ImportedResults:
    """One arm per tag, or per file where there is none."""
    results = ImportedResults(SERVING, sources, [])
    for source in sources:
        for fields in numbered(json_documents(source), source):
            if not is_serving_result(fields.values):
                raise BadInput(
                    f"{fields.place}: is no result of SGLang's serving benchmark (no accept_length and "
                    "mean_e2e_latency_ms)"
                )
            given = names.get(source.path) or fields.text("tag")
            results.runs.append(_serving_run(fields, arm_name(given or source.path.stem), hints))
    results.missing += [
        "prompts: requests are told apart by their place, where all prompt lengths are equal",
        "temperature",
        "verify steps: accept_length is the server's average since it was started, other requests included",
    ]
    if any(run.knobs.method == UNKNOWN_METHOD for run in results.runs):
        results.missing.append("the method of speculation (say it with --method)")
    return results


def _facts(fields: Fields) -> ServerFacts:
    info = fields.values.get("server_info")
    return adapter_for("sglang").read_facts({"/server_info": info if isinstance(info, dict) else {}})


def _serving_run(fields: Fields, name: str, hints: ArmHints) -> ImportedRun:
    facts = _facts(fields)
    length = fields.positive("accept_length")
    if length is not None and length < 1:
        raise BadInput(f"{fields.place}: accept_length: must be at least 1, got {length:g}")
    speculated = length is not None or (hints.method is not None and hints.method != "none")
    knobs = facts.effective or Knobs(method=UNKNOWN_METHOD if speculated else "none")
    lists = read_requests(fields, cached="cached_tokens")
    load = load_point(
        concurrency=fields.whole("max_concurrency", minimum=1),
        request_rate=_rate(fields),
        num_requests=fields.whole("completed"),
    )
    totals = LoadTotals(acceptance_length=length) if lists else _totals(fields, load, length)
    info = fields.object("server_info") if isinstance(fields.values.get("server_info"), dict) else None
    model = facts.model or (info.text("model_path") if info else None)
    return ImportedRun(
        name=name,
        knobs=hinted(knobs, hints),
        target=hints.target or model or NOT_RECORDED,
        engine=hints.engine or "sglang",
        result=LoadResult(
            load=load,
            requests=lists.requests if lists else (),
            duration_s=fields.required("duration"),
            totals=totals if totals.acceptance_length is not None or not lists else None,
        ),
        place=fields.place,
        version=facts.version,
        prompts=lists.prompts if lists else (),
        asked=tuple((k, str(fields.values[k])) for k in _ASKED if fields.values.get(k) is not None),
    )


def _rate(fields: Fields) -> float | None:
    """``trace`` for requests at the times of a trace: no rate of its own."""
    if fields.values.get("request_rate") == "trace":
        return None
    return fields.number("request_rate", infinite=True)


def _totals(fields: Fields, load: LoadPoint, length: float | None) -> LoadTotals:
    completed, tokens = fields.whole("completed"), fields.whole("total_output_tokens")
    return LoadTotals(
        num_completed=completed,
        prompt_tokens=fields.whole("total_input_tokens"),
        output_tokens=tokens,
        output_tok_per_s=fields.positive("output_throughput"),
        stream_tok_per_s=stream_speed(
            tokens=tokens,
            completed=completed,
            e2el_ms=fields.positive("mean_e2e_latency_ms"),
            ttft_ms=fields.positive("mean_ttft_ms"),
            tpot_ms=fields.positive("mean_tpot_ms"),
            throughput=fields.positive("output_throughput") if load.concurrency == 1 else None,
        ),
        acceptance_length=length,
    ).model_copy(update=latencies_s(fields))


def read_speculative(
    sources: list[SourceFile], names: Mapping[Path, str], hints: ArmHints
) -> ImportedResults:
    """One arm per (steps, topk, draft tokens); its batch sizes are load points. A row is a launch of its own."""
    results = ImportedResults(SPECULATIVE, sources, [], unknown=("machine", "prompts"))
    for source in sources:
        for fields in numbered(json_documents(source), source):
            if not is_speculative_result(fields.values):
                raise BadInput(
                    f"{fields.place}: is no result of bench_speculative.py (no acc_length, step_time and speed)"
                )
            results.runs.append(_speculative_run(fields, names.get(source.path), hints))
    results.missing += [
        "speeds end to end: `speed` is acceptance length / step time at the 20th percentile, an idealised "
        "decode rate",
        "the target and the draft (say them with --target and --drafter)",
        "acceptance lengths of exactly 1, which the tool also writes where it has none",
    ]
    return results


def _speculative_run(fields: Fields, given: str | None, hints: ArmHints) -> ImportedRun:
    steps, topk = fields.whole("steps"), fields.whole("topk")
    drafted, batch = fields.whole("num_draft_tokens"), fields.whole("batch_size", minimum=1)
    speculates = bool(steps)
    length = fields.positive("acc_length")
    shape = f"s{steps}-k{topk}-d{drafted}"
    name = "plain" if not speculates else shape if given is None else f"{given} {shape}"
    knobs = tree_knobs(steps=steps, topk=topk, with_root=drafted, method=hints.method or "eagle")
    step_time_s = fields.positive("step_time")
    return ImportedRun(
        name=arm_name(name),
        knobs=hinted(knobs, hints) if speculates else Knobs(),
        target=hints.target or fields.text("model_path") or NOT_RECORDED,
        engine=hints.engine or "sglang",
        result=LoadResult(
            load=LoadPoint.closed(batch or 1),
            requests=(),
            duration_s=0.0,
            totals=LoadTotals(
                stream_tok_per_s=fields.positive("speed"),
                median_tpot_s=None if step_time_s is None or not length else step_time_s / length,
                acceptance_length=stated_length(length, speculates=speculates, fields=fields),
            ),
        ),
        place=fields.place,
    )


def tree_knobs(*, steps: int | None, topk: int | None, with_root: int | None, method: str) -> Knobs:
    """SGLang's numbers, whose draft tokens count the root."""
    drafted = with_root - 1 if with_root is not None and with_root > 1 else None
    return Knobs(method=method, num_steps=steps or None, topk=topk or None, num_draft_tokens=drafted)


def stated_length(length: float | None, *, speculates: bool, fields: Fields) -> float | None:
    """``None`` for exactly 1, which these tools write for "unknown" too, and for plain decoding."""
    if length is None or not speculates or length == 1:
        return None
    if length < 1:
        raise BadInput(f"{fields.place}: acceptance length: must be at least 1, got {length:g}")
    return length
