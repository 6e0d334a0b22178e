"""Which launch comes next in a study that searches: the record alone decides, so a search resumes from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from spectune.domain.arm import Arm
from spectune.domain.measurement import LoadResult
from spectune.domain.prediction import Observation
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import Trial
from spectune.report.pooling import end_to_end, load_of, pooled_acceptance, pooled_speed, speed_by_prompt
from spectune.search.plan import SearchEstimate, estimate_search, make_strategy
from spectune.search.protocol import Ask, Budget, History, LegalArm, Objective

_ASSUMED_S = 60.0


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
    since = _launches_since_baseline(counted, baseline)
    if since >= study.baseline_every:
        number = _repetitions_of(counted, baseline)
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
        done = _repetitions_of(trials, best.arm_id)
        if done < study.repetitions and not _over(study, trials):
            return NextLaunch(_planned(best, done), f"{reason}; the winner again, in another launch")
    if since and not _over(study, trials):
        number = _repetitions_of(trials, study.baseline.arm_id)
        return NextLaunch(_planned(study.baseline, number), "plain decoding last, to see a drift")
    return SearchEnd(reason)


def _over(study: Study, trials: Sequence[Trial]) -> bool:
    return study.budget.max_trials is not None and len(trials) >= study.budget.max_trials


def _legal_arms(study: Study, trials: Sequence[Trial]) -> list[LegalArm]:
    """Every arm with what a launch of it takes, as far as trials have shown it."""
    seconds = [sum(t.phases_s.values()) for t in trials if t.status == "complete" and t.phases_s]
    typical = median(seconds) if seconds else _ASSUMED_S
    return [LegalArm(arm, launch_s=typical) for arm in study.arms]


def _history(study: Study, trials: Sequence[Trial]) -> History:
    found: list[Observation] = []
    whole = next((t for t in trials if t.arm.is_baseline and t.status == "complete"), None)
    for trial in trials:
        found.extend(observations_of(study, trial, baseline=whole))
    complete = {t.arm_id for t in trials if t.status != "failed"}
    failed = {t.arm_id: t.failure.cause for t in trials if t.failure is not None and t.arm_id not in complete}
    elapsed = sum(sum(t.phases_s.values()) for t in trials)
    return History(observations=tuple(found), failed=failed, elapsed_s=elapsed)


def observations_of(study: Study, trial: Trial, *, baseline: Trial | None) -> list[Observation]:
    """One per closed load point of a trial that was measured, or stopped early because it was clearly worse.

    One that was stopped has only some of the prompts: its speed is the
    baseline's on all of them, times their ratio on those.
    """
    if trial.status == "failed" or trial.soak is not None:
        return []
    found = []
    for load in trial.loads:
        speed = _speed(study, load, load_of(baseline, load.load) if baseline is not None else None)
        if speed is None or load.load.concurrency is None:
            continue
        found.append(
            Observation(
                trial.arm,
                speed,
                None,
                pooled_acceptance([load]),
                concurrency=load.load.concurrency,
                synthetic=trial.arm.is_synthetic,
                launch=trial.number,
            )
        )
    return found


def _speed(study: Study, load: LoadResult, whole: LoadResult | None) -> float | None:
    own = pooled_speed([load], end_to_end, level=study.level)
    if own is None or not load.cut_short or whole is None:
        return own.value if own is not None else None
    ours, theirs = speed_by_prompt([load]), speed_by_prompt([whole])
    logs = [math.log(ours[p] / theirs[p]) for p in ours if p in theirs]
    reference = pooled_speed([whole], end_to_end, level=study.level)
    if not logs or reference is None:
        return own.value
    return reference.value * math.exp(math.fsum(logs) / len(logs))


def _launches_since_baseline(trials: Sequence[Trial], baseline_id: str) -> int:
    count = 0
    for trial in reversed(trials):
        if trial.arm_id == baseline_id:
            break
        count += 1
    return count


def _repetitions_of(trials: Sequence[Trial], arm_id: str) -> int:
    return len({t.repetition for t in trials if t.arm_id == arm_id})


def _planned(arm: Arm, repetition: int) -> PlannedTrial:
    return PlannedTrial(arm_id=arm.arm_id, repetition=repetition)
