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
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from spectune.domain.findings import Finding
from spectune.domain.trial import ServerFacts, StopProof
from spectune.engines.adapter import Command, EngineAdapter
from spectune.errors import HostUnreachable, PortTaken, ServerNotReady
from spectune.hosts.facts import Gpu, ServerStatus
from spectune.hosts.host import Host, ServerSpec
from spectune.hosts.supervised import SupervisedServer
from spectune.server.phases import PhaseClock
from spectune.server.probe import probe, read_facts
from spectune.server.proof import prove_gpu_memory
from spectune.server.ranks import (
    RankPlan,
    RankState,
    admit_rank,
    gpu_label,
    gpus_before,
    let_ranks_go,
    mark_ranks_ready,
    names_are_told,
    ranked,
    start_rank,
    stop_ranks,
    take_rank,
    watch_ranks,
)
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
    node: str = ""
    """Rank 0's, of a server over several nodes."""
    followers: tuple[RankPlan, ...] = ()
    """The ranks above 0, in their order."""
    meeting_port: int | None = None
    """On rank 0's node: where the ranks find each other."""

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port,) if self.meeting_port is None else (self.port, self.meeting_port)

    def as_rank(self) -> RankPlan:
        return RankPlan(
            number=0,
            node=self.node,
            command=self.command,
            host=self.host,
            log_path=self.log_path,
            ports=self.ports,
            port_is_hidden=self.port_is_hidden,
            owner=self.owner,
        )


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
    ranks: list[RankState] = field(default_factory=list)
    """Of a server over several nodes, all of them."""


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
    first = RankState(plan.as_rank(), clock=clock)
    followers = [RankState(rank) for rank in plan.followers]
    launched.ranks = [first, *followers] if followers else []
    if reattach_to is None:
        for state in (first, *followers):
            launched.findings += await admit_rank(
                state,
                subject=plan.subject,
                needed_bytes=plan.model_bytes,
                allow_busy_gpus=plan.allow_busy_gpus,
            )
    server = await to_the_end(
        _started(plan, first, followers, reattach_to),
        then=lambda _late: stop_ranks([first, *followers], grace_s=plan.limits.stop_grace_s),
    )
    launched.reattached = reattach_to is not None
    launched.server_id = server.server_id
    try:
        handle = await wait_ready(
            server, plan=plan, clock=clock, on_progress=on_progress, followers=followers
        )
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
                await to_the_end(let_ranks_go([first, *followers]))
            else:
                clock.enter("stop")
                try:
                    await to_the_end(stop_ranks([first, *followers], grace_s=plan.limits.stop_grace_s))
                finally:
                    launched.stop = first.stop
        finally:
            clock.close()


async def _started(
    plan: LaunchPlan, first: RankState, followers: Sequence[RankState], reattach_to: str | None
) -> SupervisedServer:
    """All ranks, rank 0 last, or none of them: what was started is stopped again."""
    try:
        if reattach_to is not None:
            server = await take_rank(first, reattach_to)
            ids = server.about.get("followers") or ()
            await _each(*(take_rank(state, str(i)) for state, i in zip(followers, ids, strict=True)))
            return server
        await _each(*(start_rank(state, _spec_of_rank(plan, state)) for state in followers))
        ids = [state.server.server_id for state in followers if state.server is not None]
        return await start_rank(first, spec_of(plan, gpus=first.before, followers=ids))
    except BaseException:
        await stop_ranks([first, *followers], grace_s=plan.limits.stop_grace_s)
        raise


async def _each(*work: Coroutine[Any, Any, object]) -> None:
    """All to their ends, then the first error."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _length_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def stop_proven(
    server: SupervisedServer, plan: LaunchPlan, before: tuple[Gpu, ...] | None
) -> StopProof:
    """Stops it, proves it down to the GPU memory, and lets its record on the host go."""
    state = RankState(plan.as_rank(), server=server, before=before)
    await stop_ranks([state], grace_s=plan.limits.stop_grace_s)
    assert state.stop is not None
    return state.stop


async def end_server(host: Host, status: ServerStatus, *, grace_s: float = 20.0) -> StopProof | None:
    """Stops a server of an earlier spectune, in whatever state it is, and lets its record go.

    ``None``: it had already ended, in good order. Raises ``TeardownUnproven``.
    """
    if status.state == "ended" and not status.left:
        await host.forget(status.server_id)
        return None
    proof = await _stop_or_sweep(host, status, grace_s=grace_s)
    proof = await prove_gpu_memory(
        host, proof, before=gpus_before(status.about), names_are_told=names_are_told(status.about)
    )
    await host.forget(status.server_id)
    return proof


async def _stop_or_sweep(host: Host, status: ServerStatus, *, grace_s: float) -> StopProof:
    """Through its supervisor; a supervisor that cannot be asked is ended too, and what is left is swept."""
    if status.state in ("running", "stopping") and status.can_be_asked:
        with contextlib.suppress(HostUnreachable):
            server = await host.attach(status.server_id)
            return await server.stop(grace_s=grace_s)
    return await host.sweep(status.server_id)


def spec_of(plan: LaunchPlan, *, gpus: tuple[Gpu, ...] | None, followers: Sequence[str] = ()) -> ServerSpec:
    """The plan as its supervisor needs it; ``followers``: the servers of the ranks above 0."""
    more = {"followers": list(followers)} if followers else {}
    return ServerSpec(
        argv=plan.command.argv,
        env=plan.command.env,
        ports=plan.ports,
        strict_ports=plan.port_is_hidden,
        lease_s=plan.lease_s,
        label={**plan.label, **more, **gpu_label(gpus, in_container=plan.port_is_hidden)},
        key=plan.key,
        owner=plan.owner,
    )


def _spec_of_rank(plan: LaunchPlan, state: RankState) -> ServerSpec:
    rank = state.plan
    return ServerSpec(
        argv=rank.command.argv,
        env=rank.command.env,
        ports=rank.ports,
        strict_ports=rank.port_is_hidden,
        lease_s=plan.lease_s,
        label={
            **plan.label,
            "rank": rank.number,
            **gpu_label(state.before, in_container=rank.port_is_hidden),
        },
        owner=rank.owner,
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
    followers: Sequence[RankState] = (),
) -> ServerHandle:
    """Returns once the server generates and has settled, all of it; raises why it does not. Stops nothing."""
    first = plan.as_rank()
    watch = Watch(
        server,
        adapter=plan.adapter,
        clock=clock,
        stuck_after_s=plan.limits.stuck_s,
        on_progress=on_progress,
        as_loss=lambda error: ranked(error, first),
    )
    watch_ranks(watch, followers, plan.adapter)
    try:
        async with asyncio.timeout(plan.limits.ready_s):
            local_port = await plan.host.reach(plan.port)
            base_url = f"http://127.0.0.1:{local_port}"
            async with HttpClient(base_url, connect_timeout_s=5.0) as http:
                model = await unless_lost(_until_it_generates(http, server, plan), watch)
                clock.enter("settle")
                workers = await server.mark_ready()
                await mark_ranks_ready(followers)
                facts = await unless_lost(read_facts(http, plan.adapter), watch)
                await unless_lost(asyncio.sleep(plan.limits.settle_s), watch)
        if watch.version is not None:
            facts = facts.model_copy(update={"version": watch.version})
        return ServerHandle(base_url, model, facts, server, watch, workers)
    except TimeoutError:
        await watch.aclose()
        last = watch.last_words(8)
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
