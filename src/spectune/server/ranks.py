"""A server over several nodes: every rank beside a supervisor of its own, started, lost and stopped as one.

Rank 0 answers requests and is waited for as a server on one node is; the others are followers. Readiness is rank 0's
with every follower alive. The end of any rank is the server's, and named with its node. A stop is one of all ranks at
once, each proven on its node.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from spectune.domain.findings import Finding
from spectune.domain.trial import StopProof
from spectune.engines.adapter import Command, EngineAdapter
from spectune.errors import (
    EnvironmentFailed,
    HostUnreachable,
    NodeLost,
    PortTaken,
    ServerDied,
    SpectuneError,
    TeardownUnproven,
)
from spectune.hosts.facts import Gpu
from spectune.hosts.host import Host, ServerSpec
from spectune.hosts.supervised import SupervisedServer
from spectune.server.admission import admit
from spectune.server.phases import PhaseClock
from spectune.server.proof import prove_gpu_memory
from spectune.server.watch import Watch

_LOG_IN_SERVICE_S = 1.0
"""While it is measured, a follower's log is brought over no more often than that."""


@dataclass(frozen=True)
class RankPlan:
    """One rank to start on its node."""

    number: int
    node: str
    command: Command
    host: Host
    log_path: Path
    ports: tuple[int, ...] = ()
    """Those it listens on, the first for requests."""
    port_is_hidden: bool = False
    owner: str | None = None

    @property
    def title(self) -> str:
        return f"rank {self.number} on {self.node}"


@dataclass
class RankState:
    """What is known of a rank so far, whatever came of it."""

    plan: RankPlan
    clock: PhaseClock = field(default_factory=PhaseClock)
    server: SupervisedServer | None = None
    before: tuple[Gpu, ...] | None = None
    """The devices before the launch."""
    ended: str | None = None
    stop: StopProof | None = None


def ranked(error: SpectuneError, plan: RankPlan) -> SpectuneError:
    """The error, with the rank and the node that it is about; as it is for a server on one node."""
    if not plan.node:
        return error
    if isinstance(error, ServerDied):
        return ServerDied(
            exit_code_of_server=error.exit_code_of_server,
            after_s=error.after_s,
            phase=error.phase,
            log_tail=error.log_tail,
            cause=error.cause,
            remedy=error.remedy,
            log_path=error.log_path,
            rank=plan.number,
            node=plan.node,
        )
    if isinstance(error, TeardownUnproven):
        return TeardownUnproven(f"{plan.title}: {error}", [f"{plan.node}: {item}" for item in error.left])
    for kind in (NodeLost, HostUnreachable, PortTaken):
        if isinstance(error, kind):
            return kind(f"{plan.title}: {error}")
    if type(error) is EnvironmentFailed:
        return EnvironmentFailed(f"{plan.title}: {error}")
    return error


async def admit_rank(
    state: RankState, *, subject: str, needed_bytes: int | None, allow_busy_gpus: bool
) -> list[Finding]:
    """Raises ``LaunchRefused`` for a node that is not fit; keeps what its devices hold before the launch."""
    plan = state.plan
    admission = await admit(
        plan.host,
        subject=subject,
        port=plan.ports[0] if plan.ports else None,
        paths=[str(plan.log_path.parent)] if plan.host.shares_files else [],
        command=plan.command,
        needed_bytes=needed_bytes,
        allow_busy_gpus=allow_busy_gpus,
    )
    state.before = admission.gpus
    return list(admission.findings)


async def start_rank(state: RankState, spec: ServerSpec) -> SupervisedServer:
    """Starts it beside its supervisor; raises why that cannot be done."""
    state.clock.enter("launch")
    try:
        state.server = await state.plan.host.start(spec, log_path=state.plan.log_path)
    except EnvironmentFailed as error:
        raise ranked(error, state.plan) from error
    return state.server


async def take_rank(state: RankState, server_id: str) -> SupervisedServer:
    """Takes hold of the running one."""
    state.server = await state.plan.host.attach(server_id, log_path=state.plan.log_path)
    state.before = gpus_before(state.server.about)
    return state.server


def gpu_label(before: tuple[Gpu, ...] | None, *, in_container: bool) -> dict[str, Any]:
    """For the label of a server: how its devices were before its launch, and whether its processes hide from us."""
    rows = None if before is None else [asdict(gpu) for gpu in before]
    return {"gpus": rows, "in_container": in_container}


def gpus_before(about: Mapping[str, Any]) -> tuple[Gpu, ...] | None:
    """The devices as they were before a server was launched, by its label; ``None``: not known."""
    known = about.get("gpus")
    return None if known is None else tuple(Gpu(**gpu) for gpu in known)


def names_are_told(about: Mapping[str, Any]) -> bool:
    """Whether a process that a device lists, and that the server does not own, is somebody else's for sure."""
    return not about.get("in_container", False)


def watch_ranks(watch: Watch, followers: Sequence[RankState], adapter: EngineAdapter) -> None:
    """From now on the end of a follower is the end of the server that ``watch`` watches."""
    for state in followers:
        assert state.server is not None
        plan = state.plan
        watch.join(
            Watch(
                state.server,
                adapter=adapter,
                clock=state.clock,
                stuck_after_s=None,
                part=plan.title,
                as_loss=partial(ranked, plan=plan),
            )
        )


async def mark_ranks_ready(followers: Sequence[RankState]) -> None:
    """From now on the end of any of their processes is their end."""
    for state in followers:
        assert state.server is not None
        await state.server.mark_ready()
        state.server.log_every_s = _LOG_IN_SERVICE_S


async def stop_ranks(states: Sequence[RankState], *, grace_s: float) -> None:
    """Stops all at once and proves each gone on its node, whatever becomes of the others.

    Raises ``TeardownUnproven`` with everything that is left, else ``NodeLost`` for a node that cannot be asked.
    """
    results = await asyncio.gather(*(_stopped(state, grace_s) for state in states), return_exceptions=True)
    faults = [
        (state, result)
        for state, result in zip(states, results, strict=True)
        if isinstance(result, BaseException)
    ]
    errors = [ranked(e, s.plan) if isinstance(e, SpectuneError) else e for s, e in faults]
    unproven = [error for error in errors if isinstance(error, TeardownUnproven)]
    if unproven:
        left = [item for error in unproven for item in error.left]
        raise TeardownUnproven("\n".join(str(error) for error in unproven), left)
    if errors:
        raise errors[0]


async def _stopped(state: RankState, grace_s: float) -> None:
    plan, server = state.plan, state.server
    if server is None or state.stop is not None:
        return
    state.clock.enter("stop")
    state.ended = state.ended or _own_end(server)
    try:
        proof = await server.stop(grace_s=grace_s)
        state.stop = await prove_gpu_memory(
            plan.host, proof, before=state.before, names_are_told=not plan.port_is_hidden
        )
        if plan.ports:
            await plan.host.leave(plan.ports[0])
        await plan.host.forget(server.server_id)
    except NodeLost:
        await server.aclose()
        raise
    finally:
        if plan.number > 0:  # rank 0's stop lasts as long as that of any
            state.clock.close()


def _own_end(server: SupervisedServer) -> str | None:
    if not server.ended.done() or server.ended.cancelled():
        return None
    fault = server.ended.exception()
    if fault is not None:
        return str(fault)
    ended = server.ended.result()
    code = ended.exit_code if ended.worker is None else ended.worker.exit_code
    return f"{ended.reason}, {'exit code unknown' if code is None else f'exit code {code}'}"


async def let_ranks_go(states: Sequence[RankState]) -> None:
    """Leaves them running, with a whole lease before them."""
    for state in states:
        assert state.server is not None
        await state.server.sync_log()
        with contextlib.suppress(EnvironmentFailed):
            await state.server.until_connected()
        await state.server.aclose()
