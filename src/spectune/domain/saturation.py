"""Open loop beyond capacity: a server that answers fewer requests than arrive falls behind without end.

Each request then waits longer than the one before, and a speed taken of them says how long the load lasted.
"""

from __future__ import annotations

import math

from spectune.domain.measurement import LoadResult

LEAST_REQUESTS = 16
_LEAST_GROWTH = 0.2
"""Seconds of latency per second: answered are at most 1 / 1.2 of the requests that arrive."""
_LEAST_SURENESS = 4.0
"""Standard errors; latencies of neighbours are alike, so that the usual two would cry wolf."""


def arrival_surplus(load: LoadResult) -> float | None:
    """By how much arrivals outrun answers (1.0: twice as many); ``None`` where the server keeps up."""
    if load.load.shape != "open":
        return None
    seen = [(r.start_s, r.latency_s) for r in load.completed if r.latency_s is not None]
    if len(seen) < LEAST_REQUESTS:
        return None
    mean_x, mean_y = (math.fsum(column) / len(seen) for column in zip(*seen, strict=True))
    spread = math.fsum((x - mean_x) ** 2 for x, _ in seen)
    if spread == 0:
        return None
    growth = math.fsum((x - mean_x) * (y - mean_y) for x, y in seen) / spread
    left = math.fsum((y - mean_y - growth * (x - mean_x)) ** 2 for x, y in seen)
    error = math.sqrt(left / (len(seen) - 2) / spread)
    return growth if growth > _LEAST_GROWTH and growth > _LEAST_SURENESS * error else None
