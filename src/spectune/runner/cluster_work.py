"""What is left of a study on a cluster: taken by nodes, put back by lost ones, and counted once it is on disk."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from spectune.domain.prediction_observation import Observation
from spectune.domain.study import PlannedTrial
from spectune.domain.trial import Failure, Trial, num_launches
from spectune.report.observed import observations
from spectune.runner.lanes import Block, Lane, next_baseline, open_blocks, place_for_noise
from spectune.runner.precision import launch_for_precision
from spectune.runner.resume import why_baseline_first
from spectune.runner.search import NextLaunch, next_arm
from spectune.runner.study import SOAK_REPETITION, arm_to_soak, hypothesis_for
from spectune.store.study_dir import StudyDir

MOST_LOSSES = 3
"""A trial under which so many nodes were lost is a failed one: it may be what kills them."""


class OpenWork:
    """Decisions are made between two awaits of one event loop, so no two nodes take the same."""

    def __init__(self, directory: StudyDir, *, retry_failed: bool, on_message: Callable[[str], None]) -> None:
        self.study = directory.read_study()
        self.trials = directory.read_trials()
        self.queue: list[Block] = open_blocks(self.study, self.trials, retry_failed=retry_failed)
        self.noise_place = place_for_noise(self.study, self.trials)
        self._directory = directory
        self._say = on_message
        self._num_at_start = len(self.trials)
        self._began = time.monotonic()
        self._baseline_id = self.study.baseline.arm_id
        self._taken: dict[str, Block] = {}
        """By place: what a node has under way."""
        self._losses: Counter[tuple[str, int]] = Counter()
        for trial in self.trials:
            self._plan(PlannedTrial(arm_id=trial.arm_id, repetition=trial.repetition), trial)

    @property
    def num_new(self) -> int:
        return len(self.trials) - self._num_at_start

    @property
    def num_open(self) -> int:
        """Trials that wait or are under way."""
        return sum(map(len, self.queue)) + len(self.running)

    @property
    def num_under_way(self) -> int:
        """Launches that nodes are at."""
        return sum(bool(block) for block in self._taken.values())

    @property
    def running(self) -> list[PlannedTrial]:
        return [planned for block in self._taken.values() for planned in block]

    def lane(self, place: str) -> Lane:
        return Lane.of(place, self.study, self.trials, twice=place == self.noise_place)

    def observed(self) -> list[Observation]:
        return observations(self.study, self.trials)

    # what comes next

    def take(self, place: str) -> Block:
        """The next launch for a node, which is then under way; empty: there is none for now."""
        block = () if self.over_budget() else self._next(place)
        self._taken[place] = block
        return block

    def _next(self, place: str) -> Block:
        waiting = self.arms_wait()
        lane = self.lane(place)
        reason = lane.baseline_reason() or self._why_again(lane) if waiting else lane.closing_reason()
        if reason is not None:
            number = next_baseline(self.study, self.trials, self.running)
            return (PlannedTrial(arm_id=self._baseline_id, repetition=number, reason=reason),)
        return self.queue.pop(0) if self.queue else ()

    def _why_again(self, lane: Lane) -> str | None:
        """Why plain decoding is launched again before this node's first arm of this run, if it is."""
        new = {t.number for t in self.trials[self._num_at_start :]}
        if any(t.number in new for t in lane.trials):
            return None
        return why_baseline_first(self.study, lane.trials, now=datetime.now(UTC))

    def arms_wait(self) -> bool:
        """Whether there is an arm to launch, or a search waits for the first baseline to choose one."""
        if not self.queue:
            self._ask_for_more()
        return bool(self.queue) or (self._searching() and not self.has_baseline())

    def wants_lane(self, place: str, others: list[str]) -> bool:
        """Whether a node would find work beside ``others``, of which no more begin than there are arms for."""
        if self.over_budget() or (self.baseline_failed() and not self.has_baseline()):
            return False
        waiting = self._num_waiting()
        if not waiting:
            return self.lane(place).closing_reason() is not None
        return waiting > sum(not self.lane(other).has_baseline for other in others)

    def _num_waiting(self) -> int:
        if self._searching():
            ended = {t.arm_id for t in self.trials}
            return sum(arm.arm_id not in ended for arm in self.study.arms[1:]) or int(self.arms_wait())
        return len(self.queue) or int(self.arms_wait())

    def over_budget(self) -> bool:
        budget = self.study.budget
        launches = num_launches(self.trials) + self.num_under_way
        if budget.max_trials is not None and launches >= budget.max_trials:
            return True
        elapsed_s = time.monotonic() - self._began
        return budget.max_minutes is not None and elapsed_s >= 60 * budget.max_minutes

    def has_baseline(self) -> bool:
        return any(t.arm_id == self._baseline_id and t.status == "complete" for t in self.trials)

    def baseline_failed(self) -> bool:
        """In this run."""
        new = self.trials[self._num_at_start :]
        return any(t.arm_id == self._baseline_id and t.status == "failed" for t in new)

    def ask_for_soak(self) -> bool:
        """Makes the long run of the best arm the only thing to do, if one is wanted and possible."""
        winner = arm_to_soak(self.study, self.trials) if not self.queue else None
        if winner is None or self.over_budget():
            return False
        self._say(f"soak: {winner.name} under load for {self.study.soak_s:g} s")
        self.queue = [(PlannedTrial(arm_id=winner.arm_id, repetition=SOAK_REPETITION),)]
        return True

    def _searching(self) -> bool:
        return self.study.search is not None and self.study.search_end is None

    def _ask_for_more(self) -> None:
        """Adds what the search or the precision asks for beside what is running."""
        running = {planned.arm_id for planned in self.running}
        if self.study.search is None:
            free = [arm.arm_id for arm in self.study.arms[1:] if arm.arm_id not in running]
            planned = launch_for_precision(self.study, self.trials, among=free) if self.trials else None
            self.queue += [(planned,)] if planned is not None else []
        elif self.study.search_end is None:
            answer = next_arm(self.study, self.trials, running=running)
            if answer is not None:
                self._say(answer.reason)
            if isinstance(answer, NextLaunch):
                self.queue.append((answer.planned.model_copy(update={"reason": answer.reason}),))
            elif answer is not None:
                self.study = self.study.model_copy(update={"search_end": answer.reason})
                self._directory.replace_study(self.study)

    # what has ended, and what was lost

    def count(self, trial: Trial, planned: PlannedTrial, place: str) -> None:
        """A trial whose record is on disk."""
        self._taken[place] = tuple(p for p in self._taken.get(place, ()) if p is not planned)
        self.trials.append(trial)
        if self._plan(planned, trial):
            self._directory.replace_study(self.study)

    def lost(self, place: str) -> Trial | None:
        """A node died over its work, which ``put_back`` gives to others; a failed trial if it did so too often."""
        block = self._taken.get(place, ())
        if not block:
            return None
        first = block[0]
        key = (first.arm_id, first.repetition)
        name = self.study.arm(first.arm_id).name
        self._losses[key] += 1
        if self._losses[key] < MOST_LOSSES or first.arm_id == self._baseline_id:
            self._say(f"{name}, launch {first.repetition + 1}, is repeated elsewhere")
            return None
        trial = self._lost_trial(first, place)
        self.count(trial, first, place)
        return trial

    def put_back(self, place: str) -> None:
        """What a node has not done; its baseline launches are its own, and are dropped."""
        block = self._taken.pop(place, ())
        block = tuple(p for p in block if p.arm_id != self._baseline_id and p.repetition != SOAK_REPETITION)
        if block:
            self.queue.insert(0, block)

    def _plan(self, planned: PlannedTrial, trial: Trial) -> bool:
        """Adds what was measured to the plan, where the plan did not ask for it; whether it did."""
        known = any((p.arm_id, p.repetition) == (trial.arm_id, trial.repetition) for p in self.study.plan)
        counts = trial.status == "complete" or trial.arm_id != self._baseline_id
        if known or not counts or trial.soak is not None:
            return False
        self.study = self.study.model_copy(update={"plan": (*self.study.plan, planned)})
        return True

    def _lost_trial(self, planned: PlannedTrial, place: str) -> Trial:
        """Written here: the nodes that ran it are gone."""
        arm = self.study.arm(planned.arm_id)
        number, folder = self._directory.new_trial(arm.arm_id)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        trial = Trial(
            trial_id=folder.path.name,
            number=number,
            arm=arm,
            arm_id=arm.arm_id,
            repetition=planned.repetition,
            workload_hash=self.study.workload.workload_hash,
            status="failed",
            hypothesis=hypothesis_for(planned, self.study, self.observed()),
            command=(),
            started_at=now,
            ended_at=now,
            node=place,
            launch=number,
            failure=Failure(
                phase="running",
                cause=f"its node, or spectune's worker there, was lost {MOST_LOSSES} times while it ran",
                remedy="look at the nodes' kernel logs for a lack of memory; `--retry-failed` tries it again",
            ),
        )
        folder.finish(trial)
        return trial
