"""What a host says about itself and about a server on it, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spectune.domain.machine import Machine


@dataclass(frozen=True)
class Gpu:
    """One device, now."""

    index: int
    uuid: str
    name: str
    driver: str
    used_mib: int | None
    """``None``, here and below: the device's program has no figure for it."""
    total_mib: int | None
    use_percent: int | None
    held_mib: int | None = None
    """What the processes that are listed for it hold; ``None``: of one the amount is not known."""
    mig: tuple[str, ...] = ()
    """Names of the instances that it is divided into."""
    maker: str = "nvidia"


@dataclass(frozen=True)
class GpuHolder:
    """A process that holds memory of a device."""

    gpu_uuid: str
    pid: int | None
    used_mib: int | None
    command: str


@dataclass(frozen=True)
class PortOwner:
    """Who listens on a port; ``pid`` ``None``: it belongs to somebody whose processes may not be seen."""

    pid: int | None
    command: str | None

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command})" if self.pid is not None else "a process of another user"


@dataclass(frozen=True)
class ProcessorUser:
    """A process that uses a tenth of a core or more."""

    pid: int
    command: str
    cores: float


@dataclass(frozen=True)
class ProcessorUse:
    """What the processors of a host are used for, over half a second."""

    cores: float | None
    """Cores in use, those that a hypervisor took included; ``None``: the system does not tell."""
    of_cores: int | None
    """All cores, those included that a server may not use."""
    users: tuple[ProcessorUser, ...] = ()

    @property
    def free_cores(self) -> float | None:
        return None if self.cores is None or self.of_cores is None else self.of_cores - self.cores


@dataclass(frozen=True)
class HostFacts:
    """One reading of a host."""

    machine: Machine
    available_bytes: int | None
    shm_free_bytes: int | None
    disk_free_bytes: Mapping[str, int | None]
    """By the path that was asked about."""
    port_owners: Mapping[int, PortOwner | None]
    """``None``: free."""
    free_ports: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] | None = None
    """Empty: there are none; ``None``: not asked, or ``gpu_error`` says why it is not known."""
    gpu_holders: tuple[GpuHolder, ...] = ()
    gpu_error: str | None = None
    gpu_env: Mapping[str, str] = field(default_factory=dict)
    """What the host's own variables say about visible devices; a server's own come before them."""
    busy: ProcessorUse | None = None
    """``None``: not asked."""


def _gpu(row: Mapping[str, Any], processes: Sequence[Mapping[str, Any]]) -> Gpu:
    names = {row["uuid"], *row.get("mig", ())}
    held = [process["used_mib"] for process in processes if process["gpu_uuid"] in names]
    total = None if None in held else sum(held)
    return Gpu(**{**row, "mig": tuple(row.get("mig", ())), "held_mib": total})


def memory_bytes_of(gpus: Sequence[Gpu] | None) -> tuple[int, ...] | None:
    """The memory of each device; ``None`` if it is not known of every one."""
    if gpus is None:
        return None
    known = tuple(gpu.total_mib << 20 for gpu in gpus if gpu.total_mib is not None)
    return known if len(known) == len(gpus) else None


def read_host_facts(reply: Mapping[str, Any]) -> HostFacts:
    """From the supervisor's ``facts``."""
    gpus = reply.get("gpus")
    shm = reply.get("shm") or {}
    return HostFacts(
        machine=Machine(
            hostname=reply["hostname"],
            os=reply["os"],
            cpu=reply["cpu"],
            cores=reply["cores"],
            memory_bytes=reply["memory_bytes"],
            gpus=None if gpus is None else tuple(f"{gpu['name']}, {gpu['driver']}" for gpu in gpus),
            python=reply["python"],
        ),
        available_bytes=reply.get("available_bytes"),
        shm_free_bytes=shm.get("free_bytes"),
        disk_free_bytes={
            path: None if space is None else space["free_bytes"]
            for path, space in reply.get("disks", {}).items()
        },
        port_owners={
            int(port): None if owner is None else PortOwner(owner["pid"], owner["command"])
            for port, owner in reply.get("ports", {}).items()
        },
        free_ports=tuple(reply.get("free_ports", ())),
        gpus=None if gpus is None else tuple(_gpu(gpu, reply.get("gpu_processes", ())) for gpu in gpus),
        gpu_holders=tuple(GpuHolder(**holder) for holder in reply.get("gpu_processes", ())),
        gpu_error=reply.get("gpu_error"),
        gpu_env=reply.get("gpu_env", {}),
        busy=_processor_use(reply.get("busy")),
    )


def _processor_use(busy: Mapping[str, Any] | None) -> ProcessorUse | None:
    if busy is None:
        return None
    users = tuple(ProcessorUser(**user) for user in busy["users"])
    return ProcessorUse(busy["cores"], busy["of_cores"], users)


@dataclass(frozen=True)
class Vitals:
    """Signs of life of a server's process tree; counts only grow."""

    num_processes: int
    cpu_s: float
    rss_bytes: int
    io_bytes: int
    log_bytes: int
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Worker:
    """A process of a server, other than the one that was started."""

    pid: int
    exit_code: int | None
    command: str


@dataclass(frozen=True)
class Ended:
    """How a server came to its end."""

    reason: str
    """``exited``, ``worker``, or in words why the supervisor ended it."""
    exit_code: int | None
    """Negative: a signal. ``None``: its main process did not end by itself."""
    worker: Worker | None = None
    num_oom_kills: int = 0
    """Processes of this control group that the kernel killed for lack of memory meanwhile."""


def read_ended(event: Mapping[str, Any]) -> Ended:
    """From the supervisor's ``ended`` news."""
    worker = event.get("worker")
    return Ended(
        reason=event["reason"],
        exit_code=event["code"],
        worker=None if worker is None else Worker(worker["pid"], worker["code"], worker["command"]),
        num_oom_kills=event.get("oom_kills", 0),
    )


@dataclass(frozen=True)
class ServerStatus:
    """One server's record on its host, whoever started it."""

    server_id: str
    state: str
    """``running``, ``stopping``, ``ended``, ``orphaned`` (its supervisor is dead, processes are left)."""
    about: Mapping[str, Any]
    """What the one who started it wrote down: engine, arm, base URL."""
    key: str | None
    owner: str | None
    ports: tuple[int, ...]
    log_path: str
    leader_pid: int
    lease_s: float | None
    started_at: float
    ended: Ended | None
    orphans: tuple[int, ...] = ()
    left: tuple[str, ...] = field(default=())
    """What could not be shown to be gone."""
    is_lost: bool = False
    """Its record is gone or garbled: it was found by what its processes carry."""
    can_be_asked: bool = True
    """Whether its supervisor is not suspended and has a socket."""


def read_server_status(row: Mapping[str, Any]) -> ServerStatus:
    """From a row of the supervisor's ``list``."""
    ended = row.get("ended")
    state = str(row["state"])
    if not row["alive"]:
        state = "orphaned" if row["orphans"] else "ended"
    return ServerStatus(
        server_id=row["name"],
        state=state,
        about=row.get("label") or {},
        key=row.get("key"),
        owner=row.get("owner"),
        ports=tuple(row.get("ports", ())),
        log_path=row["log_path"],
        leader_pid=row["leader"][0],
        lease_s=row.get("lease_s"),
        started_at=row["started_at"],
        ended=None if ended is None else read_ended(ended),
        orphans=tuple(row["orphans"]),
        left=tuple((row.get("proof") or {}).get("left", ())),
        is_lost=bool(row.get("lost")),
        can_be_asked=bool(row.get("can_be_asked", True)),
    )
