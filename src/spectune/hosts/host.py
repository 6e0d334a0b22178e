"""Where servers run. A host is a way to run one command and to open one connection; the rest follows."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from spectune.domain.trial import StopProof
from spectune.engines.containers import owned
from spectune.errors import EnvironmentFailed, HostUnreachable, NodeLost
from spectune.hosts.channel import Channel
from spectune.hosts.facts import Ended, HostFacts, ServerStatus, read_host_facts, read_server_status
from spectune.hosts.supervised import SupervisedServer, stop_proof
from spectune.hosts.supervisor import FOLDER, MARKER

_CONNECT_AGAIN_AFTER_S = (0.2, 1.0, 3.0)


@dataclass(frozen=True)
class ServerSpec:
    """A server to start: what its supervisor must know."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[int] = ()
    strict_ports: bool = False
    """Whether any listener there afterwards counts as left: a container's port is held outside the process tree."""
    lease_s: float | None = 30.0
    """``None``: it serves until it is told to stop."""
    label: Mapping[str, Any] = field(default_factory=dict)
    """Shown by ``spectune ps``: engine, arm, base URL."""
    key: str | None = None
    """Equal for launches that would give the same server."""
    owner: str | None = None
    """Whose server it is: a study's directory, or ``up``."""


class Shell(Protocol):
    """How a host is reached."""

    name: str
    shares_files: bool
    """Whether paths there are paths here."""
    servers: str
    """The folder there that holds one folder per server; known once the host is connected."""

    async def run(self, words: Sequence[str], *, stdin: bytes, timeout_s: float) -> bytes:
        """The output of the supervisor file run with ``words``; raises ``EnvironmentFailed``."""
        ...

    async def open_channel(self, folder: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Streams to the control socket in ``folder``; raises ``HostUnreachable``."""
        ...

    async def reconnect(self) -> None:
        """Makes the host reachable again, if it can be done at once; raises ``HostUnreachable``."""
        ...

    async def reach(self, port: int) -> int:
        """A port of this machine's loopback address that leads to ``port`` of the host's."""
        ...

    async def leave(self, port: int) -> None:
        """Gives up what ``reach`` opened for ``port``."""
        ...

    async def aclose(self) -> None: ...


class Host:
    """One host; to be used inside ``async with``."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self.name = shell.name
        self.shares_files = shell.shares_files

    async def __aenter__(self) -> Host:
        try:
            await self._shell.reconnect()
        except BaseException:
            await self._shell.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._shell.aclose()

    async def facts(
        self,
        *,
        ports: Sequence[int] = (),
        paths: Sequence[str] = (),
        gpus: bool = False,
        busy: bool = False,
        free_ports: int = 0,
        avoid_ports: Sequence[int] = (),
    ) -> HostFacts:
        """A reading of the host; GPUs and who uses the processors only where asked, since each takes a second."""
        question = {
            "ports": list(ports),
            "paths": [*paths, self._shell.servers],
            "gpus": gpus,
            "busy": busy,
            "free_ports": free_ports,
            "avoid_ports": list(avoid_ports),
        }
        reply = await self._ask(["facts"], question, timeout_s=60)
        return read_host_facts(reply)

    async def start(
        self, spec: ServerSpec, *, log_path: Path, server_id: str | None = None
    ) -> SupervisedServer:
        """Starts a server beside a supervisor of its own; its log grows at ``log_path`` (absolute) here."""
        server_id = server_id or new_server_id()
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_start = log_path.stat().st_size if log_path.exists() else 0  # noqa: ASYNC240
        marker = uuid.uuid4().hex
        argv, container = owned(spec.argv, marker=marker, carried=(MARKER, FOLDER))
        wanted = {
            **asdict(spec),
            "argv": argv,
            "marker": marker,
            "container": container,
            "log_path": str(log_path) if self.shares_files else None,
            "cwd": str(Path.cwd()) if self.shares_files else None,
        }
        status = await self._ask(["start", self._folder(server_id)], wanted, timeout_s=60)
        if "error" in status:
            await self.forget(server_id)
            raise EnvironmentFailed(f"cannot start {spec.argv[0]!r}: {status['error']}")
        server = SupervisedServer(self, server_id, status, log_path=log_path, log_start=log_start)
        await self._connect(server)
        return server

    async def _connect(self, server: SupervisedServer) -> None:
        """To a server that was just started: it is not left to its lease because the way there was cut meanwhile."""
        for wait_s in (*_CONNECT_AGAIN_AFTER_S, None):
            try:
                await server.connect()
                return
            except NodeLost:
                raise
            except HostUnreachable:
                if wait_s is None:
                    raise
                await asyncio.sleep(wait_s)
                with contextlib.suppress(HostUnreachable):
                    await self.reconnect()

    async def attach(self, server_id: str, *, log_path: Path | None = None) -> SupervisedServer:
        """Takes hold of a running server; its log is followed to ``log_path``, or read where it lies."""
        reader, writer = await self.open_channel(server_id)
        channel = Channel(reader, writer, on_event=lambda _event: None)
        try:
            status = await channel.request("status")
        finally:
            await channel.aclose()
        where = log_path
        if where is None:
            where = Path(status["log_path"]) if self.shares_files else _temporary_log(server_id)
        server = SupervisedServer(self, server_id, status, log_path=where)
        await server.connect()
        return server

    async def servers(self) -> list[ServerStatus]:
        """Every server with a record on this host, in the order of their starts."""
        reply = await self._ask(["list", self._shell.servers], {}, timeout_s=60)
        if "error" in reply:
            raise EnvironmentFailed(f"{self.name}: {reply['error']}")
        return sorted((read_server_status(row) for row in reply["servers"]), key=lambda s: s.started_at)

    async def sweep(self, server_id: str) -> StopProof:
        """Ends what a killed supervisor left; raises ``TeardownUnproven`` if something stays.

        ``HostUnreachable``: there is neither a record nor a process of it; another command ended it.
        """
        reply = await self._ask(["sweep", self._folder(server_id)], {}, timeout_s=60)
        if "error" in reply:
            is_gone = reply.get("errno") == errno.ENOENT
            raise (HostUnreachable if is_gone else EnvironmentFailed)(reply["error"])
        return stop_proof(reply["proof"])

    async def forget(self, server_id: str) -> None:
        """Removes the record of a server that has ended."""
        await self._ask(["forget", self._folder(server_id)], {}, timeout_s=30)

    async def last_words(self, server_id: str) -> Ended | None:
        """How a server ended whose supervisor is no longer alive; ``None`` if it is, or cannot be asked."""
        try:
            mine = [s for s in await self.servers() if s.server_id == server_id]
        except EnvironmentFailed:
            return None
        if mine and mine[0].state not in ("ended", "orphaned"):
            return None
        known = mine[0].ended if mine else None
        return known or Ended(reason="its supervisor was killed", exit_code=None)

    def patience_s(self, lease_s: float | None) -> float:
        """How long to try to reconnect: until the supervisor has ended the server by itself, at most."""
        return 600.0 if lease_s is None else lease_s + 30.0

    async def open_channel(self, server_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self._shell.open_channel(self._folder(server_id))

    async def reconnect(self) -> None:
        await self._shell.reconnect()

    async def reach(self, port: int) -> int:
        """A local port that leads to the host's."""
        return await self._shell.reach(port)

    async def leave(self, port: int) -> None:
        await self._shell.leave(port)

    def _folder(self, server_id: str) -> str:
        return f"{self._shell.servers}/{server_id}"

    async def _ask(self, words: Sequence[str], question: object, *, timeout_s: float) -> dict[str, Any]:
        output = await self._shell.run(words, stdin=json.dumps(question).encode(), timeout_s=timeout_s)
        try:
            reply = json.loads(output)
        except ValueError as error:
            shown = output[:300].decode(errors="replace")
            raise EnvironmentFailed(f"{self.name}: `supervisor.py {words[0]}` answered {shown!r}") from error
        if not isinstance(reply, dict):
            raise EnvironmentFailed(f"{self.name}: `supervisor.py {words[0]}` did not answer with an object")
        return reply


def new_server_id() -> str:
    """A name that no server had before."""
    return uuid.uuid4().hex[:10]


def _temporary_log(server_id: str) -> Path:
    return Path(tempfile.mkdtemp(prefix="spectune-log-")) / f"{server_id}.log"
