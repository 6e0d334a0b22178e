"""One load point with the field names and definitions of ``vllm bench serve --save-result``.

Read from vLLM 0.32: latencies in ms with population standard deviation and
linear percentiles, ITL between chunks, TPOT = (E2EL - TTFT) / (tokens - 1) of
requests with more than one token, ``spec_decode_acceptance_rate`` in percent.
What is unknown is null, where vLLM would write 0. Ours is under ``spectune``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from spectune.analysis import pooling
from spectune.analysis.words import SIMULATED
from spectune.domain.acceptance import AcceptanceCounts, request_weighted_acceptance_length
from spectune.domain.interval import Interval
from spectune.domain.measurement import LoadResult, RequestRecord
from spectune.domain.trial import Trial

_BACKENDS = {"chat": "openai-chat", "completions": "openai"}


def vllm_bench_result(
    trial: Trial, load_index: int = 0, *, api: Literal["chat", "completions"] | None = None
) -> dict[str, Any]:
    """``api`` gives ``backend`` its vLLM word; a trial does not record it."""
    load = trial.loads[load_index]
    backend = _BACKENDS.get(api) if api is not None else None
    return {
        "date": _date(trial.started_at),
        "endpoint_type": backend,
        "backend": backend,
        "label": trial.arm.name,
        "model_id": (trial.server.model if trial.server else None) or trial.arm.target,
        "tokenizer_id": None,
        "num_prompts": len(load.requests),
        "request_rate": load.load.request_rate if load.load.shape == "open" else "inf",
        "burstiness": 1.0,
        "max_concurrency": None if load.load.shape == "open" else load.load.streams,
        "duration": load.duration_s,
        "completed": len(load.completed),
        "failed": len(load.failed),
        **_throughput(load),
        **_latencies(load.completed),
        **_speculation(pooling.pooled_acceptance([load])),
        "spectune": _ours(trial, load),
    }


def _date(started_at: str) -> str | None:
    try:
        return datetime.fromisoformat(started_at).strftime("%Y%m%d-%H%M%S")
    except ValueError:
        return None


def _total(values: Sequence[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def _throughput(load: LoadResult) -> dict[str, Any]:
    inputs = _total([r.prompt_tokens for r in load.completed])
    outputs = _total([r.output_tokens for r in load.completed])
    both = None if inputs is None or outputs is None else inputs + outputs

    def per_s(amount: int | None) -> float | None:
        return None if amount is None or load.duration_s <= 0 else amount / load.duration_s

    return {
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": per_s(len(load.completed)),
        "request_goodput": None,
        "output_throughput": per_s(outputs),
        "total_token_throughput": per_s(both),
        "max_output_tokens_per_s": _peak_tok_per_s(load.completed),
        "max_concurrent_requests": _peak_concurrency(load.completed),
    }


def _peak_tok_per_s(requests: Sequence[RequestRecord]) -> float | None:
    """The fullest whole second. A request's tokens are spread evenly over its chunks, where vLLM
    counts a chunk as one token; with one token per chunk the two are equal."""
    buckets: dict[int, float] = {}
    for first_s, request in _since_first_start(requests):
        if request.ttft_s is None or request.output_tokens is None:
            return None
        tokens_per_chunk = request.output_tokens / (1 + len(request.chunk_gaps_s))
        moment_s = first_s + request.ttft_s
        for gap_s in (0.0, *request.chunk_gaps_s):
            moment_s += gap_s
            buckets[int(moment_s)] = buckets.get(int(moment_s), 0.0) + tokens_per_chunk
    return max(buckets.values(), default=None)


def _peak_concurrency(requests: Sequence[RequestRecord]) -> int | None:
    """Most requests that touched one whole second, as vLLM counts; never fewer than were in flight."""
    buckets: dict[int, int] = {}
    for start_s, request in _since_first_start(requests):
        if request.latency_s is None:
            return None
        for second in range(int(start_s), int(start_s + request.latency_s) + 1):
            buckets[second] = buckets.get(second, 0) + 1
    return max(buckets.values(), default=None)


def _since_first_start(requests: Sequence[RequestRecord]) -> list[tuple[float, RequestRecord]]:
    first_s = min((r.start_s for r in requests), default=0.0)
    return [(r.start_s - first_s, r) for r in requests]


def _latencies(requests: Sequence[RequestRecord]) -> dict[str, float | None]:
    tpots_s = [
        (r.latency_s - r.ttft_s) / (r.output_tokens - 1)
        for r in requests
        if r.latency_s is not None and r.ttft_s is not None and r.output_tokens and r.output_tokens > 1
    ]
    samples: Mapping[str, Sequence[float]] = {
        "ttft": [r.ttft_s for r in requests if r.ttft_s is not None],
        "tpot": tpots_s,
        "itl": [gap for r in requests for gap in r.chunk_gaps_s],
        "e2el": [r.latency_s for r in requests if r.latency_s is not None],
    }
    fields: dict[str, float | None] = {}
    for name, values_s in samples.items():
        ms = [1000 * value for value in values_s]
        fields[f"mean_{name}_ms"] = math.fsum(ms) / len(ms) if ms else None
        fields[f"median_{name}_ms"] = pooling.percentile(ms, 50)
        fields[f"std_{name}_ms"] = statistics.pstdev(ms) if ms else None
        fields[f"p99_{name}_ms"] = pooling.percentile(ms, 99)
    return fields


def _speculation(counts: AcceptanceCounts | None) -> dict[str, Any]:
    drafted = counts is not None and counts.num_draft_tokens > 0
    known = counts if drafted else None
    rate = known.acceptance_rate if known else None
    marginal = known.marginal_acceptance if known else None
    return {
        "spec_decode_acceptance_rate": None if rate is None else 100 * rate,
        "spec_decode_acceptance_length": known.acceptance_length if known else None,
        "spec_decode_num_drafts": known.num_drafts if known else None,
        "spec_decode_draft_tokens": known.num_draft_tokens if known else None,
        "spec_decode_accepted_tokens": known.num_accepted_tokens if known else None,
        "spec_decode_per_position_acceptance_rates": None if marginal is None else list(marginal),
    }


def _ours(trial: Trial, load: LoadResult) -> dict[str, Any]:
    """Per prompt geometric means with intervals, both weightings of acceptance, and what casts doubt."""
    counts, parts = pooling.pooled_acceptance([load]), pooling.request_acceptance([load])
    level = 0.95
    conditional = counts.conditional_acceptance if counts else None
    return {
        "trial_id": trial.trial_id,
        "arm_id": trial.arm_id,
        "arm": trial.arm.name,
        "engine": trial.arm.engine,
        "engine_version": trial.server.version if trial.server else None,
        "status": trial.status,
        "simulated": trial.simulated,
        "note": SIMULATED if trial.simulated else None,
        "load": load.load.label,
        "e2e_tok_per_s": _dump(pooling.pooled_speed([load], pooling.end_to_end, level=level)),
        "decode_tok_per_s": _dump(pooling.pooled_speed([load], pooling.decode, level=level)),
        "acceptance_length": _dump(pooling.acceptance_length(counts, [load], level=level)),
        "request_weighted_acceptance_length": request_weighted_acceptance_length(parts),
        "acceptance_source": load.acceptance_source,
        "conditional_per_position": None if conditional is None else list(conditional),
        "cached_token_frac": pooling.cached_token_frac([load]),
        "foreign_tokens": load.foreign_tokens,
        "client_cpu_s": load.client_cpu_s,
        "max_loop_lag_s": load.max_loop_lag_s,
        "peak_in_flight": load.peak_in_flight,
        "peak_running": load.peak_running,
        "peak_waiting": load.peak_waiting,
        "steady_frac": pooling.steady_frac([load]),
    }


def _dump(interval: Interval | None) -> dict[str, Any] | None:
    return interval.model_dump(mode="json") if interval is not None else None
