"""Acceptance of trees by depth: every level of every measured tree says something of the others.

A tree's run counts how many steps kept a token at each depth. The log odds of
keeping one, given that the level above was kept, are regressed on depth,
branching and tokens per level; the length of any other shape is the sum of the
products, as for a chain. Six coefficients with weak priors, so two or three
trees are enough to start; what the straight lines miss is left to the
discrepancy of ``acceptance_model_family``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import mul

from spectune.domain.acceptance import AcceptanceCounts
from spectune.models.acceptance import DESIGN_EFFECT
from spectune.models.arm_shape import Shape
from spectune.statistics.estimate import LogEstimate
from spectune.statistics.regression import backward, cholesky, forward

_MEANS = (1.3, -0.15, 0.0, 0.15, 0.15, 0.0)
_SDS = (1.0, 0.2, 0.1, 0.3, 0.3, 0.15)
"""Of ``_levels``' features, in log odds: a decent drafter keeps 0.78 of first tokens, and less at each depth."""
_LACK_SD = 0.1
"""Of a level's log odds around straight lines."""


@dataclass(frozen=True)
class DepthModel:
    """Posterior of the coefficients: means, and the factor of their precision."""

    coefficients: tuple[float, ...]
    lower: list[list[float]]

    def length(self, shape: Shape) -> LogEstimate:
        rows = _levels(shape)
        chances = [_logistic(sum(map(mul, row, self.coefficients))) for row in rows]
        tails, after = [0.0] * len(rows), 0.0
        for i in range(len(rows) - 1, -1, -1):
            tails[i] = 1 + after
            after = chances[i] * tails[i]
        value, reached = 1 + after, 1.0
        slope = [0.0] * len(self.coefficients)
        for row, chance, tail in zip(rows, chances, tails, strict=True):
            moved = reached * tail * chance * (1 - chance) / value
            slope = [s + moved * x for s, x in zip(slope, row, strict=True)]
            reached *= chance
        solved = forward(self.lower, slope)
        return LogEstimate(value, math.sqrt(sum(map(mul, solved, solved))))


def fit_depths(runs: Sequence[tuple[Shape, AcceptanceCounts]]) -> DepthModel | None:
    """``None`` without counts by position."""
    precision = [[1 / sd**2 if i == j else 0.0 for j in range(len(_SDS))] for i, sd in enumerate(_SDS)]
    moment = [m / sd**2 for m, sd in zip(_MEANS, _SDS, strict=True)]
    known = False
    for shape, counts in runs:
        reached = float(counts.num_drafts or 0)
        for row, kept in zip(_levels(shape), counts.accepted_per_position or (), strict=False):
            if reached < 1:
                break
            known = True
            odds, weight = _log_odds(kept, reached / DESIGN_EFFECT, kept / reached)
            for i, x in enumerate(row):
                moment[i] += weight * odds * x
                precision[i] = [p + weight * x * y for p, y in zip(precision[i], row, strict=True)]
            reached = float(kept)
    if not known:
        return None
    lower = cholesky(precision)
    return DepthModel(tuple(backward(lower, forward(lower, moment))), lower)


def _log_odds(kept: float, tested: float, share: float) -> tuple[float, float]:
    """With half a count on either side; and its weight."""
    chance = (share * tested + 0.5) / (tested + 1)
    variance = 1 / ((tested + 1) * chance * (1 - chance)) + _LACK_SD**2
    return math.log(chance / (1 - chance)), 1 / variance


@cache
def _levels(shape: Shape) -> tuple[tuple[float, ...], ...]:
    """Features of each depth of a tree."""
    branches = math.log2(shape.topk)
    spread = math.log2(min(max(shape.tokens / shape.steps, 1.0), shape.topk)) if shape.topk > 1 else 0.0
    return tuple((1.0, float(i), i * i / 4, branches, spread, i * spread / 4) for i in range(shape.steps))


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))
