"""Servers over two nodes of a real Ray cluster on this machine: ranks, nodes and drivers killed while they work.

The engine is the scripted fake one, whose ranks are processes that meet; a real one runs in ``test_ray_nodes_engine``.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray_cluster_fixture import RayNodes, free_port, ray_nodes
from test_ray_host import FAST, SLOW, SLOWER, Driver, measured_on, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
pytest.importorskip("ray", reason="needs Ray: make test-ray")

TWO = "ray: {nodes: 2}\n"
FAULTY = """\
question: What becomes of ranks that do not come up?
host: ray://127.0.0.1:PORT
engine: {name: fake, ready_timeout_s: 8, flags: {tokens-per-s: 400, draft-cost: 0.1, fault-rank: 1}}
target: fake-model
arms:
  - {name: hangs, method: ngram, num_draft_tokens: 2, flags: {hang-in: load}}
  - {name: dies, method: ngram, num_draft_tokens: 3, flags: {die-in: load, die-message: "OSError: no such model"}}
  - {name: lasts, method: ngram, num_draft_tokens: 4, flags: {accept: "0.8"}}
workload: {prompts: builtin, num_prompts: 4, max_tokens: 20, ignore_eos: true, warmup_requests: 1}
noise_floor: false
lease_s: 4
ray: {nodes: 2}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    port = free_port()
    with ray_nodes(tmp_path_factory.mktemp("home"), "a", "b", ray_client_server_port=port) as nodes:
        nodes.client_port = port
        yield nodes


@pytest.fixture
def driver(cluster: RayNodes, tmp_path: Path) -> Iterator[Driver]:
    before = set(cluster.nodes)
    yield Driver(tmp_path, cluster)
    for name in set(cluster.nodes) - before:
        cluster.kill(name)


def ranks_alive(cluster: RayNodes) -> dict[str, psutil.Process]:
    """The servers' first processes by their rank."""
    found = {}
    for process in cluster.servers():
        words = process.cmdline()
        if "--node-rank" in words:
            found[words[words.index("--node-rank") + 1]] = process
    return found


def test_a_server_over_two_nodes_is_measured_and_recorded_rank_by_rank(
    driver: Driver, cluster: RayNodes
) -> None:
    driver.study(FAST + TWO)
    reply = driver.run()
    assert reply.returncode == 0, reply.stderr
    trials = driver.check_complete()
    assert {t["node"] for t in trials} == {"a+b"}
    assert cluster.servers() == []
    for trial in trials:
        assert [(r["rank"], r["node"]) for r in trial["ranks"]] == [(0, "a"), (1, "b")]
        assert all(r["stop"]["no_child_left"] for r in trial["ranks"])
        assert all((driver.folders / trial["trial_id"] / r["log"]).stat().st_size for r in trial["ranks"])
    report = (driver.folder / "studies" / "study" / "report.md").read_text()
    assert "# on a (rank 0)" in report
    assert "# on b (rank 1)" in report


def test_a_killed_rank_ends_its_trial_at_once_and_no_other(driver: Driver, cluster: RayNodes) -> None:
    driver.study(SLOW + TWO)
    process = driver.start()
    until(lambda: measured_on(driver, "a+b") and "1" in ranks_alive(cluster))
    ranks_alive(cluster)["1"].kill()
    process.communicate(timeout=400)
    assert process.returncode == 1, driver.said
    trials = driver.trials()
    failed = [t for t in trials if t["status"] == "failed"]
    assert len(failed) == 1, driver.said
    failure = failed[0]["failure"]
    assert failure["cause"].startswith("rank 1 on b: killed by signal 9"), failure
    assert (failure["rank"], failure["node"], failure["exit_code"]) == (1, "b", -9)
    assert "rank 1 joined" in failure["log_tail"]
    assert failed[0]["ranks"][1]["ended"] == "exited, exit code -9"
    assert Counter(t["status"] for t in trials if t["arm"]["name"] != "baseline") == {
        "complete": 3,
        "failed": 1,
    }
    assert cluster.servers() == []


def test_nodes_killed_under_either_rank_cost_nothing_but_time(driver: Driver, cluster: RayNodes) -> None:
    """A follower's node of one set, rank 0's of the other: what is left serves together."""
    for name in ("w", "x", "y", "z"):
        cluster.add(name, resources={"spare": 1})
    cluster.wait()
    driver.study(SLOWER + "ray: {nodes: 2, cpus: 1, resources: {spare: 1}}\n")
    process = driver.start()
    until(lambda: measured_on(driver, "w+x") and measured_on(driver, "y+z"))
    cluster.kill("x")
    cluster.kill("y")
    process.communicate(timeout=500)
    assert process.returncode == 0, driver.said
    trials = driver.check_complete()
    assert {t["node"] for t in trials} >= {"w+z"}, driver.said
    assert driver.said.count(" is repeated elsewhere") == 2, driver.said
    assert "never retrieved" not in driver.said
    unfinished = [f for f in driver.folders.iterdir() if not (f / "trial.json").exists()]
    assert len(unfinished) == 2, driver.said
    until(lambda: cluster.servers() == [], within_s=30)


def test_ranks_that_never_come_up_are_named_and_the_study_goes_on(driver: Driver, cluster: RayNodes) -> None:
    """With the driver outside of the cluster."""
    driver.study(FAULTY.replace("PORT", str(cluster.client_port)))
    del driver.env["RAY_ADDRESS"]
    reply = driver.run()
    assert reply.returncode == 1, reply.stderr
    causes = {t["arm"]["name"]: t["failure"] and t["failure"]["cause"] for t in driver.trials()}
    assert causes["baseline"] is causes["lasts"] is None, causes
    assert "did not generate within 8 s" in causes["hangs"]
    assert re.search(r"rank 1 on b:\n(?:  .*\n)*  loading weights", causes["hangs"])
    assert causes["dies"] == "rank 1 on b: OSError: no such model"
    assert cluster.servers() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_an_interrupted_study(
    driver: Driver, cluster: RayNodes, number: signal.Signals
) -> None:
    driver.study(SLOW + TWO)
    process = driver.start()
    until(lambda: set(ranks_alive(cluster)) == {"0", "1"})
    process.send_signal(number)
    process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130, driver.said
        assert "Traceback" not in driver.said
        assert cluster.servers() == []
    until(lambda: cluster.servers() == [], within_s=30)


def test_too_few_nodes_are_one_clear_error(driver: Driver) -> None:
    driver.study(FAST + "ray: {nodes: 3}\n")
    reply = driver.run()
    assert reply.returncode == 3, reply.stderr
    assert "a server spans 3 nodes (`ray.nodes`), and only 2 of the" in reply.stderr
    assert "Traceback" not in reply.stderr
