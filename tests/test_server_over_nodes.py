"""A server over several nodes starts, dies and stops as one. The nodes are this machine, the relays this process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_cluster_run import nothing_left, until
from test_rank_commands import command_of

from spectune.cluster.relay import Relay, relayed_host
from spectune.engines.adapter import Rank
from spectune.engines.registry import adapter_for
from spectune.errors import NodeLost, ServerDied
from spectune.hosts.local import local_host
from spectune.hosts.supervisor import process_table
from spectune.runner.ports import PortPool
from spectune.server.lifecycle import Launched, LaunchPlan, Limits, serve
from spectune.server.phases import PhaseClock
from spectune.server.ranks import RankPlan

FAKE = adapter_for("fake")


@dataclass
class RelayLine:
    """To a relay in this process, until its node is lost."""

    relay: Relay
    is_lost: bool = False

    async def call(self, method: str, *args: object) -> Any:
        if self.is_lost:
            raise NodeLost("b: the node is gone")
        return await getattr(self.relay, method)(*args)


@dataclass
class Nodes:
    """Rank 0 here, rank 1 through a relay."""

    folder: Path
    line: RelayLine

    async def plan(self, **flags: Any) -> LaunchPlan:
        local = local_host(self.folder / "home")
        remote = relayed_host(self.line, name="b", home=str(self.folder / "home"))
        await local.reconnect()
        ports = PortPool(local)
        port, meeting = await ports.take(), await ports.take()
        first, second = (Rank(n, 2, "127.0.0.1", "127.0.0.1", meeting) for n in range(2))
        commands = [command_of(r, port, flags=flags) for r in (first, second)]
        log = self.folder / "server.log"
        follower = RankPlan(1, "b", commands[1], remote, self.folder / "server-rank1.log", owner="s#a+b#b")
        return LaunchPlan(
            command=commands[0],
            adapter=FAKE,
            host=local,
            port=port,
            log_path=log,
            limits=Limits(ready_s=20, settle_s=0.1, stop_grace_s=3),
            lease_s=5,
            owner="s#a+b#a",
            node="a",
            followers=(follower,),
            meeting_port=meeting,
        )


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path, RelayLine(Relay(tmp_path / "home")))


def scenario(nodes: Nodes, work: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60):
            await work
            assert await nothing_left(nodes.folder / "home")

    asyncio.run(whole())


@asynccontextmanager
async def served(plan: LaunchPlan, launched: Launched) -> AsyncIterator[Any]:
    async with serve(plan, clock=PhaseClock(), launched=launched) as handle:
        yield handle


def pids(launched: Launched) -> list[int]:
    return [state.server.leader_pid for state in launched.ranks if state.server is not None]


def test_the_death_of_a_follower_is_the_end_of_all_and_named(nodes: Nodes) -> None:
    launched = Launched()

    async def work() -> None:
        plan = await nodes.plan()
        with pytest.raises(ServerDied, match=r"^rank 1 on b: server exited with code -9") as raised:
            async with served(plan, launched) as handle:
                assert "rank 1 joined" in plan.log_path.read_text()
                assert all(pid in process_table() for pid in pids(launched))
                os.kill(pids(launched)[1], signal.SIGKILL)
                raise await handle.died()
        assert launched.stop is not None
        assert launched.stop.ports_closed == plan.ports
        assert (raised.value.rank, raised.value.node) == (1, "b")
        assert "rank 1 joined" in raised.value.log_tail
        assert (raised.value.log_path or "").endswith("server-rank1.log")

    scenario(nodes, work())
    assert not set(pids(launched)) & set(process_table())
    assert [state.ended is None for state in launched.ranks] == [True, False]
    assert all(state.stop is not None and state.stop.no_child_left for state in launched.ranks)
    assert "stop" in launched.ranks[1].clock.seconds


def test_a_lost_node_is_told_at_once_and_the_other_ranks_are_stopped(nodes: Nodes) -> None:
    launched = Launched()

    async def work() -> None:
        with pytest.raises(NodeLost, match=r"rank 1 on b: .*the node is gone"):
            async with served(await nodes.plan(), launched) as handle:
                nodes.line.is_lost = True
                raise await handle.died()
        assert pids(launched)[0] not in process_table()
        nodes.line.is_lost = (
            False  # whoever is there again finds what was left, unless its lease has ended it
        )
        for status in await local_host(nodes.folder / "home").servers():
            await local_host(nodes.folder / "home").sweep(
                status.server_id
            ) if status.state == "orphaned" else None
            os.kill(status.leader_pid, signal.SIGKILL)
        await until(lambda: pids(launched)[1] not in process_table())
        for status in await local_host(nodes.folder / "home").servers():
            await local_host(nodes.folder / "home").forget(status.server_id)

    scenario(nodes, work())
