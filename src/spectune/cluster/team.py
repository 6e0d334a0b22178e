"""The workers of a lane: one on its node, or rank 0's and a follower's on each other node of a server over several."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from spectune.cluster.follower import FollowerFacts, FollowerSetup, NodeFollower
from spectune.cluster.node import NodeReply, NodeRunner, NodeSetup
from spectune.cluster.ray_cluster import Node, Reservation, Worker
from spectune.domain.findings import Finding
from spectune.domain.study import Study
from spectune.errors import NodeLost

_STOP_S = 90.0
_HEAR_EVERY_S = 1.0


@dataclass(frozen=True)
class TeamSetup:
    """What the workers of a lane must know."""

    study: Study
    owner: str
    """The study's directory."""
    place: str
    places: tuple[str, ...]
    """All of the node; several of them work at the same time."""
    findings: Mapping[str, Sequence[Finding]]
    num_gpus: float
    """On each node."""


@dataclass(frozen=True)
class Unfit:
    """Why nothing more is launched on some nodes."""

    nodes: tuple[Node, ...]
    reply: NodeReply


class Team:
    """Rank 0's worker is asked for everything; the followers obey it, and are stopped after it."""

    def __init__(self, nodes: Sequence[Node], worker: Worker, followers: Sequence[Worker]) -> None:
        self.nodes = tuple(nodes)
        self.worker = worker
        self._followers = tuple(followers)
        self.facts: tuple[FollowerFacts, ...] = ()

    async def begin_followers(self, alive: Sequence[str]) -> Unfit | None:
        """What they find is for rank 0's worker; the first that is not fit is told."""
        found = await asyncio.gather(*(worker.call("begin", alive) for worker in self._followers))
        for worker, facts in zip(self._followers, found, strict=True):
            if facts.error is not None:
                return Unfit((worker.node,), NodeReply(error=facts.error, left=facts.left))
        self.facts = tuple(found)
        return None

    @property
    def messages(self) -> list[str]:
        """What the followers have to say, once they have begun."""
        return [f"{facts.name}: {text}" for facts in self.facts for text in facts.messages]

    @asynccontextmanager
    async def heard(self) -> AsyncIterator[None]:
        """While it is open, the followers are told that the driver is there."""
        telling = asyncio.create_task(self._tell_followers())
        try:
            yield
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling

    async def _tell_followers(self) -> None:
        while self._followers:
            await asyncio.gather(*(worker.call("hear") for worker in self._followers), return_exceptions=True)
            await asyncio.sleep(_HEAR_EVERY_S)

    async def stop(self) -> list[Unfit]:
        """Every rank's end, proven; whoever cannot be asked leaves it to the supervisor's lease."""
        found = [Unfit(self.nodes, await _stopped(self.worker))]
        answers = await asyncio.gather(*(_stopped_follower(worker) for worker in self._followers))
        found += [
            Unfit((worker.node,), NodeReply(error=facts.error, left=facts.left))
            for worker, facts in zip(self._followers, answers, strict=True)
        ]
        return [unfit for unfit in found if unfit.reply.left is not None]

    def at_fault(self, name: str | None) -> tuple[Node, ...]:
        """The node of this name; all of them if none is named."""
        return tuple(node for node in self.nodes if node.name == name) or self.nodes


def team_on(held: Reservation, nodes: Sequence[Node], setup: TeamSetup) -> Team:
    """Its workers are started; nothing has been asked of them."""
    study = setup.study.model_copy(update={"plan": ()}).model_dump_json()
    findings = {arm: [f.model_dump(mode="json") for f in found] for arm, found in setup.findings.items()}
    followers = [
        held.worker(
            index,
            NodeFollower,
            FollowerSetup(
                study=study,
                owner=setup.owner,
                node_id=node.node_id,
                name=node.name,
                address=node.address,
                place=setup.place,
                num_gpus=setup.num_gpus,
            ),
        )
        for index, node in enumerate(nodes)
        if index > 0
    ]
    first = NodeSetup(
        study=study,
        owner=setup.owner,
        node_id=nodes[0].node_id,
        place=setup.place,
        places=setup.places,
        findings=json.dumps(findings),
        num_gpus=setup.num_gpus,
        name=nodes[0].name,
        address=nodes[0].address,
    )
    worker = held.worker(0, NodeRunner, first, tuple(followers))
    return Team(nodes, worker, followers)


async def _stopped(worker: Worker) -> NodeReply:
    """What its worker says of its last server."""
    try:
        async with asyncio.timeout(_STOP_S):
            reply: NodeReply = await worker.call("stop")
            return reply
    except (NodeLost, TimeoutError):
        return NodeReply(is_stopped=True)


async def _stopped_follower(worker: Worker) -> FollowerFacts:
    try:
        async with asyncio.timeout(_STOP_S):
            facts: FollowerFacts = await worker.call("stop")
            return facts
    except (NodeLost, TimeoutError):
        return FollowerFacts()
