"""Which arms are one notch apart: speed can fall off a cliff between them."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.domain.arm import Arm, differing_factors
from spectune.models.arm_shape import shape_of

_LENGTH = ("num_steps", "num_draft_tokens")


def changed_knobs(arm: Arm, other: Arm) -> tuple[str, ...]:
    """Factors in which two arms differ; a chain's length is one factor, however it is written."""
    changed = list(differing_factors(arm, other))
    both_chains = (arm.knobs.topk or 1) == 1 and (other.knobs.topk or 1) == 1
    if both_chains and set(_LENGTH) & set(changed):
        changed = ["num_draft_tokens", *(f for f in changed if f not in _LENGTH)]
    return tuple(changed)


def _value(arm: Arm, factor: str) -> int | None:
    shape = shape_of(arm)
    return {"num_steps": shape.steps, "topk": shape.topk, "num_draft_tokens": shape.tokens}.get(factor)


def is_neighbour(arm: Arm, other: Arm, arms: Sequence[Arm]) -> bool:
    """One factor apart, with no legal value between (in the arms that differ in that factor alone)."""
    changed = changed_knobs(arm, other)
    if len(changed) != 1 or arm.is_baseline or other.is_baseline:
        return False
    factor = changed[0]
    mine, theirs = _value(arm, factor), _value(other, factor)
    if mine is None or theirs is None:
        return True
    low, high = sorted((mine, theirs))
    between = (
        value
        for third in arms
        if changed_knobs(third, other) == (factor,) and (value := _value(third, factor)) is not None
    )
    return not any(low < value < high for value in between)


def neighbours(arm: Arm, arms: Sequence[Arm]) -> list[Arm]:
    return [other for other in arms if is_neighbour(other, arm, arms)]
