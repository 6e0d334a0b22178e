"""The same arms of several studies side by side, the first study being the reference.

Absolute tok/s are divided where machine, prompts and sampling allow it, else
speedups, else nothing; the reason is part of the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from spectune.analysis.records import LoadSummary
from spectune.domain.interval import Interval
from spectune.domain.record import Record
from spectune.domain.workload import LoadPoint
from spectune.exchange.comparison.comparable import Comparability, comparability
from spectune.exchange.comparison.pairing import (
    ArmPair,
    Basis,
    acceptance_changes_of,
    common_loads,
    pair_arms,
    speed_changes_of,
)
from spectune.exchange.whole_study import LoadedStudy
from spectune.statistics.between import Change
from spectune.statistics.multiple import simultaneous_level

COMPARE_SCHEMA_VERSION = 1
LEVEL = 0.95


class StudyColumn(Record):
    """One study of the comparison; ``comparability`` is with the first one, which has none."""

    study_dir: str
    name: str
    created_at: str
    engine: str
    engine_versions: tuple[str, ...]
    imported_from: str | None
    simulated: bool
    comparability: Comparability | None


class Cell(Record):
    """An arm of one study at one load point, and its ratio to the same arm of the first study."""

    study_dir: str
    e2e_tok_per_s: Interval | None
    speedup: Interval | None
    acceptance_length: Interval | None
    basis: Basis | None = None
    """Of ``ratio``."""
    ratio: Interval | None = None
    acceptance_ratio: Interval | None = None
    why_not: str | None = None
    """Why there is no ratio, or none with an interval."""
    settings_changed: tuple[str, ...] = ()
    """Factors in which this arm differs from the first study's of the same name."""


class CompareRow(Record):
    arm: str
    load: str
    is_baseline: bool
    cells: tuple[Cell | None, ...]
    """In the order of the studies; ``None`` where a study has no such arm at this load point."""


class StudyComparison(Record):
    """What ``spectune compare --json`` prints."""

    schema_version: int = COMPARE_SCHEMA_VERSION
    level: float
    studies: tuple[StudyColumn, ...]
    rows: tuple[CompareRow, ...]

    @property
    def num_ratios(self) -> int:
        """Of speeds and of acceptance lengths."""
        cells = [cell for row in self.rows for cell in row.cells if cell is not None]
        return sum((cell.ratio is not None) + (cell.acceptance_ratio is not None) for cell in cells)


def compare_studies(
    studies: Sequence[LoadedStudy], *, allowed: Sequence[str] = (), level: float = LEVEL
) -> StudyComparison:
    """Intervals hold together for all arms of one study at one load point (Sidak)."""
    first = studies[0]
    checks: list[Comparability | None] = [
        None,
        *(comparability(first, other, allowed=allowed) for other in studies[1:]),
    ]
    pairs: list[list[ArmPair]] = [[], *(pair_arms(first, other) for other in studies[1:])]
    ratios: list[dict[tuple[str, str], _Found]] = [
        {} if check is None else _ratios(first, other, paired, check, level=level)
        for other, check, paired in zip(studies, checks, pairs, strict=True)
    ]
    rows = [
        CompareRow(
            arm=name,
            load=point.label,
            is_baseline=is_baseline,
            cells=tuple(
                _cell(other, arm_id, point, found, check)
                for other, arm_id, found, check in zip(studies, arm_ids, ratios, checks, strict=True)
            ),
        )
        for point in _points(studies)
        for name, is_baseline, arm_ids in _arm_rows(studies, pairs)
    ]
    return StudyComparison(
        level=level,
        studies=tuple(_column(s, c) for s, c in zip(studies, checks, strict=True)),
        rows=tuple(row for row in rows if any(row.cells)),
    )


def _column(loaded: LoadedStudy, check: Comparability | None) -> StudyColumn:
    study = loaded.study
    return StudyColumn(
        study_dir=loaded.place,
        name=study.name,
        created_at=study.created_at,
        engine=study.engine.name,
        engine_versions=loaded.summary.study.engine_versions,
        imported_from=study.imported.tool if study.imported else None,
        simulated=loaded.summary.simulated,
        comparability=check,
    )


def _points(studies: Sequence[LoadedStudy]) -> list[LoadPoint]:
    return list(dict.fromkeys(point for s in studies for point in s.study.workload.loads))


def _arm_rows(
    studies: Sequence[LoadedStudy], pairs: Sequence[Sequence[ArmPair]]
) -> list[tuple[str, bool, list[str | None]]]:
    """Name, whether it is the baseline, and the arm's id in each study."""
    first = studies[0]
    rows = []
    for arm in first.study.arms:
        ids: list[str | None] = [arm.arm_id]
        for paired in pairs[1:]:
            ids.append(next((p.new.arm_id for p in paired if p.old.arm_id == arm.arm_id), None))
        rows.append((arm.name, arm.arm_id == first.study.baseline.arm_id, ids))
    for place, other in enumerate(studies[1:], start=1):
        known = {ids[place] for _, _, ids in rows}
        for arm in other.study.arms:
            if arm.arm_id not in known:
                alone: list[str | None] = [None] * len(studies)
                alone[place] = arm.arm_id
                rows.append((arm.name, False, alone))
    return rows


class _Found(Record):
    basis: Basis | None
    ratio: Interval | None
    acceptance: Interval | None
    why_not: str | None
    changed: tuple[str, ...]


def _ratios(
    first: LoadedStudy,
    other: LoadedStudy,
    pairs: Sequence[ArmPair],
    check: Comparability,
    *,
    level: float,
) -> dict[tuple[str, str], _Found]:
    """By the other study's arm id and load label."""
    found: dict[tuple[str, str], _Found] = {}
    if check.basis is None:
        return found
    for point in common_loads(first, other):
        speeds = speed_changes_of(first, other, pairs, point, basis=check.basis)
        lengths = acceptance_changes_of(first, other, pairs, point)
        each = simultaneous_level(level, len(speeds))
        for pair in pairs:
            arm_id = pair.new.arm_id
            change, length = speeds.get(arm_id), lengths.get(arm_id)
            found[arm_id, point.label] = _Found(
                basis=check.basis if change is not None else None,
                ratio=None if change is None else _interval(change, each, level),
                acceptance=_stated_ratio(first, other, pair, point, level, check)
                if length is None
                else _interval(length, each, level),
                why_not=_why_not(change, check.basis, pair),
                changed=pair.changed,
            )
    return found


def _stated_ratio(
    first: LoadedStudy,
    other: LoadedStudy,
    pair: ArmPair,
    point: LoadPoint,
    level: float,
    check: Comparability,
) -> Interval | None:
    """Where one of the two gives its acceptance length alone, without counts by prompt: no interval.

    Such a length is over all prompts: where they differ, or both studies have counts and no prompt in common, it is of
    other prompts than its partner.
    """
    counted = first.acceptance(pair.old.arm_id, point) and other.acceptance(pair.new.arm_id, point)
    if counted or check.differs("prompts"):
        return None
    ours, theirs = _load(first, pair.old.arm_id, point), _load(other, pair.new.arm_id, point)
    if ours is None or theirs is None or ours.acceptance_length is None or theirs.acceptance_length is None:
        return None
    value = theirs.acceptance_length.value / ours.acceptance_length.value
    return Interval(value=value, low=None, high=None, level=level, n=1, unit="x first study")


def _interval(change: Change, each: float, level: float) -> Interval:
    bounds = change.interval(each)
    return Interval(
        value=change.ratio,
        low=None if bounds is None else bounds[0],
        high=None if bounds is None else bounds[1],
        level=level,
        n=change.num_prompts,
        unit="x first study",
    )


def _why_not(change: Change | None, basis: Basis, pair: ArmPair) -> str | None:
    if change is None:
        if basis == "speedup" and pair.is_baseline:
            return "the machines differ, and the baseline is what speedups are against"
        return "not measured in both, or no prompt was answered by every launch"
    if change.error is None:
        return "no interval: nothing was launched twice in either study"
    return None


def _cell(
    loaded: LoadedStudy,
    arm_id: str | None,
    point: LoadPoint,
    found: dict[tuple[str, str], _Found],
    check: Comparability | None,
) -> Cell | None:
    load = _load(loaded, arm_id, point)
    if load is None or arm_id is None:
        return None
    pair = found.get((arm_id, point.label))
    why_not = pair.why_not if pair is not None else None
    if check is not None and pair is None:
        why_not = "no such arm or load point in the first study"
        if check.obstacles:
            why_not = "; ".join(f"{c.aspect}: {c.effect}" for c in check.obstacles)
    return Cell(
        study_dir=loaded.place,
        e2e_tok_per_s=load.e2e_tok_per_s,
        speedup=load.speedup,
        acceptance_length=load.acceptance_length,
        basis=pair.basis if pair else None,
        ratio=pair.ratio if pair else None,
        acceptance_ratio=pair.acceptance if pair else None,
        why_not=why_not,
        settings_changed=pair.changed if pair else (),
    )


def _load(loaded: LoadedStudy, arm_id: str | None, point: LoadPoint) -> LoadSummary | None:
    if arm_id is None:
        return None
    arm = loaded.summary.arm(arm_id)
    return next((load for load in arm.loads if load.load == point), None)
