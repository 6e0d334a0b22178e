"""Another machine as a host, through the user's own OpenSSH client.

One connection is multiplexed. Nothing of the user's configuration is weakened:
host keys, jump hosts and agents are theirs, and no password is asked for. What
a server is started with travels as JSON over standard input, never through the
remote shell; the shell there sees only ``python3`` and names of our making.

The connection ends with this process: its master reads from a pipe that only
we hold open.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spectune.domain.secrets import url_as_shown
from spectune.errors import BadInput, EnvironmentFailed, HostUnreachable
from spectune.hosts import supervisor
from spectune.hosts.host import Host
from spectune.hosts.local import CommandFailed, run_command

COMMAND_VARIABLE = "SPECTUNE_SSH_COMMAND"
_DESTINATION = re.compile(r"(?:ssh://)?[A-Za-z0-9_][A-Za-z0-9_.@:%\[\]-]*")
_CONNECT_S = 30.0
_SSH_FAILED = 255
"""The client's own exit code for a connection that failed."""
_RETRY_AFTER_S = (0.2, 1.0, 3.0, 6.0)
"""Every command of the supervisor may be given twice: a dropped connection does not tell whether it arrived."""
_LINE_LIMIT = 1 << 22
_MIN_PYTHON = (3, 9)
_BOOTSTRAP = """
import base64, json, os, sys
question = json.loads(base64.b64decode({question!r}))
if sys.version_info[:2] < (3, 9):
    print(json.dumps({{"python": sys.version.split()[0]}}))
    sys.exit()
folder = os.path.join(os.path.expanduser("~"), ".cache", "spectune")
path = os.path.join(folder, "supervisor-" + question["hash"] + ".py")
try:
    os.makedirs(os.path.join(folder, "servers"), mode=0o700, exist_ok=True)
    if not os.path.exists(path):
        temporary = path + "." + str(os.getpid())
        with open(temporary, "w") as file:
            file.write(question["text"])
        os.replace(temporary, path)
    print(json.dumps({{"python": sys.version.split()[0], "folder": folder, "path": path}}))
except OSError as error:
    print(json.dumps({{"python": sys.version.split()[0], "error": str(error)}}))
"""


def ssh_host(destination: str) -> Host:
    """The machine behind ``user@name``, as OpenSSH and the user's configuration know it; not connected yet."""
    if ":" in destination.removeprefix("ssh://").rpartition("@")[0]:
        raise BadInput("host: holds a password; ssh asks its agent or a key file, so give user@name")
    if not _DESTINATION.fullmatch(destination):
        raise BadInput(
            f"host: {url_as_shown(destination)!r} is not a destination of ssh; write name, user@name or ssh://user@name"
        )
    return Host(SshShell(destination))


class SshShell:
    """Runs the supervisor on the other machine with its own ``python3``."""

    shares_files = False

    def __init__(self, destination: str) -> None:
        self.name = destination
        self.servers = ""
        self._destination = destination
        self._folder = Path(tempfile.mkdtemp(prefix="spectune-ssh-"))
        self._control = self._folder / "c"
        self._remote: str | None = None
        self._master: asyncio.subprocess.Process | None = None
        self._forwards: dict[int, int] = {}
        self._channels: list[asyncio.subprocess.Process] = []
        self._lock = asyncio.Lock()

    async def run(self, words: Sequence[str], *, stdin: bytes, timeout_s: float) -> bytes:
        what = f"{self.name}: supervisor.py {words[0]}"
        for wait_s in (*_RETRY_AFTER_S, None):
            try:
                await self.reconnect()
                return await self._on_remote(
                    [self._python_file(), *words], stdin=stdin, timeout_s=timeout_s, what=what
                )
            except (HostUnreachable, CommandFailed) as error:
                dropped = isinstance(error, HostUnreachable) or error.code == _SSH_FAILED
                if not dropped or wait_s is None:
                    raise
                await asyncio.sleep(wait_s)
        raise AssertionError

    async def open_channel(self, folder: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await self.reconnect()
        process = await asyncio.create_subprocess_exec(
            *self._ssh(),
            self._destination,
            remote_line(["python3", self._python_file(), "connect", folder]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LINE_LIMIT,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._channels = [c for c in self._channels if c.returncode is None] + [process]
        return process.stdout, process.stdin

    async def reconnect(self) -> None:
        async with self._lock:
            if self._master is not None and self._master.returncode is None and await self._answers():
                return
            await self._connect()

    async def reach(self, port: int) -> int:
        if port not in self._forwards:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.bind(("127.0.0.1", 0))
                local = int(probe.getsockname()[1])
            await self._forward(local, port)
            self._forwards[port] = local
        return self._forwards[port]

    async def leave(self, port: int) -> None:
        local = self._forwards.pop(port, None)
        if local is not None:
            with contextlib.suppress(EnvironmentFailed):
                await self._control_command("cancel", "-L", _forwarding(local, port))

    async def aclose(self) -> None:
        """Ends the connection; what runs on the other side goes on within its lease."""
        for process in [*self._channels, *([self._master] if self._master else [])]:
            await _end(process)
        self._channels.clear()
        self._master = None
        shutil.rmtree(self._folder, ignore_errors=True)

    # the connection

    async def _connect(self) -> None:
        if self._master is not None:
            await _end(self._master)
        self._control.unlink(missing_ok=True)
        try:
            self._master = await asyncio.create_subprocess_exec(
                *ssh_words(),
                "-M",
                "-S",
                str(self._control),
                *("-o", "ControlPersist=no", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S:.0f}"),
                *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
                *("-o", "ExitOnForwardFailure=yes", "-o", "ForwardX11=no", "-T"),
                self._destination,
                "cat",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise HostUnreachable(f"cannot run {ssh_words()[0]}: {error.strerror}") from error
        await self._until_master_answers(self._master)
        if self._remote is None:
            await self._bootstrap()
        for port, local in self._forwards.items():
            await self._forward(local, port)

    async def _until_master_answers(self, master: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S + 5):
                while not (self._control.exists() and await self._answers()):
                    if master.returncode is not None:
                        assert master.stderr is not None
                        words = (await master.stderr.read()).decode(errors="replace").strip()
                        raise HostUnreachable(
                            f"ssh {self._destination}: {words[-400:] or 'ended without a word'}"
                        )
                    await asyncio.sleep(0.05)
        except TimeoutError:
            await _end(master)
            raise HostUnreachable(
                f"ssh {self._destination}: no connection within {_CONNECT_S:.0f} s"
            ) from None

    async def _answers(self) -> bool:
        try:
            await self._control_command("check")
        except EnvironmentFailed:
            return False
        return True

    async def _control_command(self, do: str, *words: str) -> None:
        argv = [*self._ssh(), "-O", do, *words, self._destination]
        await run_command(argv, stdin=b"", timeout_s=10, what=f"ssh -O {do} {self._destination}")

    async def _forward(self, local: int, port: int) -> None:
        await self._control_command("forward", "-L", _forwarding(local, port))

    def _ssh(self) -> list[str]:
        return [*ssh_words(), "-S", str(self._control), "-o", "BatchMode=yes", "-T"]

    # the other side

    def _python_file(self) -> str:
        assert self._remote is not None
        return self._remote

    async def _on_remote(self, words: Sequence[str], *, stdin: bytes, timeout_s: float, what: str) -> bytes:
        argv = [*self._ssh(), self._destination, remote_line(["python3", *words])]
        return await run_command(argv, stdin=stdin, timeout_s=timeout_s, what=what)

    async def _bootstrap(self) -> None:
        """Copies the supervisor over unless this very file is there."""
        text = Path(supervisor.__file__).read_text(encoding="utf-8")  # noqa: ASYNC240
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        question = base64.b64encode(json.dumps({"hash": digest, "text": text}).encode()).decode()
        program = _BOOTSTRAP.format(question=question)
        what = f"{self.name}: python3 there"
        try:
            output = await self._on_remote(["-"], stdin=program.encode(), timeout_s=60, what=what)
            reply: dict[str, Any] = json.loads(output)
        except ValueError as error:
            raise EnvironmentFailed(
                f"{what}: did not answer; does the login shell print something?"
            ) from error
        except EnvironmentFailed as error:
            raise EnvironmentFailed(
                f"{error}\nspectune needs nothing on {self.name} but python3 {_MIN_PYTHON[0]}.{_MIN_PYTHON[1]} or later"
            ) from error
        if "error" in reply:
            raise EnvironmentFailed(f"{self.name}: cannot copy the supervisor there: {reply['error']}")
        if "path" not in reply:
            raise EnvironmentFailed(
                f"{self.name}: its python3 is {reply['python']}; the supervisor needs "
                f"{_MIN_PYTHON[0]}.{_MIN_PYTHON[1]} or later"
            )
        self._remote = reply["path"]
        self.servers = f"{reply['folder']}/servers"


def ssh_words() -> list[str]:
    """The client: ``ssh``, or the words of ``SPECTUNE_SSH_COMMAND`` (as ``GIT_SSH_COMMAND`` for git)."""
    try:
        words = shlex.split(os.environ.get(COMMAND_VARIABLE, "ssh"))
    except ValueError as error:
        raise BadInput(f"{COMMAND_VARIABLE}: {error}; quote it as for a shell, e.g. `ssh -F FILE`") from error
    if not words:
        raise BadInput(f"{COMMAND_VARIABLE} is empty; leave it out, or give a command such as `ssh -F FILE`")
    return words


def remote_line(words: Sequence[str]) -> str:
    """One line for the remote shell that gives exactly these words."""
    return " ".join(shlex.quote(word) for word in words)


def _forwarding(local: int, port: int) -> str:
    return f"127.0.0.1:{local}:127.0.0.1:{port}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends a client of ours; its pipes are closed with it."""
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        async with asyncio.timeout(5):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                await pipe.read()  # to its end, so that the transport is let go of
