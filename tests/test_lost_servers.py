"""What carries our marker is found and stopped, whatever became of its supervisor and its record; and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from spectune.hosts import supervisor
from spectune.hosts.facts import read_server_status
from spectune.hosts.host import Host, ServerSpec
from spectune.hosts.local import local_host
from spectune.hosts.supervised import SupervisedServer
from spectune.server.lifecycle import end_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

FAMILY = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"], start_new_session=True)
print("child", child.pid, "born", flush=True)
signal.pause()
"""
LATE = """
import os, signal, subprocess, sys
hidden = ("import os, signal, sys\\nif os.fork(): os._exit(0)\\nos.setsid()\\nif os.fork(): os._exit(0)\\n"
          "sys.stdout.write(f'hidden {os.getpid()} born\\\\n'); sys.stdout.flush()\\nsignal.pause()")
signal.signal(signal.SIGUSR1, lambda *_: subprocess.run([sys.executable, "-S", "-c", hidden], env={}))
print("ready to serve", flush=True)
while True:
    signal.pause()
"""


async def word(log: Path, text: str) -> str:
    """The word before ``text`` in the log, once it is there."""
    async with asyncio.timeout(30):
        while not log.exists() or text not in log.read_text(encoding="utf-8"):
            await asyncio.sleep(0.01)
    return log.read_text(encoding="utf-8").split(text)[0].split()[-1]


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@contextmanager
def stranger(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The same command with a marker and a folder of another place, as another user's home would have them."""
    variables = {**os.environ, supervisor.MARKER: "f" * 32, supervisor.FOLDER: str(folder / "servers" / "x")}
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"], env=variables)
    try:
        yield process
        assert process.poll() is None, "a process of another place was stopped"
    finally:
        process.kill()
        process.wait()


def on_a_host(tmp_path: Path, scenario: Callable[[Host, Path], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with local_host(tmp_path / "home") as host:
            await scenario(host, tmp_path / "home" / "servers")

    with stranger(tmp_path / "elsewhere"):
        asyncio.run(all_of_it())


async def family(host: Host, tmp_path: Path) -> tuple[SupervisedServer, list[int]]:
    log = tmp_path / "logs" / "server.log"
    spec = ServerSpec(argv=[sys.executable, "-c", FAMILY], lease_s=None, owner="up")
    server = await host.start(spec, log_path=log)
    child = int(await word(log, " born"))
    await server.aclose()
    return server, [server.supervisor_pid, server.leader_pid, child]


def suspend(server: SupervisedServer, folder: Path) -> None:
    os.kill(server.supervisor_pid, signal.SIGSTOP)


def without_socket(server: SupervisedServer, folder: Path) -> None:
    (folder / supervisor.SOCKET).unlink()


def without_folder(server: SupervisedServer, folder: Path) -> None:
    shutil.rmtree(folder)


def without_status(server: SupervisedServer, folder: Path) -> None:
    (folder / supervisor.STATUS).unlink()


def garbled(server: SupervisedServer, folder: Path) -> None:
    (folder / supervisor.STATUS).write_text('{"state": "running", "supervisor": [', encoding="utf-8")


def of_other_shapes(server: SupervisedServer, folder: Path) -> None:
    (folder / supervisor.STATUS).write_text('{"supervisor": {"a": 1}, "known": 7}', encoding="utf-8")


def a_pipe(server: SupervisedServer, folder: Path) -> None:
    (folder / supervisor.STATUS).unlink()
    os.mkfifo(folder / supervisor.STATUS)


def without_supervisor_and_folder(server: SupervisedServer, folder: Path) -> None:
    killed = psutil.Process(server.supervisor_pid)
    killed.kill()
    psutil.wait_procs([killed], timeout=30)
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "harm",
    [
        suspend,
        without_socket,
        without_folder,
        without_status,
        garbled,
        of_other_shapes,
        a_pipe,
        without_supervisor_and_folder,
    ],
)
def test_down_finds_a_server_whatever_became_of_its_supervisor_and_record(
    tmp_path: Path, harm: Callable[[SupervisedServer, Path], None]
) -> None:
    async def scenario(host: Host, servers: Path) -> None:
        server, pids = await family(host, tmp_path)
        harm(server, servers / server.server_id)
        (status,) = await host.servers()
        assert status.server_id == server.server_id
        proof = await asyncio.wait_for(end_server(host, status), 30)
        assert proof is not None
        assert proof.no_child_left is True
        assert not any(alive(pid) for pid in pids)
        assert await host.servers() == []

    on_a_host(tmp_path, scenario)


def test_a_hidden_child_born_just_before_the_supervisor_is_killed_is_found(tmp_path: Path) -> None:
    """Twice forked, in its own session, without a variable: nothing tells of it but the keeper, its parent now."""

    async def scenario(host: Host, servers: Path) -> None:
        log = tmp_path / "server.log"
        server = await host.start(ServerSpec(argv=[sys.executable, "-c", LATE]), log_path=log)
        await word(log, " to serve")
        await server.mark_ready()
        os.kill(server.leader_pid, signal.SIGUSR1)
        hidden = int(await word(log, " born"))
        known = supervisor.read_record(str(servers / server.server_id))["known"]
        os.kill(server.supervisor_pid, signal.SIGKILL)
        assert hidden not in [pid for pid, _, _ in known], "no scan saw it"
        await server.wait_ended()
        os.kill(server.leader_pid, signal.SIGKILL)
        (status,) = await host.servers()
        assert hidden in status.orphans
        proof = await server.stop(grace_s=1)
        assert not alive(hidden)
        assert proof.no_child_left is True, "the keeper ended: the kernel knows no child of it"

    on_a_host(tmp_path, scenario)


def test_a_record_that_names_somebody_else_ends_nobody(tmp_path: Path) -> None:
    """Pid and start time are right, but it is no supervisor of ours."""
    other = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    try:

        async def scenario(host: Host, servers: Path) -> None:
            server, pids = await family(host, tmp_path)
            folder = servers / server.server_id
            found = supervisor.read_process(other.pid)
            assert found is not None
            status = supervisor.read_record(str(folder))
            status.update(supervisor=list(found.key), keeper=list(found.key))
            without_socket(server, folder)
            (folder / supervisor.STATUS).write_text(json.dumps(status), encoding="utf-8")
            (row,) = await host.servers()
            proof = await end_server(host, row)
            assert other.poll() is None
            assert proof is not None
            assert not any(alive(pid) for pid in pids[1:])
            with suppress(
                ProcessLookupError
            ):  # the supervisor, which the record hides, may wait to tell of the end
                os.kill(pids[0], signal.SIGTERM)

        on_a_host(tmp_path, scenario)
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    "field", ["keeper", "ports", "existed_sysv", "ended", "proof", "label", "supervisor"]
)
@pytest.mark.parametrize("odd", ["x", -1, [[1]], {"a": 1}, True, None])
def test_a_record_with_an_odd_value_is_listed_and_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, odd: object
) -> None:
    """Of a server that has ended: nothing is alive, so that whatever cannot be read may go."""
    record: dict[str, object] = {
        "boot_id": supervisor.boot_id(),
        "marker": "e" * 32,
        "state": "ended",
        "log_path": "/nowhere/server.log",
        "supervisor": [0, 0],
        "keeper": None,
        "leader": [0, 0],
        "known": [],
        "since": 1,
        "started_at": 1.0,
        "ports": [],
        "existed_sysv": [],
        "label": None,
        "ended": None,
        "proof": None,
    }
    folder = tmp_path / "e"
    folder.mkdir()
    (folder / supervisor.STATUS).write_text(json.dumps({**record, field: odd}), encoding="utf-8")
    assert supervisor.list_servers(str(tmp_path)) == 0
    for row in json.loads(capsys.readouterr().out)["servers"]:
        assert read_server_status(row).state == "ended"
    assert supervisor.sweep(str(folder)) == 0
    assert supervisor.forget(str(folder)) == 0
    assert not folder.exists()


@pytest.mark.parametrize("label", ["spectune.server=0123456789abcdef", "com.example.service=database"])
def test_a_record_that_names_somebody_elses_container_ends_no_container(tmp_path: Path, label: str) -> None:
    client, told = tmp_path / "docker", tmp_path / "told"
    client.write_text(f'#!/bin/sh\necho "$1" >> {told}\n', encoding="utf-8")
    client.chmod(0o755)

    async def scenario(host: Host, servers: Path) -> None:
        server, pids = await family(host, tmp_path)
        folder = servers / server.server_id
        status = supervisor.read_record(str(folder))
        status["container"] = {"client": [str(client)], "label": label, "env": {}, "ids": ["a" * 64]}
        os.kill(server.supervisor_pid, signal.SIGKILL)
        while alive(server.supervisor_pid):
            await asyncio.sleep(0.01)
        (folder / supervisor.STATUS).write_text(json.dumps(status), encoding="utf-8")
        (row,) = await host.servers()
        assert await end_server(host, row) is not None
        assert not any(alive(pid) for pid in pids)

    on_a_host(tmp_path, scenario)
    asked = set(told.read_text(encoding="utf-8").split()) if told.exists() else set()
    assert asked <= {"ps"} and (bool(asked) is label.startswith("spectune.server="))
