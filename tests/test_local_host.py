"""Process trees are real here: started beside a supervisor, watched, stopped, and looked for afterwards."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from spectune.errors import EnvironmentFailed, HostUnreachable, TeardownUnproven
from spectune.hosts import supervisor
from spectune.hosts.host import Host, ServerSpec
from spectune.hosts.local import LocalShell, local_host
from spectune.hosts.supervised import SupervisedServer

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
FORGETFUL = """
import os, subprocess, sys, time
# twice forked, in a session of its own, without our variables: only a subreaper still knows it
code = "import os, sys, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\nif os.fork(): os._exit(0)\\n" \\
       "print('child', os.getpid(), flush=True)\\ntime.sleep(600)"
subprocess.run([sys.executable, "-c", code], env={"PATH": os.environ["PATH"]})
print("started", flush=True)
time.sleep(600)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def run(tmp_path: Path, scenario: Callable[[Host, Path], Awaitable[None]]) -> None:
    """Runs a scenario on a host whose records lie in ``tmp_path``, and shows that nothing of it is left."""

    async def all_of_it() -> None:
        async with local_host(tmp_path) as host:
            try:
                await scenario(host, tmp_path / "server.log")
            finally:
                for status in await host.servers():
                    if status.state == "running":
                        await (await host.attach(status.server_id)).stop(grace_s=0)
                    elif status.state == "orphaned":
                        await host.sweep(status.server_id)

    asyncio.run(all_of_it())


async def line_in(log: Path, text: str, *, times: int = 1) -> str:
    async with asyncio.timeout(20):
        while not log.exists() or log.read_text(encoding="utf-8").count(text) < times:
            await asyncio.sleep(0.01)
    return log.read_text(encoding="utf-8")


async def start(host: Host, log: Path, code: str, *, lease_s: float | None = 30.0) -> SupervisedServer:
    return await host.start(ServerSpec(argv=python(code), lease_s=lease_s), log_path=log)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_stop_ends_children_that_ignore_sigterm_and_left_the_session(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        server = await start(host, log, CHILDREN.format(stubborn=STUBBORN, then="time.sleep(600)"))
        await line_in(log, "child\n", times=2)
        assert (await server.vitals()).num_processes >= 1
        proof = await server.stop(grace_s=0.5)
        assert len(proof.killed) == 2
        assert proof.no_child_left is True
        assert not any(alive(pid) for pid in proof.killed)

    run(tmp_path, scenario)


def test_a_child_that_hid_from_everything_is_found_by_the_subreaper(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        server = await start(host, log, FORGETFUL)
        await line_in(log, "started")
        pid = int((await line_in(log, "child ")).split("child ")[1].split()[0])
        assert supervisor.marker_of(pid) is None
        await server.stop(grace_s=5)
        assert not alive(pid)

    run(tmp_path, scenario)


def test_the_end_of_the_leader_is_news_within_a_second_and_ends_its_children(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        server = await start(host, log, CHILDREN.format(stubborn=STUBBORN, then="time.sleep(600)"))
        await line_in(log, "child\n", times=2)
        began = time.monotonic()
        os.kill(server.leader_pid, signal.SIGKILL)
        ended = await server.wait_ended()
        assert time.monotonic() - began < 1.0
        assert (ended.reason, ended.exit_code) == ("exited", -signal.SIGKILL)
        proof = await server.stop(grace_s=5)
        assert len(proof.killed) == 2

    run(tmp_path, scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="executables are told apart by /proc")
@pytest.mark.parametrize("through_a_shell", [False, True])
def test_compilers_shells_and_git_end_as_they_like_and_a_worker_does_not(
    tmp_path: Path, through_a_shell: bool
) -> None:
    # the helpers are other executables under the names that engines' helpers have, and end when their input does
    names = [
        "gcc -O3 -shared launcher.c",
        "cicc --c++17 x.cpp",
        "ptxas -arch sm_90a",
        "git rev-parse HEAD",
        "lscpu",
    ]
    code = f"""
        import os, socket, subprocess, sys, time
        listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
        commands = [["bash", "-c", f"exec -a '{{name}}' cat"] for name in {names}] + [["sh", "-c", "cat && exit 3"]]
        held = [subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands]
        worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        print("started", flush=True)
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        for process in held:
            process.stdin.close()
        print("helpers ended with", [process.wait() for process in held], flush=True)
        worker.communicate(b"\\n")

        time.sleep(600)
    """

    async def scenario(host: Host, log: Path) -> None:
        (port,) = (await host.facts(free_ports=1)).free_ports
        argv = [*python(code), str(port), str(tmp_path / "go")]
        if through_a_shell:
            argv = ["bash", "-c", shlex.join(argv) + "; true"]
        spec = ServerSpec(argv=argv, ports=[port], lease_s=30.0)
        server = await host.start(spec, log_path=log)
        await line_in(log, "started")
        assert len(await server.mark_ready()) == 1 + through_a_shell
        (tmp_path / "go").touch()
        await line_in(log, "helpers ended with [0, 0, 0, 0, 0, 3]")
        ended = await server.wait_ended()
        assert ended.worker is not None
        assert ended.worker.command.endswith("input()")
        assert ended.worker.exit_code in (0, None)  # its parent may have collected it before it was looked at

    run(tmp_path, scenario)


def test_a_worker_that_dies_under_a_living_leader_is_the_end_of_the_server(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        server = await start(host, log, CHILDREN.format(stubborn=STUBBORN, then="time.sleep(600)"))
        await line_in(log, "child\n", times=2)
        workers = await server.mark_ready()
        assert len(workers) == 2
        began = time.monotonic()
        os.kill(workers[0], signal.SIGKILL)
        ended = await server.wait_ended()
        assert time.monotonic() - began < 1.0
        assert ended.reason == "worker"
        assert ended.worker is not None
        assert (ended.worker.pid, ended.worker.exit_code) == (workers[0], -signal.SIGKILL)

    run(tmp_path, scenario)


def test_a_compiler_that_fails_before_readiness_is_not_the_end(tmp_path: Path) -> None:
    code = """
        import subprocess, sys, time
        subprocess.run([sys.executable, "-c", "raise SystemExit(1)"])
        print("tried", flush=True)
        time.sleep(600)
    """

    async def scenario(host: Host, log: Path) -> None:
        server = await start(host, log, code)
        await line_in(log, "tried")
        await server.mark_ready()
        assert not server.ended.done()

    run(tmp_path, scenario)


def test_a_lease_that_nobody_renews_ends_the_server_and_leaves_a_record(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        server = await start(host, log, "import time; print('up', flush=True); time.sleep(600)", lease_s=1.0)
        await line_in(log, "up")
        pid = server.leader_pid
        await server.aclose()
        async with asyncio.timeout(10):
            while (await host.servers())[0].state != "ended":
                await asyncio.sleep(0.05)
        assert not alive(pid)
        ended = (await host.servers())[0].ended
        assert ended is not None
        assert ended.reason == "nobody renewed the lease"
        await host.forget(server.server_id)
        assert await host.servers() == []

    run(tmp_path, scenario)


def test_a_lease_is_renewed_while_we_live(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        server = await start(host, log, "import time; time.sleep(600)", lease_s=1.0)
        await asyncio.wait({server.ended}, timeout=2.5)
        assert not server.ended.done()

    run(tmp_path, scenario)


def test_another_spectune_can_take_hold_of_a_server(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        first = await start(host, log, "import time; print('up', flush=True); time.sleep(600)")
        await line_in(log, "up")
        await first.aclose()
        second = await host.attach(first.server_id, log_path=tmp_path / "copy.log")
        assert second.leader_pid == first.leader_pid
        await line_in(tmp_path / "copy.log", "up")
        await second.stop(grace_s=5)
        assert not alive(first.leader_pid)

    run(tmp_path, scenario)


def test_orphans_of_a_killed_supervisor_are_listed_and_swept_and_nobody_else(tmp_path: Path) -> None:
    code = CHILDREN.format(stubborn=STUBBORN, then="time.sleep(600)")
    decoy = subprocess.Popen(python(STUBBORN), stdout=subprocess.DEVNULL)
    try:

        async def scenario(host: Host, log: Path) -> None:
            server = await start(host, log, code)
            await line_in(log, "child\n", times=2)
            os.kill(server.supervisor_pid, signal.SIGKILL)
            ended = await server.wait_ended()
            assert ended.reason == "its supervisor was killed"
            (status,) = await host.servers()
            assert status.state == "orphaned"
            assert len(status.orphans) == 3
            proof = await server.stop(grace_s=1)
            assert not any(alive(pid) for pid in status.orphans)
            assert proof.no_child_left is (True if supervisor.IS_LINUX else None)

        run(tmp_path, scenario)
        assert decoy.poll() is None
    finally:
        decoy.kill()
        decoy.wait()


def test_a_neighbour_with_the_same_command_is_left_alone(tmp_path: Path) -> None:
    code = "import time; print('up', flush=True); time.sleep(600)"
    neighbour = subprocess.Popen(python(code), stdout=subprocess.DEVNULL)
    try:

        async def scenario(host: Host, log: Path) -> None:
            server = await start(host, log, code)
            await line_in(log, "up")
            await server.stop(grace_s=5)

        run(tmp_path, scenario)
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


def test_a_strangers_port_is_told_from_one_that_a_container_left_open(tmp_path: Path) -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        async def scenario(host: Host, log: Path) -> None:
            server = await host.start(
                ServerSpec(argv=python("import time; time.sleep(600)"), ports=[port]), log_path=log
            )
            assert not await server.owns(port)
            stranger = await server.stranger_on(port)
            assert stranger is not None
            assert stranger.pid == os.getpid()
            proof = await server.stop(grace_s=5)
            assert proof.ports_closed == ()
            assert proof.ports_taken[0].startswith(f"{port} by pid {os.getpid()} (")
            spec = ServerSpec(argv=python("import time; time.sleep(600)"), ports=[port], strict_ports=True)
            container = await host.start(spec, log_path=log)
            with pytest.raises(TeardownUnproven, match=f"port {port}, held by pid {os.getpid()}"):
                await container.stop(grace_s=5)

        run(tmp_path, scenario)


def test_the_listening_socket_of_a_child_is_the_servers(tmp_path: Path) -> None:
    code = """
        import os, socket, sys, time
        if os.fork() == 0:
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            print("port", listener.getsockname()[1], flush=True)
        time.sleep(600)
    """

    async def scenario(host: Host, log: Path) -> None:
        server = await start(host, log, code)
        port = int((await line_in(log, "port ")).split("port ")[1].split()[0])
        assert await server.owns(port)
        assert await server.stranger_on(port) is None

    run(tmp_path, scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="threads outlive the first one on Linux")
def test_a_process_whose_first_thread_has_ended_is_still_there_with_its_port() -> None:
    code = """
        import ctypes, platform, socket, threading, time
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=time.sleep, args=(600,)).start()
        print(listener.getsockname()[1], flush=True)
        ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit: this thread alone
    """
    process = subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        until_zombie = time.monotonic() + 20
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until_zombie
            time.sleep(0.01)
        seen = supervisor.read_process(process.pid)
        assert seen is not None and seen.is_alive and seen.exit_status is None
        owner = supervisor.port_owner(port)
        assert owner is not None and owner["pid"] == process.pid
        os.kill(process.pid, signal.SIGKILL)
        while (seen := supervisor.read_process(process.pid)) is not None and seen.is_alive:
            assert time.monotonic() < until_zombie
            time.sleep(0.01)
        assert seen is not None and seen.exit_status == signal.SIGKILL
        assert supervisor.port_owner(port) is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_command_that_is_not_there_says_so_and_leaves_no_record(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        with pytest.raises(EnvironmentFailed, match="cannot start '/no/such/server': No such file"):
            await host.start(ServerSpec(argv=["/no/such/server"]), log_path=log)
        assert await host.servers() == []

    run(tmp_path, scenario)


def test_arguments_and_variables_arrive_unharmed(tmp_path: Path) -> None:
    strange = ["two words", "a'b\"c", "line\nbreak", "$HOME `id` ;&|", "ünïcode 日本", "", "-x", "\\"]
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['STRANGE']]), flush=True)"

    async def scenario(host: Host, log: Path) -> None:
        spec = ServerSpec(argv=[sys.executable, "-c", code, *strange], env={"STRANGE": "\n".join(strange)})
        server = await host.start(spec, log_path=log)
        await server.wait_ended()
        import json

        words, variable = json.loads(log.read_text(encoding="utf-8"))
        assert words == strange
        assert variable == "\n".join(strange)

    run(tmp_path, scenario)


def test_a_folder_without_a_supervisor_is_unreachable_not_a_crash(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        with pytest.raises(HostUnreachable):
            await host.attach("no-such-server")

    run(tmp_path, scenario)


def test_a_path_longer_than_a_socket_name_may_be_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)

    async def scenario(host: Host, log: Path) -> None:
        server = await start(host, log, "import time; time.sleep(600)")
        await server.stop(grace_s=5)

    run(deep, scenario)


def test_free_ports_are_distinct_free_and_below_the_ephemeral_range(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        facts = await host.facts(free_ports=8)
        assert len(set(facts.free_ports)) == 8
        assert all(20000 <= port < 32000 and supervisor.can_bind(port) for port in facts.free_ports)

    run(tmp_path, scenario)


def test_the_supervisor_is_one_file_that_python_3_9_can_read() -> None:
    import ast

    text = Path(supervisor.__file__).read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 9))
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in (node.names if isinstance(node, ast.Import) else [ast.alias(node.module or "")])
    }
    assert imported <= set(sys.stdlib_module_names)


def test_processes_are_seen_the_same_through_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of systems without /proc, checked where both can be asked."""
    by_proc = supervisor.process_table()
    monkeypatch.setattr(supervisor, "IS_LINUX", False)
    by_ps = supervisor.process_table()
    me = os.getpid()
    assert by_ps[me].ppid == by_proc[me].ppid
    assert by_ps[me].sid == by_proc[me].sid
    assert abs(by_ps[me].start - psutil.Process(me).create_time()) < 2
    assert supervisor.read_process(me) is not None


def test_a_server_that_another_command_ended_and_forgot_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert supervisor.sweep(str(tmp_path / "gone")) == 0
    assert "the record of this server is gone; another command ended it" in capsys.readouterr().out
    (tmp_path / supervisor.STATUS).write_text("{")
    supervisor.sweep(str(tmp_path))
    assert "no record of a server" in capsys.readouterr().out


class CutOnce(LocalShell):
    """The way to the host is cut as a connection is opened, the first time."""

    has_been_cut = False

    async def open_channel(self, folder: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self.has_been_cut:
            self.has_been_cut = True
            raise HostUnreachable("cut")
        return await super().open_channel(folder)


def test_a_server_is_not_left_alone_when_the_way_is_cut_as_it_starts(tmp_path: Path) -> None:
    async def scenario() -> None:
        shell = CutOnce(tmp_path / "home")
        host = Host(shell)
        server = await host.start(
            ServerSpec(argv=python("import time; time.sleep(600)")), log_path=tmp_path / "server.log"
        )
        assert shell.has_been_cut
        assert (await server.stop(grace_s=5)).no_child_left
        await host.forget(server.server_id)
        assert await host.servers() == []

    asyncio.run(scenario())
