"""A supervisor outlives whatever a client sends, and whatever the system denies it: real ones, over their sockets."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from spectune.hosts import supervisor
from spectune.hosts.host import Host, ServerSpec
from spectune.hosts.local import local_host
from spectune.hosts.supervised import SupervisedServer

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
ODD_REQUESTS = [
    '{"id": 1, "do": "renew", "lease_s": "for ever"}',
    '{"id": 1, "do": "renew", "lease_s": NaN}',
    '{"id": 1, "do": "renew", "lease_s": -1e999}',
    '{"id": 1, "do": "renew", "lease_s": true}',
    '{"id": 1, "do": "renew", "lease_s": [30]}',
    '{"id": 1, "do": "stop", "grace_s": Infinity}',
    '{"id": 1, "do": "stop", "grace_s": "soon"}',
    '{"id": 1, "do": "port", "port": 1e999}',
    '{"id": 1, "do": "log", "offset": 1e300}',
    '{"id": 1, "do": "log", "offset": -5}',
    '{"id": ' + "[" * 900 + "]" * 900 + ', "do": "status"}',
    '{"id": 1, "do": ' + "9" * 5000 + "}",
    "[" * 100_000,
    '{"a":' * 100_000,
    '"\\ud800"',
    "null",
    "\x00\xff",
    "",
]


async def started(host: Host, tmp_path: Path, *, lease_s: float | None = 30.0) -> SupervisedServer:
    return await host.start(ServerSpec(argv=SLEEPER, lease_s=lease_s), log_path=tmp_path / "server.log")


async def exchange(host: Host, server: SupervisedServer, line: str) -> dict[str, Any] | None:
    """What is said to one line; ``None``: the connection was closed."""
    reader, writer = await host.open_channel(server.server_id)
    try:
        writer.write(line.encode("latin-1") + b"\n")
        answer = await asyncio.wait_for(reader.readline(), 120)
        return json.loads(answer) if answer else None
    finally:
        writer.close()


def test_nothing_that_a_client_sends_ends_the_supervisor_or_its_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with local_host(tmp_path) as host:
            server = await started(host, tmp_path)
            before = await exchange(host, server, '{"id": 7, "do": "status"}')
            for line in ODD_REQUESTS:
                answer = await exchange(host, server, line)
                assert answer is None or "error" in answer or answer.get("data") == "", (line[:80], answer)
            after = await exchange(host, server, '{"id": 7, "do": "status"}')
            assert after == before
            assert after is not None and after["state"] == "running" and after["lease_s"] == 30.0
            assert (await server.stop(grace_s=5)).no_child_left is True

    asyncio.run(scenario())


def test_clients_that_say_nothing_make_room_for_one_that_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with local_host(tmp_path) as host:
            server = await started(host, tmp_path)
            silent = [await host.open_channel(server.server_id) for _ in range(40)]
            last, _ = silent[0]
            assert await asyncio.wait_for(last.read(), 120) == b"", "the first of the silent ones is let go"
            assert (await server.vitals()).num_processes == 1
            assert not server.dropped.is_set(), "one that has spoken is kept, although it is older"
            await server.stop(grace_s=5)
            for _, writer in silent:
                writer.close()

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue is answered so by Linux")
def test_more_clients_at_once_than_the_queue_takes_are_all_connected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with local_host(tmp_path) as host:
            server = await started(host, tmp_path)
            os.kill(server.supervisor_pid, signal.SIGSTOP)
            opening = [asyncio.create_task(host.open_channel(server.server_id)) for _ in range(90)]
            while sum(each.done() for each in opening) < 60:
                await asyncio.sleep(0.02)
            os.kill(server.supervisor_pid, signal.SIGCONT)
            channels = await asyncio.gather(*opening)
            assert all(writer.get_extra_info("socket").getpeername() for _, writer in channels)
            await server.stop(grace_s=5)
            for _, writer in channels:
                writer.close()

    asyncio.run(scenario())


UNHEARD = """
import os
from spectune.hosts import supervisor
reader, writer = os.pipe()
os.close(reader)
supervisor._become_daemon(writer, None)
"""


def test_a_server_whose_asker_died_before_the_answer_is_ended_by_its_lease(tmp_path: Path) -> None:
    spec = {"argv": SLEEPER, "env": {}, "ports": [], "lease_s": 0.5, "label": {}, "marker": "unheard"}
    spec |= {"log_path": str(tmp_path / "server.log"), "cwd": str(tmp_path), "key": None, "owner": None}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    done = subprocess.run([sys.executable, "-c", UNHEARD], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["ended"]["reason"]) == ("ended", "nobody renewed the lease")
    assert not psutil.pid_exists(status["leader"][0])


FAMILY = """
import subprocess, sys
children = [subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"]) for _ in range(30)]
print("born", flush=True)
children[0].wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors of processes are Linux's")
def test_a_supervisor_with_few_descriptors_watches_more_processes_than_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 descriptors, 31 processes, 20 of them watched: the death of another one is noticed too."""
    from spectune.hosts import local

    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nulimit -n 64\nexec {sys.executable} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o700)
    monkeypatch.setattr(local.sys, "executable", str(wrapper))

    async def scenario() -> None:
        async with local_host(tmp_path) as host:
            spec = ServerSpec(argv=[sys._base_executable, "-c", FAMILY])
            log = tmp_path / "server.log"
            server = await host.start(spec, log_path=log)
            async with asyncio.timeout(60):
                while "born" not in (log.read_text() if log.exists() else ""):
                    await asyncio.sleep(0.02)
            workers = await server.mark_ready()
            assert len(workers) == 30
            descriptors = [path.name for path in Path(f"/proc/{server.supervisor_pid}/fd").iterdir()]
            assert len(descriptors) < 64
            watched = {
                int(line.split()[1])
                for name in descriptors
                for line in Path(f"/proc/{server.supervisor_pid}/fdinfo/{name}").read_text().splitlines()
                if line.startswith("Pid:")
            }
            victim = next(pid for pid in workers[1:] if pid not in watched)
            os.kill(victim, signal.SIGKILL)
            ended = await asyncio.wait_for(server.wait_ended(), 20)
            assert ended.worker is not None and ended.worker.pid == victim
            proof = await server.stop(grace_s=5)
            assert proof.no_child_left is True
            assert not any(psutil.pid_exists(pid) for pid in workers)

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="another process's limits are set on Linux")
def test_a_supervisor_that_can_write_no_file_goes_on(tmp_path: Path) -> None:
    """As on a full disk: neither its record nor its own log takes a byte."""

    async def scenario() -> None:
        async with local_host(tmp_path) as host:
            server = await started(host, tmp_path)
            resource.prlimit(server.supervisor_pid, resource.RLIMIT_FSIZE, (0, 0))
            async with asyncio.timeout(60):
                await server.mark_ready()
                assert (await server.vitals()).num_processes == 1
                assert (await server.stop(grace_s=5)).no_child_left is True

    asyncio.run(scenario())


def idle_supervisor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> supervisor.Supervisor:
    """One that has started no server, for a single step of its work."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(supervisor, "_AGAIN_S", 0.0)
    watching = supervisor.Supervisor({"marker": "m" * 32})
    watching.leader = (0, 0)
    return watching


def test_a_stop_that_fails_begins_again_and_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> Iterator[float]:
        raise ValueError("/proc said something odd")
        yield 0.0

    watching = idle_supervisor(tmp_path, monkeypatch)
    watching.stopping = first = failing()
    with pytest.raises(ValueError, match="odd"):
        watching._advance_stop(0.0)
    assert watching.gone_at is None and watching.state != "ended"
    assert watching.stopping is not None and watching.stopping is not first


def test_a_stop_begins_also_when_shared_memory_cannot_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> None:
        raise OSError(24, "Too many open files")

    watching = idle_supervisor(tmp_path, monkeypatch)
    monkeypatch.setattr(watching, "look_at_segments", failing)
    watching.begin_stop(None, grace_s=0.0)
    assert watching.state == "stopping" and watching.stopping is not None
