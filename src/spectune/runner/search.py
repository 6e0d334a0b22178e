"""Which launch comes next in a study that searches: the record alone decides, so a search resumes from it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from spectune.domain.arm import Arm
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import Trial, num_launches
from spectune.report.observed import observations
from spectune.report.precision import repetitions_of
from spectune.runner.estimate import cost_of_trial
from spectune.runner.precision import launch_for_precision, over_budget
from spectune.search.plan import Repeats, SearchEstimate, estimate_search, make_strategy
from spectune.search.protocol import Ask, Budget, History, LegalArm, Objective


@dataclass(frozen=True)
class NextLaunch:
    """A launch to make, and why it is worth one."""

    planned: PlannedTrial
    reason: str


@dataclass(frozen=True)
class SearchEnd:
    """Why the search needs no further launch."""

    reason: str


def next_launch(study: Study, trials: Sequence[Trial]) -> NextLaunch | SearchEnd:
    """Asks the study's strategy; then repeats the winner beside the baseline as often as the study asks.

    The baseline is launched again after every ``baseline_every`` other arms,
    so that a drift of the machine is seen, and met by every arm from both sides.
    """
    counted = [t for t in trials if t.soak is None]
    ended = {(t.arm_id, t.repetition) for t in counted}
    baseline = study.baseline.arm_id
    if (baseline, 0) not in ended:
        return NextLaunch(_planned(study.baseline, 0), "plain decoding first: every speedup is against it")
    if study.noise_floor and (baseline, 1) not in ended:
        return NextLaunch(_planned(study.baseline, 1), "plain decoding twice: what equal launches differ by")
    since = _launches_since_baseline(counted, baseline)
    strategy = make_strategy(
        study.search or "predict",
        _legal_arms(study, counted),
        budget=Budget(launches=study.budget.max_trials),
        objective=objective_of(study),
        margin=study.margin,
    )
    history = _history(study, counted)
    answer = strategy.ask(history)
    goes_on = isinstance(answer, Ask) and answer.arm.launch_id == history.running_key
    if since >= study.baseline_every and not goes_on:
        number = repetitions_of(counted, baseline)
        return NextLaunch(_planned(study.baseline, number), f"plain decoding again, {since} launches later")
    if isinstance(answer, Ask):
        return NextLaunch(_planned(answer.arm, 0), answer.reason)
    return _confirm(study, counted, answer.best, f"{strategy.name}: {answer.reason}", since=since)


def next_arm(
    study: Study, trials: Sequence[Trial], *, running: Collection[str]
) -> NextLaunch | SearchEnd | None:
    """On a cluster, the arm to launch beside the ``running`` ones (arm ids); ``None``: what runs must end first.

    Launches of the baseline are each node's own matter. The strategy chooses
    among the arms that are not running, from what has ended.
    """
    counted = [t for t in trials if t.soak is None]
    if not counted:
        return None
    history = replace(_history(study, counted), running_key=None)
    if study.baseline.arm_id not in history.measured:
        return None
    busy = set(running) - {study.baseline.arm_id}
    if over_budget(study, counted):
        return None if busy else SearchEnd(f"the budget of {study.budget.max_trials} launches is spent")
    strategy = make_strategy(
        study.search or "predict",
        [legal for legal in _legal_arms(study, counted) if legal.arm.arm_id not in busy],
        budget=Budget(launches=study.budget.max_trials),
        objective=objective_of(study),
        margin=study.margin,
    )
    answer = strategy.ask(history)
    if isinstance(answer, Ask):
        return NextLaunch(_planned(answer.arm, 0), answer.reason)
    if busy:
        return None
    return _confirm(study, counted, answer.best, f"{strategy.name}: {answer.reason}", since=0)


def search_estimate(study: Study, trials: Sequence[Trial]) -> SearchEstimate:
    """What the whole search is likely to take, before it starts or in its middle."""
    return estimate_search(
        study.search or "predict",
        _legal_arms(study, trials),
        budget=Budget(launches=study.budget.max_trials, minutes=study.budget.max_minutes),
        repeats=Repeats(
            noise_floor=study.noise_floor, baseline_every=study.baseline_every, winner=study.repetitions - 1
        ),
    )


def objective_of(study: Study) -> Objective:
    """Closed loops count by their concurrency; an open loop has none, and its point is left to the report."""
    levels = [load.concurrency for load in study.workload.loads if load.concurrency is not None]
    return Objective(tuple(dict.fromkeys(levels)) or (1,))


def _confirm(
    study: Study, trials: Sequence[Trial], best: Arm | None, reason: str, *, since: int
) -> NextLaunch | SearchEnd:
    """Launches of the winner and of the baseline until each has the study's repetitions."""
    if best is not None and not best.is_baseline:
        done = repetitions_of(trials, best.arm_id)
        if done < study.repetitions and not over_budget(study, trials):
            return NextLaunch(_planned(best, done), f"{reason}; the winner again, in another launch")
    wanted = None if best is None else launch_for_precision(study, trials, among=[best.arm_id])
    if wanted is not None:
        return NextLaunch(wanted, f"{reason}; {wanted.reason}")
    if since and not over_budget(study, trials):
        number = repetitions_of(trials, study.baseline.arm_id)
        return NextLaunch(_planned(study.baseline, number), "plain decoding last, to see a drift")
    return SearchEnd(reason)


def _legal_arms(study: Study, trials: Sequence[Trial]) -> list[LegalArm]:
    """Every arm with what a launch of it and its measurement take, as far as trials have shown it."""
    cost = cost_of_trial(study, trials)
    return [
        LegalArm(
            arm,
            launch_s=cost.launch_s,
            measure_s=cost.measure_s,
            launch_key=None if arm is study.baseline else arm.launch_id,
            imposed=arm.is_synthetic,
        )
        for arm in study.arms
    ]


def _history(study: Study, trials: Sequence[Trial]) -> History:
    """An arm that was launched and gave no speed (empty answers, say) has failed too, or it is asked for again."""
    seen = observations(study, trials)
    measured = {o.arm.arm_id for o in seen}
    elapsed = sum(sum(t.phases_s.values()) for t in trials)
    return History(
        observations=tuple(seen),
        failed={t.arm_id: _cause(t) for t in trials if t.arm_id not in measured},
        elapsed_s=elapsed,
        running_key=_running(study, trials),
    )


def _cause(trial: Trial) -> str:
    return "no answer told a speed" if trial.failure is None else trial.failure.cause


def _running(study: Study, trials: Sequence[Trial]) -> str | None:
    """What the server is that the last trial left for the next one of its repetition, the first."""
    last = trials[-1]
    if last.stop is not None or last.status == "failed" or last.repetition != 0:
        return None
    return None if last.arm_id == study.baseline.arm_id else last.arm.launch_id


def _launches_since_baseline(trials: Sequence[Trial], baseline_id: str) -> int:
    since = itertools.takewhile(lambda trial: trial.arm_id != baseline_id, reversed(trials))
    return num_launches(since)


def _planned(arm: Arm, repetition: int) -> PlannedTrial:
    return PlannedTrial(arm_id=arm.arm_id, repetition=repetition)
