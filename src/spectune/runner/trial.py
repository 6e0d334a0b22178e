"""One trial: launch, ready, warm-up, measure, stop, record."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from spectune.domain.arm import Arm
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.measurement import LoadResult
from spectune.domain.secrets import redact_argv, redact_env
from spectune.domain.study import Study
from spectune.domain.trial import Failure, ServerFacts, SoakResult, Trial
from spectune.engines.registry import adapter_for
from spectune.errors import (
    EnvironmentFailed,
    HostUnreachable,
    LaunchRefused,
    LeaseExpired,
    PortTaken,
    ServerDied,
    TeardownUnproven,
)
from spectune.report.vllm_result import vllm_bench_result
from spectune.runner.events import Watcher
from spectune.runner.launch import ModelPaths, Place, prepare_launch
from spectune.runner.measure import Measured, Measurement
from spectune.runner.own_log import findings_of_own_log
from spectune.runner.soak import Soak
from spectune.runner.stop_early import IsWorse
from spectune.server.lifecycle import Launched, ServerHandle, serve
from spectune.server.phases import PhaseClock
from spectune.store.study_dir import TrialDir, plan_record

_LAST_RECORDS_S = 1.0
_DEATH_WAIT_S = 1.0
_MAX_ATTEMPTS = 3
_PORT_TAKEN = re.compile(
    r"address already in use|couldn't bind|failed to bind|attempting to bind", re.IGNORECASE
)


@dataclass
class _Attempt:
    """What one launch gave."""

    loads: list[LoadResult]
    launched: Launched
    clock: PhaseClock
    command: tuple[str, ...] = ()
    env: dict[str, str] | None = None
    facts: ServerFacts | None = None
    soak: SoakResult | None = None
    pruned: str | None = None
    failure: Failure | None = None
    error: EnvironmentFailed | None = None


_Work = Callable[[ServerHandle, Arm, Study, _Attempt, TrialDir, Watcher], Awaitable[None]]


async def run_trial(
    arm: Arm,
    *,
    repetition: int,
    study: Study,
    hypothesis: Hypothesis,
    judge: Callable[[tuple[LoadResult, ...], int], Hypothesis],
    number: int,
    directory: TrialDir,
    models: ModelPaths,
    watcher: Watcher,
    place: Place,
    soak_s: float | None = None,
    is_worse: IsWorse | None = None,
) -> Trial:
    """Runs one trial to its record on disk; with ``soak_s`` a long run instead of a measurement.

    Only cancellation, an unproven teardown and a host that stays away come out
    as exceptions. A launch that failed for reasons that are not the arm's (a
    port taken meanwhile, a lease that ran out) is repeated.
    """
    started_at = _now()
    work: _Work = partial(_measure, is_worse=is_worse) if soak_s is None else _soak
    attempt = await _attempt(arm, study, hypothesis, directory, models, watcher, place, work)
    relaunches: list[str] = []
    for _ in range(_MAX_ATTEMPTS - 1):
        if attempt.error is None or not _is_not_the_arms_fault(attempt.error):
            break
        relaunches.append(str(attempt.error).splitlines()[0])
        watcher.on_message(f"{relaunches[-1]}: launching {arm.name} again")
        directory.replace_requests([])
        attempt = await _attempt(arm, study, hypothesis, directory, models, watcher, place, work)
    if isinstance(attempt.error, LeaseExpired | HostUnreachable | LaunchRefused):
        raise attempt.error  # says nothing about the arm: the trial stays open, to be run again
    loads = attempt.loads
    failure = attempt.failure
    if failure is None and soak_s is None and not (loads and all(load.completed for load in loads)):
        failure = _no_answers(loads)
    adapter = adapter_for(arm.engine)
    trial = Trial(
        trial_id=directory.path.name,
        number=number,
        arm=arm,
        arm_id=arm.arm_id,
        repetition=repetition,
        workload_hash=study.workload.workload_hash,
        status="failed" if failure is not None else "pruned" if attempt.pruned else "complete",
        hypothesis=judge(tuple(loads), number) if failure is None and soak_s is None else hypothesis,
        command=attempt.command,
        env=attempt.env or {},
        started_at=started_at,
        ended_at=_now(),
        phases_s={name: round(seconds, 4) for name, seconds in attempt.clock.seconds.items()},
        server=attempt.facts,
        stop=attempt.launched.stop,
        reattached=attempt.launched.reattached,
        failure=failure,
        relaunches=tuple(relaunches),
        pruned=attempt.pruned if failure is None else None,
        loads=tuple(loads),
        soak=attempt.soak,
        findings=(*place.known.get(arm.arm_id, ()), *attempt.launched.findings),
        simulated=adapter.simulated,
    )
    told = findings_of_own_log(trial, directory.log_path)
    trial = trial.model_copy(update={"findings": (*trial.findings, *told)})
    if loads:
        first, *others = (vllm_bench_result(trial, i, api=study.workload.api) for i in range(len(loads)))
        directory.write_result({**first, "spectune_other_loads": others} if others else first)
    directory.finish(trial)
    if isinstance(attempt.error, TeardownUnproven):
        raise attempt.error
    return trial


def _is_not_the_arms_fault(error: EnvironmentFailed) -> bool:
    if isinstance(error, LeaseExpired | HostUnreachable | PortTaken):
        return True
    return isinstance(error, ServerDied) and bool(_PORT_TAKEN.search(error.cause or ""))


async def _attempt(
    arm: Arm,
    study: Study,
    hypothesis: Hypothesis,
    directory: TrialDir,
    models: ModelPaths,
    watcher: Watcher,
    place: Place,
    work: _Work,
) -> _Attempt:
    plan, reattach_to = await prepare_launch(
        arm, study, models=models, place=place, log_path=directory.log_path
    )
    attempt = _Attempt([], Launched(), PhaseClock(on_change=watcher.on_phase))
    attempt.command, attempt.env = redact_argv(plan.command.argv), redact_env(plan.command.env)
    directory.write_plan(
        plan_record(hypothesis=hypothesis, arm=arm, command=attempt.command, env=attempt.env)
    )
    try:
        async with serve(
            plan,
            clock=attempt.clock,
            launched=attempt.launched,
            reattach_to=reattach_to,
            on_progress=watcher.on_progress,
        ) as handle:
            attempt.facts = handle.facts
            await work(handle, arm, study, attempt, directory, watcher)
    except TeardownUnproven as error:
        attempt.error = error
        attempt.failure = Failure(phase="stop", cause=str(error))
    except ServerDied as error:
        attempt.error = error
        attempt.failure = Failure(
            phase=error.phase or "running",
            cause=error.cause or f"exited with code {error.exit_code_of_server}, no known cause in its log",
            remedy=error.remedy,
            exit_code=error.exit_code_of_server,
            log_tail=error.log_tail,
        )
    except EnvironmentFailed as error:
        attempt.error = error
        attempt.failure = Failure(phase=_phase_before_stop(attempt.clock), cause=str(error))
    return attempt


async def _measure(
    handle: ServerHandle,
    arm: Arm,
    study: Study,
    attempt: _Attempt,
    directory: TrialDir,
    watcher: Watcher,
    *,
    is_worse: IsWorse | None,
) -> None:
    """Measures until done, or until the server is lost: then what was measured is kept, and its error raised."""
    measurement = Measurement(
        Measured(handle.base_url, handle.model, handle.adapter),
        workload=study.workload.with_fields(arm.request),
        warmup_requests=study.warmup_requests,
        loads=attempt.loads,
        clock=attempt.clock,
        on_request=watcher.on_request,
        directory=directory,
        link=handle.server,
        is_worse=is_worse,
    )
    await _until_done_or_lost(measurement, handle)
    attempt.pruned = measurement.pruned
    if any(load.failed for load in attempt.loads):
        # Requests fail before their process is gone: it is given a moment to show it.
        dying = asyncio.ensure_future(handle.died())
        await asyncio.wait({dying}, timeout=_DEATH_WAIT_S)
        if dying.done():
            attempt.loads[-1] = attempt.loads[-1].model_copy(update={"cut_short": True})
            raise dying.result()
        dying.cancel()


async def _soak(
    handle: ServerHandle, arm: Arm, study: Study, attempt: _Attempt, directory: TrialDir, watcher: Watcher
) -> None:
    """Keeps the server under load; how far it came is kept, whatever happens."""
    assert study.soak_s is not None
    soak = Soak(
        Measured(handle.base_url, handle.model, handle.adapter),
        workload=study.workload.with_fields(arm.request),
        asked_s=study.soak_s,
        on_request=watcher.on_request,
        on_record=lambda record: directory.append_request(0, record),
    )
    attempt.clock.enter("soak")
    try:
        await _until_done_or_lost(soak, handle)
    finally:
        attempt.soak = soak.result()


async def _until_done_or_lost(work: Measurement | Soak, handle: ServerHandle) -> None:
    """Runs ``work`` to its end; if the server is lost, stops it within moments and raises why."""
    working = asyncio.create_task(work.run())
    dying = asyncio.create_task(handle.died())
    try:
        await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
        if dying.done():
            work.stop()
            await asyncio.wait({working}, timeout=_LAST_RECORDS_S)
            raise dying.result()
        await working
    finally:
        for task in (working, dying):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, EnvironmentFailed):
                await task


def _phase_before_stop(clock: PhaseClock) -> str:
    phases = [phase for phase in clock.seconds if phase != "stop"]
    return phases[-1] if phases else "launch"


def _no_answers(loads: list[LoadResult]) -> Failure:
    errors = [r.error for load in loads for r in load.failed if r.error]
    detail = f"; the first: {errors[0]}" if errors else ""
    return Failure(phase="measuring", cause=f"no request was answered at some load point{detail}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
