"""Which launch comes next in a study that searches: the record alone decides, so a search resumes from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from spectune.analysis.observations import observations
from spectune.analysis.precision import repetitions_of
from spectune.domain.arm import Arm
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import Trial
from spectune.runner.estimate import cost_of_trial
from spectune.runner.lanes import Lane, next_baseline
from spectune.runner.precision import launch_for_precision, spent
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
    """The launch of a host: the arm that the strategy asks for, or plain decoding where the lane wants it first."""
    lane = Lane.of_host(study, trials)
    reason = lane.opening_reason()
    if reason is None:
        history = _history(study, lane.trials)
        answer = next_arm(study, trials, history=history)
        assert answer is not None, "nothing runs beside it"
        if not _goes_on(study, answer, history):
            reason = lane.again_reason()
            if isinstance(answer, SearchEnd) and not spent(study, trials):
                reason = reason or lane.closing_reason()
        if reason is None:
            return answer
    return NextLaunch(_planned(study.baseline, next_baseline(study, trials, ())), reason)


def next_arm(
    study: Study,
    trials: Sequence[Trial],
    *,
    history: History | None = None,
    running: Collection[str] = (),
) -> NextLaunch | SearchEnd | None:
    """The arm to launch beside the ``running`` ones (arm ids); ``None``: what runs must end first.

    Asks the study's strategy, which chooses among the arms that are not running from what has ended (``history``,
    by default that of ``trials`` with no server left running); then repeats the winner as often as the study asks.
    """
    counted = [t for t in trials if t.soak is None]
    busy = set(running) - {study.baseline.arm_id}
    strategy = make_strategy(
        study.search or "predict",
        [legal for legal in _legal_arms(study, counted) if legal.arm.arm_id not in busy],
        budget=Budget(launches=study.budget.max_trials),
        objective=objective_of(study),
        margin=study.margin,
    )
    answer = strategy.ask(history or replace(_history(study, counted), running_key=None))
    if isinstance(answer, Ask):
        return NextLaunch(_planned(answer.arm, 0), answer.reason)
    return None if busy else _confirm(study, counted, answer.best, f"{strategy.name}: {answer.reason}")


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


def _confirm(study: Study, trials: Sequence[Trial], best: Arm | None, reason: str) -> NextLaunch | SearchEnd:
    """Launches of the winner until it has the study's repetitions, and is known as well as the study asks."""
    if best is not None and not best.is_baseline:
        done = repetitions_of(trials, best.arm_id)
        if done < study.repetitions and not spent(study, trials):
            return NextLaunch(_planned(best, done), f"{reason}; the winner again, in another launch")
    wanted = None if best is None else launch_for_precision(study, trials, among=[best.arm_id])
    if wanted is not None:
        return NextLaunch(wanted, f"{reason}; {wanted.reason}")
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


def _goes_on(study: Study, answer: NextLaunch | SearchEnd, history: History) -> bool:
    """Whether the arm can be measured on the server that the last one left running."""
    if isinstance(answer, SearchEnd) or history.running_key is None or answer.planned.repetition:
        return False
    return study.arm(answer.planned.arm_id).launch_id == history.running_key


def _planned(arm: Arm, repetition: int) -> PlannedTrial:
    return PlannedTrial(arm_id=arm.arm_id, repetition=repetition)
