"""An arm as the regression of step costs sees it: features, and how alike two arms are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spectune.domain.arm import Arm
from spectune.models.arm_shape import VARIABLE_METHODS, ArmFacts, arm_facts, log_place

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
    drafted: float | None = None
    """Mean tokens per step of an arm that stops early."""
    launch: int | None = None
    launch_sd: float = 0.0
    """The part of ``sd`` that is the launch's: points of one launch are off by it together."""


@dataclass(frozen=True)
class Place:
    """``row``: the features, and 0 in the cliff's place."""

    row: tuple[float, ...]
    facts: ArmFacts
    where: tuple[float, ...]
    tokens: int
    """Verified per step, rounded: a cliff lies between two numbers of tokens."""


@dataclass(frozen=True)
class Work:
    """What a step does: tokens it verifies beside the root, and passes of a draft model."""

    tokens: float
    steps: float


def work_of(arm: Arm, drafted: float | None) -> Work:
    """Of an arm that stops early what it does on average: the pass that makes it stop is one too."""
    facts = arm_facts(arm)
    shape = facts.shape
    if not facts.stops_early or drafted is None:
        return Work(shape.tokens, shape.steps)
    passes = 0.0 if arm.knobs.method in VARIABLE_METHODS else min(float(shape.steps), drafted + 1)
    return Work(drafted, passes)


def place_of(
    arm: Arm, *, concurrency: int = 1, context_tokens: float | None = None, drafted: float | None = None
) -> Place:
    facts, work = arm_facts(arm), work_of(arm, drafted)
    coordinates = facts.coordinates
    if facts.stops_early and drafted is not None:
        coordinates = (log_place(work.tokens), log_place(work.steps), *coordinates[2:])
    where = (*coordinates, math.log2(max(concurrency, 1)) / 2.0)
    row = features(arm, concurrency=concurrency, context_tokens=context_tokens, drafted=drafted)
    return Place((*row, 0.0), facts, where, round(work.tokens))


def features(
    arm: Arm, *, concurrency: int = 1, context_tokens: float | None = None, drafted: float | None = None
) -> tuple[float, ...]:
    """Of the regression, without the cliff; all zero for plain decoding with graphs."""
    shape, work = arm_facts(arm).shape, work_of(arm, drafted)
    speculating = 0.0 if arm.is_baseline else 1.0
    eager = 1.0 if arm.knobs.cuda_graphs is False else 0.0
    batch = math.log2(max(concurrency, 1))
    context = math.log2(max(context_tokens, 1) / 1024) if context_tokens else 0.0
    return (
        speculating,
        float(work.tokens),
        float(work.steps),
        float(work.steps * (shape.topk - 1)),
        eager,
        eager * work.steps,
        work.tokens * batch,
        work.steps * batch,
        work.tokens * context,
    )


def likeness(a: Place, b: Place) -> float:
    """1 at the same place, falling smoothly with distance."""
    smooth = _smooth(a.where, b.where)
    return smooth if a.facts.family == b.facts.family else _OTHER_FAMILY * smooth


def _smooth(a: Sequence[float], b: Sequence[float]) -> float:
    return math.exp(-0.5 * math.dist(a, b) ** 2)
