"""From what a draft would have proposed at each start to what a server would have counted. No torch.

A *chain* of K drafted tokens is kept up to the first that is not the target's. With the kept ones known for
every start, serving is a walk: from a start with n tokens kept, the next step begins n + 1 further on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spectune.domain.acceptance import AcceptanceCounts, pool_counts
from spectune.drafter.train.rows import Ints

CONTEXT_EDGES = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True)
class Kept:
    """One prompt: how many drafted tokens the target would keep, had a step begun at each start."""

    starts: Ints
    lengths: Ints
    """``[s]``: kept at start s, at most the number drafted."""


@dataclass(frozen=True)
class Steps:
    """Verify steps of one prompt, in order."""

    starts: Ints
    kept: Ints

    def counts(self, *, num_drafted: int) -> AcceptanceCounts:
        return counts_of(self.kept, num_drafted=num_drafted)


def kept_lengths(matches_SK: Ints) -> Ints:
    """How many matches stand before the first mismatch, along the last axis."""
    kept: Ints = np.cumprod(matches_SK, axis=-1).sum(axis=-1)
    return kept


def walk(kept: Kept, *, depth: int) -> Steps:
    """The steps an engine takes that drafts ``depth`` tokens deep."""
    lengths = np.minimum(kept.lengths, depth)
    visited = []
    s = 0
    while s < len(kept.starts):
        visited.append(s)
        after = kept.starts[s] + lengths[s] + 1
        s = int(np.searchsorted(kept.starts, after))
    chosen = np.asarray(visited, np.int64)
    return Steps(kept.starts[chosen], lengths[chosen])


def counts_of(kept: Ints, *, num_drafted: int, depth: int | None = None) -> AcceptanceCounts:
    """``num_drafted`` tokens a step, of which at most ``depth`` (chains: all) can be kept."""
    histogram = np.bincount(kept, minlength=(depth or num_drafted) + 1)
    return AcceptanceCounts.from_histogram(
        [int(n) for n in histogram], num_draft_tokens=num_drafted * len(kept)
    )


def held_out(kept: Sequence[Kept], *, num_steps: int) -> tuple[tuple[float, ...] | None, float | None]:
    """Acceptance length with 1, 2, ... drafted tokens, and the share of first ones kept; ``None``: none was drafted."""
    pooled = [
        pool_counts(walk(some, depth=depth).counts(num_drafted=depth) for some in kept)
        for depth in range(1, num_steps + 1)
    ]
    lengths = tuple(
        n for counts in pooled if counts is not None and (n := counts.acceptance_length) is not None
    )
    if not lengths:
        return None, None
    first = np.concatenate([some.lengths for some in kept])
    return lengths, float((first > 0).mean())


def by_context(steps: Iterable[Steps], *, num_drafted: int, depth: int) -> dict[str, AcceptanceCounts]:
    """Counts by the number of tokens known when the step began: ``"128-255"``, ``"256-511"``, ..."""
    some = list(steps)
    known = np.concatenate([s.starts for s in some] or [np.zeros(0, np.int64)]) + 2
    kept = np.concatenate([s.kept for s in some] or [np.zeros(0, np.int64)])
    bucket = np.searchsorted(CONTEXT_EDGES, known, "right") - 1
    return {
        _range_name(int(b)): counts_of(kept[bucket == b], num_drafted=num_drafted, depth=depth)
        for b in np.unique(bucket)
    }


def _range_name(bucket: int) -> str:
    first = CONTEXT_EDGES[bucket]
    return f"{first}-{CONTEXT_EDGES[bucket + 1] - 1}" if bucket + 1 < len(CONTEXT_EDGES) else f"{first}-"
