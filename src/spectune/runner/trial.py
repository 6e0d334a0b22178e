"""One trial: launch, ready, warm-up, measure, stop, record."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from spectune.domain.arm import Arm
from spectune.domain.findings import Finding
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
from spectune.hosts.facts import ServerStatus
from spectune.hosts.host import Host
from spectune.report.vllm_result import vllm_bench_result
from spectune.runner.events import Watcher
from spectune.runner.measure import Measured, Measurement
from spectune.runner.own_log import findings_of_own_log
from spectune.runner.plan import sample_launch
from spectune.runner.ports import PortPool
from spectune.runner.soak import Soak
from spectune.runner.stop_early import IsWorse
from spectune.server.lifecycle import Launched, LaunchPlan, Limits, ServerHandle, serve
from spectune.server.phases import PhaseClock
from spectune.store.study_dir import TrialDir, plan_record

_LAST_RECORDS_S = 1.0
_DEATH_WAIT_S = 1.0
_MAX_ATTEMPTS = 3
_PORT_TAKEN = re.compile(
    r"address already in use|couldn't bind|failed to bind|attempting to bind", re.IGNORECASE
)
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})


@dataclass(frozen=True)
class ModelPaths:
    """Where the models of a study's arms are on the host, by reference."""

    by_reference: dict[str, str]

    def target(self, arm: Arm) -> str:
        return self.by_reference[arm.target]

    def drafter(self, arm: Arm) -> str | None:
        return None if arm.knobs.drafter is None else self.by_reference[arm.knobs.drafter]

    def total_bytes(self, arm: Arm) -> int | None:
        """Size of the arm's model files on this machine; ``None`` if they are not here."""
        sizes = [_size_of(Path(p)) for p in (self.target(arm), self.drafter(arm)) if p is not None]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None


@dataclass(frozen=True)
class Place:
    """Where the trials of a study run, and what is alive there of an earlier run."""

    host: Host
    ports: PortPool
    owner: str
    """The study's directory: whose servers they are."""
    alive: tuple[ServerStatus, ...] = ()
    known: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    """What a check found before the launch, by arm id."""


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


_Work = Callable[[ServerHandle, Study, _Attempt, TrialDir, Watcher], Awaitable[None]]


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
    key = launch_key(arm, study, models)
    live = next((s for s in place.alive if s.key == key and s.state == "running" and s.ports), None)
    port = live.ports[0] if live is not None else await place.ports.take()
    plan = launch_plan(
        arm, study, models=models, host=place.host, port=port, log_path=directory.log_path, owner=place.owner
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
            reattach_to=live.server_id if live is not None else None,
            on_progress=watcher.on_progress,
        ) as handle:
            attempt.facts = handle.facts
            await work(handle, study, attempt, directory, watcher)
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
        workload=study.workload,
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
    handle: ServerHandle, study: Study, attempt: _Attempt, directory: TrialDir, watcher: Watcher
) -> None:
    """Keeps the server under load; how far it came is kept, whatever happens."""
    assert study.soak_s is not None
    soak = Soak(
        Measured(handle.base_url, handle.model, handle.adapter),
        workload=study.workload,
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


def launch_plan(
    arm: Arm, study: Study, *, models: ModelPaths, host: Host, port: int, log_path: Path, owner: str
) -> LaunchPlan:
    """The launch of an arm of this study on this host."""
    adapter = adapter_for(arm.engine)
    launch = sample_launch(
        arm,
        study.engine,
        study.workload,
        port=port,
        target_path=models.target(arm),
        drafter_path=models.drafter(arm),
    )
    command = adapter.command(launch)
    engine = study.engine
    return LaunchPlan(
        command=command,
        adapter=adapter,
        host=host,
        port=port,
        log_path=log_path.absolute(),
        limits=Limits(
            ready_s=engine.ready_timeout_s or adapter.ready_timeout_s,
            stuck_s=engine.stuck_after_s,
            settle_s=adapter.settle_s,
        ),
        subject=arm.name,
        lease_s=study.lease_s,
        label={"engine": arm.engine, "arm": arm.name, "port": port, "target": arm.target},
        key=launch_key(arm, study, models),
        owner=owner,
        model_bytes=models.total_bytes(arm) if host.shares_files else None,
        allow_busy_gpus=engine.allow_busy_gpus,
        port_is_hidden=Path(command.argv[0]).name in _CONTAINERS,
    )


def launch_key(arm: Arm, study: Study, models: ModelPaths) -> str:
    """Equal for launches that give the same server: command and variables, whatever the port."""
    launch = sample_launch(
        arm,
        study.engine,
        study.workload,
        port=0,
        target_path=models.target(arm),
        drafter_path=models.drafter(arm),
    )
    command = adapter_for(arm.engine).command(launch)
    text = json.dumps([list(command.argv), sorted(command.env.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _phase_before_stop(clock: PhaseClock) -> str:
    phases = [phase for phase in clock.seconds if phase != "stop"]
    return phases[-1] if phases else "launch"


def _size_of(path: Path) -> int | None:
    try:
        if path.is_dir():
            return sum(f.stat().st_size for f in path.iterdir() if f.suffix in (".safetensors", ".bin"))
        return path.stat().st_size
    except OSError:
        return None


def _no_answers(loads: list[LoadResult]) -> Failure:
    errors = [r.error for load in loads for r in load.failed if r.error]
    detail = f"; the first: {errors[0]}" if errors else ""
    return Failure(phase="measuring", cause=f"no request was answered at some load point{detail}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
