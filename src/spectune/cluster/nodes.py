"""The nodes of a cluster that a study may use: of its kind of machine, with the same spectune, and not found unfit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from spectune.cluster.ray_cluster import Cluster, Node, bundle_words, source_digest
from spectune.domain.study import Study
from spectune.errors import EnvironmentFailed, NodeLost
from spectune.runner.lanes import bundle_for
from spectune.runner.parallel import check_fits_nodes

_OF_EVERY_NODE = ("node:", "memory", "object_store_memory")


class NodePool:
    """``look`` again and again: nodes come and go."""

    def __init__(
        self,
        cluster: Cluster,
        study: Study,
        *,
        on_message: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        self.usable: list[Node] = []
        """In the order in which they answered."""
        self.most_usable = 0
        """At one time, so far."""
        self._cluster = cluster
        self._study = study
        self._say = on_message
        self._changed = on_change
        self._met: dict[str, asyncio.Task[None]] = {}
        self._reasons: dict[str, str] = {}
        """By node id: why nothing more is launched there."""

    def look(self) -> None:
        """Asks each new node what machine it is; raises ``BadInput`` for a server that no node could hold."""
        alive = self._cluster.nodes()
        ids = {node.node_id for node in alive}
        self.usable = [node for node in self.usable if node.node_id in ids]
        check_fits_nodes(self._study, max((n.resources.get("GPU", 0.0) for n in alive), default=0.0))
        for node in alive:
            task = self._met.get(node.node_id)
            if task is None:
                self._met[node.node_id] = asyncio.create_task(self._meet(node))
            elif task.done():
                task.result()  # a fault of ours comes out

    @property
    def is_asking(self) -> bool:
        return any(not task.done() for task in self._met.values())

    @property
    def reasons(self) -> list[str]:
        """Why nodes are not used, a line each."""
        return list(self._reasons.values())

    def leave_out(self, node: Node, reason: str) -> None:
        """Nothing more is launched there in this run."""
        self._reasons[node.node_id] = f"{node.name}: {reason}"
        self.usable = [other for other in self.usable if other.node_id != node.node_id]
        self._say(f"not used: {node.name}: {reason}")
        self._changed()

    async def aclose(self) -> None:
        for task in self._met.values():
            task.cancel()
        await asyncio.gather(*self._met.values(), return_exceptions=True)

    async def _meet(self, node: Node) -> None:
        if bundle_for(self._study, node.resources) is None:
            has = bundle_words(_own(node.resources))
            self.leave_out(node, f"it has {has}, too little" if has else "it offers no resources")
            return
        try:
            facts = await self._cluster.facts(node)
        except NodeLost as error:
            del self._met[node.node_id]  # asked again if it is still there
            self._say(str(error))
            return
        except EnvironmentFailed as error:
            self.leave_out(node, str(error))
            return
        wanted = self._study.machine
        if facts.source_digest != source_digest():
            self.leave_out(
                node, "another spectune is installed there; install the same version on every node"
            )
        elif facts.machine.kind != wanted.kind:
            self.leave_out(
                node,
                f"it is another kind of machine ({facts.machine.kind_words}) than this study's "
                f"({wanted.kind_words}): arms that are compared are measured on nodes of one kind",
            )
        else:
            self.usable.append(node)
            self.most_usable = max(self.most_usable, len(self.usable))
            self._changed()


def _own(resources: Mapping[str, float]) -> dict[str, float]:
    """Without those that every node has."""
    return {name: amount for name, amount in resources.items() if not name.startswith(_OF_EVERY_NODE)}
