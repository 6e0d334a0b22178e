"""Did a study fall behind its baseline study? One answer, for a pipeline.

A fall is called only where the true change is below the limit with the stated
error rate, over all arms, load points and figures together: no fall, or one of
exactly the limit, fails the gate with a chance of ``alpha`` at most.

Speeds are set against plain decoding of the same study wherever both have it: a machine that is slower today by
3-5 % as a whole would fail a comparison of tok/s much too often, and no repetition within a study shows that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from spectune.domain.record import Record
from spectune.domain.workload import LoadPoint
from spectune.errors import BadInput
from spectune.exchange.comparison.comparable import Comparability, comparability
from spectune.exchange.comparison.pairing import (
    ArmPair,
    Basis,
    acceptance_changes_of,
    common_loads,
    pair_arms,
    shares_launches,
    speed_changes_of,
)
from spectune.exchange.whole_study import LoadedStudy
from spectune.statistics.between import ROUNDING, Change, fallen, together

GATE_SCHEMA_VERSION = 1
Figure = Literal["tok/s", "speedup", "acceptance length"]
Outcome = Literal["fell", "held", "cannot tell"]
ALL_ARMS = "all arms together"


class GateCheck(Record):
    """One figure of one arm at one load point."""

    figure: Figure
    arm: str
    load: str
    ratio: float
    """New / old."""
    low: float | None
    """Two-sided interval at ``1 - 2 * alpha`` by itself: its upper end is the one-sided bound."""
    high: float | None
    num_launches: int
    """Of the new study."""
    num_baseline_launches: int
    p_fell: float | None
    """Adjusted for all checks together; at most ``alpha``: it fell by more than the limit."""
    outcome: Outcome


class PlainChange(Record):
    """Plain decoding of both studies at one load point: what speedups cannot see."""

    load: str
    ratio: float
    """New / old tok/s."""


class GateResult(Record):
    """What ``spectune gate --json`` prints."""

    schema_version: int = GATE_SCHEMA_VERSION
    passed: bool
    outcome: Outcome
    line: str
    max_slowdown_frac: float
    alpha: float
    comparability: Comparability
    arms_missing: tuple[str, ...]
    """Arms that the baseline study measured and this one does not have."""
    not_compared: tuple[str, ...] = ()
    """Figures of arms in both studies that the baseline study has and this one has not, or not of the same prompts."""
    checks: tuple[GateCheck, ...]
    plain_decoding: tuple[PlainChange, ...] = ()
    """How far plain decoding itself moved, where speedups were tested. It is told, not tested."""


def gate(
    new: LoadedStudy,
    old: LoadedStudy,
    *,
    max_slowdown: float,
    alpha: float = 0.05,
    allowed: Sequence[str] = (),
    figures: Sequence[str] = ("speed", "acceptance"),
    basis: Basis | None = None,
) -> GateResult:
    """``BadInput`` where the studies cannot be compared, or have no measured arm in common.

    ``basis``: what of speed is tested; ``None``: speedups where both studies have plain decoding, else tok/s.

    An arm that the old study measured and that failed in the new one fails the
    gate; one that the new study does not have is named. One that it has and did
    not measure (it was interrupted, or stopped the arm early) may hide a fall.
    """
    check = comparability(old, new, allowed=allowed)
    if check.basis is None:
        reasons = "; ".join(f"{c.aspect} differs ({c.first} | {c.second})" for c in check.obstacles)
        aspect = check.obstacles[0].aspect
        raise BadInput(
            f"gate: {new.place} and {old.place} are not comparable: {reasons}; measure both alike, "
            f"or let it stand with --allow {aspect}"
        )
    pairs = pair_arms(old, new)
    tested = _basis(check.basis, basis, new, old, pairs)
    independent = tested == "tok/s" and not shares_launches(old, new)
    named: list[tuple[Figure, str, str, Change]] = []
    lacking: list[str] = []
    broken = [p.name for p in pairs if _measured(old, p.old.arm_id) and _failed(new, p.new.arm_id)]
    for point in common_loads(old, new):
        if "speed" in figures:
            found = speed_changes_of(old, new, pairs, point, basis=tested)
            named += _named(tested, pairs, point.label, found, independent=independent)
            known = [p for p in pairs if old.speeds(p.old.arm_id, point)]
            known = [p for p in known if not (p.is_baseline and tested == "speedup")]
            lacking += _lacking(tested, known, point.label, found, without=broken)
        if "acceptance" in figures:
            lengths = acceptance_changes_of(old, new, pairs, point)
            named += _named("acceptance length", pairs, point.label, lengths, independent=False)
            known = [p for p in pairs if not p.is_baseline and _drafted(old, p.old.arm_id, point)]
            lacking += _lacking("acceptance length", known, point.label, lengths, without=broken)
    if not named and not broken:
        raise BadInput(
            f"gate: {new.place} and {old.place} have no arm and load point in common, measured prompt by prompt"
        )
    values = fallen([c for *_, c in named], max_fall=max_slowdown, alpha=alpha)
    checks = tuple(
        _checked(name, p, max_slowdown=max_slowdown, alpha=alpha)
        for name, p in zip(named, values, strict=True)
    )
    paired = {p.old.arm_id for p in pairs}
    return GateResult(
        passed=not broken and all(c.outcome != "fell" for c in checks),
        outcome=_outcome(checks, broken, lacking),
        line=_line(checks, broken, lacking, max_slowdown=max_slowdown, alpha=alpha),
        max_slowdown_frac=max_slowdown,
        alpha=alpha,
        comparability=check,
        arms_missing=tuple(
            a.name for a in old.study.arms if a.arm_id not in paired and _measured(old, a.arm_id)
        ),
        not_compared=tuple(lacking),
        checks=checks,
        plain_decoding=_plain_changes(old, new, pairs) if tested == "speedup" and "speed" in figures else (),
    )


def _basis(
    allowed: Basis, wanted: Basis | None, new: LoadedStudy, old: LoadedStudy, pairs: Sequence[ArmPair]
) -> Basis:
    """``allowed``: what may be divided, by what the studies have in common."""
    if wanted == "tok/s" and allowed == "speedup":
        raise BadInput(
            f"gate: tok/s of {new.place} and {old.place} cannot be compared, for their machines differ or several "
            f"nodes measured them; leave --basis out, or let the machines stand with --allow machine"
        )
    studies = (old, new)
    plain = all(
        s.study.baseline.is_baseline and s.speeds(s.study.baseline.arm_id, point)
        for point in common_loads(old, new)
        for s in studies
    )
    if wanted == "speedup" and not plain:
        raise BadInput(
            f"gate: plain decoding was not measured in both {new.place} and {old.place}, so there are no speedups; "
            f"leave --basis out"
        )
    return wanted or ("speedup" if plain and len(pairs) > 1 else allowed)


def _plain_changes(old: LoadedStudy, new: LoadedStudy, pairs: Sequence[ArmPair]) -> tuple[PlainChange, ...]:
    found = []
    for point in common_loads(old, new):
        changes = speed_changes_of(old, new, [p for p in pairs if p.is_baseline], point, basis="tok/s")
        found += [PlainChange(load=point.label, ratio=change.ratio) for change in changes.values()]
    return tuple(found)


def _lacking(
    figure: Figure, known: Sequence[ArmPair], load: str, found: dict[str, Change], *, without: Sequence[str]
) -> list[str]:
    """What the old study has of arms and is not set against anything."""
    gone = [p.name for p in known if p.new.arm_id not in found and p.name not in without]
    return [f"{figure} of {name} at {load}" for name in gone]


def _drafted(loaded: LoadedStudy, arm_id: str, point: LoadPoint) -> bool:
    return any(c.num_drafts for launch in loaded.acceptance(arm_id, point) for c in launch.values())


def _measured(loaded: LoadedStudy, arm_id: str) -> bool:
    return any(t.arm_id == arm_id for t in loaded.results)


def _failed(loaded: LoadedStudy, arm_id: str) -> bool:
    own = [t for t in loaded.trials if t.arm_id == arm_id]
    return bool(own) and all(t.status == "failed" for t in own)


def _named(
    figure: Figure, pairs: Sequence[ArmPair], load: str, found: dict[str, Change], *, independent: bool
) -> list[tuple[Figure, str, str, Change]]:
    names = {pair.new.arm_id: pair.name for pair in pairs}
    named = [(figure, names[arm_id], load, change) for arm_id, change in found.items()]
    whole = together(ALL_ARMS, list(found.values()), independent=independent)
    return named if whole is None else [*named, (figure, ALL_ARMS, load, whole)]


def _checked(
    named: tuple[Figure, str, str, Change], p_fell: float | None, *, max_slowdown: float, alpha: float
) -> GateCheck:
    figure, arm, load, change = named
    bounds = change.interval(1 - 2 * alpha)
    if p_fell is not None and p_fell <= alpha:
        outcome: Outcome = "fell"
    elif bounds is not None and bounds[0] >= 1 - max_slowdown - ROUNDING:
        outcome = "held"
    else:
        outcome = "cannot tell"
    return GateCheck(
        figure=figure,
        arm=arm,
        load=load,
        ratio=change.ratio,
        low=None if bounds is None else bounds[0],
        high=None if bounds is None else bounds[1],
        num_launches=change.num_new,
        num_baseline_launches=change.num_old,
        p_fell=p_fell,
        outcome=outcome,
    )


def _outcome(checks: Sequence[GateCheck], broken: Sequence[str], lacking: Sequence[str]) -> Outcome:
    if broken or any(c.outcome == "fell" for c in checks):
        return "fell"
    held = checks and not lacking and all(c.outcome == "held" for c in checks)
    return "held" if held else "cannot tell"


def _line(
    checks: Sequence[GateCheck],
    broken: Sequence[str],
    lacking: Sequence[str],
    *,
    max_slowdown: float,
    alpha: float,
) -> str:
    """One line: the worst figure first."""
    limit = f"{100 * max_slowdown:.3g} %"
    if broken:
        return f"FAILED: {', '.join(broken)} was measured in the baseline study and fails now"
    fell = [c for c in checks if c.outcome == "fell"]
    if fell:
        worst = min(fell, key=lambda c: c.ratio)
        more = f" ({len(fell) - 1} more)" if len(fell) > 1 else ""
        return f"FAILED: {_described(worst)}: it fell by more than {limit} (error rate {100 * alpha:.3g} %){more}"
    if lacking:
        more = f" ({len(lacking) - 1} more)" if len(lacking) > 1 else ""
        return (
            f"passed, but cannot tell: no fall of more than {limit} is shown, and {lacking[0]}, which the baseline "
            f"study has, was not measured on the same prompts{more}; measure it whole"
        )
    unsure = [c for c in checks if c.outcome == "cannot tell"]
    if not unsure:
        worst = min(checks, key=lambda c: c.ratio)
        return f"passed: nothing fell by more than {limit}; lowest: {_described(worst)}"
    worst = min(unsure, key=lambda c: -1.0 if c.low is None else c.low)
    same_figure = [c for c in unsure if c.figure == worst.figure]
    once = any(c.num_launches == c.num_baseline_launches == 1 for c in same_figure)
    why = (
        "nothing was launched twice, so noise is unknown: set repetitions"
        if once or worst.low is None
        else "more launches would narrow it"
    )
    return (
        f"passed, but cannot tell: no fall of more than {limit} is shown, and {len(unsure)} of "
        f"{len(checks)} figures could hide one, e.g. {_described(worst)}; {why}"
    )


def _described(check: GateCheck) -> str:
    interval = "" if check.low is None or check.high is None else f" [{check.low:.3f}, {check.high:.3f}]"
    return (
        f"{check.figure} of {check.arm} at {check.load} is {check.ratio:.3f}x of before{interval}, "
        f"{check.num_launches} against {check.num_baseline_launches} launches"
    )
