"""Waiting times of a load point: the median, and of the tail what so many values can tell."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from spectune.analysis import pooling
from spectune.domain.measurement import LoadResult
from spectune.domain.steady import window_of

LEAST_FOR_P99 = 100
"""With fewer values the 99th percentile is a guess between the two largest."""


def latencies(loads: Sequence[LoadResult]) -> dict[str, float | None]:
    """The fields ``median_``, ``p99_`` and ``largest_`` of ``LoadSummary``, by name."""
    steady = [request for load in loads for request in pooling.steady_requests(load)]
    gaps_s = array("d")
    for request in steady:
        gaps_s.extend(request.chunk_gaps_s)
    values = {
        "ttft_s": array("d", _first_waits(loads)),
        "tpot_s": array("d", (r.tpot_s for r in steady if r.tpot_s is not None)),
        "itl_s": gaps_s,
    }
    fields: dict[str, float | None] = {}
    for name, seen in values.items():
        if seen:
            np.frombuffer(seen).sort()  # in place: of many requests there are millions of gaps
        enough = len(seen) >= LEAST_FOR_P99
        fields[f"median_{name}"] = (
            pooling.ranked(seen, 50) if seen else pooling.stated(loads, f"median_{name}")
        )
        fields[f"p99_{name}"] = (
            pooling.ranked(seen, 99) if enough else None if seen else pooling.stated(loads, f"p99_{name}")
        )
        fields[f"largest_{name}"] = seen[-1] if seen else None
    return fields


def _first_waits(loads: Sequence[LoadResult]) -> list[float]:
    """At c > 1 of requests that were sent to a full server: those of the start wait for each other."""
    waits = []
    for load in loads:
        window = window_of(load)
        steady = pooling.steady_requests(load)
        later = [r for r in steady if window is not None and r.start_s > window.start_s]
        waits += [r.ttft_s for r in later or steady if r.ttft_s is not None]
    return waits
