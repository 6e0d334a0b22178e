"""Acceptance by context length: the tokens before a request's answer, earlier turns included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spectune.analysis import pooling
from spectune.analysis.records import ContextSummary
from spectune.domain.measurement import LoadResult

MIN_REQUESTS = 2
"""Different prompts and turns in a range; a range with fewer joins its neighbour."""
MAX_RANGES = 8
_FEW = 3
Range = tuple[int, int]
"""From, and up to but without."""


def context_ranges(loads: Iterable[LoadResult]) -> tuple[Range, ...]:
    """Ranges with round ends that hold the requests of all arms; fewer than two: all contexts are about as long.

    Powers of two, and the steps half-way between them where those leave fewer than three ranges.
    """
    seen = {
        (r.prompt_id, r.turn): r.prompt_tokens for load in loads for r in load.completed if r.prompt_tokens
    }
    lengths = sorted(seen.values())
    if not lengths:
        return ()
    powers = [2**i for i in range(lengths[-1].bit_length() + 1)]
    groups = _grouped(lengths, powers)
    if len(groups) < _FEW:
        powers = sorted({edge for power in powers for edge in (power, power * 3 // 2)})
        groups = _grouped(lengths, powers)
    while len(groups) > MAX_RANGES:
        groups = [groups[0] + groups[1], *groups[2:]]
    return tuple(
        (max(e for e in powers if e <= group[0]), min(e for e in powers if e > group[-1])) for group in groups
    )


def _grouped(lengths: Sequence[int], edges: Sequence[int]) -> list[list[int]]:
    """Sorted lengths between neighbouring edges, joined where a group would hold too few."""
    groups: list[list[int]] = []
    at = 0
    for edge in edges[1:]:
        group = []
        while at < len(lengths) and lengths[at] < edge:
            group.append(lengths[at])
            at += 1
        if group and groups and len(groups[-1]) < MIN_REQUESTS:
            groups[-1] += group
        elif group:
            groups.append(group)
    if len(groups) > 1 and len(groups[-1]) < MIN_REQUESTS:
        groups[-2:] = [groups[-2] + groups[-1]]
    return groups


def summarize_contexts(
    loads: Sequence[LoadResult], ranges: Sequence[Range], *, level: float
) -> tuple[ContextSummary, ...]:
    """One arm's acceptance length in each range; nothing where requests do not carry their own acceptance."""
    if len(ranges) < 2:
        return ()
    rows = []
    for low, high in ranges:
        within = [_only(load, low, high) for load in loads]
        length = pooling.acceptance_length(pooling.pooled_acceptance(within), within, level=level)
        rows.append(
            ContextSummary(
                min_tokens=low,
                max_tokens=high - 1,
                num_requests=sum(len(load.completed) for load in within),
                acceptance_length=length,
            )
        )
    return tuple(rows) if any(row.acceptance_length is not None for row in rows) else ()


def _only(load: LoadResult, low: int, high: int) -> LoadResult:
    """The load point with the requests of one range; totals of the whole load are dropped."""
    return LoadResult(
        load=load.load,
        requests=tuple(
            r for r in load.requests if r.prompt_tokens is not None and low <= r.prompt_tokens < high
        ),
        duration_s=load.duration_s,
    )
