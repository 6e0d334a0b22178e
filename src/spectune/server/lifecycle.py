"""From launch to proven gone.

``serve`` is the one way a server is started: whatever happens inside its
block, the server's processes are gone when it is left, or ``TeardownUnproven``
says which are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectune.domain.trial import ServerFacts
from spectune.domain.workload import Sampling
from spectune.engines.adapter import Command, EngineAdapter
from spectune.engines.bodies import as_dict, as_int, first_model_id
from spectune.errors import EnvironmentFailed, ServerDied, ServerNotReady, TransportError
from spectune.hosts.local import LocalProcess, ServerProcess, StopProof, port_is_free
from spectune.server.log import LogFollower
from spectune.server.phases import PhaseClock
from spectune.transport import HttpClient

_PROBE_EVERY_S = 0.05
_PROBE_TOKENS = 8
_LOG_TAIL_LINES = 30


@dataclass
class ServerHandle:
    """A server that has proven to generate."""

    base_url: str
    model: str
    facts: ServerFacts
    process: ServerProcess
    log: LogFollower
    adapter: EngineAdapter
    clock: PhaseClock
    stop_proof: StopProof | None = None

    async def died(self) -> ServerDied:
        """Returns, as an error to raise, when the server's process ends."""
        code = await self.process.wait_exit()
        return death_of(self.process, self.log, self.adapter, self.clock, code)


def death_of(
    process: ServerProcess, log: LogFollower, adapter: EngineAdapter, clock: PhaseClock, code: int | None
) -> ServerDied:
    """The error for a server that ended, with the cause its log gives."""
    tail = log.last_lines(200)
    cause = adapter.cause_of_death(tail)
    message = cause.message if cause else _signal_name(code)
    return ServerDied(
        exit_code_of_server=code,
        after_s=sum(clock.seconds.values()),
        phase=_PHASE_WORDS.get(clock.latest or "launch", "running"),
        log_tail=tail[-_LOG_TAIL_LINES:],
        cause=message,
        remedy=cause.remedy if cause else None,
        log_path=str(process.log_path),
    )


_PHASE_WORDS = {
    "launch": "launching",
    "load": "loading weights",
    "compile": "compiling",
    "capture": "capturing graphs",
    "warm-up": "warming up",
    "measure": "measuring",
    "stop": "stopping",
}


def _signal_name(code: int | None) -> str | None:
    if code is None or code >= 0:
        return None
    try:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"killed by signal {-code}"


@asynccontextmanager
async def serve(
    command: Command,
    *,
    adapter: EngineAdapter,
    host: str,
    port: int,
    log_path: Path,
    ready_timeout_s: float,
    clock: PhaseClock,
    stop_grace_s: float = 20.0,
) -> AsyncIterator[ServerHandle]:
    """Starts the server, waits until it generates, and stops it on the way out."""
    if not port_is_free(port, host):
        raise EnvironmentFailed(
            f"port {port} is taken by another program; it was left alone. Choose another with --port"
        )
    clock.enter("launch")
    process = LocalProcess.start(command.argv, env=command.env, log_path=log_path)
    handle: ServerHandle | None = None
    try:
        handle = await wait_ready(
            process,
            adapter=adapter,
            base_url=f"http://{host}:{port}",
            timeout_s=ready_timeout_s,
            clock=clock,
        )
        yield handle
    finally:
        clock.enter("stop")
        proof = await finish_stop(process.stop(grace_s=stop_grace_s))
        clock.close()
        if handle is not None:
            handle.stop_proof = proof


async def finish_stop(stopping: Coroutine[Any, Any, StopProof]) -> StopProof:
    """Runs the stop to its end even while we are being cancelled."""
    task: asyncio.Task[StopProof] = asyncio.ensure_future(stopping)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and task.exception() is None:
        raise cancelled
    return task.result()


async def wait_ready(
    process: ServerProcess, *, adapter: EngineAdapter, base_url: str, timeout_s: float, clock: PhaseClock
) -> ServerHandle:
    """Returns once the server generates; raises ``ServerDied`` or ``ServerNotReady``. Stops nothing."""
    log = LogFollower(process.log_path)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    probe: asyncio.Task[str | None] | None = None
    version: str | None = None
    exited = asyncio.create_task(process.wait_exit())
    try:
        async with HttpClient(base_url, connect_timeout_s=5.0) as http:
            while True:
                for line in log.new_lines():
                    version = version or adapter.version_in(line)
                    phase = adapter.phase_of(line)
                    if phase is not None:
                        clock.enter(phase)
                if probe is None:
                    probe = asyncio.create_task(_generates(http, adapter))
                await asyncio.wait({probe, exited}, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
                if exited.done():
                    raise death_of(process, log, adapter, clock, exited.result())
                if probe.done():
                    model = probe.result()
                    if model is not None:
                        facts = await read_facts(http, adapter)
                        if version is not None:
                            facts = facts.model_copy(update={"version": version})
                        return ServerHandle(base_url, model, facts, process, log, adapter, clock)
                    probe = None
                    await asyncio.sleep(_PROBE_EVERY_S)
                if loop.time() > deadline:
                    last = "\n".join(f"  {line}" for line in log.last_lines(8))
                    raise ServerNotReady(
                        f"the server lives but did not generate within {timeout_s:.0f} s; its last lines:\n"
                        f"{last}\n"
                        "If it was still loading or compiling, raise engine.ready_timeout_s"
                    )
    finally:
        for task in (probe, exited):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TransportError):
                    await task


async def _generates(http: HttpClient, adapter: EngineAdapter) -> str | None:
    """The served model's name once a real generation returned two tokens or more, else ``None``."""
    try:
        listing = await http.request("GET", "/v1/models", timeout_s=10)
        model = first_model_id(listing.json()) if listing.status == 200 else None
        if model is None:
            return None
        sampling = Sampling(max_tokens=_PROBE_TOKENS, ignore_eos=True)
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Count from one to nine."}],
            "max_tokens": _PROBE_TOKENS,
            "temperature": 0,
            **adapter.request_fields(sampling),
        }
        reply = await http.request("POST", "/v1/chat/completions", body=body, timeout_s=300)
        if reply.status != 200:
            return None
        usage = as_dict(as_dict(reply.json()).get("usage"))
        tokens = as_int(usage.get("completion_tokens"))
    except (TransportError, ValueError):
        return None
    return model if tokens is not None and tokens >= 2 else None


async def read_facts(http: HttpClient, adapter: EngineAdapter) -> ServerFacts:
    """What the server reports about itself; what it does not offer stays unknown."""
    bodies: dict[str, Any] = {}
    for path in adapter.info_paths:
        try:
            reply = await http.request("GET", path, timeout_s=20)
            if reply.status == 200:
                bodies[path] = reply.json()
        except (TransportError, ValueError):
            continue
    try:
        return adapter.read_facts(bodies)
    except ValueError:  # a report that makes no sense says nothing
        return ServerFacts(engine=adapter.name)
