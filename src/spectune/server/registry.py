"""Servers that outlive the command that started them (``spectune up``): one file each in the data folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from spectune.errors import BadInput
from spectune.hosts.local import AttachedProcess, ProcessId, ServerIdentity


@dataclass(frozen=True)
class RunningServer:
    """What must be known to find, use and stop a server again."""

    server_id: str
    engine: str
    arm: str
    base_url: str
    pid: int
    start_time: float
    session: int
    marker: str
    log_path: str
    started_at: str
    ready_timeout_s: float

    @property
    def identity(self) -> ServerIdentity:
        return ServerIdentity(ProcessId(self.pid, self.start_time), session=self.session, marker=self.marker)

    @property
    def process(self) -> AttachedProcess:
        return AttachedProcess(self.identity, Path(self.log_path))

    @property
    def is_alive(self) -> bool:
        return self.identity.leader.find() is not None


class ServerRegistry:
    """Files under ``HOME/servers``."""

    def __init__(self, home: Path) -> None:
        self._path = home / "servers"

    def folder(self, server_id: str) -> Path:
        return self._path / server_id

    def add(self, server: RunningServer) -> None:
        folder = self.folder(server.server_id)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / ".server.json.tmp"
        temporary.write_text(json.dumps(asdict(server), indent=1), encoding="utf-8")
        temporary.replace(folder / "server.json")

    def remove(self, server_id: str) -> None:
        """Forgets a server; its log stays."""
        (self.folder(server_id) / "server.json").unlink(missing_ok=True)

    def servers(self) -> list[RunningServer]:
        """In the order of their start; files that are not ours are skipped."""
        found = []
        for file in sorted(self._path.glob("*/server.json")) if self._path.exists() else []:
            try:
                found.append(RunningServer(**json.loads(file.read_text(encoding="utf-8"))))
            except (OSError, ValueError, TypeError):
                continue
        return sorted(found, key=lambda s: s.started_at)

    def get(self, server_id: str) -> RunningServer:
        servers = self.servers()
        for server in servers:
            if server.server_id == server_id:
                return server
        known = ", ".join(s.server_id for s in servers) or "none"
        raise BadInput(f"no server {server_id!r}; known: {known} (see `spectune ps`)")
