"""Is the host fit for a launch? What holds the port, the GPUs, the disk, the memory; nothing of it is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spectune.domain.findings import Finding
from spectune.engines.adapter import Command
from spectune.errors import LaunchRefused, PortTaken
from spectune.findings.catalogue import finding_kind
from spectune.hosts.facts import Gpu, GpuHolder, HostFacts
from spectune.hosts.host import Host
from spectune.hosts.seen_gpus import gpus_of_launch

_MIB = 1 << 20
_MIN_DISK_BYTES = 256 * _MIB
_MIN_SHM_BYTES = 64 * _MIB
_BUSY_MIB = 256
"""A process that holds more of a GPU than a driver context needs is using it."""

MEMORY_SHORT = finding_kind("host-memory-short")
SHM_SHORT = finding_kind("shared-memory-short")


@dataclass(frozen=True)
class Admission:
    """The host as it was before the launch."""

    facts: HostFacts
    gpus: tuple[Gpu, ...] | None = None
    """The devices that the server may use; ``None``: not known."""
    findings: tuple[Finding, ...] = ()


async def admit(
    host: Host,
    *,
    subject: str,
    port: int | None,
    paths: Sequence[str],
    command: Command,
    needed_bytes: int | None = None,
    allow_busy_gpus: bool = False,
) -> Admission:
    """Raises ``LaunchRefused`` if the launch could not succeed, or would disturb another's work.

    ``command`` is the server's: it says which GPUs it will use. ``needed_bytes`` is
    the size of its model files.
    """
    facts = await host.facts(ports=[] if port is None else [port], paths=paths, gpus=True)
    owner = None if port is None else facts.port_owners.get(port)
    if owner is not None:
        raise PortTaken(
            f"port {port} on {host.name} is taken by {owner}; it was left alone. "
            "Choose another port, or end that program yourself"
        )
    gpus = None
    if facts.gpus is not None:
        gpus = tuple(gpus_of_launch(facts.gpus, command.argv, command.env, exported=facts.gpu_env))
    if not allow_busy_gpus:
        _refuse_busy_gpus(facts, gpus or ())
    for path, free in facts.disk_free_bytes.items():
        if free is not None and free < _MIN_DISK_BYTES:
            raise LaunchRefused(
                f"{path} on {host.name} has {free // _MIB} MiB left; logs and records need {_MIN_DISK_BYTES // _MIB} "
                "MiB: make room, then run again"
            )
    return Admission(facts, gpus, tuple(_doubts(facts, subject=subject, needed_bytes=needed_bytes)))


def _refuse_busy_gpus(facts: HostFacts, gpus: Sequence[Gpu]) -> None:
    visible = {name: gpu for gpu in gpus for name in (gpu.uuid, *gpu.mig)}
    busy = [
        holder
        for holder in facts.gpu_holders
        if holder.gpu_uuid in visible and (holder.used_mib is None or holder.used_mib >= _BUSY_MIB)
    ]
    if busy:
        lines = [f"  GPU {visible[h.gpu_uuid].index}: {_holder(h)}" for h in busy]
        raise LaunchRefused(
            "GPUs that this launch would use are held by other processes; they were left alone:\n"
            + "\n".join(lines)
            + "\nWait until they are gone, choose other GPUs with CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES, or set "
            "engine.allow_busy_gpus: true"
        )


def _holder(holder: GpuHolder) -> str:
    used = "an unknown amount" if holder.used_mib is None else f"{holder.used_mib} MiB"
    return f"pid {holder.pid} holds {used} ({holder.command})"


def _doubts(facts: HostFacts, *, subject: str, needed_bytes: int | None) -> list[Finding]:
    found = []
    available = facts.available_bytes
    on_cpu = facts.gpus == ()
    if on_cpu and needed_bytes is not None and available is not None and needed_bytes > available:
        found.append(
            MEMORY_SHORT.found(
                subject,
                "the model files are larger than the memory that is free",
                evidence=[
                    ("model files", f"{needed_bytes // _MIB} MiB"),
                    ("available memory", f"{available // _MIB} MiB"),
                ],
            )
        )
    if facts.shm_free_bytes is not None and facts.shm_free_bytes < _MIN_SHM_BYTES:
        found.append(
            SHM_SHORT.found(
                subject,
                f"/dev/shm has {facts.shm_free_bytes // _MIB} MiB left",
                evidence=[("/dev/shm", f"{facts.shm_free_bytes} bytes free")],
            )
        )
    return found
