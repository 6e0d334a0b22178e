"""Drift: whether the machine itself became faster or slower while it was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spectune.statistics.intervals import SpeedSample


@dataclass(frozen=True)
class Drift:
    """A trend over the launches of one arm, usually the baseline."""

    change_frac: float
    """From the first to the last launch, along the fitted line."""
    p_value: float
    """Of no trend at all."""
    num_launches: int
    step_frac: float
    """Typical change from one launch to the next, as a fraction: what is noise here."""

    def found(self, *, rate: float = 0.05) -> bool:
        return self.p_value < rate


def detect_drift(samples: Sequence[SpeedSample]) -> Drift | None:
    """Least-squares trend of log speed over the order of launches, over their common prompts.

    ``None`` for fewer than three launches or no common prompt. A drift that
    rises and falls again is not a trend; ``step_frac`` and the interleaved
    baselines are there for that.
    """
    ordered = sorted(samples, key=lambda s: s.order)
    if len(ordered) < 3:
        return None
    prompts = set(ordered[0].speed_by_prompt).intersection(*(s.speed_by_prompt for s in ordered[1:]))
    if not prompts:
        return None
    levels = [math.fsum(math.log(s.speed_by_prompt[p]) for p in prompts) / len(prompts) for s in ordered]
    times = [float(s.order) for s in ordered]
    n = len(levels)
    mean_t, mean_y = math.fsum(times) / n, math.fsum(levels) / n
    spread = math.fsum((t - mean_t) ** 2 for t in times)
    if spread == 0:
        return None
    slope = math.fsum((t - mean_t) * (y - mean_y) for t, y in zip(times, levels, strict=True)) / spread
    left = math.fsum((y - mean_y - slope * (t - mean_t)) ** 2 for t, y in zip(times, levels, strict=True))
    error = math.sqrt(left / (n - 2) / spread)
    steps = [b - a for a, b in pairwise(levels)]
    return Drift(
        change_frac=math.expm1(slope * (times[-1] - times[0])),
        p_value=_two_sided(slope, error, n - 2),
        num_launches=n,
        step_frac=math.sqrt(math.fsum(s * s for s in steps) / len(steps) / 2),
    )


def _two_sided(slope: float, error: float, degrees: int) -> float:
    if error <= 1e-15:
        return 1.0 if abs(slope) <= 1e-15 else 0.0
    from scipy.special import stdtr  # as in statistics.t_quantile

    return float(2 * stdtr(degrees, -abs(slope) / error))
