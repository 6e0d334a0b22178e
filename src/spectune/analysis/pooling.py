"""Figures of one load point, pooled over the trials of an arm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from spectune.domain.acceptance import AcceptanceCounts, pool_counts
from spectune.domain.interval import Interval
from spectune.domain.measurement import LoadResult, LoadTotals, RequestRecord
from spectune.domain.saturation import arrival_surplus
from spectune.domain.steady import SteadyWindow, steady_span, window_of
from spectune.domain.trial import Trial
from spectune.domain.workload import LoadPoint
from spectune.statistics.intervals import (
    acceptance_length_interval,
    geometric_mean_interval,
    mean_interval,
)

Speed = Callable[[RequestRecord, SteadyWindow | None], float | None]

ALL_PROMPTS = "*"
"""Stands for a prompt where an imported result has one figure for all of them."""


def end_to_end(request: RequestRecord, window: SteadyWindow | None = None) -> float | None:
    return request.e2e_tok_per_s if window is None else window.e2e_tok_per_s(request)


def decode(request: RequestRecord, window: SteadyWindow | None = None) -> float | None:
    return request.decode_tok_per_s if window is None else window.decode_tok_per_s(request)


def steady_requests(load: LoadResult) -> tuple[RequestRecord, ...]:
    """Those that were answered mostly in the steady state, where there is one to be told from the rest."""
    window = window_of(load)
    return load.completed if window is None else tuple(r for r in load.completed if window.has_most_of(r))


def steady_frac(loads: Sequence[LoadResult]) -> float | None:
    """Of the loads' time, the share that counts; ``None`` where all of it does."""
    spans = [span for load in loads if (span := load.steady or steady_span(load)) is not None]
    return math.fsum(s.frac for s in spans) / len(spans) if spans and len(spans) == len(loads) else None


def load_of(trial: Trial, point: LoadPoint) -> LoadResult | None:
    """The trial's result at ``point``."""
    return next((load for load in trial.loads if load.load == point), None)


def percentile(values: Sequence[float], q: float) -> float | None:
    """``q`` in 0..100, linear between ranks, as numpy's default; ``None`` for no values."""
    return ranked(sorted(values), q) if values else None


def ranked(ordered: Sequence[float], q: float) -> float:
    """The same of at least one value in order."""
    rank = (len(ordered) - 1) * q / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def speed_by_prompt(loads: Iterable[LoadResult], speed: Speed = end_to_end) -> dict[str, float]:
    """Geometric mean per prompt, over its turns, its repetitions and the trials; at c > 1 in the steady state."""
    logs: dict[str, list[float]] = {}
    for load in loads:
        if arrival_surplus(load) is not None:
            continue  # its requests say how long the load lasted
        if load.totals is not None and not load.requests and speed is end_to_end:
            for group, stated_speed in _stated_speeds(load.totals).items():
                logs.setdefault(group, []).append(math.log(stated_speed))
        window = window_of(load)
        for request in load.completed:
            value = speed(request, window)
            if value is not None and value > 0:
                logs.setdefault(request.prompt_id, []).append(math.log(value))
    return {prompt: math.exp(math.fsum(values) / len(values)) for prompt, values in logs.items()}


def _stated_speeds(totals: LoadTotals) -> dict[str, float]:
    if totals.stream_tok_per_s_by_group:
        return totals.stream_tok_per_s_by_group
    return {} if totals.stream_tok_per_s is None else {ALL_PROMPTS: totals.stream_tok_per_s}


def pooled_speed(loads: Sequence[LoadResult], speed: Speed, *, level: float) -> Interval | None:
    values = list(speed_by_prompt(loads, speed).values())
    return geometric_mean_interval(values, unit="tok/s", level=level)


def output_tok_per_s(loads: Sequence[LoadResult]) -> float | None:
    """All output tokens of all trials / the sum of their durations; at c > 1 in the steady state."""
    totals = [load.totals for load in loads if load.totals is not None and not load.requests]
    if totals and len(totals) == len(loads):
        rates = [t.output_tok_per_s for t in totals if t.output_tok_per_s is not None]
        return math.fsum(rates) / len(rates) if len(rates) == len(totals) else None
    tokens: list[float | None] = []
    duration_s = 0.0
    for load in loads:
        window = window_of(load)
        duration_s += load.duration_s if window is None else window.end_s - window.start_s
        tokens += [r.output_tokens if window is None else window.tokens(r) for r in load.completed]
    known = [t for t in tokens if t is not None]
    if not known or len(known) != len(tokens) or duration_s <= 0:
        return None
    return math.fsum(known) / duration_s


def pooled_acceptance(loads: Sequence[LoadResult]) -> AcceptanceCounts | None:
    """Of the load points where it is known: the load's own total, else the sum over its requests."""
    parts = [load.acceptance or pool_counts(request_acceptance([load])) for load in loads]
    return pool_counts(part for part in parts if part is not None)


def request_acceptance(loads: Iterable[LoadResult]) -> list[AcceptanceCounts]:
    """Each completed request's own counts, where known."""
    return [r.acceptance for load in loads for r in load.completed if r.acceptance is not None]


def acceptance_by_prompt(loads: Iterable[LoadResult]) -> list[AcceptanceCounts]:
    """Counts of each prompt over all its answers, where known: greedy answers repeat, and tell nothing new."""
    by_prompt: dict[str, list[AcceptanceCounts]] = {}
    for load in loads:
        for request in load.completed:
            if request.acceptance is not None and request.acceptance.num_drafts is not None:
                by_prompt.setdefault(request.prompt_id, []).append(request.acceptance)
    return [counts for parts in by_prompt.values() if (counts := pool_counts(parts)) is not None]


def acceptance_length(
    total: AcceptanceCounts | None, loads: Sequence[LoadResult], *, level: float
) -> Interval | None:
    """The length of ``total``; its interval comes from the prompts, and only if they add up to ``total``."""
    if total is None or total.acceptance_length is None:
        return None
    with_steps = acceptance_by_prompt(loads)
    summed = pool_counts(with_steps)
    if summed is not None and (summed.num_drafts, summed.num_accepted_tokens) == (
        total.num_drafts,
        total.num_accepted_tokens,
    ):
        interval = acceptance_length_interval(with_steps, level=level)
        if interval is not None:
            return interval
    return Interval(
        value=total.acceptance_length,
        low=None,
        high=None,
        level=level,
        n=max(1, len(request_acceptance(loads))),
        unit="tokens/step",
    )


def stated_acceptance_length(loads: Sequence[LoadResult], *, level: float) -> Interval | None:
    """The mean of what imported results say of it, where they give no counts."""
    lengths = [
        t.acceptance_length for load in loads if (t := load.totals) and t.acceptance_length is not None
    ]
    return mean_interval(lengths, unit="tokens/step", level=level)


def stated(loads: Sequence[LoadResult], field: str) -> float | None:
    """The mean over imported results of one of their figures; ``None`` unless each has it."""
    values = [None if load.totals is None else getattr(load.totals, field) for load in loads]
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def num_requests(load: LoadResult) -> int:
    """Also of an imported result without single requests."""
    if load.totals is None or load.requests:
        return len(load.requests)
    return (load.totals.num_completed or 0) + (load.totals.num_failed or 0)


def num_failed_requests(load: LoadResult) -> int:
    return len(load.failed) if load.totals is None or load.requests else load.totals.num_failed or 0


def decode_steps(loads: Sequence[LoadResult], total: AcceptanceCounts | None) -> int | None:
    """Forward passes after the prompt: each yields one token of the target's own beside the kept drafts."""
    requests = [request for load in loads for request in load.completed]
    tokens = [request.output_tokens for request in requests]
    known = [t for t in tokens if t is not None]
    if total is None or not known or len(known) != len(tokens):
        return None
    steps = sum(known) - len(requests) - total.num_accepted_tokens
    return steps if steps > 0 else None


def tokens_per_decode_step(loads: Sequence[LoadResult], total: AcceptanceCounts | None) -> float | None:
    steps = decode_steps(loads, total)
    if steps is None or total is None:
        return None
    return (steps + total.num_accepted_tokens) / steps


def verify_step_frac(loads: Sequence[LoadResult], total: AcceptanceCounts | None) -> float | None:
    """At most 1: a draft cut off by the token limit makes the passes look fewer than the verify steps."""
    steps = decode_steps(loads, total)
    if steps is None or total is None or total.num_drafts is None:
        return None
    return min(1.0, total.num_drafts / steps)


def cached_token_frac(loads: Iterable[LoadResult]) -> float | None:
    known = [
        (r.cached_tokens, r.prompt_tokens)
        for load in loads
        for r in load.completed
        if r.cached_tokens is not None and r.prompt_tokens
    ]
    prompt_tokens = sum(prompt for _, prompt in known)
    return sum(cached for cached, _ in known) / prompt_tokens if prompt_tokens else None


def foreign_tokens(loads: Iterable[LoadResult]) -> int | None:
    known = [load.foreign_tokens for load in loads if load.foreign_tokens is not None]
    return sum(known) if known else None


def tokens_by_prompt(loads: Iterable[LoadResult]) -> dict[str, float]:
    """Mean output tokens of each prompt's requests."""
    totals: dict[str, list[int]] = {}
    for load in loads:
        for request in load.completed:
            if request.output_tokens is not None:
                totals.setdefault(request.prompt_id, []).append(request.output_tokens)
    return {prompt: sum(tokens) / len(tokens) for prompt, tokens in totals.items()}


def output_length_ratio(ours: Mapping[str, float], baseline: Mapping[str, float]) -> float | None:
    """Output tokens against the baseline's, over the prompts in both."""
    shared = ours.keys() & baseline.keys()
    total = math.fsum(baseline[p] for p in shared)
    return math.fsum(ours[p] for p in shared) / total if total else None


def only(loads: Sequence[LoadResult], category: str) -> list[LoadResult]:
    """The same load points with the requests of one category; totals of the whole load are dropped."""
    return [
        LoadResult(
            load=load.load,
            requests=tuple(r for r in load.requests if r.category == category),
            duration_s=load.duration_s,
            steady=load.steady if load.steady is not None else steady_span(load),
        )
        for load in loads
    ]
