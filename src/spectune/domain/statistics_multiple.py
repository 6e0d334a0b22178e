"""Several arms against one baseline: the stated error rate holds for the whole table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from spectune.domain.statistics import Comparison, around, judge


def simultaneous(
    comparisons: Mapping[str, Comparison], *, margin: float, looks: int = 1
) -> dict[str, Comparison]:
    """The same comparisons with intervals that hold together, and verdicts from these.

    ``looks``: how often the same study has been looked at, this time included, to decide whether to go on: its
    intervals hold at all of them.

    Each of m intervals is widened to the level ``level ** (1 / m)`` (Sidak
    1967: valid for t intervals whatever their correlation, a little wider than
    Dunnett's 1955, which needs equal variances). Arms without an interval keep
    theirs and do not count.
    """
    known = [c for c in comparisons.values() if c.degrees is not None and c.speedup.low is not None]
    return {name: _widened(c, len(known) * looks, margin=margin) for name, c in comparisons.items()}


def simultaneous_level(level: float, count: int) -> float:
    """Of each of ``count`` intervals, for all to hold together at ``level``."""
    return float(level ** (1 / max(1, count)))


def _widened(comparison: Comparison, count: int, *, margin: float) -> Comparison:
    if comparison.degrees is None or comparison.speedup.low is None:
        return comparison
    each = simultaneous_level(comparison.speedup.level, count)
    speedup = around(comparison.speedup, log_standard_error(comparison), comparison.degrees, level=each)
    changed: dict[str, object] = {"speedup": speedup, "verdict": judge(speedup, margin=margin)}
    if comparison.launch_log_var is not None and comparison.launch_degrees is not None:
        error = math.sqrt(comparison.launch_log_var)
        changed["these_prompts"] = around(speedup, error, comparison.launch_degrees, level=each)
    return comparison.model_copy(update=changed)


def log_standard_error(comparison: Comparison) -> float:
    """Of the log speedup: prompts and launches together."""
    return math.sqrt((comparison.prompt_log_var or 0.0) + (comparison.launch_log_var or 0.0))


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p value adjusted for all of them together, valid whatever their dependence (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
