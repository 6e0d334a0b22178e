"""``vllm bench serve --save-result`` and ``vllm bench sweep serve`` (read from vLLM 0.32)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import FlagValue, Knobs
from spectune.domain.measurement import LoadResult, LoadTotals
from spectune.errors import BadInput
from spectune.exchange.imports.reading import (
    MAX_FILES,
    Fields,
    SourceFile,
    json_documents,
    loads,
    numbered,
    read_source,
)
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

BENCH, SWEEP = "vllm-bench", "vllm-sweep"

_LATENCY = re.compile(r"(mean|median|std|p\d+(\.\d+)?)_[a-z0-9_]+_ms")
_OWN = frozenset(
    (
        "date",
        "endpoint_type",
        "backend",
        "label",
        "model_id",
        "tokenizer_id",
        "num_prompts",
        "request_rate",
        "burstiness",
        "max_concurrency",
        "ramp_up_strategy",
        "ramp_up_start_rps",
        "ramp_up_end_rps",
        "duration",
        "completed",
        "failed",
        "total_input_tokens",
        "total_output_tokens",
        "request_throughput",
        "request_goodput",
        "output_throughput",
        "total_token_throughput",
        "input_lens",
        "output_lens",
        "ttfts",
        "itls",
        "latencies",
        "start_times",
        "queue_times",
        "generated_texts",
        "errors",
        "max_output_tokens_per_s",
        "max_concurrent_requests",
        "rtfx",
        "rps_change_events",
        "run_number",
        "_benchmark_name",
        "spectune",
    )
)
"""Keys of the tool itself; any other is metadata, or an override of a sweep."""
_ASKED = frozenset(
    (
        "dataset_name",
        "dataset_path",
        "seed",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "ignore_eos",
        "input_len",
        "output_len",
        "random_input_len",
        "random_output_len",
        "random_range_ratio",
        "random_prefix_len",
        "sharegpt_output_len",
        "custom_output_len",
        "hf_output_len",
        "extra_body",
        "endpoint",
    )
)
"""Overrides of the benchmark that change what is asked."""
_NOT_ABOUT_THE_ARM = frozenset(
    (
        "num_warmups",
        "result_dir",
        "result_filename",
        "save_result",
        "save_detailed",
        "percentile_metrics",
        "metric_percentiles",
        "host",
        "port",
        "base_url",
    )
)
_TOKENS_KEYS = ("num_speculative_tokens", "num_draft_tokens", "speculative_num_draft_tokens")


def is_bench_result(document: Any) -> bool:
    return isinstance(document, dict) and "model_id" in document and "total_input_tokens" in document


def read_bench(sources: list[SourceFile], names: Mapping[Path, str], hints: ArmHints) -> ImportedResults:
    """One arm per label, or per file where there is none."""
    results = ImportedResults(BENCH, sources, [])
    for source in sources:
        for fields in numbered(json_documents(source), source):
            given = names.get(source.path) or fields.text("label")
            results.runs.append(_run(fields, arm_name(given or source.path.stem), hints))
    _say_missing(results)
    return results


def read_sweep(paths: list[Path], names: Mapping[Path, str], hints: ArmHints) -> ImportedResults:
    """Folders of a sweep, or its ``run=N.json`` and ``summary.json`` files; one arm per server setting."""
    results = ImportedResults(SWEEP, [], [])
    for path in paths:
        for file in _sweep_files(path) if path.is_dir() else [path]:
            source = read_source(file)
            results.files.append(source)
            for fields in _sweep_runs(source):
                run = _run(fields, "", hints)
                given = names.get(path) or _setting_name(fields, file)
                results.runs.append(_named_sweep_run(run, given))
    if not results.files:
        raise BadInput(f"{paths[0]}: holds no run=N.json of a sweep")
    results.runs.sort(key=_load_order)  # folders are in the order of their names: 16 before 2
    _say_missing(results)
    return results


def _load_order(run: ImportedRun) -> tuple[int, float]:
    load = run.result.load
    return load.concurrency or 0, load.request_rate or 0.0


def _sweep_files(folder: Path) -> list[Path]:
    """Measured runs only: a ``warmup.json``, a ``*.failure.json`` and the summaries of runs are none."""
    found = sorted(
        f for f in folder.rglob("run=*.json") if not f.name.endswith(".failure.json") and f.is_file()
    )
    if len(found) > MAX_FILES:
        raise BadInput(f"{folder}: {len(found)} runs; at most {MAX_FILES} are read")
    if not found:
        raise BadInput(f"{folder}: holds no run=N.json of a sweep")
    return found


def _sweep_runs(source: SourceFile) -> Iterator[Fields]:
    documents = json_documents(source)
    if len(documents) == 1 and isinstance(documents[0], list):
        documents = documents[0]
    yield from numbered(documents, source)


def _setting_name(fields: Fields, file: Path) -> str | None:
    """The sweep's own name of the server setting.

    The name of a load, if it has one, has overwritten it in the file; the folder
    (``SERVE--<setting>-BENCH--<load>``) tells both.
    """
    name = fields.text("_benchmark_name")
    setting, of_load, load = file.resolve().parent.name.rpartition("BENCH--")
    if name is None or not of_load or load != name.replace("/", "_").replace("..", "__"):
        return name
    setting = setting.removeprefix("SERVE--").removesuffix("-")
    unnamed = any(setting.startswith(f"{key}=") for key in fields.values)
    return None if unnamed or not setting else setting


def _named_sweep_run(run: ImportedRun, given: str | None) -> ImportedRun:
    """By the sweep's own name of the setting, else by what it changed."""
    changed = dict(run.flags.items())
    knobs = run.knobs
    parts = [f"{k}={v}" for k, v in changed.items()]
    if knobs.method != "none":
        drafted = f"-k{knobs.num_draft_tokens}" if knobs.num_draft_tokens else ""
        parts.insert(0, f"{knobs.method}{drafted}")
    name = arm_name(given or " ".join(parts) or "plain")
    return replace(run, name=name)


def _say_missing(results: ImportedResults) -> None:
    results.missing.append(
        "prompts: requests are told apart by their place, where all prompt lengths are equal"
    )
    results.missing.append("temperature and the limit of output tokens")
    if any(run.knobs.method == UNKNOWN_METHOD for run in results.runs):
        results.missing.append("the method of speculation (say it with --method)")
    if any(run.knobs.method == "none" for run in results.runs):
        results.missing.append(
            "whether a run without spec_decode fields speculated: it is taken as plain decoding"
        )


def _run(fields: Fields, name: str, hints: ArmHints) -> ImportedRun:
    if not is_bench_result(fields.values):
        raise BadInput(
            f"{fields.place}: is no result of vllm bench serve (no model_id and total_input_tokens)"
        )
    counts = _acceptance(fields)
    extras = _extras(fields)
    concurrency = fields.whole("max_concurrency", minimum=1)
    num_prompts = fields.whole("num_prompts")
    rate = fields.number("request_rate", infinite=True)
    load = load_point(concurrency=concurrency, request_rate=rate, num_requests=num_prompts)
    lists = read_requests(fields)
    duration_s = fields.required("duration")
    asked = {k: _plain(v) for k, v in extras.items() if k.replace("-", "_") in _ASKED}
    return ImportedRun(
        name=name,
        knobs=hinted(_knobs(extras, counts), hints),
        target=hints.target or fields.text("model_id") or NOT_RECORDED,
        engine=hints.engine or "vllm",
        result=LoadResult(
            load=load,
            requests=lists.requests if lists else (),
            duration_s=duration_s,
            acceptance=counts,
            acceptance_source="counters" if counts is not None else None,
            totals=None if lists else _totals(fields, concurrency=load.concurrency),
        ),
        place=fields.place,
        flags=_arm_flags(extras),
        started_at=_date(fields),
        prompts=lists.prompts if lists else (),
        asked=tuple(sorted(asked.items())),
    )


def _acceptance(fields: Fields) -> AcceptanceCounts | None:
    """Counters of the whole server around the run."""
    drafts = fields.whole("spec_decode_num_drafts")
    drafted, accepted = fields.whole("spec_decode_draft_tokens"), fields.whole("spec_decode_accepted_tokens")
    if drafts is None or drafted is None or accepted is None:
        return None
    if accepted > drafted:
        raise BadInput(
            f"{fields.place}: spec_decode_accepted_tokens: {accepted} of only {drafted} spec_decode_draft_tokens"
        )
    rates = fields.numbers("spec_decode_per_position_acceptance_rates") or []
    known = [rate for rate in rates if rate is not None]
    positions = tuple(round(rate * drafts) for rate in known) if known and len(known) == len(rates) else None
    return AcceptanceCounts(
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        accepted_per_position=positions,
    )


def _extras(fields: Fields) -> dict[str, Any]:
    return {
        key: value
        for key, value in fields.values.items()
        if key not in _OWN
        and not key.startswith(("spec_decode_", "diffusion_", "probe_"))
        and not _LATENCY.fullmatch(key)
    }


def _knobs(extras: Mapping[str, Any], counts: AcceptanceCounts | None) -> Knobs:
    """From metadata, a sweep's ``speculative_config`` or dotted parts of it; else from the counts alone."""
    config = _speculative_config(extras)
    method = config.get("method")
    drafted = next((v for key in _TOKENS_KEYS if (v := _int(config.get(key))) is not None), None)
    if method is None and (drafted is not None or config.get("model")):
        method = UNKNOWN_METHOD
    if counts is not None and counts.num_drafts:
        method = method or UNKNOWN_METHOD
        drafted = drafted or _per_step(counts)
    if method in (None, "none"):
        return Knobs()
    drafter = config.get("model")
    return Knobs(
        method=str(method)[:80],
        drafter=str(drafter) if drafter else None,
        num_draft_tokens=drafted,
        num_steps=_int(config.get("num_steps")),
        topk=_int(config.get("topk")),
    )


def _speculative_config(extras: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in extras.items():
        name = key.replace("-", "_")
        if name == "speculative_config":
            found.update(_object(value))
        elif name.startswith("speculative_config."):
            found[name.split(".", 1)[1]] = value
        elif name in ("method", "num_steps", "topk", *_TOKENS_KEYS):
            found.setdefault(name, value)
        elif name == "draft_model":
            found.setdefault("model", value)
    return found


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _int(value: Any) -> int | None:
    try:
        number = int(str(value))
    except (TypeError, ValueError):
        return None
    return number if 1 <= number <= 4096 else None


def _per_step(counts: AcceptanceCounts) -> int | None:
    """Drafted tokens per verify step, where that is the same in all of them."""
    if counts.accepted_per_position:
        return len(counts.accepted_per_position)
    whole, rest = divmod(counts.num_draft_tokens, counts.num_drafts or 1)
    return whole if rest == 0 and whole else None


def _arm_flags(extras: Mapping[str, Any]) -> dict[str, FlagValue]:
    """Server settings that a sweep changed, and metadata; what speculation is made of is in the knobs."""
    flags: dict[str, FlagValue] = {}
    for key, value in extras.items():
        name = key.replace("-", "_")
        if name in _ASKED or name in _NOT_ABOUT_THE_ARM or name.startswith("speculative_config"):
            continue
        if name in ("method", "num_steps", "topk", "draft_model", *_TOKENS_KEYS):
            continue
        is_number = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
        flags[arm_name(key)] = value if is_number else _plain(value)
    return flags


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)[:2000]


def _date(fields: Fields) -> datetime | None:
    """The tool writes local time without a zone; taken as UTC."""
    try:
        return datetime.strptime(fields.text("date") or "", "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _totals(fields: Fields, *, concurrency: int | None) -> LoadTotals:
    completed, tokens = fields.whole("completed"), fields.whole("total_output_tokens")
    return LoadTotals(
        num_completed=completed,
        num_failed=fields.whole("failed"),
        prompt_tokens=fields.whole("total_input_tokens"),
        output_tokens=tokens,
        output_tok_per_s=fields.positive("output_throughput"),
        stream_tok_per_s=stream_speed(
            tokens=tokens,
            completed=completed,
            e2el_ms=fields.positive("mean_e2el_ms"),
            ttft_ms=fields.positive("mean_ttft_ms"),
            tpot_ms=fields.positive("mean_tpot_ms"),
            throughput=fields.positive("output_throughput") if concurrency == 1 else None,
        ),
    ).model_copy(update=latencies_s(fields))


def stream_speed(
    *,
    tokens: int | None,
    completed: int | None,
    e2el_ms: float | None,
    ttft_ms: float | None,
    tpot_ms: float | None,
    throughput: float | None,
) -> float | None:
    """What one stream saw on average: mean tokens / mean time of a request, from the best of what is known."""
    if not tokens or not completed:
        return throughput
    per_request = tokens / completed
    if e2el_ms is None and ttft_ms is not None and tpot_ms is not None:
        e2el_ms = ttft_ms + tpot_ms * max(0.0, per_request - 1)
    return throughput if e2el_ms is None else 1000 * per_request / e2el_ms


def latencies_s(fields: Fields) -> dict[str, float | None]:
    """In seconds; 0 is what tools write where they have no data."""
    found = {}
    for name in ("ttft", "tpot", "itl"):
        for statistic in ("median", "p99"):
            value = fields.positive(f"{statistic}_{name}_ms")
            found[f"{statistic}_{name}_s"] = None if value is None else value / 1000
    return found
