"""The command of each rank of a server over several nodes."""

from __future__ import annotations

from typing import Any

import pytest

from spectune.domain.arm import Arm, Knobs
from spectune.engines.adapter import Command, EngineSetup, Launch, Rank
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput


def command_of(rank: Rank, port: int = 30000, engine: str = "fake", **setup: Any) -> Command:
    arm = Arm(name="x", engine=engine, target="m", knobs=Knobs(method="none"))
    launch = Launch(arm, EngineSetup(engine, **setup), "127.0.0.1", port, "m", None, 1, rank)
    return adapter_for(engine).command(launch)


def ranks(of: int = 2, head: str = "10.0.0.1") -> list[Rank]:
    return [Rank(n, of, f"10.0.0.{n + 1}", head, 29000) for n in range(of)]


def test_vllm_followers_are_headless_and_every_rank_says_its_own_address() -> None:
    flags = {"tensor-parallel-size": 2}
    first, second = (command_of(r, engine="vllm", python="py", flags=flags) for r in ranks())
    shared = "--nnodes 2 --node-rank {} --master-addr 10.0.0.1 --master-port 29000 --distributed-executor-backend mp"
    assert shared.format(0) in " ".join(first.argv)
    assert "--port 30000" in " ".join(first.argv)
    assert "--headless" not in first.argv
    assert second.argv[:5] == ("py", "-m", "vllm.entrypoints.cli.main", "serve", "m")
    assert shared.format(1) + " --headless" in " ".join(second.argv)
    assert "--port" not in second.argv
    assert [c.env["VLLM_HOST_IP"] for c in (first, second)] == ["10.0.0.1", "10.0.0.2"]
    assert [c.listens for c in (first, second)] == [True, False]


def test_sglang_ranks_meet_at_the_first_and_each_has_a_port() -> None:
    first, second = (command_of(r, engine="sglang", python="py") for r in ranks(head="fd00::1"))
    assert " ".join(first.argv).count("--nnodes 2 --node-rank 0 --dist-init-addr [fd00::1]:29000") == 1
    assert "--node-rank 1" in " ".join(second.argv)
    assert "--port 30000" in " ".join(second.argv)
    assert second.listens


@pytest.mark.parametrize(
    ("engine", "flags", "words"),
    [
        ("vllm", {"nnodes": 2}, "spectune sets --nnodes"),
        ("vllm", {"data-parallel-size": 2}, "2 copies of a server over several nodes"),
        ("sglang", {"dist-init-addr": "x:1"}, "spectune sets --dist-init-addr"),
        ("sglang", {"dp-size": 2}, "SGLang refuses 2 copies"),
        ("llamacpp", {}, "rpc-server"),
    ],
)
def test_flags_that_contradict_several_nodes_are_refused(
    engine: str, flags: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        command_of(ranks()[0], engine=engine, flags=flags)
