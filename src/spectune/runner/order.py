"""The order of launches where all of them are planned before the first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from spectune.domain.study import LaunchOrder, PlannedTrial


def plan_trials(
    arm_ids: Sequence[str],
    *,
    repetitions: int,
    baseline_every: int,
    noise_floor: bool = False,
    order: LaunchOrder = "interleaved",
) -> Iterable[PlannedTrial]:
    """Every launch in its order; ``arm_ids[0]`` is the baseline, with ``noise_floor`` launched once more at first.

    ``interleaved``: the baseline stands around every few arms; odd repetitions
    go backwards, so that a drift over the study meets each arm from both sides.
    ``abba``: each pair of repetitions of an arm stands between two launches of
    the baseline, so that a linear drift cancels within those four.
    """
    baseline, *others = arm_ids
    if order == "abba":
        launches = _abba(baseline, others, repetitions)
    else:
        launches = _interleaved(baseline, others, repetitions, baseline_every)
    number = itertools.count()
    if noise_floor:
        yield PlannedTrial(arm_id=baseline, repetition=next(number))
    for arm_id, repetition in launches:
        yield PlannedTrial(arm_id=arm_id, repetition=next(number) if arm_id == baseline else repetition)


def _interleaved(
    baseline: str, arms: Sequence[str], repetitions: int, every: int
) -> Iterable[tuple[str, int]]:
    yield baseline, 0
    for repetition in range(repetitions):
        order = arms if repetition % 2 == 0 else arms[::-1]
        for start in range(0, len(order), every):
            yield from ((arm_id, repetition) for arm_id in order[start : start + every])
            yield baseline, 0


def _abba(baseline: str, arms: Sequence[str], repetitions: int) -> Iterable[tuple[str, int]]:
    """A repetition without a second is baseline, arm; the next block's baseline stands on its other side."""
    for repetition in range(0, repetitions, 2):
        for arm_id in arms:
            yield baseline, 0
            yield arm_id, repetition
            if repetition + 1 < repetitions:
                yield arm_id, repetition + 1
                yield baseline, 0
