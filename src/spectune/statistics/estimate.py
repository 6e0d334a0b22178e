"""A positive quantity whose uncertainty is known on the log scale: speeds, lengths, costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from spectune.domain.interval import Interval

_LARGEST_LOG = 300.0
"""So that the ends of an interval are numbers."""


@dataclass(frozen=True)
class LogEstimate:
    """``value`` with ``log_sd``, the standard deviation of its logarithm."""

    value: float
    log_sd: float
    parts: tuple[tuple[float, float, float], ...] = ()
    """(weight, log, log_sd) of a mixture with this mean and spread: its tails decide what is worth trying."""

    @property
    def log(self) -> float:
        return math.log(self.value)

    def scaled(self, factor: float) -> LogEstimate:
        shift = math.log(factor)
        return LogEstimate(
            self.value * factor,
            self.log_sd,
            tuple((weight, log + shift, sd) for weight, log, sd in self.parts),
        )

    def interval(self, *, unit: str, level: float = 0.9, n: int = 1) -> Interval:
        reach = math.exp(min(NormalDist().inv_cdf((1 + level) / 2) * self.log_sd, _LARGEST_LOG))
        return Interval(
            value=self.value,
            low=self.value / reach,
            high=self.value * reach,
            level=level,
            n=max(1, n),
            unit=unit,
        )

    def chance_above(self, limit: float) -> float:
        """Chance that the quantity is larger than ``limit``."""
        if limit <= 0:
            return 1.0
        parts, level = self.parts or ((1.0, self.log, self.log_sd),), math.log(limit)
        return math.fsum(weight * _chance(log - level, sd) for weight, log, sd in parts)

    def expected_gain(self, best: float) -> float:
        """Expected improvement over ``best`` on the log scale (Jones et al. 1998, equation 15)."""
        parts, level = self.parts or ((1.0, self.log, self.log_sd),), math.log(best)
        return math.fsum(weight * normal_gain(log - level, sd) for weight, log, sd in parts)


def mixture(parts: Sequence[tuple[float, float, float]]) -> LogEstimate:
    """Of (weight, log, log_sd); weights add up to 1."""
    mean = math.fsum(weight * log for weight, log, _ in parts)
    square = math.fsum(weight * (sd * sd + (log - mean) ** 2) for weight, log, sd in parts)
    return LogEstimate(math.exp(mean), math.sqrt(square), tuple(parts) if len(parts) > 1 else ())


_ROOT_2, _ROOT_TWO_PI = math.sqrt(2), math.sqrt(2 * math.pi)


def _chance(gap: float, sd: float) -> float:
    if sd <= 0:
        return 1.0 if gap > 0 else 0.0
    return 0.5 * math.erfc(-gap / sd / _ROOT_2)


def normal_gain(gap: float, sd: float) -> float:
    """Expected positive part of a normal quantity with mean ``gap``."""
    if sd <= 0:
        return max(0.0, gap)
    z = gap / sd
    return gap * 0.5 * math.erfc(-z / _ROOT_2) + sd * math.exp(-0.5 * z * z) / _ROOT_TWO_PI


@dataclass(frozen=True)
class Observed:
    """``value`` as read, with a standard deviation on its own scale."""

    value: float
    sd: float
    parts: tuple[tuple[float, float, float], ...] = ()
    """(weight, value, sd) of the mixture it sums up."""
