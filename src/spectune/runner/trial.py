"""One trial: launch, ready, warm-up, measure, stop, record."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from spectune.bench.client import StreamingClient
from spectune.bench.load import run_load
from spectune.bench.prompts import warmup_prompts
from spectune.bench.tokens import tokenize_outputs
from spectune.bench.warmup import warm_up
from spectune.domain.arm import Arm
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.measurement import LoadResult, RequestRecord, ServerCounters
from spectune.domain.secrets import redact_argv, redact_env
from spectune.domain.study import Study
from spectune.domain.trial import Failure, ServerFacts, Trial
from spectune.domain.workload import Workload
from spectune.engines.adapter import EngineAdapter
from spectune.engines.registry import adapter_for
from spectune.errors import EnvironmentFailed, ServerDied, TeardownUnproven, TransportError
from spectune.hosts.local import free_port
from spectune.report.vllm_result import vllm_bench_result
from spectune.runner.events import Watcher
from spectune.runner.plan import sample_launch
from spectune.server.lifecycle import ServerHandle, serve
from spectune.server.phases import PhaseClock
from spectune.store.study_dir import TrialDir, plan_record
from spectune.transport import HttpClient

T = TypeVar("T")
_DEATH_WAIT_S = 1.0


@dataclass(frozen=True)
class ModelPaths:
    """Where the models of a study's arms are on this machine, by reference."""

    by_reference: dict[str, str]

    def target(self, arm: Arm) -> str:
        return self.by_reference[arm.target]

    def drafter(self, arm: Arm) -> str | None:
        return None if arm.knobs.drafter is None else self.by_reference[arm.knobs.drafter]


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
    port: int | None = None,
) -> Trial:
    """Runs one trial to its record on disk; only cancellation and an unproven teardown come out as exceptions."""
    adapter = adapter_for(arm.engine)
    launch = sample_launch(
        arm,
        study.engine,
        study.workload,
        port=port or free_port(),
        target_path=models.target(arm),
        drafter_path=models.drafter(arm),
    )
    command = adapter.command(launch)
    shown_argv, shown_env = redact_argv(command.argv), redact_env(command.env)
    directory.write_plan(plan_record(hypothesis=hypothesis, arm=arm, command=shown_argv, env=shown_env))
    clock = PhaseClock(on_change=watcher.on_phase)
    started_at = _now()
    loads: list[LoadResult] = []
    facts: ServerFacts | None = None
    failure: Failure | None = None
    unproven: TeardownUnproven | None = None
    try:
        async with serve(
            command,
            adapter=adapter,
            host=launch.host,
            port=launch.port,
            log_path=directory.log_path,
            ready_timeout_s=study.engine.ready_timeout_s or adapter.ready_timeout_s,
            clock=clock,
        ) as handle:
            facts = handle.facts
            measuring = measure_server(
                Measured(handle.base_url, handle.model, adapter),
                workload=study.workload,
                warmup_requests=study.warmup_requests,
                loads=loads,
                clock=clock,
                on_request=watcher.on_request,
                directory=directory,
            )
            await _unless_dead(measuring, handle)
            if any(load.failed for load in loads):
                await _check_alive(handle)
    except TeardownUnproven as error:
        unproven = error
        failure = Failure(phase="stop", cause=str(error))
    except ServerDied as error:
        failure = Failure(
            phase=error.phase,
            cause=error.cause or f"exited with code {error.exit_code_of_server}, no known cause in its log",
            remedy=error.remedy,
            exit_code=error.exit_code_of_server,
            log_tail=error.log_tail,
        )
    except EnvironmentFailed as error:
        failure = Failure(phase=clock.latest or "launch", cause=str(error))
    complete = failure is None and all(load.completed for load in loads) and bool(loads)
    if failure is None and not complete:
        failure = _no_answers(loads)
    trial = Trial(
        trial_id=directory.path.name,
        number=number,
        arm=arm,
        arm_id=arm.arm_id,
        repetition=repetition,
        workload_hash=study.workload.workload_hash,
        status="complete" if failure is None else "failed",
        hypothesis=judge(tuple(loads), number) if failure is None else hypothesis,
        command=shown_argv,
        env=shown_env,
        started_at=started_at,
        ended_at=_now(),
        phases_s={name: round(seconds, 4) for name, seconds in clock.seconds.items()},
        server=facts,
        failure=failure,
        loads=tuple(loads),
        simulated=adapter.simulated,
    )
    if loads:
        first, *others = (vllm_bench_result(trial, i, api=study.workload.api) for i in range(len(loads)))
        directory.write_result({**first, "spectune_other_loads": others} if others else first)
    directory.finish(trial)
    if unproven is not None:
        raise unproven
    return trial


@dataclass(frozen=True)
class Measured:
    """A server to measure: ours, or one that was already running."""

    base_url: str
    model: str
    adapter: EngineAdapter
    api_key: str | None = None
    may_flush: bool = True
    """Emptying the prefix cache of a server that others use would disturb them."""


async def measure_server(
    server: Measured,
    *,
    workload: Workload,
    warmup_requests: int,
    loads: list[LoadResult],
    clock: PhaseClock,
    on_request: Callable[[int, int], None],
    directory: TrialDir | None = None,
) -> None:
    """Warm-up and measurement at every load point; finished points are appended to ``loads``."""
    adapter = server.adapter
    async with HttpClient(server.base_url, api_key=server.api_key) as http:
        client = StreamingClient(
            http,
            adapter=adapter,
            model=server.model,
            api=workload.api,
            request_timeout_s=workload.request_timeout_s,
        )
        counters = counter_reader(http, adapter)
        for index, load in enumerate(workload.loads):
            clock.enter("warm-up")
            await warm_up(
                client, warmup_prompts(), load=load, count=warmup_requests, sampling=workload.sampling
            )
            if server.may_flush:
                await flush_prefix_cache(http, adapter)
            clock.enter("measure")
            total = workload.requests_per_load or len(workload.prompts)
            finished = 0

            def keep(record: RequestRecord, index: int = index, total: int = total) -> None:
                nonlocal finished
                finished += 1
                if directory is not None:
                    directory.append_request(index, record)
                on_request(finished, total)

            result = await run_load(
                client, workload=workload, load=load, read_counters=counters, on_record=keep
            )
            clock.close()
            loads.append(await tokenize_outputs(http, adapter, server.model, result))
            if directory is not None:
                directory.replace_requests([r.requests for r in loads])


def counter_reader(
    http: HttpClient, adapter: EngineAdapter
) -> Callable[[], Awaitable[ServerCounters | None]]:
    """Reads the engine's counters; ``None`` where it publishes none."""

    async def read() -> ServerCounters | None:
        try:
            reply = await http.request("GET", adapter.metrics_path, timeout_s=10)
        except TransportError:
            return None
        return adapter.read_counters(reply.text) if reply.status == 200 else None

    return read


async def flush_prefix_cache(http: HttpClient, adapter: EngineAdapter) -> bool | None:
    """Empties the prefix cache where the engine can; ``None``: it offers no such call."""
    call = adapter.flush_call()
    if call is None:
        return None
    try:
        reply = await http.request(call.method, call.path, body=call.body, timeout_s=30)
    except TransportError:
        return False
    return 200 <= reply.status < 300


async def _unless_dead(work: Awaitable[T], handle: ServerHandle) -> T:
    """The result of ``work``, or ``ServerDied`` as soon as the server ends."""
    working = asyncio.ensure_future(work)
    dying = asyncio.create_task(handle.died())
    try:
        await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
        if dying.done():
            raise dying.result()
        return await working
    finally:
        for task in (working, dying):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, EnvironmentFailed):
                await task


async def _check_alive(handle: ServerHandle) -> None:
    """Raises ``ServerDied`` if the server ends within a moment: requests fail before their process is gone."""
    try:
        async with asyncio.timeout(_DEATH_WAIT_S):
            raise await handle.died()
    except TimeoutError:
        return


def _no_answers(loads: list[LoadResult]) -> Failure:
    errors = [r.error for load in loads for r in load.failed if r.error]
    detail = f"; the first: {errors[0]}" if errors else ""
    return Failure(phase="measuring", cause=f"no request was answered at some load point{detail}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
