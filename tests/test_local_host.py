"""Process trees are real here: started, watched, stopped, and looked for afterwards."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from spectune.errors import EnvironmentFailed
from spectune.hosts.local import (
    LocalProcess,
    ProcessId,
    ServerIdentity,
    free_port,
    port_is_free,
    processes_of,
    stop_server,
)


def start(tmp_path: Path, code: str) -> LocalProcess:
    return LocalProcess.start(
        [sys.executable, "-c", textwrap.dedent(code)], env={}, log_path=tmp_path / "server.log"
    )


async def line_in(log: Path, text: str) -> None:
    async with asyncio.timeout(20):
        while not log.exists() or text not in log.read_text(encoding="utf-8"):
            await asyncio.sleep(0.01)


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("child", flush=True)
time.sleep(600)
"""
CHILDREN = """
import os, signal, subprocess, sys, time
stubborn = {stubborn!r}
subprocess.Popen([sys.executable, "-c", stubborn])
subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
print("started", flush=True)
{then}
"""


def test_stop_ends_children_that_ignore_sigterm_and_left_the_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        process = start(tmp_path, CHILDREN.format(stubborn=STUBBORN, then="time.sleep(600)"))
        await line_in(tmp_path / "server.log", "child\nchild")
        found = processes_of(process.identity)
        assert len(found) == 3
        proof = await process.stop(grace_s=0.5)
        assert len(proof.killed) == 2
        assert processes_of(process.identity) == []
        assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in found)

    asyncio.run(scenario())


def test_children_of_a_killed_leader_are_still_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        process = start(
            tmp_path, CHILDREN.format(stubborn=STUBBORN, then="os.kill(os.getpid(), signal.SIGKILL)")
        )
        await line_in(tmp_path / "server.log", "child\nchild")
        assert await process.wait_exit() == -signal.SIGKILL
        assert len(processes_of(process.identity)) == 2
        proof = await process.stop(grace_s=0.2)
        assert len(proof.killed) == 2
        assert processes_of(process.identity) == []

    asyncio.run(scenario())


def test_a_neighbour_with_the_same_command_is_left_alone(tmp_path: Path) -> None:
    code = "import time; print('up', flush=True); time.sleep(600)"
    neighbour = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    try:

        async def scenario() -> None:
            process = start(tmp_path, code)
            await line_in(tmp_path / "server.log", "up")
            await process.stop(grace_s=5)

        asyncio.run(scenario())
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


def test_a_reused_pid_is_not_ours() -> None:
    me = psutil.Process()
    assert ProcessId(me.pid, me.create_time()).find() is not None
    assert ProcessId(me.pid, me.create_time() - 100).find() is None
    assert ProcessId(2**22 + 1, 0.0).find() is None


def test_stopping_what_is_gone_is_quick_and_kills_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    created = psutil.Process(child.pid).create_time()
    child.wait()
    identity = ServerIdentity(ProcessId(child.pid, created), session=child.pid, marker="none")
    proof = asyncio.run(stop_server(identity, grace_s=5))
    assert proof.killed == ()
    assert proof.took_s < 1


def test_a_server_never_shares_our_process_group(tmp_path: Path) -> None:
    async def scenario() -> None:
        process = start(tmp_path, "import time; time.sleep(600)")
        assert os.getpgid(process.identity.leader.pid) != os.getpgid(0)
        assert os.getsid(process.identity.leader.pid) == process.identity.session
        await process.stop(grace_s=5)

    asyncio.run(scenario())


def test_a_command_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="cannot start '/no/such/server': No such file"):
        LocalProcess.start(["/no/such/server"], env={}, log_path=tmp_path / "server.log")


def test_a_taken_port_is_not_free() -> None:
    import socket

    port = free_port()
    assert port_is_free(port)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert not port_is_free(port)
