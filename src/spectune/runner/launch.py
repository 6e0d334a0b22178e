"""Launches of the arms of a study: command, port, and what an earlier run left alive."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from spectune.domain.arm import Arm
from spectune.domain.findings import Finding
from spectune.domain.study import Study
from spectune.engines.adapter import Command, Rank
from spectune.engines.containers import is_container
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput, TeardownUnproven
from spectune.hosts.facts import ServerStatus
from spectune.hosts.host import Host
from spectune.runner.plan import sample_launch
from spectune.runner.ports import PortPool
from spectune.server.lifecycle import Launched, LaunchPlan, Limits, ServerHandle, end_server, serve
from spectune.server.phases import PhaseClock
from spectune.server.ranks import RankPlan
from spectune.store.study_dir import rank_log


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


@dataclass
class Kept:
    """The server that is running between two trials, if any: whoever holds the study sees to its end."""

    server_id: str | None = None
    start_bytes: int | None = None
    """Length of its log before the first request, where this run saw its start."""


@dataclass(frozen=True)
class FollowerPlace:
    """Another node of a server over several: its rank is the place among them, from 1 on."""

    host: Host
    ports: PortPool
    owner: str
    node: str
    address: str
    models: ModelPaths
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of this node alone: the devices that are its."""


@dataclass(frozen=True)
class Place:
    """Where the trials of a study run, and what is alive there of an earlier run, or of the trial before."""

    host: Host
    ports: PortPool
    owner: str
    """The study's directory: whose servers they are."""
    node: str = ""
    """Of a server over several nodes: the first, as its ``address`` is."""
    address: str = ""
    followers: tuple[FollowerPlace, ...] = ()
    alive: tuple[ServerStatus, ...] = ()
    kept: Kept = field(default_factory=Kept)
    known: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    """What a check found before the launch, by arm id."""
    lacking: set[str] = field(default_factory=set)
    """Flags of ours that the engine there does not know: its servers are started without them."""


def arm_called(study: Study, name: str) -> Arm:
    """By name or id; raises ``BadInput``."""
    for arm in study.arms:
        if name in (arm.name, arm.arm_id):
            return arm
    raise BadInput(f"--arm {name}: no such arm; valid: {', '.join(arm.name for arm in study.arms)}")


async def place_on(host: Host, *, owner: str, known: Mapping[str, Sequence[Finding]] | None = None) -> Place:
    """The host, with the servers that an earlier run of ``owner`` left there."""
    alive = tuple(s for s in await host.servers() if s.owner == owner)
    return Place(host=host, ports=PortPool(host), owner=owner, alive=alive, known=known or {})


def usable_server(place: Place, *, key: str, block: str | None = None) -> ServerStatus | None:
    """The running one, if any, that gives the same as a launch with ``key``, for trials of this ``block``."""
    for status in place.alive:
        may_share = status.about.get("block") in (None, block)
        if status.key == key and may_share and status.state == "running" and status.ports:
            return status
    return None


async def kept_server(place: Place, *, on_message: Callable[[str], None]) -> tuple[ServerStatus, ...]:
    """The server that the trial before left running; one that has ended since is cleared away."""
    found = tuple(s for s in await place.host.servers() if s.server_id == place.kept.server_id)
    others = [s for f in place.followers for s in await f.host.servers() if s.owner == f.owner]
    whole = sum(s.state == "running" for s in others) == len(place.followers)
    if found and found[0].state == "running" and whole:
        return found
    on_message("the server that was kept for the next trial has ended; it is launched anew")
    await end_kept(place)
    return ()


async def end_kept(place: Place) -> None:
    """Stops the server that was left running between two trials, if there is one; raises ``TeardownUnproven``."""
    server_id = place.kept.server_id
    if server_id is None:
        return
    for status in await place.host.servers():
        if status.server_id == server_id:
            await _end(place, status)
    place.kept.server_id = None


async def _end(place: Place, status: ServerStatus) -> None:
    """Stops it, with its ranks on other nodes; raises ``TeardownUnproven``."""
    ended = await asyncio.gather(
        end_server(place.host, status),
        *(end_servers_of(follower.host, follower.owner) for follower in place.followers),
        return_exceptions=True,
    )
    for error in sorted(ended, key=lambda e: not isinstance(e, TeardownUnproven)):
        if isinstance(error, BaseException):
            raise error


async def end_servers_of(host: Host, owner: str) -> None:
    """Stops every server of this owner; raises ``TeardownUnproven``."""
    for status in await host.servers():
        if status.owner == owner:
            await end_server(host, status)


async def without_other_servers(
    place: Place, *, key: str, block: str | None = None, on_message: Callable[[str], None]
) -> Place:
    """``place`` with at most the one server that a launch with ``key`` can use; the others are stopped."""
    if not place.alive:
        return place
    usable = usable_server(place, key=key, block=block)
    others = replace(place, alive=tuple(s for s in place.alive if s is not usable))
    await stop_leftovers(others, on_message=on_message)
    if usable is None:
        return replace(place, alive=())
    if usable.server_id == place.kept.server_id:
        on_message(f"without a restart, on the server of trial {usable.about.get('launch')}")
    else:
        on_message(f"taking hold of the server that an earlier run left (pid {usable.leader_pid})")
    return replace(place, alive=(usable,))


async def stop_leftovers(place: Place, *, on_message: Callable[[str], None]) -> None:
    """Stops every server that an earlier run left; raises ``TeardownUnproven``."""
    for status in place.alive:
        if status.state in ("running", "stopping"):
            on_message(f"stopping a server that an earlier run left (pid {status.leader_pid})")
        await _end(place, status)
        if status.server_id == place.kept.server_id:
            place.kept.server_id = None


@asynccontextmanager
async def serve_arm(
    arm: Arm,
    study: Study,
    *,
    models: ModelPaths,
    host: Host,
    owner: str,
    log_path: Path,
    on_message: Callable[[str], None],
) -> AsyncIterator[tuple[ServerHandle, Command]]:
    """The arm's server for other work than a trial, and the command that started it.

    It is gone when the block is left, however it is left, or ``TeardownUnproven`` says what is not. One that
    an earlier run of the same ``owner`` left is taken hold of if it is the same launch, and stopped if not.
    """
    async with host:
        place = await place_on(host, owner=owner)
        key = launch_key(arm, study, models)
        place = await without_other_servers(place, key=key, on_message=on_message)
        plan, live = await prepare_launch(arm, study, models=models, place=place, log_path=log_path)
        reattach_to = None if live is None else live.server_id
        launched = Launched()
        clock = PhaseClock(on_change=on_message)
        async with serve(plan, clock=clock, launched=launched, reattach_to=reattach_to) as handle:
            for finding in launched.findings:
                on_message(f"warning: {finding.message}; {finding.remedy}")
            yield handle, plan.command


async def prepare_launch(
    arm: Arm, study: Study, *, models: ModelPaths, place: Place, log_path: Path, block: str | None = None
) -> tuple[LaunchPlan, ServerStatus | None]:
    """The plan for ``serve``, and the server that is alive and can be taken instead."""
    live = usable_server(place, key=launch_key(arm, study, models), block=block)
    port = live.ports[0] if live is not None else await place.ports.take()
    first, meeting_port = None, None
    if place.followers:
        meeting_port = live.ports[1] if live is not None else await place.ports.take()
        first = Rank(0, 1 + len(place.followers), place.address, place.address, meeting_port)
    plan = launch_plan(
        arm,
        study,
        models=models,
        host=place.host,
        port=port,
        log_path=log_path,
        owner=place.owner,
        rank=first,
    )
    if first is None:
        return plan, live
    followers = [
        await _follower(
            arm, study, number, follower, first=first, log_path=plan.log_path, runs=live is not None
        )
        for number, follower in enumerate(place.followers, start=1)
    ]
    return replace(plan, node=place.node, followers=tuple(followers), meeting_port=meeting_port), live


async def _follower(
    arm: Arm, study: Study, number: int, place: FollowerPlace, *, first: Rank, log_path: Path, runs: bool
) -> RankPlan:
    """``runs``: it is running, on the port that it was given."""
    known = (
        [s.ports[0] for s in await place.host.servers() if s.owner == place.owner and s.ports] if runs else []
    )
    port = known[0] if known else await place.ports.take()
    engine = study.engine.model_copy(update={"env": {**study.engine.env, **place.env}})
    launch = sample_launch(
        arm,
        engine,
        study.workload,
        port=port,
        target_path=place.models.target(arm),
        drafter_path=place.models.drafter(arm),
        rank=replace(first, number=number, address=place.address),
    )
    command = adapter_for(arm.engine).command(launch)
    return RankPlan(
        number=number,
        node=place.node,
        command=command,
        host=place.host,
        log_path=rank_log(log_path, number),
        ports=(port,) if command.listens else (),
        port_is_hidden=is_container(command.argv),
        owner=place.owner,
    )


def launch_plan(
    arm: Arm,
    study: Study,
    *,
    models: ModelPaths,
    host: Host,
    port: int,
    log_path: Path,
    owner: str,
    rank: Rank | None = None,
) -> LaunchPlan:
    """The launch of an arm of this study on this host; with ``rank``, of the first of several."""
    adapter = adapter_for(arm.engine)
    launch = sample_launch(
        arm,
        study.engine,
        study.workload,
        port=port,
        target_path=models.target(arm),
        drafter_path=models.drafter(arm),
        rank=rank,
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
        port_is_hidden=is_container(command.argv),
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
        nodes=study.nodes_per_server,
    )
    command = adapter_for(arm.engine).command(launch)
    text = json.dumps([list(command.argv), sorted(command.env.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _size_of(path: Path) -> int | None:
    try:
        if path.is_dir():
            return sum(f.stat().st_size for f in path.iterdir() if f.suffix in (".safetensors", ".bin"))
        return path.stat().st_size
    except OSError:
        return None
