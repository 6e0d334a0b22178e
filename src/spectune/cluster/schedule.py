"""A study on a cluster: launches are taken by nodes, put back by lost ones, and counted once they are on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from spectune.domain.findings import Finding
from spectune.domain.study import PlannedTrial
from spectune.domain.trial import Failure, Trial
from spectune.runner.lanes import Block, Lane, next_baseline, open_blocks, place_for_noise
from spectune.runner.resume import why_baseline_first
from spectune.runner.schedule import SOAK_REPETITION, Schedule
from spectune.runner.search import NextLaunch, SearchEnd, next_arm
from spectune.store.study_dir import StudyDir

MOST_LOSSES = 3
"""A trial under which so many nodes were lost is a failed one: it may be what kills them."""


class ClusterSchedule(Schedule):
    """Many lanes, each with plain decoding around its arms; the plan holds what was measured."""

    total_is_likely = True

    def __init__(
        self,
        directory: StudyDir,
        *,
        retry_failed: bool,
        findings: Mapping[str, Sequence[Finding]],
        on_message: Callable[[str], None],
    ) -> None:
        super().__init__(directory, findings=findings, on_message=on_message)
        self.queue = open_blocks(self.study, self.trials, retry_failed=retry_failed)
        self.noise_place = place_for_noise(self.study, self.trials)
        self._losses: Counter[tuple[str, int]] = Counter()
        for trial in self.trials:
            self._plan(PlannedTrial(arm_id=trial.arm_id, repetition=trial.repetition), trial)

    def lane(self, place: str) -> Lane:
        return Lane.of_node(place, self.study, self.trials, twice=place == self.noise_place)

    # what comes next

    def _next(self, place: str, *, waits: bool) -> Block:
        lane = self.lane(place)
        if self.queue and self.queue[0][0].repetition == SOAK_REPETITION:
            return self.queue.pop(0)
        opening = (lane.opening_reason() or lane.again_reason() or self._why_again(lane)) if waits else None
        reason = opening if waits else lane.closing_reason()
        if reason is not None:
            number = next_baseline(self.study, self.trials, self.running)
            return (PlannedTrial(arm_id=self._baseline_id, repetition=number, reason=reason),)
        return self.queue.pop(0) if self.queue else ()

    def _why_again(self, lane: Lane) -> str | None:
        """Why plain decoding is launched again before this node's first arm of this run, if it is."""
        new = {t.number for t in self.new_trials}
        if any(t.number in new for t in lane.trials):
            return None
        return why_baseline_first(self.study, lane.trials, now=datetime.now(UTC))

    def arms_wait(self) -> bool:
        """Whether there is an arm to launch, or a search waits for the first baseline to choose one."""
        return super().arms_wait() or (self._searching and not self._has_baseline)

    def wants_lane(self, place: str, others: list[str]) -> bool:
        """Whether a node would find work beside ``others``, of which no more begin than there are arms for."""
        if self.over_budget() or self.is_without_baseline:
            return False
        waiting = self._num_waiting()
        if not waiting:
            return self.lane(place).closing_reason() is not None
        return waiting > sum(not self.lane(other).has_baseline for other in others)

    def _num_waiting(self) -> int:
        if self._searching:
            ended = {t.arm_id for t in self.trials}
            return sum(arm.arm_id not in ended for arm in self.study.arms[1:]) or int(self.arms_wait())
        return len(self.queue) or int(self.arms_wait())

    def _ask_search(self) -> NextLaunch | SearchEnd | None:
        running = {planned.arm_id for planned in self.running}
        return next_arm(self.study, self.trials, running=running) if self._has_baseline else None

    # what has ended, and what was lost

    def count(self, trial: Trial, planned: PlannedTrial, place: str = "") -> None:
        super().count(trial, planned, place)
        if self._plan(planned, trial):
            self.directory.replace_study(self.study)

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
        number, folder = self.directory.new_trial(arm.arm_id)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        trial = Trial(
            trial_id=folder.path.name,
            number=number,
            arm=arm,
            arm_id=arm.arm_id,
            repetition=planned.repetition,
            workload_hash=self.study.workload.workload_hash,
            status="failed",
            hypothesis=self.hypothesis(planned),
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
