"""Run, watch and stop one process tree on this machine.

What was started is recognised by pid *and* start time, by its session, and by
an environment marker that every descendant inherits. Nothing is ever killed by
name, and nothing because it holds a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from spectune.errors import EnvironmentFailed, TeardownUnproven

MARKER = "SPECTUNE_SERVER_ID"
_POLL_S = 0.02


@dataclass(frozen=True)
class ProcessId:
    """A pid that cannot be mistaken for a later process with the same number."""

    pid: int
    start_time: float
    """Seconds since the epoch, as the system reports it."""

    def find(self) -> psutil.Process | None:
        """The living process, or ``None`` if it is gone, a zombie, or another one now has its number."""
        try:
            process = psutil.Process(self.pid)
            if (
                abs(process.create_time() - self.start_time) > 0.05
                or process.status() == psutil.STATUS_ZOMBIE
            ):
                return None
        except psutil.NoSuchProcess:
            return None
        return process


@dataclass(frozen=True)
class ServerIdentity:
    """Enough to find a server's processes again from another spectune."""

    leader: ProcessId
    session: int
    marker: str


@dataclass(frozen=True)
class StopProof:
    """How a stop went. It exists only when nothing was left."""

    took_s: float
    killed: tuple[int, ...]
    """Pids that did not end on SIGTERM."""


def processes_of(identity: ServerIdentity) -> list[psutil.Process]:
    """Every living process of a server: its leader, its session, and whoever carries its marker."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if _belongs(process, identity):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            continue
    return found


def _belongs(process: psutil.Process, identity: ServerIdentity) -> bool:
    if process.create_time() < identity.leader.start_time - 0.05:
        return False
    if process.pid == identity.leader.pid:
        return True
    try:
        marked = process.environ().get(MARKER) == identity.marker
    except (psutil.AccessDenied, OSError):
        marked = False
    # A session id can be taken by a stranger once our leader is gone, but not while we hold the marker to check it.
    return marked or (os.getsid(process.pid) == identity.session and identity.leader.find() is not None)


class ServerProcess(Protocol):
    """A server's process tree, whoever started it."""

    identity: ServerIdentity
    log_path: Path

    async def wait_exit(self) -> int | None:
        """Returns within a few hundredths of a second of the leader's end; ``None``: code unknown."""
        ...

    async def stop(self, *, grace_s: float) -> StopProof:
        """SIGTERM, wait, SIGKILL, over the whole tree; raises ``TeardownUnproven`` if anything is left."""
        ...


class LocalProcess:
    """A server started by this spectune: own session, marked environment, output to a file."""

    def __init__(self, popen: subprocess.Popen[bytes], identity: ServerIdentity, log_path: Path) -> None:
        self._popen = popen
        self.identity = identity
        self.log_path = log_path

    @classmethod
    def start(cls, argv: Sequence[str], *, env: Mapping[str, str], log_path: Path) -> LocalProcess:
        """Starts ``argv`` (no shell) with ``env`` on top of ours; raises ``EnvironmentFailed`` if it cannot."""
        marker = uuid.uuid4().hex
        full_env = {**os.environ, **env, MARKER: marker, "PYTHONUNBUFFERED": "1"}
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            with log_path.open("ab") as log:
                popen = subprocess.Popen(
                    list(argv),
                    env=full_env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise EnvironmentFailed(f"cannot start {argv[0]!r}: {reason}") from error
        try:
            start_time = psutil.Process(popen.pid).create_time()
        except psutil.NoSuchProcess:
            start_time = time.time()
        leader = ProcessId(popen.pid, start_time)
        return cls(popen, ServerIdentity(leader, session=popen.pid, marker=marker), log_path)

    async def wait_exit(self) -> int | None:
        while (code := self._popen.poll()) is None:
            await asyncio.sleep(_POLL_S)
        return code

    async def stop(self, *, grace_s: float) -> StopProof:
        return await stop_server(self.identity, grace_s=grace_s, reap=self._popen.poll)


class AttachedProcess:
    """A server that an earlier spectune started."""

    def __init__(self, identity: ServerIdentity, log_path: Path) -> None:
        self.identity = identity
        self.log_path = log_path

    async def wait_exit(self) -> int | None:
        while self.identity.leader.find() is not None:
            await asyncio.sleep(_POLL_S)
        return None

    async def stop(self, *, grace_s: float) -> StopProof:
        return await stop_server(self.identity, grace_s=grace_s)


async def stop_server(
    identity: ServerIdentity,
    *,
    grace_s: float,
    kill_wait_s: float = 10.0,
    reap: Callable[[], object] = lambda: None,
) -> StopProof:
    """Ends every process of ``identity`` and proves it; ``reap`` collects the leader if it is our child."""
    began = time.monotonic()
    leader = identity.leader.find()
    _signal(processes_of(identity) if leader is None else [leader], signal.SIGTERM)
    await _wait_gone(identity, grace_s, reap, leader_only=True)
    _signal(processes_of(identity), signal.SIGTERM)
    await _wait_gone(identity, min(2.0, grace_s), reap)
    survivors = processes_of(identity)
    killed = tuple(process.pid for process in survivors)
    deadline = time.monotonic() + kill_wait_s
    while survivors and time.monotonic() < deadline:
        _signal(survivors, signal.SIGKILL)
        await _wait_gone(identity, 0.5, reap)
        survivors = processes_of(identity)
    if survivors:
        names = ", ".join(f"{process.pid} ({_command_of(process)})" for process in survivors)
        raise TeardownUnproven(
            f"these processes of the server are still there after SIGKILL: {names}\n"
            "Nothing more was started. Find out what holds them (a driver, a debugger?), end them, then resume.",
            [process.pid for process in survivors],
        )
    return StopProof(took_s=time.monotonic() - began, killed=killed)


async def _wait_gone(
    identity: ServerIdentity, limit_s: float, reap: Callable[[], object], *, leader_only: bool = False
) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        reap()
        alive = identity.leader.find() is not None if leader_only else bool(processes_of(identity))
        if not alive:
            return
        await asyncio.sleep(_POLL_S)


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)  # psutil checks the start time before it sends


def _command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:80] or process.name()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return "?"


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could bind the port now (closed connections that linger do not count)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
