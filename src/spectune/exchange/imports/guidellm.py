"""guidellm's ``benchmarks.json`` (report version 2, read from guidellm 0.8): prompts and texts are in it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spectune.domain.acceptance import AcceptanceCounts, pool_counts
from spectune.domain.arm import Knobs
from spectune.domain.measurement import LoadResult, LoadTotals, RequestRecord
from spectune.domain.workload import LoadPoint, Prompt
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput
from spectune.exchange.imports.reading import Fields, SourceFile, json_documents, loads, numbered
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

TOOL = "guidellm"


def is_report(document: Any) -> bool:
    return (
        isinstance(document, dict) and isinstance(document.get("benchmarks"), list) and "metadata" in document
    )


def read_guidellm(sources: list[SourceFile], names: Mapping[Path, str], hints: ArmHints) -> ImportedResults:
    """One arm per file; its benchmarks (rates, streams) are load points."""
    results = ImportedResults(TOOL, sources, [])
    named = True
    for source in sources:
        for fields in numbered(json_documents(source), source):
            if not is_report(fields.values):
                raise BadInput(f"{fields.place}: is no guidellm report (no metadata and benchmarks)")
            metadata = fields.object("metadata")
            results.os = results.os or metadata.text("platform")
            for benchmark in fields.objects("benchmarks"):
                run = _run(benchmark, arm_name(names.get(source.path) or source.path.stem), hints)
                results.runs.append(run)
                named = named and bool(run.prompts)
    if named:
        results.unknown = ("machine", "sampling")
    results.missing.append("sampling parameters that are not in the requests")
    results.missing.append("gaps between chunks: their mean alone is there")
    if any(run.knobs.method == UNKNOWN_METHOD for run in results.runs):
        results.missing.append("the method of speculation (say it with --method)")
    elif hints.method is None:
        results.missing.append(
            "whether a server speculated, unless it reports acceptance per request (say it with --method)"
        )
    return results


def _run(benchmark: Fields, name: str, hints: ArmHints) -> ImportedRun:
    config = benchmark.object("config")
    requests = benchmark.object("requests")
    successful, errored = requests.objects("successful"), requests.objects("errored")
    start_s = benchmark.number("start_time", minimum=-math.inf)
    found = [_request(fields, start_s or 0.0, ok=True) for fields in successful]
    found += [_request(fields, start_s or 0.0, ok=False) for fields in errored]
    records, prompts = tuple(r for r, _ in found), tuple(p for _, p in found if p is not None)
    known = [r.acceptance for r in records if r.acceptance is not None]
    load = _load(config.object("strategy"), num_requests=len(records) or None)
    speculated = bool(known) or hints.method is not None
    return ImportedRun(
        name=name,
        knobs=hinted(Knobs(method=UNKNOWN_METHOD, num_draft_tokens=_drafted(known)), hints)
        if speculated and hints.method != "none"
        else Knobs(),
        target=hints.target or _model(config, successful) or NOT_RECORDED,
        engine=hints.engine or NOT_RECORDED,
        result=LoadResult(
            load=load,
            requests=records,
            duration_s=benchmark.number("duration") or 0.0,
            acceptance=pool_counts(known) if known and len(known) == len(successful) else None,
            acceptance_source="per-request" if known else None,
            totals=None if records else _totals(benchmark.object("metrics")),
        ),
        place=benchmark.place,
        started_at=None if start_s is None else _instant(start_s),
        prompts=prompts,
    )


def _instant(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None


def _load(strategy: Fields, *, num_requests: int | None) -> LoadPoint:
    kind = strategy.text("type_") or ""
    if kind == "synchronous":
        return LoadPoint.closed(1)
    streams = strategy.whole("streams", minimum=1) or strategy.whole("max_concurrency", minimum=1)
    rate = strategy.number("rate") if kind in ("constant", "poisson") else None
    return load_point(concurrency=streams, request_rate=rate, num_requests=num_requests)


def _model(config: Fields, successful: list[Fields]) -> str | None:
    body = _body(successful[0]) if successful else {}
    model = body.get("model")
    return model if isinstance(model, str) else config.object("backend").text("model")


def _body(fields: Fields) -> dict[str, Any]:
    """The request as it was sent; empty where the report left it out. Its headers may hold a key: not read."""
    arguments = fields.values.get("request_args")
    if isinstance(arguments, str):
        try:
            arguments = loads(arguments)
        except (ValueError, RecursionError):
            return {}
    body = arguments.get("body", arguments) if isinstance(arguments, dict) else None
    return body if isinstance(body, dict) else {}


def _request(fields: Fields, start_s: float, *, ok: bool) -> tuple[RequestRecord, Prompt | None]:
    prompt = _prompt(_body(fields))
    ttft_ms = fields.number("time_to_first_token_ms")
    began_s = fields.number("request_start_time", minimum=-math.inf)
    tokens = fields.whole("output_tokens")
    info = fields.object("info")
    error = None if ok and tokens else (info.text("error") or ("no token came" if ok else "failed"))
    return (
        RequestRecord(
            prompt_id=prompt.prompt_id if prompt else str(fields.text("request_id") or "?"),
            start_s=0.0 if began_s is None else began_s - start_s,
            ttft_s=None if ttft_ms is None else ttft_ms / 1000,
            latency_s=_latency(fields, info),
            prompt_tokens=fields.whole("prompt_tokens"),
            output_tokens=tokens,
            cached_tokens=fields.whole("cached_tokens"),
            text=fields.text("output") or "",
            error=error,
            acceptance=_acceptance(fields) if ok else None,
        ),
        prompt,
    )


def _latency(fields: Fields, info: Fields) -> float | None:
    """To the last token, as everywhere in spectune; the end of the request where that is not there."""
    timings = info.object("timings")
    start_s = timings.number("request_start", minimum=-math.inf)
    last_s = timings.number("last_token_iteration", minimum=-math.inf)
    if start_s is not None and last_s is not None and last_s > start_s:
        return last_s - start_s
    return fields.positive("request_latency")


def _acceptance(fields: Fields) -> AcceptanceCounts | None:
    """vLLM's ``metrics`` object, passed through by guidellm."""
    metrics = fields.values.get("response_metrics")
    if not isinstance(metrics, dict):
        return None
    try:
        return adapter_for("vllm").read_final([{"metrics": metrics}]).acceptance
    except ValueError as error:
        raise BadInput(f"{fields.place}: response_metrics: {' '.join(str(error).split())[:200]}") from error


def _drafted(counts: list[AcceptanceCounts]) -> int | None:
    widths = [len(c.accepted_per_position) for c in counts if c.accepted_per_position]
    return max(widths, default=0) or None


def _prompt(body: dict[str, Any]) -> Prompt | None:
    """From the body; its name is a hash of its text, so that it is the same in every file."""
    messages = body.get("messages")
    turns: list[str] = []
    system = None
    if isinstance(messages, list):
        for message in messages:
            if not isinstance(message, dict):
                continue
            text = _content(message.get("content"))
            if message.get("role") == "system":
                system = text
            elif message.get("role") == "user" and text:
                turns.append(text)
    elif isinstance(body.get("prompt"), str):
        turns.append(body["prompt"])
    if not turns:
        return None
    key = hashlib.sha256(json.dumps([system, turns]).encode()).hexdigest()[:12]
    return Prompt(prompt_id=key, turns=tuple(turns), system=system)


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(p.get("text", "")) for p in parts if isinstance(p, dict))


def _totals(metrics: Fields) -> LoadTotals:
    """Of a report without single requests (``sample_size`` 0): distributions of the successful ones."""

    def statistic(name: str, which: str) -> float | None:
        return metrics.object(name).object("successful").positive(which)

    latency_s, tokens = statistic("request_latency", "mean"), statistic("output_token_count", "mean")
    count = metrics.object("request_totals")
    ttft, itl = "time_to_first_token_ms", "inter_token_latency_ms"
    ttft_ms, itl_ms = statistic(ttft, "median"), statistic(itl, "median")
    total = statistic("output_token_count", "total_sum")
    return LoadTotals(
        num_completed=count.whole("successful"),
        num_failed=count.whole("errored"),
        output_tokens=None if total is None else round(total),
        output_tok_per_s=statistic("output_tokens_per_second", "mean"),
        stream_tok_per_s=None if latency_s is None or tokens is None else tokens / latency_s,
        median_ttft_s=None if ttft_ms is None else ttft_ms / 1000,
        median_tpot_s=None if itl_ms is None else itl_ms / 1000,
    )
