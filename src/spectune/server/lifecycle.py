"""From launch to proven gone.

``serve`` is the one way a server is started for a while: whatever happens
inside its block, the server is gone when it is left, or ``TeardownUnproven``
says what is not; unless its user said inside that it is to be kept for the
next one, who takes hold of it within its lease. A wait ends in one of: ready, ``ServerDied``, ``ServerStuck``,
``ServerNotReady`` (timed out), ``LaunchRefused``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from spectune.domain.findings import Finding
from spectune.domain.trial import ServerFacts, StopProof
from spectune.engines.adapter import Command, EngineAdapter
from spectune.errors import EnvironmentFailed, HostUnreachable, PortTaken, ServerNotReady
from spectune.hosts.facts import Gpu, ServerStatus
from spectune.hosts.host import Host, ServerSpec
from spectune.hosts.supervised import SupervisedServer
from spectune.server.admission import admit
from spectune.server.phases import PhaseClock
from spectune.server.probe import probe, read_facts
from spectune.server.proof import prove_gpu_memory
from spectune.server.watch import Watch
from spectune.transport import HttpClient

T = TypeVar("T")
_PROBE_EVERY_S = 0.05
_PROBE_LATER_S = 0.2
_EAGER_S = 20.0
"""Probes come quickly at first; a server that takes long is not slowed down by them."""
DEFAULT_STUCK_AFTER_S = 300.0


@dataclass(frozen=True)
class Limits:
    """How long a server is waited for."""

    ready_s: float
    stuck_s: float = DEFAULT_STUCK_AFTER_S
    settle_s: float = 1.0
    """It must still be whole this long after its first answer."""
    stop_grace_s: float = 20.0


@dataclass(frozen=True)
class LaunchPlan:
    """One server to start, and what must be known to wait for it."""

    command: Command
    adapter: EngineAdapter
    host: Host
    port: int
    log_path: Path
    limits: Limits
    subject: str = "server"
    lease_s: float | None = 30.0
    label: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    owner: str | None = None
    model_bytes: int | None = None
    allow_busy_gpus: bool = False
    port_is_hidden: bool = False
    """A container's port is held by its runtime, outside the process tree: whose it is cannot be proven."""


@dataclass
class ServerHandle:
    """A server that has proven to generate, or one that is being waited for."""

    base_url: str
    model: str
    facts: ServerFacts
    server: SupervisedServer
    watch: Watch
    workers: tuple[int, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def adapter(self) -> EngineAdapter:
        return self.watch.adapter

    async def died(self) -> Exception:
        """Returns, as an error to raise, when the server can no longer be used."""
        return await asyncio.shield(self.watch.lost)


@dataclass
class Launched:
    """What is known of a launch so far, whatever came of it."""

    findings: list[Finding] = field(default_factory=list)
    stop: StopProof | None = None
    reattached: bool = False
    server_id: str | None = None
    ready_log_bytes: int = 0
    """Length of the log when the server was ready for this user."""
    kept: bool = False
    """Set inside the block of ``serve`` to leave the server running; whoever sets it sees to its end."""


@asynccontextmanager
async def serve(
    plan: LaunchPlan,
    *,
    clock: PhaseClock,
    launched: Launched,
    reattach_to: str | None = None,
    on_progress: Callable[[float], None] = lambda _share: None,
) -> AsyncIterator[ServerHandle]:
    """Starts the server, or takes hold of the running one called ``reattach_to``; stops it on the way out.

    With ``launched.kept`` set inside the block it is let go of instead.
    """
    clock.enter("launch")
    before: tuple[Gpu, ...] | None = None
    if reattach_to is None:
        admission = await admit(
            plan.host,
            subject=plan.subject,
            port=plan.port,
            paths=[str(plan.log_path.parent)] if plan.host.shares_files else [],
            env=plan.command.env,
            needed_bytes=plan.model_bytes,
            allow_busy_gpus=plan.allow_busy_gpus,
        )
        before = admission.facts.gpus
        launched.findings.extend(admission.findings)
    starting = (
        plan.host.start(spec_of(plan, gpus=before), log_path=plan.log_path)
        if reattach_to is None
        else plan.host.attach(reattach_to, log_path=plan.log_path)
    )
    server = await to_the_end(starting, then=lambda late: stop_proven(late, plan, before))
    launched.reattached = reattach_to is not None
    launched.server_id = server.server_id
    before = before if reattach_to is None else gpus_before(server)
    try:
        handle = await wait_ready(server, plan=plan, clock=clock, on_progress=on_progress)
        handle.watch.begin_service()
        try:
            await server.sync_log()
            launched.ready_log_bytes = _length_of(plan.log_path)
            yield handle
        finally:
            await handle.watch.aclose()
    finally:
        try:
            if launched.kept:
                clock.close()
                await to_the_end(_let_go(server))
            else:
                clock.enter("stop")
                launched.stop = await to_the_end(stop_proven(server, plan, before))
        finally:
            clock.close()


async def _let_go(server: SupervisedServer) -> None:
    """Leaves it running, with a whole lease before it."""
    await server.sync_log()
    with contextlib.suppress(EnvironmentFailed):
        await server.until_connected()
    await server.aclose()


def _length_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def stop_proven(
    server: SupervisedServer, plan: LaunchPlan, before: tuple[Gpu, ...] | None
) -> StopProof:
    """Stops it, proves it down to the GPU memory, and lets its record on the host go."""
    proof = await server.stop(grace_s=plan.limits.stop_grace_s)
    proof = await prove_gpu_memory(plan.host, proof, before=before)
    await plan.host.leave(plan.port)
    await plan.host.forget(server.server_id)
    return proof


async def end_server(host: Host, status: ServerStatus, *, grace_s: float = 20.0) -> StopProof | None:
    """Stops a server of an earlier spectune, in whatever state it is, and lets its record go.

    ``None``: it had already ended, in good order. Raises ``TeardownUnproven``.
    """
    if status.state in ("running", "stopping"):
        server = await host.attach(status.server_id)
        before = gpus_before(server)
        proof = await server.stop(grace_s=grace_s)
        proof = await prove_gpu_memory(host, proof, before=before)
    elif status.state == "orphaned" or status.left:
        proof = await host.sweep(status.server_id)
        known = status.about.get("gpus")
        before = None if known is None else tuple(Gpu(**gpu) for gpu in known)
        proof = await prove_gpu_memory(host, proof, before=before)
    else:
        await host.forget(status.server_id)
        return None
    await host.forget(status.server_id)
    return proof


def gpus_before(server: SupervisedServer) -> tuple[Gpu, ...] | None:
    """The devices as they were before this server was launched, which its record tells."""
    known = server.about.get("gpus")
    return None if known is None else tuple(Gpu(**gpu) for gpu in known)


def spec_of(plan: LaunchPlan, *, gpus: tuple[Gpu, ...] | None) -> ServerSpec:
    """The plan as its supervisor needs it."""
    return ServerSpec(
        argv=plan.command.argv,
        env=plan.command.env,
        ports=[plan.port],
        strict_ports=plan.port_is_hidden,
        lease_s=plan.lease_s,
        label={**plan.label, "gpus": None if gpus is None else [asdict(gpu) for gpu in gpus]},
        key=plan.key,
        owner=plan.owner,
    )


async def to_the_end(
    work: Coroutine[Any, Any, T], *, then: Callable[[T], Coroutine[Any, Any, object]] | None = None
) -> T:
    """Runs ``work`` to its end even while we are being cancelled; ``then`` undoes a result that came too late."""
    task: asyncio.Task[T] = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001 - raised again below, from the task itself
            break
    result = task.result()
    if cancelled is not None:
        if then is not None:
            await to_the_end(then(result))
        raise cancelled
    return result


async def wait_ready(
    server: SupervisedServer,
    *,
    plan: LaunchPlan,
    clock: PhaseClock,
    on_progress: Callable[[float], None] = lambda _share: None,
) -> ServerHandle:
    """Returns once the server generates and has settled; raises why it does not. Stops nothing."""
    watch = Watch(
        server,
        adapter=plan.adapter,
        clock=clock,
        stuck_after_s=plan.limits.stuck_s,
        on_progress=on_progress,
    )
    try:
        async with asyncio.timeout(plan.limits.ready_s):
            local_port = await plan.host.reach(plan.port)
            base_url = f"http://127.0.0.1:{local_port}"
            async with HttpClient(base_url, connect_timeout_s=5.0) as http:
                model = await unless_lost(_until_it_generates(http, server, plan), watch)
                clock.enter("settle")
                workers = await server.mark_ready()
                facts = await unless_lost(read_facts(http, plan.adapter), watch)
                await unless_lost(asyncio.sleep(plan.limits.settle_s), watch)
        if watch.version is not None:
            facts = facts.model_copy(update={"version": watch.version})
        return ServerHandle(base_url, model, facts, server, watch, workers)
    except TimeoutError:
        await watch.aclose()
        last = "\n".join(f"  {line}" for line in watch.log.last_lines(8))
        raise ServerNotReady(
            f"the server lives but did not generate within {plan.limits.ready_s:.0f} s; its last lines:\n{last}\n"
            "If it was still loading or compiling, raise engine.ready_timeout_s"
        ) from None
    except BaseException:
        await watch.aclose()
        raise


async def _until_it_generates(http: HttpClient, server: SupervisedServer, plan: LaunchPlan) -> str:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def is_ours() -> bool:
        if plan.port_is_hidden or await server.owns(plan.port):
            return True
        stranger = await server.stranger_on(plan.port)
        if stranger is not None:
            raise PortTaken(
                f"port {plan.port} is answered by {stranger}, not by the server that was started; "
                "it was left alone. Choose another port"
            )
        return False

    while True:
        try:
            model = await probe(http, plan.adapter, is_ours=is_ours)
        except HostUnreachable:
            model = None
        if model is not None:
            return model
        early = loop.time() - began < _EAGER_S
        await asyncio.sleep(_PROBE_EVERY_S if early else _PROBE_LATER_S)


async def unless_lost(work: Coroutine[Any, Any, T], watch: Watch) -> T:
    """The result of ``work``, or the error of the server as soon as it is lost."""
    working = asyncio.ensure_future(work)
    try:
        watched: list[asyncio.Future[Any]] = [working, watch.lost]
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if watch.lost.done():
            raise watch.lost.result()
        return await working
    finally:
        if not working.done():
            working.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await working
