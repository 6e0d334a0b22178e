"""Where one fault is played: a folder, the command line in it, and the search for what was left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults_command import Running, end

from spectune.errors import SpectuneError
from spectune.hosts import supervisor
from spectune.store.study_dir import StudyDir

MARK = "SPECTUNE_FAULT"
_PORT_OPTION = re.compile(r"--port[\s\",=]+(\d+)")


class Place:
    """A folder of its own; everything that is started in it carries its mark or works in it."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.folder = Path(tempfile.mkdtemp(prefix="spectune-fault-"))
        self.home = self.folder / "home"
        self.env = {
            **os.environ,
            MARK: self.id,
            "SPECTUNE_HOME": str(self.home),
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
        }
        self.ports: set[int] = set()
        self.prefix: tuple[str, ...] = ()
        """Put before every command: how to enter another mount namespace."""
        self.store: Callable[[], list[Path]] = lambda: list(self.folder.glob("**/study.json"))
        self._known: list[supervisor.Process] = []
        self._own: list[subprocess.Popen[bytes]] = []
        self._neighbours: set[int] = {os.getpid()}
        self._undo: list[Callable[[], None]] = []

    # running

    def start(self, *args: str, program: Sequence[str] | None = None, **options: Any) -> Running:
        """A spectune command line, or another program, in this folder."""
        words = [*self.prefix, *(program or (sys.executable, "-m", "spectune")), *args]
        options.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen(
            words, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )
        self._own.append(process)
        return Running(process)

    def __call__(self, *args: str, timeout_s: float = 60.0) -> Running:
        """A spectune command line, run to its end."""
        running = self.start(*args)
        running.wait(timeout_s)
        return running

    def neighbour(self, argv: Sequence[str], *, until: str = "") -> subprocess.Popen[bytes]:
        """A process that is not spectune's; it is ended with the place. ``until``: the first line that says so."""
        process = subprocess.Popen(
            argv, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.at_end(lambda: end(process))
        self._neighbours.add(process.pid)
        for line in process.stdout or ():
            if until in line.decode(errors="replace"):
                break
        return process

    def at_end(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def events(self) -> dict[str, float]:
        """The fake server's own time stamps (the last of each kind)."""
        with suppress(OSError):
            rows = (self.folder / "events").read_text(encoding="utf-8").split()
            return {name: float(when) for name, when in zip(rows[::2], rows[1::2], strict=False)}
        return {}

    def trials(self, study: str = "studies/study") -> list[dict[str, Any]]:
        """The records of a study's ended trials, as they lie there."""
        files = sorted((self.folder / study / "trials").glob("*/trial.json"))
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]

    def servers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self("ps", "--json").output)["servers"]
        self.ports |= {int(row["base_url"].rpartition(":")[2]) for row in rows}
        return rows

    def note(self, *pids: int) -> None:
        """These must be gone at the end."""
        self._known += [p for p in map(supervisor.read_process, pids) if p is not None]

    def pids_in_log(self, log: Path) -> list[int]:
        """Children that a fake server has told of."""
        found = re.findall(r"(?:child|zombie) pid (\d+)", log.read_text(encoding="utf-8", errors="replace"))
        return [int(pid) for pid in found]

    # looking afterwards

    def processes(self) -> list[supervisor.Process]:
        """What is alive of this place: by mark, by folder, by the pids that were noted."""
        known = {p.key for p in self._known}
        mine = {os.getpid(), *(p.pid for p in self._own if p.poll() is None)}
        found = []
        for pid, process in supervisor.process_table().items():
            if pid in mine or not process.is_alive:
                continue
            if process.key in known or self._is_here(pid):
                found.append(process)
        return found

    def _is_here(self, pid: int) -> bool:
        with suppress(OSError):
            if f"{MARK}={self.id}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return True
        with suppress(OSError):
            return str(Path(f"/proc/{pid}/cwd").readlink()).startswith(str(self.folder))
        return False

    def leftovers(self) -> list[str]:
        """What is still there although nothing should be; given a moment to go."""
        deadline = time.monotonic() + 5
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [f"process {p.pid} ({supervisor.command_of(p.pid)})" for p in self.processes()]
        self._collect_ports()
        left += [f"port {port}" for port in sorted(self.ports) if self._is_held(port)]
        left += [f"shared memory {path}" for path in Path("/dev/shm").glob(f"*{self.id}*")]
        return left + self._corrupt_records() + [f"record of a server {p}" for p in self._server_records()]

    def _is_held(self, port: int) -> bool:
        """Whether somebody listens there who is not a neighbour of this place's own."""
        owner = supervisor.port_owner(port)
        return owner is not None and owner["pid"] not in self._neighbours

    def _collect_ports(self) -> None:
        for name in ("**/plan.json", "**/spec.json"):
            for file in self.folder.glob(name):
                text = file.read_text(encoding="utf-8", errors="replace")
                self.ports |= {int(port) for port in _PORT_OPTION.findall(text)}

    def _server_records(self) -> list[str]:
        return [path.parent.name for path in self.folder.glob("home*/servers/*/status.json")]

    def _corrupt_records(self) -> list[str]:
        found = []
        for file in self.store():
            try:
                directory = StudyDir.open(file.parent)
                directory.read_study()
                directory.read_trials()
            except SpectuneError as error:
                found.append(f"corrupt record: {error}")
        return found

    def close(self) -> None:
        """Ends what should not have been left, and removes the folder."""
        for undo in reversed(self._undo):
            undo()
        for process in self._own:
            end(process)
        for left in self.processes():
            supervisor.signal_process(left, signal.SIGKILL)
        for path in Path("/dev/shm").glob(f"*{self.id}*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
