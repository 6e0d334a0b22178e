"""Several arms against one baseline: the stated error rate holds for the whole table."""

from __future__ import annotations

import math
from collections.abc import Mapping

from spectune.domain.statistics import Comparison, judge, t_quantile


def simultaneous(comparisons: Mapping[str, Comparison], *, margin: float) -> dict[str, Comparison]:
    """The same comparisons with intervals that hold together, and verdicts from these.

    Each of m intervals is widened to the level ``level ** (1 / m)`` (Sidak
    1967: valid for t intervals whatever their correlation, a little wider than
    Dunnett's 1955, which needs equal variances). Arms without an interval keep
    theirs and do not count.
    """
    known = [c for c in comparisons.values() if c.degrees is not None and c.prompt_log_var is not None]
    return {name: _widened(c, len(known), margin=margin) for name, c in comparisons.items()}


def _widened(comparison: Comparison, count: int, *, margin: float) -> Comparison:
    if comparison.degrees is None or comparison.prompt_log_var is None:
        return comparison
    level = comparison.speedup.level
    each = level ** (1 / max(1, count))
    error = log_standard_error(comparison)
    half = t_quantile((1 + each) / 2, comparison.degrees) * error
    middle = math.log(comparison.speedup.value)
    speedup = comparison.speedup.model_copy(
        update={"low": math.exp(middle - half), "high": math.exp(middle + half)}
    )
    return comparison.model_copy(update={"speedup": speedup, "verdict": judge(speedup, margin=margin)})


def log_standard_error(comparison: Comparison) -> float:
    """Of the log speedup: prompts and launches together."""
    return math.sqrt((comparison.prompt_log_var or 0.0) + (comparison.launch_log_var or 0.0))


def p_value(comparison: Comparison) -> float | None:
    """Two-sided, of no difference from the baseline; ``None`` without an interval."""
    if comparison.degrees is None or comparison.prompt_log_var is None:
        return None
    from scipy.special import stdtr  # as in statistics.t_quantile

    error = log_standard_error(comparison)
    effect = abs(math.log(comparison.speedup.value))
    if error == 0:
        return 1.0 if effect == 0 else 0.0
    return float(2 * stdtr(comparison.degrees, -effect / error))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p values (Holm 1979): those below the stated rate are wrong together at most that often."""
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    found: dict[str, float] = {}
    largest = 0.0
    for index, (name, p) in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - index) * p))
        found[name] = largest
    return {name: found[name] for name in p_values}
