"""``predict`` against a whole sweep on a real engine: launches, time, regret, predicted against measured.

    spectune run benchmarks/studies/search-llamacpp.yaml --set search=all --dir GRID
    spectune run benchmarks/studies/search-llamacpp.yaml --dir SEARCH
    python benchmarks/search_real.py compare GRID SEARCH

    spectune run benchmarks/studies/search-vllm-imposed.yaml --dir GRID
    python benchmarks/search_real.py replay GRID

``replay`` asks ``predict`` and answers with the launches of the sweep, under
each imposed drafter apart: arms of imposed acceptance are never results of a
study, so no study could search among them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from spectune.analysis.observations import observations
from spectune.analysis.summary import summarize
from spectune.domain.arm import Arm
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.models.observation import Observation
from spectune.models.speed import SpeedModel
from spectune.search.plan import make_strategy
from spectune.search.protocol import Ask, History, LegalArm, Objective
from spectune.store.study_dir import StudyDir


@dataclass(frozen=True)
class Row:
    """One arm: the speedup that was expected of it and the one the sweep measured."""

    name: str
    predicted: float | None
    measured: float
    launched: bool

    @property
    def error(self) -> float | None:
        return None if self.predicted is None else self.predicted / self.measured - 1


def speedups(seen: Sequence[Observation]) -> dict[str, float]:
    """Mean log speedup by arm id."""
    logs: dict[str, list[float]] = defaultdict(list)
    for o in seen:
        if o.speedup is not None:
            logs[o.arm.arm_id].append(math.log(o.speedup))
    return {arm_id: math.exp(math.fsum(v) / len(v)) for arm_id, v in logs.items()}


def seconds(trials: Sequence[Trial]) -> float:
    return math.fsum(math.fsum(t.phases_s.values()) for t in trials)


def print_rows(rows: Sequence[Row], *, winner: str, best: str, regret: float, launches: str) -> None:
    print(f"{'arm':28} {'predicted':>10} {'measured':>9} {'error':>8}")
    for row in sorted(rows, key=lambda r: -r.measured):
        predicted = "none" if row.predicted is None else f"{row.predicted:.3f}x"
        error = "" if row.error is None else f"{100 * row.error:+.1f} %"
        print(
            f"{row.name:28} {predicted:>10} {row.measured:8.3f}x {error:>8}{'  launched' if row.launched else ''}"
        )
    errors = [abs(row.error) for row in rows if row.error is not None]
    print(f"{launches}; it recommends {winner}, the sweep's best is {best}: regret {regret:.1%}")
    if errors:
        shown = f"median {median(errors):.1%}, worst {max(errors):.1%}"
        print(f"predicted against measured: {shown} (n = {len(errors)} arms)\n")


def repeatability(seen: Sequence[Observation]) -> str:
    """What the sweep itself is worth: how far two launches of one arm lie apart."""
    by_arm: dict[str, list[float]] = defaultdict(list)
    for o in seen:
        if o.speedup is not None:
            by_arm[o.arm.arm_id].append(math.log(o.speedup))
    gaps = [abs(b - a) for logs in by_arm.values() for a, b in itertools.pairwise(logs)]
    return (
        f"two launches of one arm in the sweep: median difference {median(gaps):.1%} (n = {len(gaps)})"
        if gaps
        else ""
    )


def regret_of(arm_id: str, truth: Mapping[str, float], baseline_id: str) -> tuple[float, str]:
    every = {**truth, baseline_id: 1.0}
    best = max(every, key=lambda key: every[key])
    return 1 - every[arm_id] / every[best], best


def compare(grid_dir: Path, search_dir: Path) -> None:
    grid, grid_trials = _read(grid_dir)
    study, trials = _read(search_dir)
    swept = observations(grid, grid_trials)
    truth = speedups(swept)
    if told := repeatability(swept):
        print(told)
    seen = observations(study, trials)
    model = SpeedModel(seen)
    answer = summarize(study, trials).best_arm_id or study.baseline.arm_id
    first = {t.arm_id: t for t in reversed(trials)}
    rows = []
    for arm in grid.arms:
        if arm.is_baseline or arm.arm_id not in truth:
            continue
        launched = arm.arm_id in first
        if launched:
            written = first[arm.arm_id].hypothesis.predicted_speedup
            predicted = None if written is None else written.value
        else:
            predicted = model.predict(arm).speedup.value
        rows.append(Row(arm.name, predicted, truth[arm.arm_id], launched))
    regret, best = regret_of(answer, truth, grid.baseline.arm_id)
    arms = len({t.arm_id for t in trials})
    launches = (
        f"sweep: {len(grid_trials)} launches, {seconds(grid_trials) / 60:.1f} min; "
        f"predict: {len(trials)} launches of {arms} arms, {seconds(trials) / 60:.1f} min"
    )
    print_rows(
        rows,
        winner=study.arm(answer).name,
        best=grid.arm(best).name,
        regret=regret,
        launches=launches,
    )
    again = speedups(seen)
    repeat = [abs(again[k] / truth[k] - 1) for k in again if k in truth]
    print(f"the same arm in both studies: median difference {median(repeat):.1%} (n = {len(repeat)})")


def replay(grid_dir: Path) -> None:
    grid, trials = _read(grid_dir)
    seen = observations(grid, trials)
    plain = [o for o in seen if o.arm.is_baseline]
    drafters: dict[tuple[float, ...], list[Observation]] = defaultdict(list)
    for o in seen:
        if o.arm.synthetic_acceptance_rates is not None:
            drafters[o.arm.synthetic_acceptance_rates].append(replace(o, synthetic=False))
    took = {t.arm_id: math.fsum(t.phases_s.values()) for t in trials}
    if told := repeatability(seen):
        print(told)
    if not drafters:
        own = [o for o in seen if not o.arm.is_baseline]
        _replay_one(grid.baseline, plain, own, {t.arm_id: math.fsum(t.phases_s.values()) for t in trials})
    for rates, group in drafters.items():
        print(f"imposed by position: {', '.join(f'{r:g}' for r in rates)}")
        _replay_one(grid.baseline, plain, group, took)


def _replay_one(
    baseline: Arm, plain: Sequence[Observation], group: Sequence[Observation], took: Mapping[str, float]
) -> None:
    truth = speedups(group)
    arms = [baseline]
    for o in group:
        if o.arm not in arms:
            arms.append(o.arm)
    strategy = make_strategy("predict", [LegalArm(a) for a in arms], objective=Objective((1,)))
    history: tuple[Observation, ...] = ()
    before: dict[str, float] = {}
    asked: list[str] = []
    while isinstance(answer := strategy.ask(History(history)), Ask):
        arm = answer.arm
        asked.append(arm.arm_id)
        if not arm.is_baseline and any(not o.arm.is_baseline for o in history):
            before[arm.arm_id] = SpeedModel(history).predict(arm).speedup.value
        history += tuple(o for o in (*plain, *group) if o.arm.arm_id == arm.arm_id)
    model = SpeedModel(history)
    rows = []
    for arm in arms[1:]:
        launched = arm.arm_id in asked
        predicted = before.get(arm.arm_id) if launched else model.predict(arm).speedup.value
        rows.append(Row(arm.name, predicted, truth[arm.arm_id], launched))
    winner = answer.best or baseline
    regret, best = regret_of(winner.arm_id, truth, baseline.arm_id)
    names = {a.arm_id: a.name for a in arms}
    spent, whole = sum(took[a] for a in asked), sum(took[a.arm_id] for a in arms)
    launches = f"{len(asked)} launches of {len(arms)}, {spent / 60:.1f} min of {whole / 60:.1f}"
    print_rows(rows, winner=winner.name, best=names[best], regret=regret, launches=launches)


def _read(path: Path) -> tuple[Study, list[Trial]]:
    directory = StudyDir.open(path)
    return directory.read_study(), directory.read_trials()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    both = kinds.add_parser("compare", help="a sweep against a search of the same arms")
    both.add_argument("grid", type=Path)
    both.add_argument("search", type=Path)
    one = kinds.add_parser("replay", help="predict on the launches of a sweep of imposed acceptance")
    one.add_argument("grid", type=Path)
    args = parser.parse_args()
    if args.kind == "compare":
        compare(args.grid, args.search)
    else:
        replay(args.grid)
    return 0


if __name__ == "__main__":
    sys.exit(main())
