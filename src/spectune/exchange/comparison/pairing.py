"""Which arm of one study is which arm of another, and how much each changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from spectune.domain.arm import Arm, differing_factors
from spectune.domain.trial import num_launches
from spectune.domain.workload import LoadPoint
from spectune.exchange.whole_study import LoadedStudy
from spectune.statistics.between import (
    Change,
    acceptance_changes,
    speed_changes,
    speedup_change,
)
from spectune.statistics.intervals import SpeedSample, compare_with_baseline

Basis = Literal["tok/s", "speedup"]
V = TypeVar("V")


@dataclass(frozen=True)
class ArmPair:
    """The same arm in two studies: equal settings, or the same name and role."""

    old: Arm
    new: Arm
    is_baseline: bool

    @property
    def name(self) -> str:
        return self.new.name

    @property
    def changed(self) -> tuple[str, ...]:
        """Factors that differ although the name is the same."""
        return differing_factors(self.new, self.old)


def pair_arms(old: LoadedStudy, new: LoadedStudy) -> list[ArmPair]:
    """Baselines with each other; the rest by id, else by name. In the new study's order."""
    by_id = {arm.arm_id: arm for arm in old.study.arms[1:]}
    by_name = {arm.name: arm for arm in old.study.arms[1:]}
    taken = {arm.arm_id for arm in new.study.arms[1:]} & set(by_id)
    pairs = [ArmPair(old.study.baseline, new.study.baseline, is_baseline=True)]
    for arm in new.study.arms[1:]:
        other = by_id.get(arm.arm_id)
        if other is None:  # a name is the second choice, for the arms that are left
            other = by_name.get(arm.name)
            if other is None or other.arm_id in taken:
                continue
            taken.add(other.arm_id)
        pairs.append(ArmPair(other, arm, is_baseline=False))
    return pairs


def common_loads(old: LoadedStudy, new: LoadedStudy) -> list[LoadPoint]:
    """In the new study's order."""
    return [point for point in new.study.workload.loads if point in old.study.workload.loads]


def speed_changes_of(
    old: LoadedStudy, new: LoadedStudy, pairs: Sequence[ArmPair], point: LoadPoint, *, basis: Basis
) -> dict[str, Change]:
    """By the new arm's id. On the basis of speedups the baseline has none."""
    if basis == "speedup":
        return _speedup_changes(old, new, pairs, point)
    sides = {
        pair.new.arm_id: (
            old.numbered_speeds(pair.old.arm_id, point),
            new.numbered_speeds(pair.new.arm_id, point),
        )
        for pair in pairs
    }
    return speed_changes(_figures(sides), numbers=_numbers(sides))


Numbered = Mapping[str, tuple[Sequence[tuple[int, V]], Sequence[tuple[int, V]]]]


def _figures(sides: Numbered[V]) -> dict[str, tuple[list[V], list[V]]]:
    return {arm: ([v for _, v in old], [v for _, v in new]) for arm, (old, new) in sides.items()}


def _numbers(sides: Numbered[V]) -> dict[str, tuple[list[int], list[int]]]:
    return {arm: ([n for n, _ in old], [n for n, _ in new]) for arm, (old, new) in sides.items()}


def shares_launches(*studies: LoadedStudy) -> bool:
    """Whether arms of one of them were measured on one and the same server."""
    return any(num_launches(study.results) < len(study.results) for study in studies)


def _speedup_changes(
    old: LoadedStudy, new: LoadedStudy, pairs: Sequence[ArmPair], point: LoadPoint
) -> dict[str, Change]:
    """Speedups over the prompts that both studies answered."""
    common = set(old.prompt_keys.values()) & set(new.prompt_keys.values())
    ours, theirs = (
        compare_with_baseline(
            _samples(study, point, common, study.study.arms[1:]),
            _samples(study, point, common, study.study.arms[:1]),
        )
        for study in (old, new)
    )
    return {
        pair.new.arm_id: speedup_change(pair.new.arm_id, ours[pair.old.arm_id], theirs[pair.new.arm_id])
        for pair in pairs
        if pair.old.arm_id in ours and pair.new.arm_id in theirs
    }


def _samples(
    study: LoadedStudy, point: LoadPoint, common: set[str], arms: Sequence[Arm]
) -> list[SpeedSample]:
    found = []
    for arm in arms:
        for number, speeds in study.numbered_speeds(arm.arm_id, point):
            kept = {p: v for p, v in speeds.items() if not common or p in common}
            found += [SpeedSample(arm.arm_id, number, kept, study.stretches[number])] if kept else []
    return found


def acceptance_changes_of(
    old: LoadedStudy, new: LoadedStudy, pairs: Sequence[ArmPair], point: LoadPoint
) -> dict[str, Change]:
    """By the new arm's id, of arms that draft."""
    sides = {
        pair.new.arm_id: (
            old.numbered_acceptance(pair.old.arm_id, point),
            new.numbered_acceptance(pair.new.arm_id, point),
        )
        for pair in pairs
        if not pair.is_baseline
    }
    return acceptance_changes(_figures(sides), numbers=_numbers(sides))
