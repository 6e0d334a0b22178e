"""Servers in containers of a real Docker engine: stopped, removed and proven gone, whatever happens to whom."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_engine import IMAGE, docker, mounts, program, why_no_engine
from test_local_host import line_in, run

from spectune.engines.containers import LABEL
from spectune.hosts import supervisor
from spectune.hosts.host import Host, ServerSpec
from spectune.hosts.supervised import SupervisedServer

pytestmark = [pytest.mark.docker]
SERVE = """
import time
print("serving", flush=True)
time.sleep(600)
"""
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)" + SERVE
SILENT = SERVE.replace("time.sleep(600)", "while True: pass")


@pytest.fixture(autouse=True, scope="module")
def engine() -> None:
    reason = why_no_engine()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def nothing_left(engine: None) -> Iterator[None]:
    before = set(docker("ps", "-aq", "--filter", f"label={LABEL}").split())
    yield
    assert set(docker("ps", "-aq", "--filter", f"label={LABEL}").split()) == before


def words(code: str, *options: str) -> list[str]:
    command = [IMAGE, program(), "-c", textwrap.dedent(code)]
    return ["docker", "run", "--rm", "--network", "host", *options, *mounts(), *command]


async def started(
    host: Host, log: Path, code: str, *options: str, lease_s: float | None = 30.0
) -> SupervisedServer:
    server = await host.start(ServerSpec(argv=words(code, *options), lease_s=lease_s), log_path=log)
    await line_in(log, "serving")
    return server


def containers_of(server: SupervisedServer) -> list[str]:
    return docker("ps", "-q", "--no-trunc", "--filter", f"label={LABEL}={server.marker}").split()


@pytest.mark.parametrize("options", [(), ("--init",), ("--name", "mine"), ("--pid", "host")])
def test_a_server_that_ignores_sigterm_is_stopped_removed_and_proven_gone(tmp_path: Path, options) -> None:
    async def scenario(host: Host, log: Path) -> None:
        server = await started(host, log, STUBBORN, *options)
        ids = containers_of(server)
        proof = await server.stop(grace_s=1)
        assert len(ids) == 1
        assert list(proof.containers_gone) == ids
        assert proof.no_child_left is True

    run(tmp_path, scenario)


def test_work_inside_is_a_sign_of_life_though_the_log_is_silent(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        server = await started(host, log, SILENT)
        async with asyncio.timeout(30):
            first = await server.vitals()
            while (await server.vitals()).cpu_s < first.cpu_s + 0.5:
                await asyncio.sleep(0.05)

    run(tmp_path, scenario)


def test_a_container_that_is_renamed_is_still_ours_and_its_neighbour_is_not(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        neighbour = docker("run", "-d", "--network", "host", *mounts(), IMAGE, program(), "-c", SERVE)
        try:
            one = await started(host, log, SERVE)
            other = await started(host, log.with_name("other.log"), SERVE)
            docker("rename", containers_of(one)[0], "renamed")
            assert (await one.stop(grace_s=1)).containers_gone
            assert len(containers_of(other)) == 1
            assert (await other.stop(grace_s=1)).containers_gone
            assert docker("inspect", "--format", "{{.State.Running}}", neighbour) == "true"
        finally:
            docker("rm", "-f", neighbour)

    run(tmp_path, scenario)


def test_a_lease_that_nobody_renews_ends_the_container(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        server = await started(host, log, SERVE, lease_s=1.0)
        server_id, marker = server.server_id, server.marker
        await server.aclose()
        async with asyncio.timeout(60):
            while [s.state for s in await host.servers() if s.server_id == server_id] != ["ended"]:
                await asyncio.sleep(0.1)
        assert docker("ps", "-aq", "--filter", f"label={LABEL}={marker}") == ""

    run(tmp_path, scenario)


def test_a_container_of_a_killed_supervisor_is_an_orphan_until_it_is_swept(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        server = await started(host, log, STUBBORN)
        ids = containers_of(server)
        await server.vitals()
        status = await asyncio.to_thread(supervisor.read_record, str(tmp_path / "servers" / server.server_id))
        await server.aclose()
        os.kill(status["supervisor"][0], signal.SIGKILL)
        async with asyncio.timeout(30):
            while (await host.servers())[0].state != "orphaned":
                await asyncio.sleep(0.05)
        assert list((await host.sweep(server.server_id)).containers_gone) == ids

    run(tmp_path, scenario)


def test_a_client_that_is_killed_ends_the_server_and_its_container(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        server = await started(host, log, SERVE)
        os.kill(server.leader_pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            ended = await server.wait_ended()
        assert "while it ran" in ended.reason
        assert (await server.stop(grace_s=1)).containers_gone

    run(tmp_path, scenario)


def test_memory_that_runs_out_inside_is_told_by_the_runtime(tmp_path: Path) -> None:
    code = "print('serving', flush=True)\nheld = [bytearray(1 << 20) for _ in range(4096)]"

    async def scenario(host: Host, log: Path) -> None:
        server = await started(host, log, code, "--memory", "64m", "--memory-swap", "64m")
        async with asyncio.timeout(60):
            ended = await server.wait_ended()
        assert (ended.exit_code, ended.num_oom_kills) == (137, 1)
        await server.stop(grace_s=1)

    run(tmp_path, scenario)


def test_a_server_inside_a_running_box_is_ended_and_the_box_is_not(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        box = docker("run", "-d", "--network", "host", *mounts(), IMAGE, program(), "-c", SERVE)
        try:
            argv = ["docker", "exec", box, program(), "-c", STUBBORN]
            server = await host.start(ServerSpec(argv=argv), log_path=log)
            await line_in(log, "serving")
            inside: list[int] = []
            async with asyncio.timeout(30):
                while not inside:  # it is the daemon's child, and found at the next look
                    pids = (await server.vitals()).pids
                    inside = [pid for pid in pids if "docker" not in supervisor.command_of(pid)]
                    await asyncio.sleep(0.05)
            proof = await server.stop(grace_s=1)
            assert len(inside) == 1
            assert inside[0] in proof.killed
            assert docker("inspect", "--format", "{{.State.Running}}", box) == "true"
        finally:
            docker("rm", "-f", box)

    run(tmp_path, scenario)


def test_no_container_is_made_by_a_client_that_is_stopped_at_once(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        for _ in range(3):
            server = await host.start(ServerSpec(argv=words(SERVE)), log_path=log)
            await server.stop(grace_s=1)
            assert docker("ps", "-aq", "--filter", f"label={LABEL}={server.marker}") == ""

    run(tmp_path, scenario)


def test_a_daemon_that_cannot_be_reached_leaves_nothing_to_be_proven(tmp_path: Path) -> None:
    async def scenario(host: Host, log: Path) -> None:
        argv = ["docker", "--host", f"unix://{tmp_path}/no.sock", *words(SERVE)[1:]]
        server = await host.start(ServerSpec(argv=argv), log_path=log)
        async with asyncio.timeout(30):
            ended = await server.wait_ended()
        assert ended.exit_code == 125
        proof = await server.stop(grace_s=1)
        assert proof.containers_gone == ()

    run(tmp_path, scenario)
