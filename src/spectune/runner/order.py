"""The order of launches where all of them are planned before the first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from spectune.domain.arm import Arm
from spectune.domain.study import LaunchOrder, PlannedTrial, Study


def plan_trials(
    arm_ids: Sequence[str],
    *,
    repetitions: int,
    baseline_every: int,
    noise_floor: bool = False,
    order: LaunchOrder = "interleaved",
    launch_ids: Mapping[str, str] | None = None,
) -> Iterable[PlannedTrial]:
    """Every launch in its order; ``arm_ids[0]`` is the baseline, with ``noise_floor`` launched once more at first.

    ``interleaved``: the baseline stands around every few arms; odd repetitions
    go backwards, so that a drift over the study meets each arm from both sides.
    ``abba``: each pair of repetitions of an arm stands between two launches of
    the baseline, so that a linear drift cancels within those four.
    Arms of one of the ``launch_ids`` (by arm id) stand together and count as
    one: they are measured on one server.
    """
    baseline, *others = arm_ids
    together: dict[str, list[str]] = {}
    for arm_id in others:
        together.setdefault((launch_ids or {}).get(arm_id, arm_id), []).append(arm_id)
    groups = list(together.values())
    if order == "abba":
        launches = _abba(baseline, groups, repetitions)
    else:
        launches = _interleaved(baseline, groups, repetitions, baseline_every)
    number = itertools.count()
    if noise_floor:
        yield PlannedTrial(arm_id=baseline, repetition=next(number))
    for arm_id, repetition in launches:
        yield PlannedTrial(arm_id=arm_id, repetition=next(number) if arm_id == baseline else repetition)


def block_of(arm: Arm, repetition: int, study: Study) -> str:
    """Equal for trials that may be measured on one server: the arms of a launch within one repetition.

    A repetition is a new process, and so is every one of the baseline, whose
    launches are the measure of what launches differ by.
    """
    is_alone = arm.arm_id == study.baseline.arm_id or repetition < 0
    return f"{'alone-' + arm.arm_id if is_alone else arm.launch_id}/{repetition}"


def launches_of(study: Study, planned: Sequence[PlannedTrial]) -> int:
    """Launches that these trials take, one after another."""
    arms = {arm.arm_id: arm for arm in study.arms} if planned else {}
    blocks = [block_of(arms[p.arm_id], p.repetition, study) for p in planned]
    return sum(1 for _ in itertools.groupby(blocks))


_Group = Sequence[str]


def _interleaved(
    baseline: str, groups: Sequence[_Group], repetitions: int, every: int
) -> Iterable[tuple[str, int]]:
    yield baseline, 0
    for repetition in range(repetitions):
        order = groups if repetition % 2 == 0 else [group[::-1] for group in reversed(groups)]
        for start in range(0, len(order), every):
            for group in order[start : start + every]:
                yield from ((arm_id, repetition) for arm_id in group)
            yield baseline, 0


def _abba(baseline: str, groups: Sequence[_Group], repetitions: int) -> Iterable[tuple[str, int]]:
    """A repetition without a second is baseline, arm; the next block's baseline stands on its other side."""
    for repetition in range(0, repetitions, 2):
        for group in groups:
            yield baseline, 0
            yield from ((arm_id, repetition) for arm_id in group)
            if repetition + 1 < repetitions:
                yield from ((arm_id, repetition + 1) for arm_id in reversed(group))
                yield baseline, 0
