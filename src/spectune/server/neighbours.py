"""Somebody else's process that comes to a server's GPUs, or grows there, while the server is measured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from spectune.domain.findings import Finding
from spectune.errors import EnvironmentFailed
from spectune.findings.catalogue import finding_kind
from spectune.hosts.facts import Gpu, HostFacts
from spectune.hosts.supervised import SupervisedServer
from spectune.server.ranks import gpus_before, names_are_told

_GROWN_MIB = 256

NEIGHBOUR = finding_kind("gpu-neighbour")


@asynccontextmanager
async def watching_neighbours(server: SupervisedServer, *, subject: str) -> AsyncIterator[list[Finding]]:
    """Two looks at the server's devices, before and after; what came in between is in the list afterwards.

    Without devices, or where they cannot be read, nothing is asked and nothing found. Nor for a container, whose own
    processes would be taken for somebody else's.
    """
    found: list[Finding] = []
    gpus = gpus_before(server.about) if names_are_told(server.about) else None
    before = await _look(server) if gpus else None
    yield found
    after = await _look(server) if gpus and before is not None else None
    if gpus and before is not None and after is not None:
        try:
            ours = (await server.vitals()).pids
        except EnvironmentFailed:
            return
        lines = come_between(before, after, gpus=gpus, ours=ours)
        if lines:
            found.append(NEIGHBOUR.found(subject, lines[0], evidence=[("process", line) for line in lines]))


async def _look(server: SupervisedServer) -> HostFacts | None:
    try:
        facts = await server.host.facts(gpus=True)
    except EnvironmentFailed:
        return None
    return facts if facts.gpus is not None else None


def come_between(
    before: HostFacts, after: HostFacts, *, gpus: Iterable[Gpu], ours: Iterable[int]
) -> list[str]:
    """Processes that are not the server's and hold more of its devices in ``after`` than in ``before``, in words."""
    index = {name: gpu.index for gpu in gpus for name in (gpu.uuid, *gpu.mig)}
    known = {(h.gpu_uuid, h.pid): h.used_mib for h in before.gpu_holders}
    mine = set(ours)
    lines = []
    for holder in after.gpu_holders:
        if holder.gpu_uuid not in index or holder.pid is None or holder.pid in mine:
            continue
        place, who = (holder.gpu_uuid, holder.pid), f"pid {holder.pid} ({holder.command})"
        where = f"GPU {index[holder.gpu_uuid]}"
        if place not in known:
            amount = "an unknown amount" if holder.used_mib is None else f"{holder.used_mib} MiB"
            if holder.used_mib is None or holder.used_mib >= _GROWN_MIB:
                lines.append(f"{who} came to {where} and holds {amount}")
            continue
        was = known[place]
        if was is not None and holder.used_mib is not None and holder.used_mib - was >= _GROWN_MIB:
            lines.append(f"{who} grew on {where} from {was} to {holder.used_mib} MiB")
    return lines
