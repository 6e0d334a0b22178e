"""``run_study``: the main job, from a resolved study to its reports."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from spectune.analysis.noise import describe_equal_launches
from spectune.analysis.pooling import speed_by_prompt
from spectune.domain.findings import Finding
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.measurement import LoadResult
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import Trial
from spectune.embedded.models import fetch_embedded_target, resolve_model
from spectune.engines.registry import adapter_for
from spectune.errors import EnvironmentFailed, Interrupted
from spectune.hosts.choose import LOCAL
from spectune.hosts.host import Host
from spectune.models.speed import launch_log_sd
from spectune.report.write import write_reports
from spectune.runner.abort import Aborted, unless_aborted
from spectune.runner.continues import check_same_workload
from spectune.runner.events import Watcher
from spectune.runner.hypotheses import judged
from spectune.runner.launch import (
    ModelPaths,
    Place,
    end_kept,
    kept_server,
    launch_key,
    place_on,
    stop_leftovers,
    usable_server,
    without_other_servers,
)
from spectune.runner.optional_flags import lacking_by_version, without_flags
from spectune.runner.order import block_of
from spectune.runner.quiet import NoiseWatch, Patience, looking_at
from spectune.runner.schedule import SOAK_REPETITION, PlanSchedule, StudyOutcome, is_finished
from spectune.runner.search import search_estimate
from spectune.runner.stop_early import stop_rule
from spectune.runner.trial import TrialTask, run_trial
from spectune.server.lifecycle import to_the_end
from spectune.statistics.intervals import SpeedSample
from spectune.store.abort import forget_abort
from spectune.store.study_dir import StudyDir


async def run_study(
    directory: StudyDir,
    *,
    models: ModelPaths,
    watcher: Watcher,
    host: Host,
    retry_failed: bool = False,
    findings: Mapping[str, Sequence[Finding]] | None = None,
    patience: Patience | None = None,
) -> StudyOutcome:
    """Runs what is left of the plan. Finished trials are never repeated; each new one is on disk before the next.

    ``findings``: what a check found before, by arm id; it goes into the records of the arm's trials. ``patience``:
    what to do on a noisy machine; a simulated engine, which measures nothing, needs none unless it is given.
    Raises ``Interrupted`` if somebody asks for the end of the run (``store.abort``).
    """
    with one_run(directory):
        schedule = PlanSchedule(
            directory, retry_failed=retry_failed, findings=findings or {}, on_message=watcher.on_message
        )
        study, trials = schedule.study, schedule.trials
        watcher.on_study(study, done=len(study.plan) - schedule.num_open, total=len(study.plan))
        if study.search is not None and study.search_end is None:
            watcher.on_message(str(search_estimate(study, trials)))
        if is_finished(study, trials, retry_failed=retry_failed):
            write_reports(directory)
            return StudyOutcome("done", 0, tuple(trials))
        async with host:
            place = await place_on(host, owner=str(directory.path.resolve()), known=findings or {})
            place.lacking.update(await lacking_by_version(study))
            noise = None
            if patience is not None or not adapter_for(study.engine.name).simulated:
                patience = patience or Patience()
                noise = NoiseWatch(patience.look or looking_at(host), patience, say=watcher.on_message)
            run = _HostRun(schedule, models, watcher, place, noise)
            try:
                return await until_asked_to_end(run.to_its_end(), directory)
            finally:
                await to_the_end(end_kept(place))


@contextmanager
def one_run(directory: StudyDir) -> Iterator[None]:
    """The directory is this run's alone, and holds trials of its workload; raises ``BadInput`` if it does not."""
    with directory.lock():
        forget_abort(directory.path)  # meant for an earlier run
        check_same_workload(directory, directory.read_study(), directory.read_trials())
        yield


async def until_asked_to_end(run: Coroutine[Any, Any, StudyOutcome], directory: StudyDir) -> StudyOutcome:
    """The end of a run, with the reports on disk. Raises ``Interrupted`` if somebody asks for it (``store.abort``)."""
    try:
        outcome = await unless_aborted(run, folder=directory.path)
    except Aborted:
        forget_abort(directory.path)
        write_reports(directory)
        raise Interrupted(
            f"stopped, as somebody asked for. Resume with: spectune run {shlex.quote(directory.place)}"
        ) from None
    write_reports(directory)
    return outcome


@contextmanager
def record_can_be_written(directory: StudyDir) -> Iterator[None]:
    """Raises ``EnvironmentFailed`` where the system says no."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFailed(
            f"{directory.path}: cannot write the record: {error.strerror or error}\n"
            "The servers were stopped and finished trials are kept; make room, then run the study again"
        ) from error


class _HostRun:
    """One trial after another, on one host."""

    def __init__(
        self,
        schedule: PlanSchedule,
        models: ModelPaths,
        watcher: Watcher,
        place: Place,
        noise_watch: NoiseWatch | None,
    ) -> None:
        self._schedule = schedule
        self._models = models
        self._watcher = watcher
        self._place = place
        self._noise_watch = noise_watch

    async def to_its_end(self) -> StudyOutcome:
        schedule = self._schedule
        if self._noise_watch is not None and not self._place.alive:
            await self._noise_watch.before_the_first_launch()
        await self._work_through()
        if schedule.is_without_baseline:
            return schedule.outcome()
        if schedule.queue:
            await stop_leftovers(self._place, on_message=self._watcher.on_message)
        elif schedule.ask_for_soak():
            await end_kept(self._place)
            await self._work_through()
        return schedule.outcome()

    async def _work_through(self) -> None:
        schedule = self._schedule
        while not schedule.is_without_baseline:
            if self._place.kept.server_id is not None:
                alive = await kept_server(self._place, on_message=self._watcher.on_message)
                self._place = replace(self._place, alive=alive)
            block = schedule.take(
                server_for=lambda planned: usable_server(self._place, **self._server_of(planned))
            )
            if not block:
                return
            await self._one_trial(block[0])

    async def _one_trial(self, planned: PlannedTrial) -> None:
        schedule, watcher = self._schedule, self._watcher
        self._place = await without_other_servers(
            self._place, **self._server_of(planned), on_message=watcher.on_message
        )
        with record_can_be_written(schedule.directory):
            trial = await self._measured(planned)
        self._place = replace(self._place, alive=())
        schedule.count(trial, planned)
        watcher.on_trial_end(trial, schedule.trials)
        if told := await schedule.directory.settle():
            watcher.on_message(told)
        if schedule.ends_noise_floor(planned):
            watcher.on_message(describe_equal_launches(schedule.study, schedule.trials))
            if self._noise_watch is not None:
                again, mark = await self._noise_watch.after_equal_launches(schedule.study, schedule.trials)
                schedule.mark_noise(again=again, mark=mark)

    def _server_of(self, planned: PlannedTrial) -> _Server:
        study = self._schedule.study
        arm = study.arm(planned.arm_id)
        key = launch_key(arm, without_flags(study, self._place.lacking), self._models)
        return {"key": key, "block": block_of(arm, planned.repetition, study)}

    async def _measured(self, planned: PlannedTrial) -> Trial:
        """The trial, on disk."""
        schedule = self._schedule
        study, trials, arm = schedule.study, schedule.trials, schedule.study.arm(planned.arm_id)
        hypothesis = schedule.hypothesis(planned)
        number, folder = schedule.directory.new_trial(arm.arm_id)
        self._watcher.on_trial_start(schedule.start(number, planned, hypothesis))
        is_soak = planned.repetition == SOAK_REPETITION

        def judge(loads: tuple[LoadResult, ...], order: int) -> Hypothesis:
            own = SpeedSample(arm.arm_id, order, speed_by_prompt(loads[:1]))
            return judged(hypothesis, own, loads, study=study, trials=trials)

        rule = partial(stop_rule, study, trials, planned, hypothesis=hypothesis)
        task = TrialTask(
            arm=arm,
            repetition=planned.repetition,
            number=number,
            study=study,
            hypothesis=hypothesis,
            folder=folder,
            models=self._models,
            watcher=self._watcher,
            is_soak=is_soak,
        )
        return await run_trial(
            task,
            self._place,
            judge=judge,
            ends_early=None if is_soak else rule(launch_log_sd=launch_log_sd(schedule.observed())),
            keeps=None if is_soak else partial(schedule.shares_next, planned),
        )


class _Server(TypedDict):
    """What a running server must be, to be used for a trial."""

    key: str
    block: str


def fetch_models(study: Study, *, home: Path, on_fetch: Callable[[str, int, int | None], None]) -> ModelPaths:
    """Paths of every model of the study; built-in ones are fetched once. Blocks while it downloads.

    On another host every reference is a path there, or a name that the engine there resolves.
    """
    model_format = adapter_for(study.engine.name).model_format
    references = {arm.target for arm in study.arms}
    references |= {arm.knobs.drafter for arm in study.arms if arm.knobs.drafter is not None}
    if study.host != LOCAL:
        return ModelPaths({reference: reference for reference in references})

    def fetch(folder: Path) -> Path:
        return fetch_embedded_target(
            folder, progress=lambda done, total: on_fetch("the embedded model", done, total)
        )

    return ModelPaths(
        {
            reference: resolve_model(reference, model_format=model_format, home=home, fetch=fetch)
            for reference in sorted(references)
        }
    )
