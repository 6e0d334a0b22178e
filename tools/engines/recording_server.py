"""A server started for a recording: until it is ready, what is asked of it, until it is gone."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from recording_engines import Engine

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 25.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def session_members(session: int) -> list[int]:
    """Pids of the living processes of a session (Linux)."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            members.append(int(entry.name))
    return members


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the launcher, SIGKILL to what is left of its session, and proof that it is gone."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while members := session_members(process.pid):
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise SystemExit(f"still alive after SIGKILL: {members}")
        time.sleep(0.1)
    process.wait()


@dataclass
class Client:
    port: int

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read().decode("utf-8")
        finally:
            connection.close()

    def wire_bytes(self, path: str, body: Any) -> bytes:
        """Everything the server sends for one POST: status line, headers, framing, body."""
        sent = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(sent)}\r\nConnection: close\r\n\r\n"
        )
        received = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=300) as connection:
            connection.sendall(head.encode() + sent)
            while block := connection.recv(65536):
                received += block
        return received

    def ready(self, path: str) -> bool:
        try:
            return self.call("GET", path)[0] == 200
        except (OSError, http.client.HTTPException):
            return False


def body_of(wire: bytes) -> bytes:
    """The body behind the framing of a wire recording."""

    class Replay:
        def makefile(self, mode: str) -> Any:
            return io.BytesIO(wire)

    reply = http.client.HTTPResponse(Replay())  # type: ignore[arg-type]
    reply.begin()
    return reply.read()


def start(engine: Engine, argv: list[str], sink: IO[bytes], cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdout=sink,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **engine.env},
        start_new_session=True,
        cwd=cwd,
    )


@contextlib.contextmanager
def server(engine: Engine, argv: list[str], log: Path, port: int, cwd: Path) -> Iterator[float]:
    """A running, ready server; yields the seconds it took."""
    started = time.monotonic()
    with log.open("wb") as sink:
        process = start(engine, argv, sink, cwd)
        try:
            client = Client(port)
            while not client.ready(engine.ready_path):
                if process.poll() is not None:
                    raise SystemExit(f"the server exited with {process.returncode}; its log: {log}")
                if time.monotonic() - started > READY_TIMEOUT_S:
                    raise SystemExit(f"not ready after {READY_TIMEOUT_S} s; its log: {log}")
                time.sleep(0.5)
            yield time.monotonic() - started
        finally:
            stop(process)
