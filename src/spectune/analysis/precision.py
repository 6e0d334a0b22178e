"""How well speedups are known against the precision a study asks for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from spectune.analysis import finding_kinds as kinds
from spectune.analysis.arms import comparable_trials, view_point
from spectune.analysis.words import count, percent
from spectune.domain.findings import Finding
from spectune.domain.interval import Interval
from spectune.domain.study import Study
from spectune.domain.trial import Trial, num_launches
from spectune.statistics.intervals import Comparison
from spectune.statistics.multiple import simultaneous_level
from spectune.statistics.sample_size import more_for_precision

MAX_LAUNCHES = 20
"""Of one arm: noise that so many launches do not average out is not of the kind that averages out."""


def half_width(speedup: Interval) -> float:
    """Of the logarithm; infinite where launches and prompts are too few for an interval."""
    if not speedup.low or not speedup.high:
        return math.inf
    return math.log(speedup.high / speedup.low) / 2


def known_within(half: float) -> str:
    return "has no interval yet" if math.isinf(half) else f"is known within {percent(math.expm1(half))}"


def repetitions_of(trials: Sequence[Trial], arm_id: str) -> int:
    return len({t.repetition for t in trials if t.arm_id == arm_id and t.soak is None})


def precision_not_reached(study: Study, trials: Sequence[Trial]) -> Iterable[Finding]:
    """One for each arm whose speedup is known less well than asked for, in a search of the fastest alone.

    While a study runs it says what is still to be reached.
    """
    if study.precision is None or not study.workload.loads:
        return
    by_arm = view_point(study, comparable_trials(study, trials), study.workload.loads[0]).by_arm
    level = simultaneous_level(study.level, len(by_arm))
    for arm_id in _cared_for(study, by_arm):
        half = half_width(by_arm[arm_id].speedup)
        if half <= math.log1p(study.precision):
            continue
        launches = repetitions_of(trials, arm_id)
        budget, made = study.budget.max_trials, num_launches([t for t in trials if t.soak is None])
        yield kinds.PRECISION_NOT_REACHED.found(
            study.arm(arm_id).name,
            f"its speedup {known_within(half)} after {count(launches, 'launch')}, wanted "
            f"{percent(study.precision)}; {_more(by_arm[arm_id], study.precision, level, launches)}",
            evidence=(
                ("precision", f"{study.precision:g}"),
                ("launches of the arm", f"{launches}, at most {MAX_LAUNCHES}"),
                ("budget", f"{made} launches made, max_trials {'not set' if budget is None else budget}"),
            ),
        )


def _cared_for(study: Study, by_arm: Mapping[str, Comparison]) -> list[str]:
    """A search spends launches on its winner; one that is slower than plain decoding is no winner."""
    if study.search is None:
        return list(by_arm)
    fastest = max(by_arm, key=lambda arm_id: by_arm[arm_id].speedup.value, default=None)
    return [fastest] if fastest is not None and by_arm[fastest].speedup.value > 1 else []


def _more(comparison: Comparison, precision: float, level: float, launches: int) -> str:
    more = more_for_precision(comparison, precision=precision, level=level)
    ways = []
    if more.more_launches is not None:
        beyond = (
            f" (more than the {MAX_LAUNCHES} of one arm)"
            if launches + more.more_launches > MAX_LAUNCHES
            else ""
        )
        number = count(more.more_launches, "more launch")
        ways.append(f"up to about {number} of it, each between two of plain decoding{beyond}")
    if more.more_prompts is not None:
        ways.append(f"about {count(more.more_prompts, 'more prompt')}")
    return f"{' or '.join(ways)} would" if ways else "no number of launches or prompts is known that would"
