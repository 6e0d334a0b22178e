"""Which launch comes next in a study that searches: the record alone decides, so a search resumes from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spectune.domain.arm import Arm
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import Trial
from spectune.report.observed import observations
from spectune.runner.estimate import estimate
from spectune.runner.precision import launch_for_precision, over_budget, repetitions_of
from spectune.search.plan import SearchEstimate, estimate_search, make_strategy
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
    if since >= study.baseline_every:
        number = repetitions_of(counted, baseline)
        return NextLaunch(_planned(study.baseline, number), f"plain decoding again, {since} arms later")
    strategy = make_strategy(
        study.search or "predict",
        _legal_arms(study, counted),
        budget=Budget(launches=study.budget.max_trials),
        objective=objective_of(study),
        margin=study.margin,
    )
    answer = strategy.ask(_history(study, counted))
    if isinstance(answer, Ask):
        return NextLaunch(_planned(answer.arm, 0), answer.reason)
    return _confirm(study, counted, answer.best, f"{strategy.name}: {answer.reason}", since=since)


def search_estimate(study: Study, trials: Sequence[Trial]) -> SearchEstimate:
    """What the whole search is likely to take, before it starts or in its middle."""
    return estimate_search(
        study.search or "predict",
        _legal_arms(study, trials),
        budget=Budget(launches=study.budget.max_trials, minutes=study.budget.max_minutes),
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
    """Every arm with what a launch of it takes, as far as trials have shown it."""
    typical = estimate(study, trials, remaining=1).seconds
    return [LegalArm(arm, launch_s=typical) for arm in study.arms]


def _history(study: Study, trials: Sequence[Trial]) -> History:
    complete = {t.arm_id for t in trials if t.status != "failed"}
    failed = {t.arm_id: t.failure.cause for t in trials if t.failure is not None and t.arm_id not in complete}
    elapsed = sum(sum(t.phases_s.values()) for t in trials)
    return History(observations=tuple(observations(study, trials)), failed=failed, elapsed_s=elapsed)


def _launches_since_baseline(trials: Sequence[Trial], baseline_id: str) -> int:
    count = 0
    for trial in reversed(trials):
        if trial.arm_id == baseline_id:
            break
        count += 1
    return count


def _planned(arm: Arm, repetition: int) -> PlannedTrial:
    return PlannedTrial(arm_id=arm.arm_id, repetition=repetition)
