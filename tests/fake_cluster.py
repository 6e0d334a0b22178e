"""A cluster without Ray, in this process: what runs on a node is real, and so are the servers that it starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from spectune.cluster.ray_cluster import Node, NodeFacts, source_digest
from spectune.domain.machine import Machine
from spectune.errors import NodeLost
from spectune.hosts.machine_facts import read_machine


@dataclass
class FakeWorker:
    """Calls the methods of an object in this process, until its node is dead."""

    node: Node
    held: Any
    died: asyncio.Event
    calls: list[str]

    async def call(self, method: str, *args: object) -> Any:
        self.calls.append(f"{self.node.name}.{method}")
        if self.died.is_set():
            raise NodeLost(f"{self.node.name}: the node is gone")
        working = asyncio.ensure_future(getattr(self.held, method)(*args))
        dying = asyncio.ensure_future(self.died.wait())
        await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if self.died.is_set():
            raise NodeLost(f"{self.node.name}: the node is gone")
        return await working


@dataclass
class FakeCluster:
    """Nodes of one machine; ``kill`` one, ``facts_of`` others to make them differ."""

    names: list[str]
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    machines: dict[str, Machine] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    reserved: list[tuple[str, ...]] = field(default_factory=list)
    address: str = "ray"
    _died: dict[str, asyncio.Event] = field(default_factory=dict)
    _held: dict[str, Any] = field(default_factory=dict)

    def nodes(self) -> list[Node]:
        return [Node(f"id-{name}", name, self.resources) for name in self.names]

    async def facts(self, node: Node) -> NodeFacts:
        machine = self.machines.get(node.name) or read_machine()
        return NodeFacts(machine, self.digests.get(node.name, source_digest()))

    @asynccontextmanager
    async def reserve(
        self,
        nodes: Sequence[Node],
        *,
        bundle: Mapping[str, float],
        on_message: Callable[[str], None] = lambda _text: None,
    ) -> AsyncIterator[FakeReservation]:
        self.reserved.append(tuple(node.name for node in nodes))
        yield FakeReservation(self, nodes)

    async def kill(self, name: str) -> None:
        """The node is gone at once for the driver; what it ran is stopped, as its lease would do later."""
        self.names.remove(name)
        await self.crash(name)

    async def crash(self, name: str) -> None:
        """The worker is gone, and its node is not."""
        self._died[name].set()
        await self._held[name].stop()


@dataclass
class FakeReservation:
    """Workers on some nodes."""

    cluster: FakeCluster
    nodes: Sequence[Node]

    def worker(self, index: int, kind: Callable[..., Any], *args: object) -> FakeWorker:
        node, cluster = self.nodes[index], self.cluster
        died = cluster._died[node.name] = asyncio.Event()
        held = cluster._held[node.name] = kind(*args)
        return FakeWorker(node, held, died, cluster.calls)
