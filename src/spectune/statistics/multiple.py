"""Several arms against one baseline: the stated error rate holds for the whole table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from spectune.statistics.intervals import Comparison, around, combined_degrees, judge

LEAST_OF_TYPICAL = 0.5
"""An arm's variance from launches is taken as so much of the median arm's at least, in a table."""


def simultaneous(
    comparisons: Mapping[str, Comparison], *, margin: float, looks: int = 1
) -> dict[str, Comparison]:
    """The same comparisons with intervals that hold together, and verdicts from these.

    ``looks``: how often the same study has been looked at, this time included, to decide whether to go on: its
    intervals hold at all of them.

    Each of m intervals is widened to the level ``level ** (1 / m)`` (Sidak
    1967: valid for t intervals whatever their correlation, a little wider than
    Dunnett's 1955, which needs equal variances). Arms without an interval keep
    theirs and do not count. Before that no arm's launches are believed to be much
    quieter than the typical arm's: of several arms one's few launches often agree by luck.
    """
    known = [c for c in comparisons.values() if c.degrees is not None and c.speedup.low is not None]
    least = LEAST_OF_TYPICAL * _typical_launch_var(known)
    return {
        name: _widened(_at_least_as_noisy(c, least), len(known) * looks, margin=margin)
        for name, c in comparisons.items()
    }


def _typical_launch_var(known: Sequence[Comparison]) -> float:
    """The median, of an even number the lower one; 0 of fewer than three arms, of which none is typical."""
    variances = sorted(c.launch_log_var for c in known if c.launch_log_var is not None)
    return variances[(len(variances) - 1) // 2] if len(variances) > 2 else 0.0


def _at_least_as_noisy(comparison: Comparison, least: float) -> Comparison:
    prompts, launches, own = comparison.prompt_log_var, comparison.launch_log_var, comparison.launch_degrees
    if prompts is None or launches is None or own is None or launches >= least:
        return comparison
    degrees = combined_degrees(prompts, max(1, comparison.num_prompts - 1), least, own)
    return comparison.model_copy(update={"launch_log_var": least, "degrees": degrees})


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
