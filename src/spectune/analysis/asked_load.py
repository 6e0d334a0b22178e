"""Was the load that was asked for the one that was measured?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spectune.analysis import finding_kinds as kinds
from spectune.analysis.words import listing
from spectune.domain.findings import Finding
from spectune.domain.measurement import LoadResult
from spectune.domain.saturation import arrival_surplus
from spectune.domain.trial import Trial

_MOST_SHOWN = 8
_HELD = 0.9
"""Of the concurrency: a server's gauge is read a few times only."""


def loads_not_reached(trials: Sequence[Trial]) -> Iterable[Finding]:
    seen = [(t.arm.name, told) for t in trials for load in t.loads if (told := _shortfall(load)) is not None]
    if seen:
        yield kinds.LOAD_NOT_REACHED.found(
            listing(dict.fromkeys(name for name, _ in seen)),
            f"fewer requests ran at once than the load says: {seen[0][1]}",
            evidence=seen[:_MOST_SHOWN],
        )


def over_saturated(trials: Sequence[Trial]) -> Iterable[Finding]:
    """Such loads have no speed and no comparison: see ``pooling.speed_by_prompt``."""
    seen = [
        (t.arm.name, f"at {load.load.label} latency grew by {surplus:.2g} s each second")
        for t in trials
        for load in t.loads
        if (surplus := arrival_surplus(load)) is not None
    ]
    if seen:
        yield kinds.OVER_SATURATED.found(
            listing(dict.fromkeys(name for name, _ in seen)),
            "more requests arrived than were answered; no speed is given at that rate",
            evidence=seen[:_MOST_SHOWN],
        )


def _shortfall(load: LoadResult) -> str | None:
    asked = load.load.concurrency
    if asked is None or load.cut_short:
        return None
    if load.peak_in_flight is not None and load.peak_in_flight < asked:
        return f"at most {load.peak_in_flight} in flight at {load.load.label}"
    if load.peak_running is not None and load.peak_waiting and load.peak_running < _HELD * asked:
        return (
            f"the server ran at most {load.peak_running} at once at {load.load.label}, and up to "
            f"{load.peak_waiting} waited"
        )
    return None
