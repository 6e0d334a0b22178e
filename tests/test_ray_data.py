"""``drafter data --replicas`` on a real Ray cluster of several nodes on this machine, parts of it killed as they work.

The engine is the scripted fake one: what is tested is what is asked, kept and left running.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_cluster_fixture import RayNodes, ray_nodes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
pytest.importorskip("ray", reason="needs Ray: make test-ray")
pytest.importorskip("ray.data", reason="needs Ray Data: make test-ray")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: make test-ray")

STUDY = """\
question: none
host: ray
engine: {name: fake, flags: {FLAGS}}
target: fake-model
arms: [{name: draws, method: ngram, num_draft_tokens: 3}]
lease_s: 4
"""
SLOW = "tokens-per-s: 4"  # two seconds for an answer
TOKENS = 8


class Driver:
    """Runs ``spectune drafter data`` in a folder of its own, on the cluster."""

    def __init__(self, folder: Path, nodes: RayNodes) -> None:
        self.folder, self.nodes = folder, nodes
        self.env = {**os.environ, "RAY_ADDRESS": nodes.address, "SPECTUNE_HOME": str(folder / "home")}

    def study(self, flags: str) -> None:
        (self.folder / "study.yaml").write_text(STUDY.replace("FLAGS", flags), encoding="utf-8")

    def start(self, num_prompts: int, *more: str) -> subprocess.Popen[str]:
        words = ["drafter", "data", "--study", "study.yaml", "--out", "d", "--replicas", "3"]
        words += ["--generate", str(num_prompts), "--max-tokens", str(TOKENS), "--concurrency", "8"]
        return subprocess.Popen(
            [sys.executable, "-m", "spectune", *words, "--shard-size", "50", *more],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "stderr").open("a"),
            text=True,
        )

    def run(self, num_prompts: int, *more: str) -> int:
        process = self.start(num_prompts, *more)
        process.communicate(timeout=400)
        return process.returncode

    @property
    def said(self) -> str:
        return (self.folder / "stderr").read_text(encoding="utf-8")

    def processes(self) -> dict[int, int]:
        """The process that each replica has now, by its number."""
        found = re.findall(r"^replica (\d+) on \S+: process (\d+)", self.said, flags=re.MULTILINE)
        return {int(number): int(pid) for number, pid in found}

    def serving(self) -> set[int]:
        """Replicas of which a server has answered."""
        found = re.findall(r"^replica (\d+) on \S+: fake \S+ serves", self.said, flags=re.MULTILINE)
        return set(map(int, found))

    def nodes_in_use(self) -> dict[int, str]:
        found = re.findall(r"^replica (\d+) on (\S+): process", self.said, flags=re.MULTILINE)
        return {int(number): node for number, node in found}

    def num_written(self) -> int:
        journals = (self.folder / "d" / "journal").glob("*.jsonl")
        parts = [json.loads(p.read_text()) for p in (self.folder / "d" / "parts").glob("*.json")]
        return sum(len(p.read_bytes().splitlines()) for p in journals) + sum(p["num_prompts"] for p in parts)

    def check_exactly_once(self, num_prompts: int) -> dict[str, Any]:
        """Every prompt of the plan has one row, in its order; returns the manifest."""
        out = self.folder / "d"
        planned = [json.loads(line)["prompt"] for line in (out / "prompts.jsonl").open(encoding="utf-8")]
        assert len(planned) == num_prompts
        files = sorted((out / "parts").glob("*.parquet"))
        rows = [row for file in files for row in parquet.read_table(file).to_pylist()]
        assert [row["prompt_id"] for row in rows] == [prompt["prompt_id"] for prompt in planned], self.said
        assert all(sum(row["loss_mask"]) == TOKENS for row in rows)
        manifest: dict[str, Any] = json.loads((out / "manifest.json").read_text())
        counts = ("num_prompts", "num_answered", "num_rows", "num_failed", "num_retried")
        assert [manifest[name] for name in counts] == [num_prompts, num_prompts, num_prompts, 0, 0]
        assert manifest["complete"]
        assert "Traceback" not in self.said
        return manifest


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    with ray_nodes(tmp_path_factory.mktemp("home"), "a", "b", "c", "d") as nodes:
        yield nodes


@pytest.fixture
def driver(cluster: RayNodes, tmp_path: Path) -> Driver:
    return Driver(tmp_path, cluster)


def until(condition: Callable[[], object], *, within_s: float = 300.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_a_server_that_cannot_start_is_one_clear_error(driver: Driver, cluster: RayNodes) -> None:
    driver.study('die-in: load, die-message: "RuntimeError: no such weights"')
    assert driver.run(20) == 3
    last = driver.said.split("spectune: ")[1]
    assert re.match(r"replica \d on [abcd]: server exited with code 1", last), last
    assert "RuntimeError: no such weights" in last
    assert "0 of 20 samples are done and kept" in last
    assert "Traceback" not in driver.said
    assert cluster.servers() == []
    (log,) = re.findall(r"full log: (\S+)", last)
    assert "no such weights" in (driver.folder / log).read_text()


def test_ctrl_c_proves_every_server_gone_and_a_killed_driver_leaves_none_for_long(
    driver: Driver, cluster: RayNodes
) -> None:
    driver.study(SLOW)
    process = driver.start(120)
    until(lambda: driver.num_written() >= 20)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert process.returncode == 130, driver.said
    assert cluster.servers() == []
    assert driver.said.count("stopped, and its server is gone") == 3
    first = driver.num_written()
    process = driver.start(120)
    until(lambda: driver.num_written() >= first + 20)
    process.kill()
    process.wait()
    until(lambda: cluster.servers() == [], within_s=60)
    kept = driver.num_written()
    assert driver.run(120) == 0, driver.said
    manifest = driver.check_exactly_once(120)
    runs = manifest["runs"]
    assert [run["end"] is None for run in runs] == [True, True, False]
    assert sum(replica["num_samples"] for replica in runs[2]["end"]["replicas"]) == 120 - kept
    assert cluster.servers() == []


def test_a_replica_killed_twice_and_a_lost_node_cost_nothing_but_time(
    driver: Driver, cluster: RayNodes
) -> None:
    driver.study(SLOW)
    process = driver.start(500)
    until(lambda: {1, 2} <= driver.serving() and driver.num_written() >= 20)
    victim = driver.processes()[1]
    os.kill(victim, signal.SIGKILL)
    until(lambda: driver.processes()[1] != victim)
    again = driver.processes()[1]
    seen = driver.num_written()
    until(lambda: driver.num_written() >= seen + 20)
    os.kill(again, signal.SIGKILL)
    cluster.kill(driver.nodes_in_use()[2])
    process.communicate(timeout=400)
    assert process.returncode == 0, driver.said
    manifest = driver.check_exactly_once(500)
    begin, end = manifest["runs"][0]["begin"], manifest["runs"][0]["end"]
    assert (begin["replicas"], begin["engine"], len(manifest["runs"])) == (3, "fake", 1)
    assert Counter(replica["num_starts"] for replica in end["replicas"]) == {3: 1, 2: 1, 1: 1}
    assert sum(replica["num_samples"] for replica in end["replicas"]) == 500
    assert sum(replica["completion_tokens"] for replica in end["replicas"]) == 500 * TOKENS
    until(lambda: cluster.servers() == [], within_s=30)
