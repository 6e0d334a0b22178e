"""A server's process-wide counters around our own requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.measurement import RequestRecord, ServerCounters
from spectune.errors import TransportError

ReadCounters = Callable[[], Awaitable[ServerCounters | None]]

_READ_TIMEOUT_S = 5.0
_CATCH_UP_S = 2.0
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1


class CounterReader:
    """Reads counters, and waits for an engine that publishes them late."""

    def __init__(self, read: ReadCounters | None) -> None:
        self._read = read

    async def now(self) -> ServerCounters | None:
        """The counters, or ``None`` if they cannot be had."""
        if self._read is None:
            return None
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                return await self._read()
        except (TransportError, TimeoutError):
            return None

    async def caught_up(self, before: ServerCounters | None, own_tokens: int | None) -> ServerCounters | None:
        """The counters once they show ``own_tokens`` more than ``before``, or as they are after 2 s."""
        deadline = perf_counter() + _CATCH_UP_S
        pause_s = _FIRST_PAUSE_S
        while True:
            after = await self.now()
            generated = tokens_between(before, after)
            behind = generated is not None and own_tokens is not None and generated < own_tokens
            if not behind or perf_counter() + pause_s > deadline:
                return after
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def own_output_tokens(records: Iterable[RequestRecord]) -> int | None:
    """All tokens generated for ``records``; unknown if one failed or came without ``usage``."""
    total = 0
    for record in records:
        if not record.ok or record.output_tokens is None:
            return None
        total += record.output_tokens
    return total


def tokens_between(before: ServerCounters | None, after: ServerCounters | None) -> int | None:
    """Tokens generated between two readings; ``None`` if unknown or if the counter went back (a restart)."""
    if before is None or after is None or before.generation_tokens is None or after.generation_tokens is None:
        return None
    difference = after.generation_tokens - before.generation_tokens
    return difference if difference >= 0 else None


def acceptance_between(
    before: ServerCounters | None, after: ServerCounters | None
) -> AcceptanceCounts | None:
    """Speculation between two readings.

    ``None`` without counters and after a restart. Counters that stand still are
    zero verify steps, whose acceptance length is unknown: plain decoding, or a
    drafter that never found anything to propose.
    """
    if before is None or after is None or after.acceptance is None:
        return None
    late = after.acceptance
    early = before.acceptance or AcceptanceCounts(num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0)
    drafts = None if late.num_drafts is None else late.num_drafts - (early.num_drafts or 0)
    drafted = late.num_draft_tokens - early.num_draft_tokens
    accepted = late.num_accepted_tokens - early.num_accepted_tokens
    per_position = _positions_between(early, late)
    if min(drafted, accepted, drafts or 0, *(per_position or ())) < 0 or accepted > drafted:
        return None
    return AcceptanceCounts(
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        accepted_per_position=per_position,
    )


def _positions_between(early: AcceptanceCounts, late: AcceptanceCounts) -> tuple[int, ...] | None:
    if late.accepted_per_position is None or (early.accepted_per_position is None and early.num_draft_tokens):
        return None
    started = early.accepted_per_position or ()
    padded = (*started, *(0,) * (len(late.accepted_per_position) - len(started)))
    return tuple(kept - was for kept, was in zip(late.accepted_per_position, padded, strict=False))
