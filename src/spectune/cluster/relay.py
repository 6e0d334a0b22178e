"""A node as a host, reached through a process of ours that runs there: a `Relay`, called over whatever joins the two.

The relay runs the supervisor file and opens connections to supervisors, as `LocalShell` does; the shell here makes
streams of its answers. When the relay is lost, so is everything through it: what it started ends by its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spectune.errors import EnvironmentFailed, HostUnreachable
from spectune.hosts import supervisor
from spectune.hosts.host import Host
from spectune.hosts.local import LocalShell

_LINE_LIMIT = 1 << 22
_PIECE_BYTES = 1 << 18
_READ_WAIT_S = 5.0
"""A read that finds nothing is asked again, so that no call is under way for ever."""
_PATIENCE_S = 15.0
"""Beside the time that the command itself may take."""


class Line(Protocol):
    """To an object on another node."""

    async def call(self, method: str, *args: object) -> Any:
        """What the method returns; raises ``NodeLost``."""
        ...


@dataclass(frozen=True)
class Reply:
    """What a relay answers; it never raises, since what it raised would have to be understood elsewhere."""

    data: bytes = b""
    error: str | None = None
    is_unreachable: bool = False
    """The supervisor, not the node."""
    is_end: bool = False
    """Of a stream."""

    def value(self) -> bytes:
        """The data, or the error as one of ours."""
        if self.error is None:
            return self.data
        raise (HostUnreachable if self.is_unreachable else EnvironmentFailed)(self.error)


class Relay:
    """On the node: its supervisors, for one who is elsewhere."""

    def __init__(self, home: Path) -> None:
        self._shell = LocalShell(home)
        self._open: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._numbers = itertools.count(1)

    async def run(self, words: Sequence[str], stdin: bytes, timeout_s: float) -> Reply:
        """The supervisor file, run with ``words``."""
        try:
            await self._shell.reconnect()
            data = await self._shell.run(words, stdin=stdin, timeout_s=timeout_s)
        except EnvironmentFailed as error:
            return Reply(error=str(error), is_unreachable=isinstance(error, HostUnreachable))
        if words[0] == "forget" and "error" not in json.loads(data):
            log = Path(words[1]) / supervisor.LOG  # whoever asks has it all
            with contextlib.suppress(OSError):
                log.unlink(missing_ok=True)
                log.parent.rmdir()
        return Reply(data)

    async def open(self, folder: str) -> Reply:
        """A connection to the supervisor of a folder; the data is its number."""
        try:
            streams = await self._shell.open_channel(folder)
        except EnvironmentFailed as error:
            return Reply(error=str(error), is_unreachable=isinstance(error, HostUnreachable))
        number = next(self._numbers)
        self._open[number] = streams
        return Reply(str(number).encode())

    async def read(self, number: int) -> Reply:
        """What came since the last time; empty if nothing comes for a while."""
        if number not in self._open:
            return Reply(is_end=True)
        try:
            async with asyncio.timeout(_READ_WAIT_S):
                data = await self._open[number][0].read(_PIECE_BYTES)
        except TimeoutError:
            return Reply()
        except OSError:
            data = b""
        return Reply(data, is_end=not data)

    async def write(self, number: int, data: bytes) -> Reply:
        if number not in self._open:
            return Reply(is_end=True)
        try:
            self._open[number][1].write(data)
            await self._open[number][1].drain()
        except OSError:
            return Reply(is_end=True)
        return Reply()

    async def close(self, number: int) -> None:
        _, writer = self._open.pop(number, (None, None))
        if writer is not None:
            writer.close()


class RelayedShell:
    """Here: a node through its relay."""

    shares_files = False

    def __init__(self, line: Line, *, name: str, home: str) -> None:
        self.name = name
        self.servers = f"{home}/servers"
        self._line = line
        self._pumps: set[asyncio.Task[None]] = set()

    async def run(self, words: Sequence[str], *, stdin: bytes, timeout_s: float) -> bytes:
        reply: Reply = await self._asked("run", list(words), stdin, timeout_s, within_s=timeout_s)
        return reply.value()

    async def open_channel(self, folder: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        number = int((await self._asked("open", folder)).value())
        here, there = socket.socketpair()
        streams = await asyncio.open_connection(sock=here, limit=_LINE_LIMIT)
        far = await asyncio.open_connection(sock=there, limit=_LINE_LIMIT)
        pump = asyncio.create_task(self._pump(number, *far))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return streams

    async def _pump(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries bytes both ways until one end is closed or the relay is lost."""
        ways = [
            asyncio.create_task(self._take(number, writer)),
            asyncio.create_task(self._give(number, reader)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()
            with contextlib.suppress(EnvironmentFailed):
                await self._asked("close", number)

    async def _take(self, number: int, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EnvironmentFailed, OSError):
            while not (reply := await self._asked("read", number, within_s=_READ_WAIT_S)).is_end:
                if reply.data:
                    writer.write(reply.data)
                    await writer.drain()

    async def _give(self, number: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(EnvironmentFailed, OSError):
            while data := await reader.read(_PIECE_BYTES):
                if (await self._asked("write", number, data)).is_end:
                    return

    async def _asked(self, method: str, *args: object, within_s: float = 0.0) -> Any:
        """Raises ``NodeLost``, and ``HostUnreachable`` if no answer comes."""
        try:
            async with asyncio.timeout(within_s + _PATIENCE_S):
                return await self._line.call(method, *args)
        except TimeoutError:
            raise HostUnreachable(f"{self.name}: no answer within {within_s + _PATIENCE_S:.0f} s") from None

    async def reconnect(self) -> None:
        """The line is what it is: it is there, or ``NodeLost`` says that it is not."""
        await self._asked("close", 0)

    async def reach(self, port: int) -> int:
        raise EnvironmentFailed(f"{self.name}: port {port} is for its own node alone")

    async def leave(self, port: int) -> None:
        return

    async def aclose(self) -> None:
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


def relayed_host(line: Line, *, name: str, home: str) -> Host:
    """The node at the other end of ``line``, whose records of servers lie under ``home`` there."""
    return Host(RelayedShell(line, name=name, home=home))
