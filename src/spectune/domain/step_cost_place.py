"""An arm as the regression of step costs sees it: features, and how alike two arms are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spectune.domain.arm import Arm
from spectune.domain.prediction_shape import ArmFacts, arm_facts

_OTHER_FAMILY = 0.6
"""Likeness of two methods or drafters at the same shape."""


@dataclass(frozen=True)
class CostPoint:
    """One measured arm: ``cost`` in baseline steps, its standard error, and where it was measured."""

    arm: Arm
    cost: float
    sd: float
    concurrency: int = 1
    context_tokens: float | None = None


@dataclass(frozen=True)
class Place:
    """``row``: the features, and 0 in the cliff's place."""

    row: tuple[float, ...]
    facts: ArmFacts
    where: tuple[float, ...]

    @property
    def tokens(self) -> int:
        return self.facts.shape.tokens


def place_of(arm: Arm, *, concurrency: int = 1, context_tokens: float | None = None) -> Place:
    facts = arm_facts(arm)
    where = (*facts.coordinates, math.log2(max(concurrency, 1)) / 2.0)
    row = features(arm, concurrency=concurrency, context_tokens=context_tokens)
    return Place((*row, 0.0), facts, where)


def features(arm: Arm, *, concurrency: int = 1, context_tokens: float | None = None) -> tuple[float, ...]:
    """Of the regression, without the cliff; all zero for plain decoding with graphs."""
    shape = arm_facts(arm).shape
    speculating = 0.0 if arm.is_baseline else 1.0
    eager = 1.0 if arm.knobs.cuda_graphs is False else 0.0
    batch = math.log2(max(concurrency, 1))
    context = math.log2(max(context_tokens, 1) / 1024) if context_tokens else 0.0
    return (
        speculating,
        float(shape.tokens),
        float(shape.steps),
        float(shape.steps * (shape.topk - 1)),
        eager,
        eager * shape.steps,
        shape.tokens * batch,
        shape.steps * batch,
        shape.tokens * context,
    )


def likeness(a: Place, b: Place) -> float:
    """1 at the same place, falling smoothly with distance."""
    smooth = _smooth(a.where, b.where)
    return smooth if a.facts.family == b.facts.family else _OTHER_FAMILY * smooth


def _smooth(a: Sequence[float], b: Sequence[float]) -> float:
    return math.exp(-0.5 * math.dist(a, b) ** 2)
