"""One trial: launch, ready, warm-up, measure, stop, record; or on the server that the trial before left running."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from spectune.domain.arm import Arm
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.measurement import LoadResult
from spectune.domain.secrets import redact_argv, redact_env
from spectune.domain.study import Study
from spectune.domain.trial import EarlyEnd, Failure, ServerFacts, SoakResult, Trial
from spectune.engines.registry import adapter_for
from spectune.errors import (
    EnvironmentFailed,
    HostUnreachable,
    LaunchRefused,
    LeaseExpired,
    NodeLost,
    PortTaken,
    ServerDied,
    TeardownUnproven,
)
from spectune.race import racing
from spectune.report.vllm_result import vllm_bench_result
from spectune.runner.abort import ABORTED, Aborted, unless_aborted
from spectune.runner.events import Watcher
from spectune.runner.launch import Kept, ModelPaths, Place, end_kept, prepare_launch
from spectune.runner.log_findings import findings_of_own_log
from spectune.runner.measure import Measured, Measurement
from spectune.runner.optional_flags import unknown_flag, without_flags
from spectune.runner.order import block_of
from spectune.runner.progress_file import Recorded
from spectune.runner.rank_records import planned_ranks, rank_records
from spectune.runner.soak import Soak
from spectune.runner.stop_early import EndsEarly
from spectune.server.lifecycle import Launched, ServerHandle, serve
from spectune.server.neighbours import watching_neighbours
from spectune.server.phases import PhaseClock
from spectune.store.progress import ProgressFile
from spectune.store.study_dir import TrialDir, plan_record

_LAST_RECORDS_S = 1.0
_DEATH_WAIT_S = 1.0
_MAX_ATTEMPTS = 3
_PORT_TAKEN = re.compile(
    r"address already in use|couldn't bind|failed to bind|attempting to bind", re.IGNORECASE
)


@dataclass(frozen=True)
class TrialTask:
    """What is to be measured, and where its record goes."""

    arm: Arm
    repetition: int
    number: int
    study: Study
    hypothesis: Hypothesis
    folder: TrialDir
    models: ModelPaths
    watcher: Watcher
    is_soak: bool = False
    """A long run of ``study.soak_s`` instead of a measurement."""


@dataclass
class _Attempt:
    """What one launch gave."""

    loads: list[LoadResult]
    launched: Launched
    clock: PhaseClock
    launch: int = 0
    """Number of the trial that started the server."""
    reattached: bool = False
    log_of_others: tuple[int, int] | None = None
    """The part of the log that earlier trials of the launch left, from the end of the start on."""
    command: tuple[str, ...] = ()
    env: dict[str, str] | None = None
    facts: ServerFacts | None = None
    soak: SoakResult | None = None
    ended_early: EarlyEnd | None = None
    failure: Failure | None = None
    error: EnvironmentFailed | None = None


Keeps = Callable[[Trial], bool]
"""Given the trial as it stands before its stop: whether the next one is to be measured on the same server."""
Judge = Callable[[tuple[LoadResult, ...], int], Hypothesis]
"""Given the loads and the trial's number: the hypothesis with its verdict."""
_Work = Callable[[ServerHandle, TrialTask, _Attempt], Awaitable[None]]


async def run_trial(
    task: TrialTask,
    place: Place,
    *,
    judge: Judge | None = None,
    ends_early: EndsEarly | None = None,
    keeps: Keeps | None = None,
) -> Trial:
    """Runs one trial to its record on disk.

    A server in ``place.alive`` that gives the same is used instead of a launch.
    If ``keeps`` says so, it is left running in ``place.kept``.

    Only cancellation, an unproven teardown and a host that stays away come out
    as exceptions. A launch that failed for reasons that are not the arm's (a
    port taken meanwhile, a lease that ran out) is repeated. A trial that
    somebody asked to end (``store.abort``) is a failed one.
    """
    started_at = _now()
    arm, study = task.arm, task.study
    work: _Work = _soak if task.is_soak else partial(_measure, ends_early=ends_early)

    def record(attempt: _Attempt) -> Trial:
        loads, failure = attempt.loads, attempt.failure
        if failure is None and not task.is_soak and not (loads and all(load.completed for load in loads)):
            failure = _no_answers(loads)
        early = attempt.ended_early if failure is None else None
        is_worse = early is not None and early.verdict == "worse"
        is_measured = failure is None and not task.is_soak
        return Trial(
            trial_id=task.folder.path.name,
            number=task.number,
            arm=arm,
            arm_id=arm.arm_id,
            repetition=task.repetition,
            workload_hash=study.workload.workload_hash,
            status="failed" if failure is not None else "pruned" if is_worse else "complete",
            hypothesis=judge(tuple(loads), task.number) if judge and is_measured else task.hypothesis,
            command=attempt.command,
            env=attempt.env or {},
            ranks=rank_records(attempt.launched.ranks),
            started_at=started_at,
            ended_at=_now(),
            phases_s={name: round(seconds, 4) for name, seconds in attempt.clock.seconds.items()},
            server=attempt.facts,
            launch=attempt.launch,
            stop=attempt.launched.stop,
            reattached=attempt.reattached,
            failure=failure,
            relaunches=tuple(relaunches),
            pruned=early.reason if early is not None and is_worse else None,
            ended_early=early,
            loads=tuple(loads),
            soak=attempt.soak,
            findings=(*place.known.get(arm.arm_id, ()), *attempt.launched.findings),
            simulated=adapter_for(arm.engine).simulated,
        )

    def is_kept(attempt: _Attempt) -> bool:
        """A server that did not answer every request is not trusted with another trial."""
        if keeps is None or any(load.failed for load in attempt.loads):
            return False
        attempt.clock.close()
        so_far = record(attempt)
        return so_far.status != "failed" and keeps(so_far)

    progress = ProgressFile(task.folder.path)
    task = replace(task, study=without_flags(study, place.lacking), watcher=Recorded(task.watcher, progress))
    relaunches: list[str] = []
    attempt = await _attempt(task, place, work, is_kept, beat=progress.beat)
    for _ in range(_MAX_ATTEMPTS - 1):
        unknown = unknown_flag(attempt.error, arm, task.study)
        if unknown is None and (attempt.error is None or not is_not_the_arms_fault(attempt.error)):
            break
        if isinstance(attempt.error, NodeLost):
            break  # a node of its server is gone: it is for others to repeat it
        if unknown is not None:
            place.lacking.add(unknown)
            task = replace(task, study=without_flags(study, place.lacking))
        why = f"this {arm.engine} does not know --{unknown}, which spectune adds to measure"
        relaunches.append(why if unknown is not None else str(attempt.error).splitlines()[0])
        task.watcher.on_message(f"{relaunches[-1]}: launching {arm.name} again")
        task.folder.replace_requests([])
        await end_kept(place)
        attempt = await _attempt(task, replace(place, alive=()), work, is_kept, beat=progress.beat)
    if isinstance(attempt.error, LeaseExpired | HostUnreachable | LaunchRefused):
        raise attempt.error  # says nothing about the arm: the trial stays open, to be run again
    loads = attempt.loads
    trial = record(attempt)
    told = findings_of_own_log(trial, task.folder.log_path, without=attempt.log_of_others)
    trial = trial.model_copy(update={"findings": (*trial.findings, *told)})
    if loads:
        first, *others = (vllm_bench_result(trial, i, api=study.workload.api) for i in range(len(loads)))
        task.folder.write_result({**first, "spectune_other_loads": others} if others else first)
    task.folder.finish(trial)
    if isinstance(attempt.error, TeardownUnproven):
        raise attempt.error
    return trial


def is_not_the_arms_fault(error: EnvironmentFailed) -> bool:
    """Whether the same launch may well succeed when it is made again."""
    if isinstance(error, LeaseExpired | HostUnreachable | PortTaken):
        return True
    return isinstance(error, ServerDied) and bool(_PORT_TAKEN.search(error.cause or ""))


async def _attempt(
    task: TrialTask,
    place: Place,
    work: _Work,
    is_kept: Callable[[_Attempt], bool],
    *,
    beat: Callable[[], None],
) -> _Attempt:
    arm, study, directory, watcher = task.arm, task.study, task.folder, task.watcher
    block = block_of(arm, task.repetition, study)
    plan, live = await prepare_launch(
        arm, study, models=task.models, place=place, log_path=directory.log_path, block=block
    )
    plan.label.update(launch=task.number, block=block)
    attempt = _Attempt([], Launched(), PhaseClock(on_change=watcher.on_phase), launch=task.number)
    if live is not None:
        attempt.launch = int(live.about.get("launch", task.number))
        attempt.reattached = live.server_id != place.kept.server_id
        if attempt.reattached:
            place.kept.server_id, place.kept.start_bytes = live.server_id, None
    attempt.command, attempt.env = redact_argv(plan.command.argv), redact_env(plan.command.env)
    directory.write_plan(
        plan_record(
            hypothesis=task.hypothesis,
            arm=arm,
            command=attempt.command,
            env=attempt.env,
            ranks=planned_ranks(plan),
        )
    )

    async def serve_and_work() -> None:
        async with serve(
            plan,
            clock=attempt.clock,
            launched=attempt.launched,
            reattach_to=None if live is None else live.server_id,
            on_progress=watcher.on_progress,
        ) as handle:
            attempt.facts = handle.facts
            if live is not None and place.kept.start_bytes is not None:
                attempt.log_of_others = (place.kept.start_bytes, attempt.launched.ready_log_bytes)
            await work(handle, task, attempt)
            attempt.launched.kept = not handle.watch.lost.done() and is_kept(attempt)

    try:
        await unless_aborted(
            serve_and_work(),
            folder=directory.path,
            may_abort=lambda: attempt.clock.current != "stop",
            on_poll=beat,
        )
    except Aborted:
        attempt.failure = Failure(
            phase=_phase_before_stop(attempt.clock),
            cause=ABORTED,
            remedy="to have it measured after all: spectune run --retry-failed",
        )
    except TeardownUnproven as error:
        attempt.error = error
        attempt.failure = Failure(phase="stop", cause=str(error))
    except ServerDied as error:
        attempt.error = error
        part = "" if error.rank is None else f"rank {error.rank} on {error.node}: "
        cause = error.cause or f"exited with code {error.exit_code_of_server}, no known cause in its log"
        attempt.failure = Failure(
            phase=error.phase or "running",
            cause=part + cause,
            remedy=error.remedy,
            exit_code=error.exit_code_of_server,
            log_tail=error.log_tail,
            rank=error.rank,
            node=error.node,
        )
    except EnvironmentFailed as error:
        attempt.error = error
        attempt.failure = Failure(phase=_phase_before_stop(attempt.clock), cause=str(error))
    finally:
        _note_kept(place.kept, attempt.launched)
    return attempt


def _note_kept(kept: Kept, launched: Launched) -> None:
    if launched.kept:
        if kept.server_id != launched.server_id:
            kept.start_bytes = launched.ready_log_bytes
        kept.server_id = launched.server_id
    elif launched.stop is not None:
        kept.server_id = None


async def _measure(
    handle: ServerHandle, task: TrialTask, attempt: _Attempt, *, ends_early: EndsEarly | None
) -> None:
    """Measures until done, or until the server is lost: then what was measured is kept, and its error raised."""
    study = task.study
    measurement = Measurement(
        Measured(handle.base_url, handle.model, handle.adapter),
        workload=study.workload.with_fields(task.arm.request),
        warmup_requests=study.warmup_requests,
        loads=attempt.loads,
        clock=attempt.clock,
        on_request=task.watcher.on_request,
        directory=task.folder,
        link=handle.server,
        ends_early=ends_early,
    )
    try:
        async with watching_neighbours(handle.server, subject=task.arm.name) as found:
            await _until_done_or_lost(measurement, handle)
        attempt.launched.findings += found
        attempt.ended_early = measurement.ended_early
        if any(load.failed for load in attempt.loads):
            await _raise_if_dying(handle)
    except EnvironmentFailed:
        # Whether the loss was noticed before the last answers had failed or after, they say nothing of the arm.
        if attempt.loads and attempt.loads[-1].failed:
            attempt.loads[-1] = attempt.loads[-1].model_copy(update={"cut_short": True})
        raise


async def _raise_if_dying(handle: ServerHandle) -> None:
    """Requests fail before their process is gone: it is given a moment to show it."""
    dying = asyncio.ensure_future(handle.died())
    await asyncio.wait({dying}, timeout=_DEATH_WAIT_S)
    if dying.done():
        raise dying.result()
    dying.cancel()


async def _soak(handle: ServerHandle, task: TrialTask, attempt: _Attempt) -> None:
    """Keeps the server under load; how far it came is kept, whatever happens."""
    study = task.study
    assert study.soak_s is not None
    soak = Soak(
        Measured(handle.base_url, handle.model, handle.adapter),
        workload=study.workload.with_fields(task.arm.request),
        asked_s=study.soak_s,
        on_request=task.watcher.on_request,
        on_record=lambda record: task.folder.append_request(0, record),
    )
    attempt.clock.enter("soak")
    try:
        await _until_done_or_lost(soak, handle)
    finally:
        attempt.soak = soak.result()


async def _until_done_or_lost(work: Measurement | Soak, handle: ServerHandle) -> None:
    """Runs ``work`` to its end; if the server is lost, stops it within moments and raises why."""
    async with racing(work.run(), handle.died()) as (working, dying):
        if dying.done():
            work.stop()
            await asyncio.wait({working}, timeout=_LAST_RECORDS_S)
            raise dying.result()
        await working


def _phase_before_stop(clock: PhaseClock) -> str:
    phases = [phase for phase in clock.seconds if phase != "stop"]
    return phases[-1] if phases else "launch"


def _no_answers(loads: list[LoadResult]) -> Failure:
    errors = [r.error for load in loads for r in load.failed if r.error]
    detail = f"; the first: {errors[0]}" if errors else ""
    return Failure(phase="measuring", cause=f"no request was answered at some load point{detail}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
