"""``Schedule``: what a study launches next, and what it has. A host is one lane; each node of a cluster is another.

Only the record decides, so a study that was stopped goes on as it would have.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from spectune.analysis.observations import observations
from spectune.analysis.summary import summarize
from spectune.domain.arm import Arm
from spectune.domain.findings import Finding
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import Trial, num_launches
from spectune.hosts.facts import ServerStatus
from spectune.models.observation import Observation
from spectune.runner.estimate import estimate
from spectune.runner.events import TrialStart
from spectune.runner.hypotheses import hypothesis_for, soak_hypothesis
from spectune.runner.lanes import Block
from spectune.runner.order import block_of
from spectune.runner.precision import launch_for_precision
from spectune.runner.resume import baseline_before, unused_repetition
from spectune.runner.search import NextLaunch, SearchEnd, next_launch, search_estimate
from spectune.store.study_dir import StudyDir

SOAK_REPETITION = -1
"""A soak is no repetition of the plan."""
NOISE_FLOOR_AGAIN = "the machine was noisy before, and is quiet now"
StopReason = Literal["done", "budget", "baseline failed"]
ServerFor = Callable[[PlannedTrial], ServerStatus | None]


@dataclass(frozen=True)
class StudyOutcome:
    """How a run of a study ended; ``new_trials`` were measured by this run."""

    reason: StopReason
    new_trials: int
    trials: tuple[Trial, ...]

    @property
    def any_failed(self) -> bool:
        """Whether a launch failed and was not made up for by a later one."""
        last = {(t.arm_id, t.repetition): t.status for t in self.trials}
        return "failed" in last.values()


class Schedule:
    """Decides between two awaits of one event loop, so no two lanes take the same launch."""

    total_is_likely = False
    """Whether lanes add launches of plain decoding as they go."""

    def __init__(
        self,
        directory: StudyDir,
        *,
        findings: Mapping[str, Sequence[Finding]],
        on_message: Callable[[str], None],
    ) -> None:
        """``findings``: what a check found before, by arm id."""
        self.directory = directory
        self.study = directory.read_study()
        self.trials = directory.read_trials()
        self.queue: list[Block] = []
        """What is left of the plan."""
        self.num_lanes = 1
        self._findings = findings
        self._say = on_message
        self._num_at_start = len(self.trials)
        self._began = time.monotonic()
        self._baseline_id = self.study.baseline.arm_id
        self._taken: dict[str, Block] = {}
        """By place: what a lane has under way."""

    @property
    def new_trials(self) -> list[Trial]:
        """Trials of this run."""
        return self.trials[self._num_at_start :]

    @property
    def num_open(self) -> int:
        """Trials that wait or are under way."""
        return sum(map(len, self.queue)) + len(self.running)

    @property
    def num_under_way(self) -> int:
        """Launches that lanes are at."""
        return sum(bool(block) for block in self._taken.values())

    @property
    def running(self) -> list[PlannedTrial]:
        return [planned for block in self._taken.values() for planned in block]

    # what comes next

    def take(self, place: str = "", *, server_for: ServerFor | None = None) -> Block:
        """The next launch of a lane, which is then under way; empty: there is none for now.

        ``server_for``: the running server, if any, that a trial can use.
        """
        self._taken.pop(place, None)
        waits = self.arms_wait()
        free = (
            server_for is not None and bool(self.queue) and self._has_launched(server_for(self.queue[0][0]))
        )
        self._taken[place] = () if self.over_budget(free=free) else self._next(place, waits=waits)
        return self._taken[place]

    def _has_launched(self, server: ServerStatus | None) -> bool:
        """Whether it is there, and its launch is one of those that are counted."""
        return server is not None and server.about.get("launch") in {t.launch_number for t in self.trials}

    def _next(self, place: str, *, waits: bool) -> Block:
        return self.queue.pop(0) if self.queue else ()

    def arms_wait(self) -> bool:
        """Whether there is a launch to make; asks the search, or the wanted precision, where the queue is empty."""
        if not self.queue:
            self._ask_for_more()
        return bool(self.queue)

    def _ask_for_more(self) -> None:
        answer = self._answer()
        if answer is None:
            return
        self._say(answer.reason)
        if isinstance(answer, SearchEnd):
            self.study = self.study.model_copy(update={"search_end": answer.reason})
            self.directory.replace_study(self.study)
        else:
            planned = answer.planned.model_copy(update={"reason": answer.reason})
            self._on_asked(planned)
            self.queue.append((planned,))

    def _answer(self) -> NextLaunch | SearchEnd | None:
        """What the search asks for, or else the wanted precision, beside what is running."""
        if self.study.search is None:
            busy = {planned.arm_id for planned in self.running}
            free = [arm.arm_id for arm in self.study.arms[1:] if arm.arm_id not in busy]
            planned = launch_for_precision(self.study, self.trials, among=free) if self.trials else None
            return None if planned is None else NextLaunch(planned, planned.reason or "")
        return self._ask_search() if self._searching else None

    def _ask_search(self) -> NextLaunch | SearchEnd | None:
        return next_launch(self.study, self.trials)

    @property
    def _searching(self) -> bool:
        return self.study.search is not None and self.study.search_end is None

    def _on_asked(self, planned: PlannedTrial) -> None:
        """A launch that no plan held is about to wait."""

    def over_budget(self, *, free: bool = False) -> bool:
        """Whether no launch may begin; with ``free`` no trial, though it needs no launch."""
        budget = self.study.budget
        launches = 0 if free else num_launches(self.trials) + self.num_under_way
        return budget.is_spent(launches=launches, minutes=(time.monotonic() - self._began) / 60)

    # what has ended

    def count(self, trial: Trial, planned: PlannedTrial, place: str = "") -> None:
        """A trial whose record is on disk."""
        self._taken[place] = tuple(p for p in self._taken.get(place, ()) if p is not planned)
        self.trials.append(trial)

    @property
    def _has_baseline(self) -> bool:
        return any(t.arm_id == self._baseline_id and t.status == "complete" for t in self.trials)

    @property
    def is_without_baseline(self) -> bool:
        """Whether plain decoding failed in this run, and never gave a speed: nothing can be compared."""
        failed = any(t.arm_id == self._baseline_id and t.status == "failed" for t in self.new_trials)
        return failed and not self._has_baseline

    def ask_for_soak(self) -> bool:
        """Makes the long run of the best arm the only thing to do, if one is wanted and possible."""
        winner = arm_to_soak(self.study, self.trials) if not self.queue else None
        if winner is None:
            return False
        self._say(f"soak: {winner.name} under load for {self.study.soak_s:g} s")
        self.queue = [(PlannedTrial(arm_id=winner.arm_id, repetition=SOAK_REPETITION),)]
        return True

    def outcome(self) -> StudyOutcome:
        reason: StopReason = "budget" if self.queue else "done"
        if self.is_without_baseline:
            reason = "baseline failed"
        return StudyOutcome(reason, len(self.new_trials), tuple(self.trials))

    # what is said of a launch

    def observed(self) -> list[Observation]:
        return observations(self.study, self.trials)

    def hypothesis(self, planned: PlannedTrial) -> Hypothesis:
        if planned.repetition == SOAK_REPETITION:
            return soak_hypothesis(self.study)
        checked = self._findings.get(planned.arm_id, ())
        return hypothesis_for(planned, self.study, self.observed(), checked=checked)

    def start(
        self, number: int, planned: PlannedTrial, hypothesis: Hypothesis, place: str = ""
    ) -> TrialStart:
        """What a watcher is told before a launch."""
        waiting = {(p.arm_id, p.repetition) for p in (*itertools.chain(*self.queue), *self.running)}
        ended = {(t.arm_id, t.repetition) for t in self.trials if t.soak is None} - waiting
        position, total, launches = len(ended) + self.num_under_way, len(ended) + self.num_open, None
        if self.study.search is not None:
            likely = search_estimate(self.study, self.trials)
            total = max(total, likely.trials_likely)
            launches = max(1, likely.launches_likely - num_launches(self.trials))
        left = total - position + 1
        cost = estimate(self.study, self.trials, remaining=left, launches=launches) if self.trials else None
        return TrialStart(
            number=number,
            position=position,
            total=total,
            total_is_likely=self.total_is_likely or self.study.search is not None,
            arm=self.study.arm(planned.arm_id),
            repetition=planned.repetition,
            hypothesis=hypothesis,
            eta_s=None if cost is None else cost.seconds / self.num_lanes,
            node=place or None,
        )


class PlanSchedule(Schedule):
    """The one lane of a host: it follows the plan, in which launches of plain decoding stand already."""

    def __init__(
        self,
        directory: StudyDir,
        *,
        retry_failed: bool,
        findings: Mapping[str, Sequence[Finding]],
        on_message: Callable[[str], None],
    ) -> None:
        super().__init__(directory, findings=findings, on_message=on_message)
        self._plan_left(retry_failed=retry_failed)

    def take(self, place: str = "", *, server_for: ServerFor | None = None) -> Block:
        if self.arms_wait() and not self.new_trials and not self.over_budget():
            self._put_baseline_first(server_for)
        return super().take(place, server_for=server_for)

    def _put_baseline_first(self, server_for: ServerFor | None) -> None:
        """After a pause. Not where the server that an earlier run left for the next trial still runs."""
        first = self.queue[0][0]
        again = baseline_before(self.study, self.trials, first, now=datetime.now(UTC))
        is_soak = first.repetition == SOAK_REPETITION
        if again is None or is_soak or (server_for is not None and server_for(first) is not None):
            return
        self._say(again.reason or "")
        at = self.study.plan.index(first)
        self._replace_plan((*self.study.plan[:at], again, *self.study.plan[at:]))
        self.queue.insert(0, (again,))

    def _on_asked(self, planned: PlannedTrial) -> None:
        known = {(p.arm_id, p.repetition) for p in self.study.plan}
        made = (
            PlannedTrial(arm_id=t.arm_id, repetition=t.repetition)
            for t in self.trials
            if t.soak is None and (t.arm_id, t.repetition) not in known
        )
        self._replace_plan((*self.study.plan, *made, planned))

    def shares_next(self, planned: PlannedTrial, trial: Trial) -> bool:
        """Whether the trial after this one, whose record is ``trial``, is to be measured on its server."""
        if not any(arm.request for arm in self.study.arms):
            return False
        following = self.queue[0][0] if self.queue else None
        if following is None and self._searching:
            answer = next_launch(self.study, [*self.trials, trial])
            following = answer.planned if isinstance(answer, NextLaunch) else None
        if following is None or self.over_budget(free=True):
            return False
        ours, next_ = (
            block_of(self.study.arm(p.arm_id), p.repetition, self.study) for p in (planned, following)
        )
        return ours == next_

    def ends_noise_floor(self, planned: PlannedTrial) -> bool:
        """Whether two equal launches of the baseline have just been made, to see what they differ by."""
        if not self.study.noise_floor or planned.arm_id != self._baseline_id:
            return False
        follows = self.queue[0][0].reason == NOISE_FLOOR_AGAIN if self.queue else False
        return planned.repetition == 1 or (planned.reason == NOISE_FLOOR_AGAIN and not follows)

    def mark_noise(self, *, again: bool, mark: str | None) -> None:
        """Keeps what was found about the machine's noise; ``again``: two launches of the baseline come next."""
        if again:
            baseline = self._baseline_id
            first = unused_repetition(self.study, self.trials, baseline)
            left = remaining(self.study, self.trials)
            ended = [p for p in self.study.plan if p not in left]
            twice = [
                PlannedTrial(arm_id=baseline, repetition=first + i, reason=NOISE_FLOOR_AGAIN)
                for i in range(2)
            ]
            self.study = self.study.model_copy(update={"noisy": mark})
            self._replace_plan((*ended, *twice, *(p for p in self.study.plan if p not in ended)))
            self._plan_left()
        elif mark is not None:
            self.study = self.study.model_copy(update={"noisy": mark})
            self.directory.replace_study(self.study)

    def _plan_left(self, *, retry_failed: bool = False) -> None:
        self.queue = [(p,) for p in remaining(self.study, self.trials, retry_failed=retry_failed)]

    def _replace_plan(self, plan: tuple[PlannedTrial, ...]) -> None:
        self.study = self.study.model_copy(update={"plan": plan})
        self.directory.replace_study(self.study)


def remaining(study: Study, trials: Sequence[Trial], *, retry_failed: bool = False) -> list[PlannedTrial]:
    """The plan without what has ended. A failed baseline is always tried again: nothing can be compared without it.

    On a cluster the arms alone: each node sees to its own baseline.
    """
    ended = {
        (t.arm_id, t.repetition)
        for t in trials
        if t.status != "failed" or (not retry_failed and t.arm_id != study.baseline.arm_id)
    }
    todo = [p for p in study.plan if (p.arm_id, p.repetition) not in ended]
    return todo if study.cluster is None else [p for p in todo if p.arm_id != study.baseline.arm_id]


def is_finished(study: Study, trials: Sequence[Trial], *, retry_failed: bool = False) -> bool:
    """Whether nothing is left to launch."""
    if remaining(study, trials, retry_failed=retry_failed) or arm_to_soak(study, trials) is not None:
        return False
    if study.search is None:
        return launch_for_precision(study, trials) is None
    return study.search_end is not None


def arm_to_soak(study: Study, trials: Sequence[Trial]) -> Arm | None:
    """The best arm, if a long run of it is asked for and not done; ``None`` if plain decoding is best."""
    if study.soak_s is None:
        return None
    best = summarize(study, list(trials)).best_arm_id
    if best is None or best == study.baseline.arm_id:
        return None
    done = any(t.soak is not None and t.arm_id == best and t.soak.asked_s >= study.soak_s for t in trials)
    return None if done else study.arm(best)
