"""The machine that a study's servers run on."""

from __future__ import annotations

import asyncio

from spectune.cluster.ray_cluster import Cluster, Node, bundle_words, cluster_called, largest_kind
from spectune.domain.machine import Machine
from spectune.domain.study import ClusterSettings
from spectune.errors import EnvironmentFailed, NodeLost
from spectune.home import data_home
from spectune.hosts.choose import LOCAL, host_called, is_cluster
from spectune.hosts.machine_facts import read_machine


async def machine_of(host_name: str, *, settings: ClusterSettings | None = None) -> Machine:
    """Facts of the host of this name, asked for now; of a cluster, the kind that most of its nodes are of.

    ``settings``: what a trial asks a node of the cluster for, as far as it is said.
    """
    if host_name == LOCAL:
        return read_machine()
    if is_cluster(host_name):
        return await _machine_of_cluster(cluster_called(host_name), settings or ClusterSettings())
    async with host_called(host_name, home=data_home()) as host:
        return (await host.facts(gpus=True)).machine


async def _machine_of_cluster(cluster: Cluster, settings: ClusterSettings) -> Machine:
    wanted = {"CPU": settings.cpus or 0.0, "GPU": settings.gpus or 0.0, **settings.resources}
    wanted = {name: amount for name, amount in wanted.items() if amount > 0} or {"CPU": 1.0}
    nodes = cluster.nodes()
    fitting = [node for node in nodes if node.has(wanted)]
    if not fitting:
        raise EnvironmentFailed(
            f"{cluster.address}: none of the {len(nodes)} nodes of the cluster has {bundle_words(wanted)}; "
            "`ray status` lists what they have, and `ray:` in the study file says what a trial asks for"
        )

    async def asked(node: Node) -> tuple[Node, Machine] | None:
        try:
            return node, (await cluster.facts(node)).machine
        except NodeLost:
            return None

    found = [row for row in await asyncio.gather(*map(asked, fitting)) if row is not None]
    if not found:
        raise EnvironmentFailed(f"{cluster.address}: no node of the cluster answered")
    kind = largest_kind(found)
    if len(kind) < settings.nodes:
        raise EnvironmentFailed(
            f"{cluster.address}: a server spans {settings.nodes} nodes (`ray.nodes`), and only {len(kind)} of the "
            f"{len(nodes)} nodes of the cluster are fit and of one kind; `ray status` lists what they have"
        )
    return kind[0][1]
