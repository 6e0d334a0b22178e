"""Servers for tests: the fake engine as a real process, and a server that answers byte by byte as told."""

import asyncio
import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

WAIT_S = 30.0


@dataclass
class FakeEngine:
    """A running fake engine; ``lines`` is everything it has printed."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return "http://" + self.wait_for(r"listening on (\S+)")[1]

    def wait_for(self, pattern: str, *, count: int = 1) -> re.Match[str]:
        """The ``count``-th printed line that matches, waiting for it."""

        def found() -> list[re.Match[str]]:
            return [match for line in self.lines if (match := re.fullmatch(pattern, line))]

        with self._changed:
            if not self._changed.wait_for(lambda: len(found()) >= count, timeout=WAIT_S):
                raise TimeoutError(f"no line {pattern!r} in {self.lines}")
        return found()[count - 1]

    def read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()


def start_fake_engine(*options: str) -> FakeEngine:
    process = subprocess.Popen(
        [sys.executable, "-m", "spectune.engines.fake.server", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    engine = FakeEngine(process)
    threading.Thread(target=engine.read_output, daemon=True).start()
    return engine


@contextlib.contextmanager
def fake_engine(*options: str) -> Iterator[FakeEngine]:
    """A fake engine that is ready, and gone afterwards."""
    engine = start_fake_engine(*options)
    try:
        engine.wait_for("ready")
        yield engine
    finally:
        engine.process.kill()
        engine.process.wait(WAIT_S)


@dataclass
class ScriptedServer:
    """What a scripted server saw."""

    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    num_connections: int = 0
    client_left: asyncio.Event = field(default_factory=asyncio.Event)


Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[bool]]
"""Gets the whole request and writes what it likes; false closes the connection."""


@contextlib.asynccontextmanager
async def scripted_server(answer: Answer, *, host: str = "127.0.0.1") -> AsyncIterator[ScriptedServer]:
    """A server that hands every request to ``answer``."""
    seen = ScriptedServer()
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.num_connections += 1
        try:
            while (request := await read_request(reader)) is not None:
                seen.requests.append(request)
                if not await answer(request, writer):
                    break
            else:
                seen.client_left.set()
        except (ConnectionError, asyncio.CancelledError):
            seen.client_left.set()
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        connections.add(task)

    server = await asyncio.start_server(accept, host, 0)
    port = server.sockets[0].getsockname()[1]
    seen.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        yield seen
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> bytes | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return head + (await reader.readexactly(int(length[1])) if length else b"")


def chunked(*pieces: bytes, end: bool = True) -> bytes:
    """An HTTP answer with an event stream whose chunks are ``pieces``."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + (b"0\r\n\r\n" if end else b"")


def plain(body: bytes, *, status: str = "200 OK", kind: str = "application/json", extra: str = "") -> bytes:
    """An HTTP answer with a length."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def always(*segments: bytes, close: bool = False) -> Answer:
    """Answers every request with the same segments, sent apart."""

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        for segment in segments:
            writer.write(segment)
            await writer.drain()
            for _ in range(3):  # the client's turn in the same loop, so that segments stay apart
                await asyncio.sleep(0)
        return not close

    return answer
