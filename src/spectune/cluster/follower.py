"""What runs on a node whose part of a server another node leads: a way to the supervisors there, and a last resort.

Rank 0's worker starts, watches and stops the rank here through the relay. When
that worker is lost, the driver has this one stop what is left; when nobody asks
any more, it does so by itself; when it is killed, the rank ends by its lease.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from spectune.cluster.relay import Line, Relay, Reply, relayed_host
from spectune.cluster.worker import (
    end_servers_of_the_dead,
    gpus_given,
    models_here,
    owner_of,
    undo_niceness_of_ray,
    undo_variables_of_ray,
)
from spectune.domain.study import Study
from spectune.errors import EnvironmentFailed, SpectuneError, TeardownUnproven
from spectune.home import data_home
from spectune.hosts.local import local_host
from spectune.runner.launch import FollowerPlace, ModelPaths, end_servers_of
from spectune.runner.ports import PortPool
from spectune.server.lifecycle import to_the_end

_LEAST_SILENCE_S = 50.0
"""Rank 0's worker, which proves more, has gone silent and ended before."""


@dataclass(frozen=True)
class FollowerSetup:
    """What a follower must know of the study."""

    study: str
    owner: str
    """The study's directory on the driver."""
    node_id: str
    name: str
    address: str
    place: str
    """The name of all its nodes together."""
    num_gpus: float


@dataclass(frozen=True)
class FollowerFacts:
    """What rank 0's worker must know of a follower; or why it cannot be one."""

    owner: str = ""
    name: str = ""
    address: str = ""
    home: str = ""
    models: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    error: str | None = None
    left: tuple[str, ...] | None = None
    """Set where a teardown could not be proven."""


class NodeFollower:
    """Made on the node by Ray; its methods never raise."""

    def __init__(self, setup: FollowerSetup) -> None:
        self._setup = setup
        self._study = Study.model_validate_json(setup.study)
        self._owner = owner_of(setup.owner, setup.place, setup.node_id)
        self._relay = Relay(data_home())
        self._num_heard = 0
        self._watchdog: asyncio.Task[None] | None = None
        undo_variables_of_ray()

    async def begin(self, alive: Sequence[str]) -> FollowerFacts:
        """Clears what earlier workers left here and finds the models. ``alive``: ids of the nodes that are."""
        setup, said = self._setup, list[str]()
        self._watchdog = asyncio.create_task(self._end_when_forgotten())
        left = undo_niceness_of_ray()
        if left is not None:
            said.append(left)
        try:
            await end_servers_of_the_dead(
                local_host(data_home()),
                study=setup.owner,
                node_id=setup.node_id,
                places=(),
                alive=alive,
                say=said.append,
            )
            models = await models_here(self._study)
        except TeardownUnproven as error:
            return FollowerFacts(messages=tuple(said), error=str(error), left=error.left)
        except SpectuneError as error:
            return FollowerFacts(messages=tuple(said), error=str(error))
        except OSError as error:
            reason = f"{error.filename or 'this node'}: {error.strerror or error}"
            return FollowerFacts(messages=tuple(said), error=reason)
        return FollowerFacts(
            owner=self._owner,
            name=setup.name,
            address=setup.address,
            home=str(data_home()),
            models=models.by_reference,
            env=gpus_given(self._study) if setup.num_gpus else {},
            messages=tuple(said),
        )

    async def hear(self) -> None:
        """The driver is there."""
        self._num_heard += 1

    async def run(self, words: Sequence[str], stdin: bytes, timeout_s: float) -> Reply:
        self._num_heard += 1
        return await self._relay.run(words, stdin, timeout_s)

    async def open(self, folder: str) -> Reply:
        return await self._relay.open(folder)

    async def read(self, number: int) -> Reply:
        return await self._relay.read(number)

    async def write(self, number: int, data: bytes) -> Reply:
        return await self._relay.write(number, data)

    async def close(self, number: int) -> None:
        await self._relay.close(number)

    async def stop(self) -> FollowerFacts:
        """Returns when no server of this lane is left here, or with what is."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        try:
            await to_the_end(self._end_servers())
        except TeardownUnproven as error:
            return FollowerFacts(error=str(error), left=error.left)
        except EnvironmentFailed as error:
            return FollowerFacts(error=str(error))
        return FollowerFacts()

    async def _end_servers(self) -> None:
        host = local_host(data_home())
        await host.reconnect()
        await end_servers_of(host, self._owner)

    async def _end_when_forgotten(self) -> None:
        """Nobody asks any more; see ``NodeRunner``."""
        limit_s = max(_LEAST_SILENCE_S, self._study.lease_s)
        silent_s, heard = 0.0, self._num_heard
        while silent_s < limit_s:
            await asyncio.sleep(1.0)
            silent_s, heard = (silent_s + 1.0 if heard == self._num_heard else 0.0), self._num_heard
        try:
            await self._end_servers()
        except EnvironmentFailed:
            pass  # its supervisor ends it by its lease, and the next worker here looks for it
        finally:
            os._exit(1)


def follower_place(line: Line, facts: FollowerFacts) -> FollowerPlace:
    """The follower, as rank 0's worker starts a rank there."""
    host = relayed_host(line, name=facts.name, home=facts.home)
    return FollowerPlace(
        host=host,
        ports=PortPool(host),
        owner=facts.owner,
        node=facts.name,
        address=facts.address,
        models=ModelPaths(facts.models),
        env=facts.env,
    )
