"""What measuring an arm is worth if one more may be measured after it.

The best next arm alone is often next to the best so far: it gains a little and
teaches nothing. Where launches are left for a second look, an arm that halves
what is not known is worth more (knowledge gradient, looking a step further;
Frazier, Powell and Dayanik 2008). Outcomes are taken at quantiles of the arm's
own prediction; each changes how likely every explanation of the
costs is, and under each the other arms with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from spectune.models.speed import JointSpeed
from spectune.statistics.estimate import normal_gain

_LEVELS = ((0.02, 0.04), (0.10, 0.12), (0.27, 0.22), (0.50, 0.24), (0.73, 0.22), (0.90, 0.12), (0.98, 0.04))
"""Quantiles of the outcome with their weights: what is unlikely counts too, for it may be worth much."""
_NODES = tuple((NormalDist().inv_cdf(level), weight) for level, weight in _LEVELS)
_LEAST_WEIGHT = 0.005
_HOPELESS = 4.0
"""Standard deviations behind the best from which a gain is not counted."""


@dataclass(frozen=True)
class _Part:
    """An explanation as the arm that is looked at changes it."""

    weight: float
    log: float
    variance: float
    spread: float
    """Variance of what is measured of the arm."""
    others: list[tuple[float, float, float]]
    """Of every other arm: log speed, covariance with the arm, standard deviation that is left."""


def worth_of_looking(joint: Sequence[JointSpeed], arm: int, *, best_log: float, noise_log_sd: float) -> float:
    """Expected log speed of the winner after the arm at this place, and then the best other, were measured."""
    kept = [part for part in joint if part.weight >= _LEAST_WEIGHT]
    parts = [_part(part, arm, noise_log_sd**2) for part in kept]
    outcomes = zip(levels(kept, arm), _LEVELS, strict=True)
    return math.fsum(weight * _after(parts, outcome, best_log) for outcome, (_, weight) in outcomes)


def _part(joint: JointSpeed, arm: int, noise_variance: float) -> _Part:
    spread = joint.variances[arm] + noise_variance
    others = [
        (log, shared, math.sqrt(max(0.0, variance - shared * shared / spread)))
        for place, (log, shared, variance) in enumerate(
            zip(joint.logs, joint.covariance[arm], joint.variances, strict=True)
        )
        if place != arm
    ]
    return _Part(joint.weight, joint.logs[arm], joint.variances[arm], spread, others)


def levels(joint: Sequence[JointSpeed], arm: int) -> list[float]:
    """Log speeds of the arm at these quantiles, all explanations taken together."""
    total = math.fsum(part.weight for part in joint)
    nodes = sorted(
        (part.logs[arm] + math.sqrt(part.variances[arm]) * z, part.weight / total * share)
        for part in joint
        for z, share in _NODES
    )
    found, reached, wanted = [], 0.0, [level for level, _ in _LEVELS]
    for value, weight in nodes:
        reached += weight
        while wanted and reached >= wanted[0] - 1e-9:
            found.append(value)
            wanted.pop(0)
    return found + [nodes[-1][0]] * len(wanted)


def _after(parts: Sequence[_Part], outcome: float, best_log: float) -> float:
    """Expected log speed of the winner, given what was measured of the arm."""
    found, total, mean = [], 0.0, 0.0
    for part in parts:
        off = outcome - part.log
        weight = part.weight * math.exp(-0.5 * off * off / part.spread) / math.sqrt(part.spread)
        total += weight
        mean += weight * (part.log + part.variance / part.spread * off)
        found.append((weight, off / part.spread, part))
    if total <= 0:
        return max(best_log, outcome)
    best = max(best_log, mean / total)
    gains = [0.0] * len(parts[0].others)
    for weight, pull, part in found:
        if weight < _LEAST_WEIGHT * total:
            continue
        for place, (log, shared, sd) in enumerate(part.others):
            gap = log + shared * pull - best
            if gap > -_HOPELESS * sd:
                gains[place] += weight * normal_gain(gap, sd)
    return best + max(gains, default=0.0) / total
