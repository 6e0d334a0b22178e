#!/usr/bin/env python3
"""Stands beside one server, on any host: starts it, watches its whole process tree, stops it and proves it.

This file is complete in itself: Python 3.9 or later, standard library only. On this machine it is run as it
lies in the package; to another host it is copied. Commands::

    supervisor.py start DIR          a supervisor for the specification on standard input; returns when it runs
    supervisor.py connect DIR        standard input and output joined to its control socket
    supervisor.py sweep DIR          stops what a dead supervisor left behind, exactly that
    supervisor.py list BASE          the servers whose folders lie in BASE
    supervisor.py forget DIR         removes the record of a server that has ended
    supervisor.py facts              facts of this host, for the questions on standard input

No descendant escapes: on Linux the supervisor is a child subreaper, so a process that detaches becomes its
child, and "nothing is left" is what the kernel says when there is no child to wait for. For the case that the
supervisor itself is killed, its parent is a second subreaper that does nothing but wait (the keeper): what was
left becomes its child. Every process is also known by pid and start time, and by the marker and the folder in its
environment, which find a server whose record is gone. Nothing is ever signalled for its name, or for holding a port.

A server in a container is below the runtime's daemon. Its processes are known by the marker, and by the control group
of the container; the container by its label, which no other has. It is the runtime that stops it and says it is gone.

It serves as long as somebody renews the lease. When nobody does, it stops the server and leaves a record.

The control socket speaks one JSON object per line: ``{"id": 1, "do": "status"}`` is answered by an object with
the same ``id``; objects with ``event`` are news. Any request renews the lease.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import json
import os
import platform
import re
import resource
import select
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

VERSION = 1
MARKER = "SPECTUNE_SERVER_ID"
FOLDER = "SPECTUNE_SERVER_FOLDER"
"""In the environment of a server: the folder of its record."""
SOCKET = "control.sock"
STATUS = "status.json"
LOG = "server.log"

IS_LINUX = sys.platform.startswith("linux")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SCAN_STARTING_S = 0.5
_SCAN_READY_S = 2.0
_STOP_TICK_S = 0.02
_TERM_ALL_S = 2.0
_KILL_WAIT_S = 10.0
_REAP_WAIT_S = 5.0
_RETIRE_S = 38.0
"""What a supervisor that was told to end may take to stop its server."""
_WATCHER, _KEEPER = "spectune-watch", "spectune-keep"
_LINGER_S = 60.0
_MAX_LOG_CHUNK = 1 << 18
_MAX_LINE = 1 << 20
_MAX_CLIENTS = 16
_MAX_SECONDS = 1e9
_AGAIN_S = 0.5
_BY_ANOTHER = "another command asked for it (`spectune down` does)"
_FREE_DESCRIPTORS = 44
"""Kept for the clients, and for reading what /proc says."""
_SHM = "/dev/shm"
_FATAL_SIGNALS = frozenset(
    {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGQUIT}
)
_PASSING_HELPERS = re.compile(
    r"resource_tracker|compile_worker|nvidia-smi|/(?:cc1|cc1plus|nvcc|ptxas|ninja|ld|as)\b"
)
"""Processes that come and go in a healthy engine: an ordinary end of one of them says nothing."""
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "fish"})
_UNSEEN = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What /proc answers for a process that has gone, or may not be seen. Anything else, such as too few descriptors,
says nothing about the process: it must not be taken for gone."""


# --- processes -------------------------------------------------------------------------------------------------


class Process(NamedTuple):
    """One row of the process table; ``start`` and ``pid`` together are never given out twice between boots."""

    pid: int
    ppid: int
    sid: int
    state: str
    start: int
    """Clock ticks since boot on Linux, seconds since the epoch elsewhere."""
    cpu_s: float
    rss_bytes: int
    exit_status: int | None = None
    """Of a zombie, as ``waitpid`` would give it; ``None``: not to be seen."""
    num_threads: int = 1

    @property
    def is_alive(self) -> bool:
        """A process whose first thread has ended shows as a zombie, and holds everything while others go on."""
        return self.state not in "ZX" or self.num_threads > 1

    @property
    def key(self) -> tuple[int, int]:
        return (self.pid, self.start)


def read_process(pid: int) -> Process | None:
    """The process that has this number now, a zombie included; ``None`` if there is none."""
    if not IS_LINUX:
        return process_table().get(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except _UNSEEN:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    state = fields[0].decode()
    ticks = int(fields[11]) + int(fields[12])
    num_threads = int(fields[17])
    has_ended = state == "Z" and num_threads <= 1
    return Process(
        pid=pid,
        ppid=int(fields[1]),
        sid=int(fields[3]),
        state=state,
        start=int(fields[19]),
        cpu_s=ticks / _TICKS_PER_S,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        exit_status=int(fields[49]) if has_ended and len(fields) > 49 else None,
        num_threads=num_threads,
    )


def process_table() -> dict[int, Process]:
    """Every process of this host that can be seen, by pid."""
    if not IS_LINUX:
        return _process_table_ps()
    found = {}
    for pid in _pids():
        process = read_process(pid)
        if process is not None:
            found[process.pid] = process
    return found


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []


_PS_ROW = re.compile(
    r"\s*(\d+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(\w{3} \w{3} +\d+ [\d:]{8} \d{4})\s+([\d:.-]+)\s+(\d+)"
)


def _process_table_ps() -> dict[int, Process]:
    columns = "pid=,ppid=,sess=,stat=,lstart=,time=,rss="
    env = {**os.environ, "LC_ALL": "C"}
    text = subprocess.run(
        ["ps", "-axo", columns], env=env, capture_output=True, text=True, check=False
    ).stdout
    found = {}
    for row in map(_PS_ROW.match, text.splitlines()):
        if row is None:
            continue
        started = int(time.mktime(time.strptime(row.group(5), "%a %b %d %H:%M:%S %Y")))
        parts = [float(part) for part in re.split("[:-]", row.group(6))]
        seconds = sum(part * unit for part, unit in zip(reversed(parts), (1, 60, 3600, 86400)))
        session = int(row.group(3)) if row.group(3).isdigit() else 0
        pid = int(row.group(1))
        found[pid] = Process(
            pid, int(row.group(2)), session, row.group(4)[0], started, seconds, int(row.group(7)) * 1024
        )
    return found


def marker_of(pid: int) -> str | None:
    """The marker in a process's environment, where it can be read and was not overwritten."""
    return environment_of(pid).get(MARKER)


def environment_of(pid: int) -> dict[str, str]:
    """A process's variables at its start, where they can be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = os.fsdecode(file.read()).split("\0")
    except _UNSEEN:
        return {}
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def command_of(pid: int) -> str:
    """A process's command line, for people; its short name if it shows none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        text = b" ".join(words).decode(errors="replace").strip()
        if not text:
            with open(f"/proc/{pid}/comm", "rb") as file:
                text = file.read().decode(errors="replace").strip()
    except OSError:
        return "?"
    return printable(text)[:200]


def program_of(pid: int | None) -> str | None:
    """The executable that a process runs; ``None`` where that may not be seen."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None


def printable(text: str) -> str:
    """For people and terminals: what cannot be shown as a question mark."""
    return "".join(c if c.isprintable() else "?" for c in text)


def descendants(table: dict[int, Process], root: int) -> set[int]:
    """Pids below ``root``."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process.pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def members(
    marker: str,
    known: Iterable[tuple[int, int]],
    *,
    since: int,
    root: int | None = None,
    containers: Iterable[str] = (),
) -> list[Process]:
    """The living processes of a server: below ``root``, marked, known by pid and start, or below one of these.

    Those in the control groups of ``containers`` too.
    """
    table = process_table()
    table.pop(os.getpid(), None)
    ours = descendants(table, root) if root is not None else set()
    ours |= {pid for pid, start in known if pid in table and table[pid].start == start}
    for pid, process in table.items():
        is_new = pid not in ours and process.start >= since
        if is_new and (marker_of(pid) == marker or is_inside(pid, containers)):
            ours.add(pid)
    for pid in list(ours):
        ours |= {child for child in descendants(table, pid) if table[child].start >= since}
    return [table[pid] for pid in sorted(ours) if table[pid].is_alive]


def is_inside(pid: int, containers: Iterable[str]) -> bool:
    """Whether a process is in the control group of one of these containers, by their ids, which are in its name."""
    if not containers:
        return False
    try:
        with open(f"/proc/{pid}/cgroup", errors="replace") as file:
            text = file.read()
    except _UNSEEN:
        return False
    return any(name in text for name in containers)


class Trace(NamedTuple):
    """What is alive of a server, by what its processes carry."""

    marker: str
    watchers: dict[str, Process]
    """The supervisor and its keeper, by those names."""
    processes: list[Process]


def traces(base: str) -> dict[str, Trace]:
    """The servers whose folders lie in ``base``, and that have living processes, by folder; Linux alone shows them."""
    found: dict[str, Trace] = {}
    table = process_table() if IS_LINUX else {}
    for process in table.values():
        folder, marker, role = _belongs_to(process.pid)
        if folder and process.is_alive and os.path.dirname(folder) == base:
            known = found.get(folder, Trace("", {}, []))
            if role:
                known.watchers[role] = process
            else:
                known.processes.append(process)
            found[folder] = known if known.marker else known._replace(marker=marker)
    for trace in found.values():
        watchers = {process.pid for process in trace.watchers.values()}
        below = {pid for watcher in watchers for pid in descendants(table, watcher)}
        more = below - watchers - {process.pid for process in trace.processes}
        trace.processes.extend(table[pid] for pid in sorted(more) if table[pid].is_alive)
    return {folder: trace for folder, trace in found.items() if trace.processes}


def _belongs_to(pid: int) -> tuple[str, str, str]:
    """Folder, marker and role of a process of a server, or of one that stands beside it; empty for a stranger."""
    role = role_of(pid)
    if not role:
        variables = environment_of(pid)
        return variables.get(FOLDER, ""), variables.get(MARKER, ""), ""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = os.fsdecode(file.read()).rstrip("\0").split("\0")
    except _UNSEEN:
        return "", "", ""
    is_ours = words[-2:-1] == ["start"]
    return (os.path.realpath(os.path.expanduser(words[-1])) if is_ours else ""), "", role


def role_of(pid: int) -> str:
    """``_WATCHER`` or ``_KEEPER``, as a process of ours calls itself; empty for any other."""
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            name = file.read().strip()
    except _UNSEEN:
        return ""
    return name if name in (_WATCHER, _KEEPER) else ""


def signal_process(process: Process, number: int) -> None:
    """Signals it if its number still belongs to it."""
    now = read_process(process.pid)
    if now is not None and now.key == process.key:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def terminate(processes: Iterable[Process]) -> None:
    """Asks them to end, the suspended ones too."""
    for process in processes:
        signal_process(process, signal.SIGTERM)
        signal_process(process, signal.SIGCONT)


def end_all(
    find: Callable[[], list[Process]], killed: dict[int, str], *, term_s: float
) -> Generator[float, None, list[Process]]:
    """TERM to what ``find`` finds, and after ``term_s`` KILL; yields the seconds to wait, returns what is left.

    What had to be killed is in ``killed`` then, with its command.
    """
    remaining = find()
    terminate(remaining)
    began = time.monotonic()
    while remaining and time.monotonic() < began + term_s + _KILL_WAIT_S:
        if time.monotonic() >= began + term_s:
            for process in remaining:
                killed.setdefault(process.pid, command_of(process.pid))
                signal_process(process, signal.SIGKILL)
        yield _STOP_TICK_S
        remaining = find()
    return remaining


def boot_id() -> str:
    """Which boot of this host; start times are comparable within one."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "?"


# --- ports -----------------------------------------------------------------------------------------------------


def port_owner(port: int) -> dict[str, Any] | None:
    """Who listens on a TCP port: ``{"pid", "command"}``, pid ``None`` if it may not be seen; ``None``: nobody."""
    if not IS_LINUX:
        return _port_owner_lsof(port)
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    pid = _holder_of(inodes, _pids())
    return {"pid": pid, "command": command_of(pid) if pid is not None else None}


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for family in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{family}") as file:
                rows = file.read().splitlines()[1:]
        except FileNotFoundError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _holder_of(inodes: set[str], pids: Iterable[int]) -> int | None:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in pids:
        if any(target in wanted for target in _open_files(f"/proc/{pid}/fd")):
            return pid
        process = read_process(pid)
        if process is not None and process.state == "Z" and process.is_alive:
            # The files are to be seen only under the threads that are left.
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    if any(target in wanted for target in _open_files(f"/proc/{pid}/task/{thread}/fd")):
                        return pid
    return None


def _open_files(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield os.readlink(f"{folder}/{name}")


def _port_owner_lsof(port: int) -> dict[str, Any] | None:
    reply = subprocess.run(
        ["lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-Fpc"], capture_output=True, text=True, check=False
    )
    fields = {line[0]: line[1:] for line in reply.stdout.splitlines() if line}
    if "p" not in fields:
        return None
    return {"pid": int(fields["p"]), "command": fields.get("c")}


def can_bind(port: int) -> bool:
    """Whether a server could listen on the port of the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# --- shared memory ---------------------------------------------------------------------------------------------


_SEGMENT_NAMES = re.compile(
    r"nccl-\w{6}"  # NCCL
    r"|torch_(?P<torch>\d+)_\d+_\d+"  # PyTorch, with the pid of its maker
    r"|psm_[0-9a-f]{8}|sem\.mp-\w{8}"  # Python: shared memory, semaphores
    r"|VLLM_OBJECT_STORAGE_SHM_BUFFER_[0-9a-f]{32}|vllm_(?:offload|ec)_[\w.-]+\.mmap"
    r"|sgl_shm_\w+_(?P<sgl>\d+)_[0-9a-f]{8}|multi_tokenizer_args_(?P<args>\d+)"
    r"|sglang_host_pool_[0-9a-f]{32}\.mmap|sglang_loads_[\w.-]+_[0-9a-f]{8}\.shm"
)
"""The names that these makers give to segments which live and die with one server; other names are never removed."""


def _held_in_shm(pids: Iterable[int]) -> tuple[set[int], set[str]]:
    """What these processes have open or mapped in /dev/shm: inodes, and the folders there that hold some of it.

    A process of a container shows the paths of its own /dev/shm: the file behind them counts, not the name.
    """
    inodes: set[int] = set()
    folders: set[str] = set()
    for pid in pids:
        for path, inode in set(_open_in_shm(pid)):
            inodes.add(inode)
            if path.count("/") > 3:
                with contextlib.suppress(OSError, ValueError):
                    if os.lstat(path).st_ino == inode:
                        folders.add("/".join(path.split("/")[:4]))
    return inodes, folders


def _open_in_shm(pid: int) -> list[tuple[str, int]]:
    """Files of /dev/shm that a process has mapped or open: path and inode."""
    found: list[tuple[str, int]] = []
    try:
        device = os.lstat(_SHM).st_dev
    except OSError:
        return []
    shown = f"{os.major(device):02x}:{os.minor(device):02x}".encode()
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            for line in file:
                fields = line.rstrip(b"\n").split(None, 5)
                if len(fields) == 6 and fields[3] == shown and fields[5].startswith(b"/dev/shm/"):
                    found.append((fields[5].decode(errors="surrogateescape"), int(fields[4])))
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith(_SHM + "/"):
                    status = os.stat(f"/proc/{pid}/fd/{name}")
                    found += [(target, status.st_ino)] if status.st_dev == device else []
    except OSError:  # it has ended, or is another user's, who cannot open what only its owner may
        pass
    return found


def _holders_of(inodes: set[int]) -> dict[int, set[int]]:
    """The processes in which these files of /dev/shm are open, by inode."""
    holders: dict[int, set[int]] = {}
    for pid in _pids() if inodes else ():
        for _, inode in _open_in_shm(pid):
            if inode in inodes:
                holders.setdefault(inode, set()).add(pid)
    return holders


def segments_now() -> dict[str, int]:
    """Every entry of /dev/shm: inode by path."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(_SHM):
            with contextlib.suppress(OSError):
                found[entry.path] = entry.inode()
    return found


class Segments:
    """What a server has in /dev/shm: what it made there, as far as that can be told, and what was there without it."""

    def __init__(self, existed: dict[str, int], used: dict[str, int] | None = None) -> None:
        self.existed = existed
        """Not the server's: there before it, or first seen in other hands."""
        self.used = used or {}
        """New since its launch, and open in one of its processes at some time."""

    def look(self, members: Callable[[], list[Process]], makers: set[int]) -> None:
        """Judges what is new: the server's if its processes alone have it open, or if its name has their pid."""
        now = segments_now()
        self.existed = {path: inode for path, inode in self.existed.items() if now.get(path) == inode}
        self.used = {path: inode for path, inode in self.used.items() if now.get(path) == inode}
        new = {path: now[path] for path in now if path not in self.existed and path not in self.used}
        if not new:
            return
        inodes, folders = _held_in_shm(process.pid for process in members())
        holders = _holders_of(inodes.intersection(new.values()))
        ours = {process.pid for process in members()}
        for path, inode in new.items():
            others = [pid for pid in holders.get(inode, set()) - ours if read_process(pid) is not None]
            if maker_of(path) in makers or path in folders or (inode in inodes and not others):
                self.used[path] = inode
            elif not os.path.isdir(path):  # the server may still fill a folder
                self.existed[path] = inode

    def remove(self, makers: set[int]) -> tuple[list[str], list[str]]:
        """Deletes the segments that the ended processes ``makers`` made; returns (removed, left, with the reason)."""
        removed, left = [], []
        holders = _holders_of(set(self.used.values()))
        for path, inode in sorted(self.used.items()):
            try:
                status = os.lstat(path)
                if status.st_ino != inode:
                    continue
                why = _why_left(path, status, makers)
                if why is None and inode in holders:
                    pid = min(holders[inode])
                    why = f"open in pid {pid} ({command_of(pid)})"
                if why is None:
                    os.unlink(path)
                    removed.append(path)
                else:
                    left.append(printable(f"{path}: {why}"))
            except FileNotFoundError:
                continue
            except OSError as error:
                left.append(printable(f"{path}: {error.strerror}"))
        return removed, left


def segments_recorded(status: dict[str, Any]) -> Segments:
    """Those of a server whose record this is. Where it does not say what was there before, nothing is the server's."""
    existed, used = status.get("existed"), status.get("segments")
    if isinstance(existed, dict) and isinstance(used, dict):
        return Segments(existed, used)
    return Segments(segments_now())


def maker_of(path: str) -> int | None:
    """The pid of the process that made a segment, where its name says so."""
    name = _SEGMENT_NAMES.fullmatch(os.path.basename(path))
    pids = [int(text) for text in name.groupdict().values() if text] if name else []
    return pids[0] if pids else None


def _why_left(path: str, status: os.stat_result, makers: set[int]) -> str | None:
    """Why an entry of /dev/shm is not the server's to lose; ``None``: it is a segment that one of ``makers`` made."""
    if not _SEGMENT_NAMES.fullmatch(os.path.basename(path)) or not stat.S_ISREG(status.st_mode):
        return "not a shared-memory segment of a known maker"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o077:
        return "other users may open it, which no maker of segments allows"
    maker = maker_of(path)
    return None if maker is None or maker in makers else f"made by pid {maker}"


class _Ipc(NamedTuple):
    shmid: int
    cpid: int


def sysv_segments() -> list[_Ipc]:
    """System V shared-memory segments of this host."""
    try:
        with open("/proc/sysvipc/shm") as file:
            names, *rows = [line.split() for line in file]
    except (OSError, ValueError):
        return []
    at = {name: index for index, name in enumerate(names)}
    return [_Ipc(int(row[at["shmid"]]), int(row[at["cpid"]])) for row in rows]


# --- containers ------------------------------------------------------------------------------------------------


_CLIENT_VARIABLES = (
    *("PATH", "HOME", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"),
    *("CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
)
_LABEL_PREFIX = "spectune.server="
_ASK_RUNTIME_S = 15.0
_NOT_STARTED = (125, 126, 127)
"""Exit codes by which ``docker run`` says that nothing of the server has run."""


class Runtime:
    """A container program, for the containers of one server: those with its label, and no others."""

    def __init__(self, client: list[str], label: str, env: dict[str, str]) -> None:
        self.client = client
        self.label = label
        self.env = env
        """The variables by which its client finds the daemon; without secrets."""

    def ids(self) -> list[str]:
        """Containers of the server, whatever their state; raises ``OSError`` where the runtime does not say."""
        said = self._ask("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={self.label}")
        return [word for word in said.split() if re.fullmatch(r"[0-9a-f]{12,64}", word)]

    def state(self, container: str) -> dict[str, Any]:
        """As ``inspect`` gives it; raises ``OSError``."""
        try:
            state = json.loads(self._ask("inspect", "--format", "{{json .State}}", container))
        except ValueError:
            state = None
        if not isinstance(state, dict):
            raise OSError(f"{self.client[0]} inspect: its answer was not understood")
        return state

    def remove(self, containers: Iterable[str]) -> None:
        with contextlib.suppress(OSError):
            self._ask("rm", "--force", *containers)

    def stop(self, containers: Iterable[str], *, grace_s: float) -> Generator[float, None, None]:
        """SIGTERM, and SIGKILL after the grace, by the runtime; yields the seconds to wait."""
        words = [*self.client, "stop", "--time", str(int(grace_s + 0.99)), *containers]
        null = subprocess.DEVNULL
        try:
            client = subprocess.Popen(
                words, env={**os.environ, **self.env}, stdin=null, stdout=null, stderr=null, cwd="/"
            )
        except OSError:
            return
        deadline = time.monotonic() + grace_s + _ASK_RUNTIME_S
        while client.poll() is None and time.monotonic() < deadline:
            yield _STOP_TICK_S
        if client.poll() is None:
            client.kill()
            client.wait()

    def _ask(self, *words: str) -> str:
        argv = [*self.client, *words]
        env = {**os.environ, **self.env}
        try:
            reply = subprocess.run(
                argv,
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_ASK_RUNTIME_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"{self.client[0]} {words[0]}: no answer within {_ASK_RUNTIME_S:g} s") from None
        if reply.returncode != 0:
            raise OSError(f"{self.client[0]} {words[0]}: {printable(reply.stderr.strip())[-300:]}")
        return reply.stdout


def runtime_of(record: dict[str, Any], env: dict[str, str] | None = None) -> Runtime | None:
    """Of a specification or a record; ``None`` for a server in no container that was made for it."""
    call = record.get("container")
    if not isinstance(call, dict) or not str(call.get("label")).startswith(_LABEL_PREFIX):
        return None
    found = env if env is not None else call.get("env")
    variables = found if isinstance(found, dict) else {}
    kept = {name: str(variables[name]) for name in _CLIENT_VARIABLES if name in variables}
    return Runtime([str(word) for word in call.get("client", ())], str(call["label"]), kept)


def remove_containers(
    runtime: Runtime, known: set[str], *, may_run: Callable[[], bool]
) -> tuple[list[str], list[str]]:
    """Removes the containers of a server whose client has ended; returns those that are gone, and what is left.

    ``may_run``: asked where the runtime gives no answer.
    """
    try:
        found = set(runtime.ids())
        known |= found
        if found:
            runtime.remove(sorted(found))
            found = set(runtime.ids())
    except OSError as error:
        if may_run():
            return [], [f"a container with the label {runtime.label}: {error}"]
        return [], []
    return sorted(known - found), [f"container {name[:12]} ({runtime.client[0]})" for name in sorted(found)]


# --- the supervisor --------------------------------------------------------------------------------------------


class Supervisor:
    """Owns one server from its start to its proven end."""

    def __init__(self, spec: dict[str, Any], *, keeper: Process | None = None) -> None:
        self.spec = spec
        self.marker = str(spec["marker"])
        self.lease_s: float | None = spec.get("lease_s")
        self.ports = [int(port) for port in spec.get("ports", ())]
        self.log_path = str(spec.get("log_path") or os.path.abspath(LOG))
        self.state = "running"
        self.ended: dict[str, Any] | None = None
        self.proof: dict[str, Any] | None = None
        self.is_ready = False
        self.known: dict[tuple[int, int], str] = {}
        self.sessions: set[int] = set()
        self.exits: dict[int, int] = {}
        self.workers: set[tuple[int, int]] = set()
        self.segments = Segments(segments_now())
        self.existed_sysv = {segment.shmid for segment in sysv_segments()}
        self.selector = selectors.DefaultSelector()
        self.clients: dict[socket.socket, bytearray] = {}
        self.unheard: set[socket.socket] = set()
        self.waiting_for_stop: list[tuple[socket.socket, Any]] = []
        self.pidfds: dict[tuple[int, int], int] = {}
        self.stopping: Iterator[float] | None = None
        self.killed: dict[int, str] = {}
        self.next_tick = 0.0
        self.next_scan = 0.0
        self.next_look = 0.0
        self.gone_at: float | None = None
        self.oom_kills = oom_kill_count()
        self.started_wall = time.time()
        self._written = ""
        self._said = ""
        me = read_process(os.getpid())
        self.since = me.start if me is not None else 0
        self.me = [os.getpid(), self.since]
        self.keeper = list(keeper.key) if keeper is not None else None
        self.runtime = runtime_of(spec, {**os.environ, **spec.get("env", {})})
        self.containers: set[str] = set()
        self.seen_inside = False
        """Whether processes of its containers were seen here: then it is known when they are gone."""
        self.renew()

    # starting

    def start(self) -> None:
        """Starts the server; raises ``OSError`` if that cannot be done."""
        become_subreaper()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)
        self.listener.bind(SOCKET)
        os.chmod(SOCKET, 0o600)
        self.listener.listen(64)
        self.listener.setblocking(False)
        self.wakeup_read, wakeup_write = socket.socketpair()
        for end in (self.wakeup_read, wakeup_write):
            end.setblocking(False)
        self._wakeup_write = wakeup_write
        signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)
        self.got_signal: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        env = {**os.environ, **self.spec.get("env", {}), MARKER: self.marker, FOLDER: os.getcwd()}
        os.makedirs(os.path.dirname(self.log_path), exist_ok=True)
        with open(self.log_path, "ab") as log:
            child = subprocess.Popen(
                self.spec["argv"],
                env=env,
                cwd=self.spec.get("cwd") or os.path.expanduser("~"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child.returncode = 0  # it is waited for below, with every other child
        leader = read_process(child.pid)
        self.leader = (child.pid, leader.start if leader is not None else 0)
        self.started = time.monotonic()
        self.guarded(self.scan)  # the server runs: from here on it is watched, whatever fails
        self.write_status()

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.got_signal = number

    # the loop

    def run(self) -> None:
        """Until the server is gone and whoever asked for it has the proof."""
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self.wakeup_read, selectors.EVENT_READ, self._drain_wakeup)
        while self.gone_at is None or self._should_linger():
            self.guarded(self._turn)
        for client in list(self.clients):
            self._drop(client)

    def _turn(self) -> None:
        self.reap()
        for key, _ in self.selector.select(self._sleep_s()):
            key.data(key.fileobj)
        self.reap()
        now = time.monotonic()
        if self.got_signal is not None and self.stopping is None:
            self.begin_stop(f"the supervisor got signal {self.got_signal}", grace_s=20.0)
        if self.stopping is None and self.gone_at is None and self.lease_left() <= 0:
            self.begin_stop("nobody renewed the lease", grace_s=20.0)
        if self.stopping is not None and now >= self.next_tick:
            self._advance_stop(now)
        elif self.stopping is None and self.gone_at is None and now >= self.next_scan:
            self.scan()

    def guarded(self, step: Callable[[], None]) -> None:
        """Takes a step of the watch. A step that fails is said in our log, and is taken again: the watch goes on."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - whatever it is, the server must not be left alone
            self.say(f"{type(error).__name__}: {error}; trying again")
            time.sleep(_AGAIN_S)

    def say(self, words: str) -> None:
        """Puts news into our own log, where that can be written; the same words once."""
        if words != self._said:
            self._said = words
            with contextlib.suppress(OSError):
                os.write(2, f"{words}\n".encode(errors="replace"))

    def _sleep_s(self) -> float:
        now = time.monotonic()
        if self.stopping is not None:
            return max(0.0, self.next_tick - now)
        if self.gone_at is not None:
            return 0.5
        return max(0.0, min(self.next_scan - now, self.lease_left()))

    def _should_linger(self) -> bool:
        """Whether somebody may still want to hear of the end: a connected client, or one that lost its connection."""
        if self.got_signal is not None or self.gone_at is None:
            return False
        if self.ended and self.ended["heard"] and not self.clients:
            return False
        limit = _LINGER_S if self.lease_s is None else min(_LINGER_S, self.lease_s)
        return time.monotonic() < self.gone_at + limit

    def renew(self) -> None:
        self.renewed = time.monotonic()

    def lease_left(self) -> float:
        if self.lease_s is None:
            return 3600.0
        return self.renewed + self.lease_s - time.monotonic()

    # watching

    def reap(self) -> None:
        """Collects every child that has ended, the adopted ones too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = exit_code(status)
            self.exits[pid] = code
            if pid == self.leader[0]:
                self.on_leader_end(code)
            else:
                for key in [key for key in self.pidfds if key[0] == pid]:
                    self._on_pidfd(key)

    def on_leader_end(self, code: int) -> None:
        if self.ended is None:
            self.ended = {"code": code, "reason": "exited", "heard": False}
        self.ended["code"] = code
        self.ended["oom_kills"] = oom_kill_count() - self.oom_kills
        if self.stopping is None:
            self.look_at_container_end(code)
            self.tell({"event": "ended", **self.ended})
            self.begin_stop(None, grace_s=2.0)

    def look_at_container_end(self, code: int) -> None:
        """What the runtime knows of the end of a server whose client has ended with ``code``."""
        assert self.ended is not None
        try:
            states = [self.runtime.state(name) for name in self.runtime.ids()] if self.runtime else []
        except OSError as error:
            self.say(str(error))
            return
        for state in states:
            if state.get("Running"):
                self.ended["reason"] = f"the client of its container ended with code {code} while it ran"
            elif state.get("OOMKilled"):
                self.ended["oom_kills"] = max(1, self.ended["oom_kills"])

    def find_containers(self) -> None:
        """Learns the ids, once."""
        if self.runtime is not None and not self.containers:
            with contextlib.suppress(OSError):
                self.containers.update(self.runtime.ids())

    def scan(self) -> None:
        """Learns the tree: who belongs to it, what it holds in shared memory; watches newcomers' ends."""
        began = time.monotonic()
        self.next_scan = began + _AGAIN_S
        self.find_containers()
        alive = self.members()
        for process in alive:
            if process.key not in self.known:
                self.known[process.key] = command_of(process.pid)
                self.seen_inside = self.seen_inside or is_inside(process.pid, self.containers)
                self._watch(process)
            elif self.known[process.key] != command_of(process.pid) != "?":
                self.known[process.key] = command_of(process.pid)
        for key in self.workers - self.pidfds.keys() - {process.key for process in alive}:
            self._on_worker_end(key)
        took = time.monotonic() - began
        self.next_scan = time.monotonic() + max(
            _SCAN_READY_S if self.is_ready else _SCAN_STARTING_S, 50 * took
        )
        if time.monotonic() >= self.next_look:
            self.look_at_segments()
        self.write_status()

    def members(self) -> list[Process]:
        return members(
            self.marker, self.known, since=self.since, root=os.getpid(), containers=self.containers
        )

    def look_at_segments(self) -> None:
        began = time.monotonic()
        self.segments.look(self.members, {pid for pid, _ in self.known})
        now = time.monotonic()
        self.next_look = now + 50 * (now - began)

    def _watch(self, process: Process) -> None:
        """To hear of its end at once; without a descriptor for that, the next scan sees it."""
        if process.pid == self.leader[0] or not hasattr(os, "pidfd_open"):
            return
        if len(self.pidfds) >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _FREE_DESCRIPTORS:
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            return
        self.pidfds[process.key] = descriptor
        self.selector.register(
            descriptor, selectors.EVENT_READ, lambda _, key=process.key: self._on_pidfd(key)
        )

    def _on_pidfd(self, key: tuple[int, int]) -> None:
        """A process of the tree other than the leader has ended."""
        descriptor = self.pidfds.pop(key, None)
        if descriptor is None:
            return
        self.selector.unregister(descriptor)
        os.close(descriptor)
        self._on_worker_end(key)

    def _on_worker_end(self, key: tuple[int, int]) -> None:
        pid = key[0]
        code = self.exits.get(pid)
        left = None
        if code is None:
            with contextlib.suppress(OSError):
                left = read_process(pid)
            if left is not None and left.key == key and left.exit_status is not None:
                code = exit_code(left.exit_status)
        command = self.known.get(key, "?")
        was_worker = key in self.workers
        self.workers.discard(key)
        if (
            self.stopping is not None
            or self.ended is not None
            or not self._is_fatal(code, command, was_worker)
        ):
            return
        self.ended = {
            "code": None,
            "reason": "worker",
            "worker": {"pid": pid, "code": code, "command": command},
            "oom_kills": oom_kill_count() - self.oom_kills,
            "heard": False,
        }
        self.tell({"event": "ended", **self.ended})
        self.begin_stop(None, grace_s=5.0)

    def _is_fatal(self, code: int | None, command: str, was_worker: bool) -> bool:
        """Whether the end of a process below the leader means that the server is lost.

        Before readiness only a fatal signal does: compilers and probes may fail. Afterwards the end of any process
        of the server's own program that was there at readiness does, unless it is a helper that ended in good order.
        """
        if code is not None and -code in _FATAL_SIGNALS:
            return True
        if not was_worker:
            return False
        return code not in (0, None) or not _PASSING_HELPERS.search(command)

    # stopping

    def begin_stop(self, reason: str | None, *, grace_s: float) -> None:
        if self.stopping is not None or self.gone_at is not None:
            return
        self.state = "stopping"
        if self.ended is None:
            self.ended = {"code": None, "reason": reason or "stopped", "heard": False}
            if reason is not None:
                self.tell({"event": "ended", **self.ended})
        self.guarded(self.look_at_segments)  # what fails here must not keep the stop from beginning
        self.stopping = self._stop(grace_s)
        self.next_tick = 0.0
        self.write_status()

    def _advance_stop(self, now: float) -> None:
        assert self.stopping is not None
        try:
            self.next_tick = now + next(self.stopping)
        except StopIteration:
            self.stopping = None
            self.state = "ended"
            self.gone_at = time.monotonic()
            self.write_status()
            for client, request in self.waiting_for_stop:
                self.send(client, {"id": request, **self.report()})
                assert self.ended is not None
                self.ended["heard"] = True
            self.waiting_for_stop.clear()
        except Exception:  # a generator that raised is over: the stop begins again
            self.stopping, self.next_tick = self._stop(0.0), now + _AGAIN_S
            raise

    def _stop(self, grace_s: float) -> Iterator[float]:
        """TERM to the leader, then to all, then KILL; yields the seconds to wait before it goes on.

        A container is stopped first, and by its runtime: its client would pass the signal on, and wait for no end.
        """
        began = time.monotonic()
        if self.runtime is not None:
            self.find_containers()
            if self.containers:
                yield from self.runtime.stop(sorted(self.containers), grace_s=grace_s)
        leader = read_process(self.leader[0])
        if leader is not None and leader.key == self.leader and leader.is_alive:
            terminate([leader])
            while time.monotonic() < began + grace_s and self.leader[0] not in self.exits:
                yield _STOP_TICK_S
        remaining = yield from end_all(self.members, self.killed, term_s=min(_TERM_ALL_S, grace_s))
        containers: tuple[list[str], list[str]] = ([], [])
        if self.runtime is not None:
            not_started = not self.containers and self.exits.get(self.leader[0]) in _NOT_STARTED
            containers = remove_containers(
                self.runtime,
                self.containers,
                may_run=lambda: not not_started and not (self.containers and self.seen_inside),
            )
        deadline = time.monotonic() + _REAP_WAIT_S
        while not remaining and has_no_child() is False and time.monotonic() < deadline:
            yield _STOP_TICK_S
        self.proof = prove(
            remaining,
            killed=self.killed,
            ports=self.ports,
            strict_ports=bool(self.spec.get("strict_ports")),
            segments=self.segments,
            creators={pid for pid, _ in self.known},
            existed_sysv=self.existed_sysv,
            took_s=time.monotonic() - began,
            containers=containers,
        )
        self.proof["no_child_left"] = has_no_child()

    # talking

    def report(self) -> dict[str, Any]:
        """Everything there is to say now."""
        return {
            "version": VERSION,
            "state": self.state,
            "ready": self.is_ready,
            "supervisor": self.me,
            "keeper": self.keeper,
            "leader": list(self.leader),
            "boot_id": boot_id(),
            "marker": self.marker,
            "since": self.since,
            "started_at": self.started_wall,
            "ports": self.ports,
            "strict_ports": bool(self.spec.get("strict_ports")),
            "log_path": self.log_path,
            "lease_s": self.lease_s,
            "label": self.spec.get("label"),
            "container": None
            if self.runtime is None
            else {
                "client": self.runtime.client,
                "label": self.runtime.label,
                "env": self.runtime.env,
                "ids": sorted(self.containers),
            },
            "key": self.spec.get("key"),
            "owner": self.spec.get("owner"),
            "known": [[pid, start, command] for (pid, start), command in sorted(self.known.items())],
            "segments": self.segments.used,
            "existed": self.segments.existed,
            "existed_sysv": sorted(self.existed_sysv),
            "ended": self.ended,
            "proof": self.proof,
        }

    def write_status(self) -> None:
        """Replaces the status file if there is news. A full disk costs the file, not the watch."""
        text = json.dumps(self.report())
        if text == self._written:
            return
        try:
            write_atomically(STATUS, text)
            self._written = text
        except OSError as error:
            self.say(f"cannot write the status: {error}")

    def answer(self, client: socket.socket, request: dict[str, Any]) -> None:
        self.renew()
        do, number = request.get("do"), request.get("id")
        if number is not None and not isinstance(number, (int, str)):
            raise ValueError("id: not a number and not a text")
        if do == "stop":
            grace_s = seconds_in(request, "grace_s", default=20.0)
            self.waiting_for_stop.append((client, number))
            if self.gone_at is not None:
                self.stopping = iter(())
                self.next_tick = 0.0
            elif self.stopping is None:
                self.begin_stop(None, grace_s=grace_s)
                self.tell({"event": "ended", **(self.ended or {}), "reason": _BY_ANOTHER}, besides=client)
            return
        if do == "status":
            reply = self.report()
        elif do == "renew":
            if "lease_s" in request:
                self.lease_s = None if request["lease_s"] is None else seconds_in(request, "lease_s")
                self.write_status()
            reply = {}
        elif do == "vitals":
            reply = self.vitals()
        elif do == "ready":
            reply = self.mark_ready()
        elif do == "port":
            reply = self.port_is_ours(int(request["port"]))
        elif do == "log":
            reply = self.read_log(int(request["offset"]))
        else:
            reply = {"error": f"unknown request {do!r}"}
        if self.gone_at is not None and self.ended is not None and do == "status":
            self.ended["heard"] = True
        self.send(client, {"id": number, **reply})

    def vitals(self) -> dict[str, Any]:
        """Signs of life: processor seconds, bytes read and written by the tree, size of the log."""
        alive = [p for p in map(read_process, {pid for pid, _ in self.known}) if p is not None and p.is_alive]
        return {
            "state": self.state,
            "num_processes": len(alive),
            "pids": [p.pid for p in alive],
            "cpu_s": sum(p.cpu_s for p in alive),
            "rss_bytes": sum(p.rss_bytes for p in alive),
            "io_bytes": sum(io_bytes(p.pid) for p in alive),
            "log_bytes": log_size(self.log_path),
            "uptime_s": time.monotonic() - self.started,
        }

    def mark_ready(self) -> dict[str, Any]:
        """From now on the end of a process that is there counts as the server's."""
        self.is_ready = True
        self.next_look = 0.0
        self.scan()
        alive = {process.key for process in self.members()} - {self.leader}
        programs = self.programs({pid for pid, _ in alive} | {self.leader[0]})
        hidden = {k for k in alive if program_of(k[0]) is None and is_inside(k[0], self.containers)}
        alive -= hidden  # of what may not be seen it is not known which ends are ordinary
        self.workers = {key for key in alive if not programs or program_of(key[0]) in (None, *programs)}
        return {"workers": sorted(pid for pid, _ in self.workers)}

    def programs(self, members: set[int]) -> set[str]:
        """The executables that serve: of who listens on our ports, and of the leader if that is no shell.

        A process of another one, as a compiler or git, comes and goes in a healthy server. Empty: not to be seen.
        """
        listening = {_holder_of(_listening_inodes(port), members) for port in self.ports}
        found = {program_of(pid) for pid in (listening | {self.leader[0]}) - {None}}
        return {name for name in found if name is not None and os.path.basename(name) not in _SHELLS}

    def port_is_ours(self, port: int) -> dict[str, Any]:
        """Whether the listening socket of a port belongs to the tree; else who holds it."""
        if IS_LINUX:
            inodes = _listening_inodes(port)
            if not inodes:
                return {"listening": False, "ours": False, "owner": None}
            pids = {process.pid for process in self.members()}
            if _holder_of(inodes, pids) is not None:
                return {"listening": True, "ours": True, "owner": None}
            return {"listening": True, "ours": False, "owner": port_owner(port)}
        owner = port_owner(port)
        ours = owner is not None and owner["pid"] in {process.pid for process in self.members()}
        return {"listening": owner is not None, "ours": ours, "owner": owner}

    def read_log(self, offset: int) -> dict[str, Any]:
        """The log from ``offset``, at most a chunk of it; bytes as Latin-1 text."""
        try:
            with open(self.log_path, "rb") as file:
                file.seek(offset)
                data = file.read(_MAX_LOG_CHUNK)
        except OSError:
            data = b""
        return {"data": data.decode("latin-1"), "offset": offset + len(data), "state": self.state}

    def _accept(self, _listener: Any) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            client, _ = self.listener.accept()
            if len(self.clients) >= _MAX_CLIENTS:
                silent = (each for each in self.clients if each in self.unheard)
                self._drop(
                    next(silent, next(iter(self.clients)))
                )  # else the one that has been silent for longest
            client.settimeout(5.0)
            self.clients[client] = bytearray()
            self.unheard.add(client)
            self.selector.register(client, selectors.EVENT_READ, self._on_client)
            self.renew()
            if self.ended is not None and self.stopping is None:
                self.send(client, {"event": "ended", **self.ended})

    def _drain_wakeup(self, _end: Any) -> None:
        with contextlib.suppress(OSError):
            self.wakeup_read.recv(4096)

    def _on_client(self, client: socket.socket) -> None:
        try:
            data = client.recv(65536)
        except OSError:
            data = b""
        if not data or len(self.clients[client]) > _MAX_LINE:
            self._drop(client)
            return
        self.unheard.discard(client)
        self.clients[client] = self.clients.pop(client) + data
        while b"\n" in self.clients.get(client, b""):
            line, _, rest = bytes(self.clients[client]).partition(b"\n")
            self.clients[client] = bytearray(rest)
            try:
                self.answer(client, json.loads(line))
            except Exception as error:  # noqa: BLE001 - nothing that a client sends may end the watch
                self.send(client, {"error": f"bad request: {type(error).__name__}: {error}"[:300]})

    def tell(self, news: dict[str, Any], *, besides: socket.socket | None = None) -> None:
        self.write_status()
        for client in list(self.clients):
            if client is not besides:
                self.send(client, news)

    def send(self, client: socket.socket, message: dict[str, Any]) -> None:
        if client not in self.clients:
            return
        try:
            client.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        self.unheard.discard(client)
        if self.clients.pop(client, None) is not None:
            self.selector.unregister(client)
            client.close()


def _of_another_user(pid: int) -> str:
    """Words for the owner of a process, if that is not who runs this."""
    with contextlib.suppress(OSError):
        owner = os.stat(f"/proc/{pid}").st_uid
        if owner != os.geteuid():
            return f", of user {owner}, who alone can stop it"
    return ""


def seconds_in(request: dict[str, Any], name: str, *, default: float | None = None) -> float:
    """A client's number of seconds; ``ValueError`` for what is none: a text, NaN, a negative or endless one."""
    value = request.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MAX_SECONDS:
        raise ValueError(f"{name}: not a number of seconds from 0 to {_MAX_SECONDS:g}")
    return float(value)


def prove(
    remaining: list[Process],
    *,
    killed: dict[int, str],
    ports: list[int],
    strict_ports: bool,
    segments: Segments,
    creators: set[int],
    existed_sysv: set[int],
    took_s: float,
    containers: tuple[list[str], list[str]] = ([], []),
) -> dict[str, Any]:
    """What a stop left: ``left`` is empty only if nothing is. ``containers``: those that are gone, and what is left."""
    left = [f"process {p.pid} ({command_of(p.pid)}{_of_another_user(p.pid)})" for p in remaining]
    left += containers[1]
    removed: list[str] = []
    kept: list[str] = []
    closed: list[int] = []
    taken: list[str] = []
    if not remaining:
        removed, kept = segments.remove(creators)
        kept += [
            f"System V segment {segment.shmid}: `ipcrm -m {segment.shmid}` removes it"
            for segment in sysv_segments()
            if segment.cpid in creators and segment.shmid not in existed_sysv
        ]
        for port in ports:
            owner = port_owner(port)
            if owner is None:
                closed.append(port)
            elif owner["pid"] is None or strict_ports:
                left.append(f"port {port}, held by pid {owner['pid'] or 'unknown'} ({owner['command']})")
            else:  # the tree is gone, so whoever listens there was never of it
                taken.append(f"{port} by pid {owner['pid']} ({owner['command']})")
    return {
        "took_s": took_s,
        "killed": sorted(killed),
        "containers_gone": containers[0],
        "left": left,
        "ports_closed": closed,
        "ports_taken": taken,
        "segments_seen": len(segments.used),
        "segments_removed": removed,
        "segments_left": kept,
    }


def has_no_child() -> bool | None:
    """Whether the kernel knows no child of ours; ``None`` where that proves nothing."""
    if not IS_LINUX:
        return None
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def name_myself(name: str) -> None:
    """Shown by ``ps`` and ``top``, at most 15 characters (Linux)."""
    if IS_LINUX:
        pr_set_name = 15
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_name, name.encode(), 0, 0, 0)


def become_subreaper() -> None:
    """Orphans of the tree become our children (Linux); elsewhere they are found by pid and start time."""
    if IS_LINUX:
        pr_set_child_subreaper = 36
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def exit_code(status: int) -> int:
    """As ``subprocess`` gives it: negative for a signal."""
    return -(status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF


def io_bytes(pid: int) -> int:
    """Bytes that a process has read and written so far, files and sockets; 0 where that may not be seen."""
    try:
        with open(f"/proc/{pid}/io") as file:
            counts = dict(line.split(": ") for line in file.read().splitlines())
        return int(counts["rchar"]) + int(counts["wchar"])
    except (OSError, ValueError, KeyError):
        return 0


def log_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def oom_kill_count() -> int:
    """Processes of our control group that the kernel killed for lack of memory; 0 where it keeps no count."""
    for path in _oom_files():
        try:
            with open(path) as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "oom_kill":
                        return int(value)
        except (OSError, ValueError):
            continue
    return 0


def _oom_files() -> list[str]:
    try:
        with open("/proc/self/cgroup") as file:
            rows = [line.strip().split(":", 2) for line in file]
    except OSError:
        return []
    found = []
    for _, controllers, path in rows:
        if controllers == "":
            found.append(f"/sys/fs/cgroup{path}/memory.events")
        elif "memory" in controllers.split(","):
            found.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    return found


def write_atomically(path: str, text: str) -> None:
    """Replaces a file as a whole or not at all."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


# --- facts of the host -----------------------------------------------------------------------------------------


def host_facts(question: dict[str, Any]) -> dict[str, Any]:
    """``question``: ``ports`` to look at, ``paths`` whose disks matter, ``gpus``: whether to ask for them."""
    facts: dict[str, Any] = {
        "hostname": platform.node(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        **memory_facts(),
        "shm": space_of(_SHM),
        "disks": {path: space_of(existing_parent(path)) for path in question.get("paths", ())},
        "ports": {},
        "gpus": None,
        "gpu_error": None,
    }
    for port in question.get("ports", ()):
        free = can_bind(port) and port_owner(port) is None
        facts["ports"][str(port)] = None if free else (port_owner(port) or {"pid": None, "command": None})
    if question.get("busy"):
        facts["busy"] = busy_facts()
    if question.get("gpus"):
        facts.update(gpu_facts())
    if question.get("free_ports"):
        facts["free_ports"] = free_ports(
            int(question["free_ports"]), avoid=set(question.get("avoid_ports", ()))
        )
    return facts


def free_ports(count: int, *, avoid: set[int]) -> list[int]:
    """Ports below those that outgoing connections are given, so that none is taken by chance before it is bound."""
    import random

    found: list[int] = []
    candidates = random.SystemRandom()
    for _ in range(100 * count):
        port = candidates.randrange(20000, 32000)
        if port not in avoid and port not in found and can_bind(port) and port_owner(port) is None:
            found.append(port)
            if len(found) == count:
                break
    return found


def cpu_model() -> str | None:
    try:
        with open("/proc/cpuinfo", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def memory_facts() -> dict[str, Any]:
    try:
        with open("/proc/meminfo") as file:
            rows = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in file if "kB" in line}
    except OSError:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {"memory_bytes": total, "available_bytes": None}
    return {"memory_bytes": rows.get("MemTotal"), "available_bytes": rows.get("MemAvailable")}


def busy_facts(seconds: float = 0.5) -> dict[str, Any]:
    """Cores in use now: all together (``None``: not known here), and by the processes that use most of them."""
    all_before, before, began = all_processor_s(), process_table(), time.monotonic()
    time.sleep(seconds)
    all_after, after, took = all_processor_s(), process_table(), time.monotonic() - began
    cores = {
        pid: (process.cpu_s - before[pid].cpu_s) / took
        for pid, process in after.items()
        if pid in before and before[pid].key == process.key and pid != os.getpid()
    }
    most = sorted((pid for pid in cores if cores[pid] >= 0.1), key=lambda pid: -cores[pid])[:5]
    return {
        "cores": None if all_before is None or all_after is None else (all_after - all_before) / took,
        "of_cores": os.cpu_count(),
        "users": [{"pid": pid, "command": command_of(pid), "cores": cores[pid]} for pid in most],
    }


def all_processor_s() -> float | None:
    """Seconds of all processors that were used so far, those that a hypervisor took included."""
    with contextlib.suppress(OSError, ValueError), open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
        return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S
    return None


def space_of(path: str | None) -> dict[str, int] | None:
    try:
        usage = shutil.disk_usage(path) if path else None
    except OSError:
        return None
    return {"total_bytes": usage.total, "free_bytes": usage.free} if usage else None


def existing_parent(path: str) -> str | None:
    path = os.path.abspath(os.path.expanduser(path))
    while not os.path.exists(path):
        parent = os.path.dirname(path)
        if parent == path:
            return None
        path = parent
    return path


GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_GPU_NODES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")


def gpu_facts(nodes: Iterable[str] = _GPU_NODES) -> dict[str, Any]:
    """Memory, use and holders of every GPU, from the first program that lists any.

    ``gpus`` is empty where there is none, and ``None`` where a device of ``nodes`` is there that no program tells of.
    """
    facts = {"gpu_env": {name: os.environ[name] for name in GPU_VARIABLES if name in os.environ}}
    errors = []
    for name, read in (("nvidia-smi", nvidia_gpus), ("amd-smi", amd_gpus), ("rocm-smi", rocm_gpus)):
        program = shutil.which(name)
        if program is None:
            continue
        try:
            gpus, processes = read(program)
        except (OSError, subprocess.SubprocessError) as error:
            errors.append(f"{name}: {error}")
        except (ValueError, KeyError, TypeError, AttributeError):
            errors.append(f"{name}: its answer was not understood")
        else:
            if gpus:
                return {**facts, "gpus": gpus, "gpu_processes": processes}
    there = [path for pattern in nodes for path in glob.glob(pattern)]
    if there and not errors:
        errors.append(f"{there[0]} is there, and none of nvidia-smi, amd-smi and rocm-smi lists it")
    if errors:
        return {**facts, "gpus": None, "gpu_error": "; ".join(errors)}
    return {**facts, "gpus": [], "gpu_processes": []}


def nvidia_gpus(program: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What ``nvidia-smi`` tells; a figure that it has not, as ``[N/A]`` or ``[Unknown Error]``, is ``None``."""
    query = "--query-gpu=index,uuid,name,driver_version,memory.used,memory.total,utilization.gpu"
    gpus: list[dict[str, Any]] = [
        {
            "index": number(row[0]),
            "uuid": row[1],
            "name": ", ".join(row[2:-4]),
            "driver": row[-4],
            "used_mib": number(row[-3]),
            "total_mib": number(row[-2]),
            "use_percent": number(row[-1]),
        }
        for row in _csv(program, query)
        if len(row) >= 7 and number(row[0]) is not None
    ]
    if any(gpu["use_percent"] is None for gpu in gpus):  # as on a device that is divided
        parts = _mig_parts(program)
        gpus = [{**gpu, "mig": parts.get(gpu["index"], [])} for gpu in gpus]
    processes: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # the devices are known without them
        processes = [
            _gpu_process(row[0], number(row[1]), number(row[2]))
            for row in _csv(program, "--query-compute-apps=gpu_uuid,pid,used_memory")
            if len(row) == 3
        ]
    return gpus, processes


def _mig_parts(program: str) -> dict[int, list[str]]:
    """Names of the MIG instances of each device; of none where the program does not list them."""
    parts: dict[int, list[str]] = {}
    index = None
    try:
        text = _said_by(program, "-L")
    except (OSError, subprocess.SubprocessError):
        return {}
    for line in text.splitlines():
        device = re.match(r"GPU (\d+):", line)
        if device:
            index = int(device.group(1))
        part = re.search(r"UUID: (MIG-[^)]+)\)", line)
        if part and index is not None:
            parts.setdefault(index, []).append(part.group(1))
    return parts


def amd_gpus(program: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What ``amd-smi`` tells."""
    said = {row["gpu"]: row for row in _amd_rows(program, "static", "--asic", "--driver")}
    gpus, uuids = [], {}
    for row in _amd_rows(program, "metric", "--mem-usage", "--usage"):
        index, about = row["gpu"], said.get(row["gpu"], {})
        asic = about.get("asic") or {}
        serial = str(asic.get("asic_serial") or index).lower()
        uuids[index] = f"GPU-{serial[2:] if serial.startswith('0x') else serial}"
        memory = row.get("mem_usage") or {}
        gpus.append(
            {
                "index": index,
                "uuid": uuids[index],
                "name": str(asic.get("market_name") or "AMD GPU"),
                "driver": str((about.get("driver") or {}).get("version") or "?"),
                "used_mib": _amd_mib(memory.get("used_vram")),
                "total_mib": _amd_mib(memory.get("total_vram")),
                "use_percent": _amd_number((row.get("usage") or {}).get("gfx_activity")),
                "maker": "amd",
            }
        )
    return gpus, _amd_processes(program, uuids)


def _amd_processes(program: str, uuids: dict[int, str]) -> list[dict[str, Any]]:
    found = []
    with contextlib.suppress(
        OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError
    ):
        for row in _amd_rows(program, "process"):
            for entry in row.get("process_list") or ():
                process = entry.get("process_info")
                if isinstance(process, dict):
                    used = _amd_mib((process.get("memory_usage") or {}).get("vram_mem"))
                    found.append(_gpu_process(uuids[row["gpu"]], number(str(process.get("pid"))), used))
    return found


def _amd_rows(program: str, *words: str) -> list[dict[str, Any]]:
    body = json.loads(_said_by(program, *words, "--json"))
    rows = body["gpu_data"] if isinstance(body, dict) else body
    return [row for row in rows if isinstance(row["gpu"], int)]


def _amd_number(value: Any) -> int | None:
    return number(str(value.get("value") if isinstance(value, dict) else value))


def _amd_mib(value: Any) -> int | None:
    """``{"value": 283, "unit": "MB"}``, or the same as text; its MB are MiB."""
    text = f"{value.get('value')} {value.get('unit')}" if isinstance(value, dict) else str(value)
    found = re.match(r"(\d+(?:\.\d+)?) ?([KMG]?)B", text)
    return None if found is None else int(float(found.group(1)) * _IN_MIB[found.group(2)])


_IN_MIB = {"": 2**-20, "K": 2**-10, "M": 1, "G": 2**10}


def rocm_gpus(program: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What ``rocm-smi`` tells, which lists no process by device."""
    words = (
        "--showmeminfo",
        "vram",
        "--showuse",
        "--showproductname",
        "--showuniqueid",
        "--showdriverversion",
    )
    text = _said_by(program, *words)
    rows: dict[int, dict[str, str]] = {}
    for found in re.finditer(r"^GPU\[(\d+)\]\s*:\s*([^:\n]+?)\s*:\s*(.+?)\s*$", text, re.MULTILINE):
        rows.setdefault(int(found.group(1)), {})[found.group(2).lower()] = found.group(3)
    driver = re.search(r"^Driver version: *(\S+)", text, re.MULTILINE)
    gpus = []
    for index, row in sorted(rows.items()):
        serial = row.get("unique id", str(index)).lower()
        used, total = (
            number(row.get("vram total used memory (b)", "")),
            number(row.get("vram total memory (b)", "")),
        )
        gpus.append(
            {
                "index": index,
                "uuid": f"GPU-{serial[2:] if serial.startswith('0x') else serial}",
                "name": row.get("card series") or row.get("card model") or "AMD GPU",
                "driver": driver.group(1) if driver else "?",
                "used_mib": None if used is None else used >> 20,
                "total_mib": None if total is None else total >> 20,
                "use_percent": number(row.get("gpu use (%)", "")),
                "maker": "amd",
            }
        )
    return gpus, []


def _gpu_process(uuid: str, pid: int | None, used_mib: int | None) -> dict[str, Any]:
    return {"gpu_uuid": uuid, "pid": pid, "used_mib": used_mib, "command": command_of(pid or 0)}


def number(text: str) -> int | None:
    found = re.match(r"\d+", text)
    return int(found.group()) if found else None


def _csv(program: str, query: str) -> list[list[str]]:
    text = _said_by(program, query, "--format=csv,noheader,nounits")
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]


def _said_by(program: str, *words: str) -> str:
    reply = subprocess.run(
        [program, *words], capture_output=True, text=True, errors="replace", timeout=30, check=True
    )
    return reply.stdout


# --- commands --------------------------------------------------------------------------------------------------


def start(folder: str) -> int:
    """Starts a supervisor that outlives us; prints its report, or the reason why there is none.

    Given twice for one folder, it tells of the one that runs.
    """
    spec = json.load(sys.stdin)
    with contextlib.suppress(OSError, ValueError, KeyError):
        text = read_text(os.path.join(folder, STATUS))
        if json.loads(text)["marker"] == spec["marker"]:
            sys.stdout.write(text)
            return 0
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.chdir(folder)
        write_atomically("spec.json", json.dumps(spec))
    except OSError as error:
        return refuse(f"{folder}: {error.strerror}", error.errno)
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader) as answer:
            text = answer.read()
        os.wait()
        sys.stdout.write(text or json.dumps({"error": "the supervisor ended before it answered"}))
        return 0
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(reader)
    null = os.open(os.devnull, os.O_RDWR)
    own_log = os.open("supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(own_log, 2)
    keeper = None
    if IS_LINUX:
        become_subreaper()
        keeper = read_process(os.getpid())
        if os.fork():
            os.close(writer)
            _keep()
    _become_daemon(writer, keeper)
    return 0


def _keep() -> None:
    """Waits until no process of the server is left: what outlives a killed supervisor becomes our child."""
    name_myself(_KEEPER)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    os._exit(0)


def _become_daemon(writer: int, keeper: Process | None) -> None:
    name_myself(_WATCHER)
    supervisor = Supervisor(json.loads(read_text("spec.json")), keeper=keeper)
    try:
        supervisor.start()
        text = json.dumps(supervisor.report())
    except (OSError, ValueError) as error:
        text = json.dumps(
            {"error": getattr(error, "strerror", None) or str(error), "errno": getattr(error, "errno", None)}
        )
        _answer(writer, text)
        os._exit(0)
    _answer(writer, text)
    supervisor.run()
    os._exit(0)


def _answer(writer: int, text: str) -> None:
    """To the one who asked for the server, who may be dead by now: then the lease ends it."""
    with contextlib.suppress(OSError), os.fdopen(writer, "w") as answer:
        answer.write(text)


def refuse(message: str, number: int | None = None) -> int:
    sys.stdout.write(json.dumps({"error": message, "errno": number}))
    return 0


def read_text(path: str) -> str:
    with open(path) as file:
        return file.read()


def connect_socket(folder: str) -> socket.socket:
    """A connection to the supervisor of a folder; any length of path."""
    os.chdir(folder)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(SOCKET)
    return client


def connect(folder: str) -> int:
    """Joins standard input and output to the control socket until either ends."""
    try:
        client = connect_socket(folder)
    except OSError as error:
        return refuse(f"no supervisor answers in {folder}: {error.strerror}", error.errno)
    while True:
        ready, _, _ = select.select([0, client.fileno()], [], [])
        for source in ready:
            data = os.read(source, 65536)
            if not data:
                return 0
            if source == 0:
                client.sendall(data)
            else:
                view = memoryview(data)
                while view:
                    view = view[os.write(1, view) :]


def read_record(folder: str) -> dict[str, Any]:
    """The status of a server as it lies there; ``ValueError`` where it is not whole."""
    path = os.path.join(folder, STATUS)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError("not a file")
    try:
        status = json.loads(read_text(path))
        for name in ("supervisor", "leader", "keeper"):
            pid, start = status.get(name) or (0, 0)
            status[name] = [int(pid), int(start)]
        for name in ("ports", "existed_sysv"):
            status[name] = [int(each) for each in status[name]]
        for name in ("label", "ended", "proof"):
            status[name] = None if status[name] is None else dict(status[name])
        if status["ended"] is not None:
            status["ended"] = {**status["ended"], "reason": str(status["ended"]["reason"])}
            status["ended"].setdefault("code", None)
        status["known"] = [[int(pid), int(start), str(command)] for pid, start, command in status["known"]]
        status["since"] = int(status["since"])
        status["started_at"] = float(status["started_at"])
        if not all(isinstance(status[name], str) for name in ("marker", "state", "log_path", "boot_id")):
            raise ValueError("not a record of this version")
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a record of this version: {type(error).__name__}") from None
    return dict(status)


def record_of(folder: str, alive: dict[str, Trace] | None = None) -> dict[str, Any] | None:
    """What is known of a server: its record, or, if that is gone or garbled, what its living processes tell.

    ``alive``: what ``traces`` said, if it was asked before.
    """
    with contextlib.suppress(OSError, ValueError):
        return read_record(folder)
    folder = os.path.realpath(folder)
    trace = (traces(os.path.dirname(folder)) if alive is None else alive).get(folder)
    return None if trace is None else _record_from(folder, trace)


def _record_from(folder: str, trace: Trace) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        read = json.loads(read_text(os.path.join(folder, "spec.json")))
        spec = read if read.get("marker") == trace.marker or not trace.marker else {}
    lost = runtime_of(spec, {**os.environ, **spec.get("env", {})})
    processes = sorted(trace.processes, key=lambda process: process.start)
    everyone = [*processes, *trace.watchers.values()]
    watcher, keeper = (trace.watchers.get(role) for role in (_WATCHER, _KEEPER))
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - min(p.start for p in everyone) / _TICKS_PER_S
    return {
        "version": VERSION,
        "state": "running",
        "lost": True,
        "supervisor": [0, 0] if watcher is None else list(watcher.key),
        "keeper": [0, 0] if keeper is None else list(keeper.key),
        "leader": list(processes[0].key) if processes else [0, 0],
        "boot_id": boot_id(),
        "marker": trace.marker or str(spec.get("marker", "")),
        "since": min(process.start for process in everyone),
        "started_at": time.time() - age_s,
        "ports": spec.get("ports", []),
        "strict_ports": bool(spec.get("strict_ports")),
        "log_path": str(spec.get("log_path") or os.path.join(folder, LOG)),
        "label": spec.get("label"),
        "owner": spec.get("owner"),
        "container": None if lost is None else {**spec["container"], "env": lost.env},
        "known": [[process.pid, process.start, command_of(process.pid)] for process in processes],
        "existed": segments_now(),
        "existed_sysv": [segment.shmid for segment in sysv_segments()],
        "ended": None,
        "proof": None,
    }


def watcher_of(status: dict[str, Any], role: str) -> Process | None:
    """The supervisor or the keeper of a record, if it still runs: by pid, start time, and what it calls itself."""
    pid, start = status["supervisor" if role == _WATCHER else "keeper"]
    process = read_process(pid) if status["boot_id"] == boot_id() else None
    if process is None or not process.is_alive or process.start != start:
        return None
    return process if not IS_LINUX or role_of(pid) == role else None


def is_supervised(status: dict[str, Any]) -> bool:
    """Whether the supervisor that wrote this status still runs."""
    return watcher_of(status, _WATCHER) is not None


def can_be_asked(folder: str, status: dict[str, Any]) -> bool:
    """Whether its supervisor can answer: it is not suspended, and its socket is there."""
    supervisor = watcher_of(status, _WATCHER)
    has_socket = os.path.exists(os.path.join(folder, SOCKET))
    return supervisor is not None and supervisor.state not in "Tt" and has_socket


def orphans(status: dict[str, Any]) -> list[Process]:
    """What a dead supervisor left: below its keeper, by marker, or by pid and start time."""
    if status["boot_id"] != boot_id():
        return []
    keeper = watcher_of(status, _KEEPER)
    known = [(pid, start) for pid, start, _ in status["known"]]
    root = None if keeper is None else keeper.pid
    found = members(status["marker"], known, since=status["since"], root=root)
    return [process for process in found if list(process.key) != status["supervisor"]]


def container_ids(status: dict[str, Any]) -> list[str]:
    """The containers that a record names: to be named if they are gone, and never to be stopped for that."""
    call = status.get("container")
    names = call.get("ids") if isinstance(call, dict) else None
    return [name for name in names or () if isinstance(name, str) and re.fullmatch(r"[0-9a-f]{12,64}", name)]


def retire(status: dict[str, Any]) -> str | None:
    """Ends a supervisor that cannot be asked, after its server if it can still do that; the reason if it cannot be."""
    supervisor = watcher_of(status, _WATCHER)
    if supervisor is None:
        return None
    try:
        os.kill(supervisor.pid, signal.SIGCONT)
    except PermissionError:
        return f"pid {supervisor.pid} belongs to another user, who alone can stop it"
    except ProcessLookupError:
        return None
    signal_process(supervisor, signal.SIGTERM)
    deadline = time.monotonic() + _RETIRE_S
    while watcher_of(status, _WATCHER) is not None and time.monotonic() < deadline:
        time.sleep(_STOP_TICK_S)
    signal_process(supervisor, signal.SIGKILL)
    return None


def sweep(folder: str) -> int:
    """Ends what is left of a server whose supervisor is dead or cannot be asked, and prints the proof."""
    status = record_of(folder)
    if status is None:
        return refuse(
            f"{folder}: the record of this server is gone; another command ended it (`spectune down` does)"
            if not os.path.exists(os.path.join(folder, STATUS))
            else f"{folder}: no record of a server that can be read, and no process of it is alive",
            errno.ENOENT,
        )
    keeper = watcher_of(status, _KEEPER)
    if keeper is not None:
        signal_process(keeper, signal.SIGCONT)
    if is_supervised(status) and status["state"] != "ended":
        if can_be_asked(folder, status) and not status.get("lost"):
            return refuse(f"{folder}: its supervisor is alive: ask it to stop", errno.EBUSY)
        reason = retire(status)
        if reason is not None:
            return refuse(f"{folder}: {reason}", errno.EPERM)
        with contextlib.suppress(OSError, ValueError):
            last = read_record(folder)
            if last["marker"] == status["marker"] and last["proof"] is not None:
                sys.stdout.write(json.dumps(last))
                return 0
    began = time.monotonic()
    killed: dict[int, str] = {}
    segments = segments_recorded(status)
    creators = {pid for pid, _, _ in status["known"]} | {process.pid for process in orphans(status)}
    segments.look(lambda: orphans(status), creators)
    runtime = runtime_of(status)
    known = set(container_ids(status))
    if runtime is not None:
        labelled: list[str] = []
        with contextlib.suppress(OSError):
            labelled = runtime.ids()
        for pause_s in runtime.stop(labelled, grace_s=_TERM_ALL_S) if labelled else ():
            time.sleep(pause_s)
        known.update(labelled)
    for pause_s in end_all(lambda: orphans(status), killed, term_s=_TERM_ALL_S):
        time.sleep(pause_s)
    remaining = orphans(status)
    containers: tuple[list[str], list[str]] = ([], [])
    if runtime is not None:
        containers = remove_containers(runtime, known, may_run=lambda: not known)
    proof = prove(
        remaining,
        killed=killed,
        ports=status["ports"],
        strict_ports=bool(status.get("strict_ports")),
        segments=segments,
        creators=creators,
        existed_sysv=set(status["existed_sysv"]),
        took_s=time.monotonic() - began,
        containers=containers,
    )
    if keeper is not None and not remaining:
        deadline = time.monotonic() + _REAP_WAIT_S
        while watcher_of(status, _KEEPER) is not None and time.monotonic() < deadline:
            time.sleep(_STOP_TICK_S)
        # It ends when the kernel knows no child of it.
        proof["no_child_left"] = True if watcher_of(status, _KEEPER) is None else None
    status.update(state="ended", proof=proof)
    status["ended"] = status["ended"] or {"code": None, "reason": "its supervisor was killed", "heard": True}
    with contextlib.suppress(OSError):
        write_atomically(os.path.join(folder, STATUS), json.dumps(status))
    sys.stdout.write(json.dumps(status))
    return 0


def list_servers(base: str) -> int:
    """The status of every server in ``base``, with ``alive`` (supervised) and ``orphans`` (pids)."""
    found = []
    base = os.path.realpath(base)
    try:
        names = set(os.listdir(base)) if os.path.isdir(base) else set()
    except PermissionError as error:
        return refuse(f"{base}: {error.strerror}: these records are another user's", error.errno)
    alive = traces(base)
    for name in sorted(names | {os.path.basename(folder) for folder in alive}):
        folder = os.path.join(base, name)
        status = record_of(folder, alive)
        if status is not None:
            supervised = is_supervised(status)
            left = [] if supervised else [process.pid for process in orphans(status)]
            row = {"name": name, "alive": supervised, "can_be_asked": can_be_asked(folder, status)}
            found.append({**status, **row, "orphans": left})
    sys.stdout.write(json.dumps({"servers": found}))
    return 0


def forget(folder: str) -> int:
    """Removes the record of a server that has ended. Its log stays."""
    status = record_of(folder)
    watcher = None if status is None else watcher_of(status, _WATCHER)
    if status is not None and watcher is None and orphans(status):
        return refuse(f"{folder}: processes of its server are left", errno.EBUSY)
    if status is not None and watcher is not None:
        if status["state"] != "ended":
            return refuse(f"{folder}: its server has not ended", errno.EBUSY)
        signal_process(watcher, signal.SIGTERM)  # it only waits to be heard
    for name in (STATUS, SOCKET, "spec.json", "supervisor.log"):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):
        os.rmdir(folder)
    sys.stdout.write("{}")
    return 0


def main(words: list[str]) -> int:
    commands = {"start": start, "connect": connect, "sweep": sweep, "list": list_servers, "forget": forget}
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # whoever started us may have had them ignored, or kept back
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if words == ["facts"]:
        sys.stdout.write(json.dumps(host_facts(json.load(sys.stdin))))
        return 0
    if len(words) != 2 or words[0] not in commands:
        sys.stderr.write(f"usage: supervisor.py {'|'.join(commands)} FOLDER, or supervisor.py facts\n")
        return 2
    if IS_LINUX and read_process(os.getpid()) is None:
        return refuse(
            "this system shows no processes (/proc is missing): no server can be watched, found or shown to be gone "
            "here; mount it (mount -t proc proc /proc)"
        )
    return commands[words[0]](os.path.expanduser(words[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
