"""Servers behind a real ``sshd`` on 127.0.0.1."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from sshd_fixture import Sshd, running_sshd, sshd  # noqa: F401 - a fixture

from spectune.errors import BadInput, EnvironmentFailed, HostUnreachable
from spectune.hosts.host import Host, ServerSpec
from spectune.hosts.ssh import ssh_host

STRANGE = ["two words", "a'b\"c", "line\nbreak", "$HOME `id` ;&|", "ünïcode 日本", "", "-x", "\\", "~"]


def run(destination: str, scenario: Callable[[Host], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with ssh_host(destination) as host:
            await scenario(host)

    asyncio.run(all_of_it())


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def line_in(log: Path, text: str) -> str:
    async with asyncio.timeout(20):
        while not log.exists() or text not in log.read_text(encoding="utf-8"):
            await asyncio.sleep(0.01)
    return log.read_text(encoding="utf-8")


def test_arguments_and_variables_cross_the_shell_unharmed(sshd: Sshd, tmp_path: Path) -> None:  # noqa: F811
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['STRANGE']]), flush=True)"

    async def scenario(host: Host) -> None:
        log = tmp_path / "server.log"
        spec = ServerSpec(argv=[sys.executable, "-c", code, *STRANGE], env={"STRANGE": "\n".join(STRANGE)})
        server = await host.start(spec, log_path=log)
        await server.wait_ended()
        await server.stop(grace_s=1)
        words, variable = json.loads(log.read_text(encoding="utf-8"))
        assert words == STRANGE
        assert variable == "\n".join(STRANGE)

    run(sshd.destination, scenario)


def test_a_remote_server_is_followed_reached_and_proven_gone(sshd: Sshd, tmp_path: Path) -> None:  # noqa: F811
    code = """
        import http.server, sys
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200); self.end_headers(); self.wfile.write(b"there")
        server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
        print("listening", flush=True)
        server.serve_forever()
    """

    async def scenario(host: Host) -> None:
        facts = await host.facts(free_ports=1, gpus=True)
        port = facts.free_ports[0]
        log = tmp_path / "server.log"
        server = await host.start(ServerSpec(argv=[*python(code), str(port)], ports=[port]), log_path=log)
        await line_in(log, "listening")
        assert await server.owns(port)
        local = await host.reach(port)
        assert local != port
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"there")
        writer.close()
        proof = await server.stop(grace_s=5)
        assert proof.no_child_left is True
        assert proof.ports_closed == (port,)
        assert not alive(server.leader_pid)

    run(sshd.destination, scenario)


def test_a_cut_connection_is_survived_and_the_forwarded_port_comes_back(sshd: Sshd, tmp_path: Path) -> None:  # noqa: F811
    async def scenario(host: Host) -> None:
        log = tmp_path / "server.log"
        code = "import time\nfor n in range(10**6): print('tick', n, flush=True); time.sleep(0.05)"
        server = await host.start(ServerSpec(argv=python(code), lease_s=60), log_path=log)
        local = await host.reach(29999)
        await line_in(log, "tick 5\n")
        assert sshd.cut() >= 1
        await server.dropped.wait()
        await server.until_connected()
        assert psutil.pid_exists(server.leader_pid)
        assert await host.reach(29999) == local
        ticks = len(log.read_text(encoding="utf-8").splitlines())
        await line_in(log, f"tick {ticks + 20}\n")
        numbers = [
            line.split()[1] for line in log.read_text(encoding="utf-8").splitlines() if "tick " in line
        ]
        assert numbers[: len(numbers) - 1] == [str(n) for n in range(len(numbers) - 1)], "each line once"
        await server.stop(grace_s=1)

    run(sshd.destination, scenario)


def test_a_server_whose_spectune_stays_away_is_stopped_by_its_lease(sshd: Sshd, tmp_path: Path) -> None:  # noqa: F811
    async def scenario(host: Host) -> None:
        spec = ServerSpec(
            argv=python("import time; time.sleep(600)"), lease_s=6.0
        )  # longer than a busy machine takes to stop sshd
        server = await host.start(spec, log_path=tmp_path / "server.log")
        sshd.stop()
        with pytest.raises(HostUnreachable):
            host.patience_s = lambda _lease_s: 3.0  # type: ignore[method-assign]
            await server.wait_ended()
        async with asyncio.timeout(60):
            while alive(server.leader_pid):
                await asyncio.sleep(0.05)
        sshd.start_again()
        async with ssh_host(sshd.destination) as later:
            (status,) = await later.servers()
            assert status.state == "ended"
            assert status.ended is not None
            assert status.ended.reason == "nobody renewed the lease"
        await server.aclose()

    run(sshd.destination, scenario)


def test_a_killed_remote_supervisor_leaves_orphans_that_are_swept(sshd: Sshd, tmp_path: Path) -> None:  # noqa: F811
    async def scenario(host: Host) -> None:
        log = tmp_path / "server.log"
        server = await host.start(
            ServerSpec(argv=python("import time; print('up', flush=True); time.sleep(600)")), log_path=log
        )
        await line_in(log, "up")
        os.kill(server.supervisor_pid, signal.SIGKILL)
        assert (await server.wait_ended()).reason == "its supervisor was killed"
        await server.stop(grace_s=1)
        assert not alive(server.leader_pid)

    run(sshd.destination, scenario)


def test_nothing_of_ours_holds_the_connection_when_we_are_gone(sshd: Sshd) -> None:  # noqa: F811
    async def scenario(host: Host) -> None:
        await host.facts()

    run(sshd.destination, scenario)
    deadline = 100
    while sshd.sessions() and deadline:
        deadline -= 1
        signal.sigtimedwait([], 0.05)
    assert sshd.sessions() == []


def test_refused_wrong_key_and_unknown_host_say_so(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    async def nothing(host: Host) -> None:
        raise AssertionError("connected")

    (sshd.folder / "authorized_keys").write_text("", encoding="utf-8")
    with pytest.raises(HostUnreachable, match="Permission denied"):
        run(sshd.destination, nothing)
    (sshd.folder / "known_hosts").write_text("", encoding="utf-8")
    with pytest.raises(HostUnreachable, match="Host key verification failed"):
        run(sshd.destination, nothing)
    sshd.stop()
    with pytest.raises(HostUnreachable, match="refused"):
        run(sshd.destination, nothing)
    sshd.start_again()
    monkeypatch.setenv("SPECTUNE_SSH_COMMAND", "/no/such/ssh")
    with pytest.raises(HostUnreachable, match="cannot run /no/such/ssh"):
        run(sshd.destination, nothing)


def test_a_host_without_python_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    with running_sshd(tmp_path / "sshd", path=str(empty)) as daemon:
        monkeypatch.setenv("SPECTUNE_SSH_COMMAND", daemon.ssh_command)

        async def nothing(host: Host) -> None:
            raise AssertionError("connected")

        # The master runs `cat`, which an empty PATH has not either: only python3 must be missed.
        (empty / "cat").symlink_to("/bin/cat")
        with pytest.raises(EnvironmentFailed, match=r"nothing on testhost but python3 3\.9 or later"):
            run(daemon.destination, nothing)


@pytest.mark.parametrize("text", ["-oProxyCommand=id", "a b", "host;id", "$(id)", ""])
def test_a_destination_that_could_be_an_option_or_a_command_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="destination"):
        ssh_host(text)
