"""This machine as a host."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from spectune.errors import EnvironmentFailed, HostUnreachable
from spectune.hosts import supervisor
from spectune.hosts.host import Host

_LINE_LIMIT = 1 << 22
_QUEUE_WAIT_S = 10.0


async def _connected(path: str) -> socket.socket:
    """A Unix stream socket that is connected to ``path``; ``OSError`` if nobody listens, or none is let in for 10 s.

    asyncio takes the EAGAIN of a full queue for a connection that is being made, and hands out a socket that never
    becomes one. A full queue is a supervisor that is busy, so the connection is asked for again.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.setblocking(False)
    until = time.monotonic() + _QUEUE_WAIT_S
    try:
        while True:
            try:
                client.connect(path)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                await asyncio.sleep(0.02)
            else:
                return client
    except BaseException:
        client.close()
        raise


class LocalShell:
    """Runs the supervisor file as it lies in the package, with the interpreter that runs us."""

    name = "local"
    shares_files = True

    def __init__(self, home: Path) -> None:
        self.servers = str((home / "servers").absolute())

    async def run(self, words: Sequence[str], *, stdin: bytes, timeout_s: float) -> bytes:
        argv = [sys.executable, "-I", "-S", supervisor.__file__, *words]
        return await run_command(argv, stdin=stdin, timeout_s=timeout_s, what=f"supervisor.py {words[0]}")

    async def open_channel(self, folder: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise HostUnreachable(f"{folder}: {error.strerror}") from error
        path = f"{folder}/{supervisor.SOCKET}"
        if supervisor.IS_LINUX:  # a socket's path may have 107 characters, a study's folder more
            path = f"/proc/self/fd/{descriptor}/{supervisor.SOCKET}"
        try:
            return await asyncio.open_unix_connection(sock=await _connected(path), limit=_LINE_LIMIT)
        except OSError as error:
            raise HostUnreachable(f"no supervisor answers in {folder}: {error.strerror or error}") from error
        finally:
            os.close(descriptor)

    async def reconnect(self) -> None:
        try:
            Path(self.servers).mkdir(mode=0o700, parents=True, exist_ok=True)  # noqa: ASYNC240
        except OSError as error:
            raise EnvironmentFailed(
                f"{self.servers}: cannot keep records of servers there: {error.strerror}; set SPECTUNE_HOME to a "
                "folder that can be written"
            ) from error

    async def reach(self, port: int) -> int:
        return port

    async def leave(self, port: int) -> None:
        return

    async def aclose(self) -> None:
        return


def local_host(home: Path) -> Host:
    """This machine; records of running servers lie under ``home``."""
    return Host(LocalShell(home))


class CommandFailed(EnvironmentFailed):
    """A program ended with another code than 0; ``code`` is that."""

    def __init__(self, message: str, *, code: int | None) -> None:
        self.code = code
        super().__init__(message)


async def run_command(argv: Sequence[str], *, stdin: bytes, timeout_s: float, what: str) -> bytes:
    """A program's output (no shell); raises ``EnvironmentFailed`` with its last words if it fails."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentFailed(f"{what}: cannot run {argv[0]}: {error.strerror}") from error
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate(stdin)
    except TimeoutError:
        raise EnvironmentFailed(f"{what}: no answer within {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        words = errors.decode(errors="replace").strip().splitlines()[-3:]
        raise CommandFailed(
            f"{what}: exit code {process.returncode}: {' | '.join(words)}", code=process.returncode
        )
    return output
