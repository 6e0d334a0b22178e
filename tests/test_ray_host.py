"""Studies on a real Ray cluster of several nodes on this machine, nodes and drivers killed while they work.

The engine is the scripted fake one: what is tested is where trials run and what is written. The real engine runs in
``test_ray_embedded``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray_cluster_fixture import RayNodes, free_port, ray_nodes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
pytest.importorskip("ray", reason="needs Ray: make test-ray")

STUDY = """\
question: Which fake drafter pays?
host: ray
engine:
  name: fake
  flags: {tokens-per-s: SPEED, draft-cost: 0.1}
target: fake-model
arms:
  - {name: good, method: eagle3, drafter: d, num_draft_tokens: 3, flags: {accept: "0.8"}}
  - {name: fair, method: eagle3, drafter: d, num_draft_tokens: 2, flags: {accept: "0.6"}}
  - {name: poor, method: eagle3, drafter: d, num_draft_tokens: 2, flags: {accept: "0.3"}}
  - {name: dead, method: eagle3, drafter: d, num_draft_tokens: 2, flags: {accept: "0.0"}}
workload: {prompts: builtin, num_prompts: 6, max_tokens: 40, ignore_eos: true, warmup_requests: 1}
repetitions: 1
noise_floor: false
lease_s: 4
"""
FAST, SLOW = STUDY.replace("SPEED", "400"), STUDY.replace("SPEED", "60")
# Each measurement lasts long enough to kill two nodes in one, on a busy machine too.
SLOWER = STUDY.replace("SPEED", "30")
ARMS = {"good", "fair", "poor", "dead"}


class Driver:
    """Runs the command line in a folder of its own, on the cluster."""

    def __init__(self, folder: Path, nodes: RayNodes) -> None:
        self.folder, self.nodes = folder, nodes
        self.env = {**os.environ, "RAY_ADDRESS": nodes.address, "COLUMNS": "120"}
        self.env["SPECTUNE_HOME"] = str(folder / "home")

    def study(self, text: str) -> None:
        (self.folder / "study.yaml").write_text(text, encoding="utf-8")

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "spectune", "run", "study.yaml"],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "stderr").open("a"),
            text=True,
        )

    def run(self) -> subprocess.CompletedProcess[str]:
        process = self.start()
        output, _ = process.communicate(timeout=500)
        return subprocess.CompletedProcess([], process.returncode, output, self.said)

    @property
    def said(self) -> str:
        return (self.folder / "stderr").read_text(encoding="utf-8")

    @property
    def folders(self) -> Path:
        return self.folder / "studies" / "study" / "trials"

    def trials(self) -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in self.folders.glob("*/trial.json")]
        return sorted(found, key=lambda trial: trial["number"])

    def check_complete(self) -> list[dict[str, Any]]:
        """Every arm once, complete, beside baselines of its own node; returns the trials."""
        trials = self.trials()
        arms = [t for t in trials if t["arm"]["name"] != "baseline"]
        assert Counter(t["arm"]["name"] for t in arms) == dict.fromkeys(ARMS, 1), self.said
        assert {t["status"] for t in trials} == {"complete"}, self.said
        keys = Counter((t["arm_id"], t["repetition"]) for t in trials)
        assert max(keys.values()) == 1
        for node in {t["node"] for t in trials}:
            own = [t["arm"]["name"] for t in trials if t["node"] == node]
            assert own[0] == "baseline"
        for folder in self.folders.iterdir():
            if (folder / "trial.json").exists():
                requests = (folder / "requests.jsonl").read_text().splitlines()
                assert len(requests) == 6
                assert (folder / "server.log").stat().st_size > 0
        report = subprocess.run(
            [sys.executable, "-m", "spectune", "report", "studies/study", "--json"],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=True,
        )
        document = json.loads(report.stdout)
        # Which arm is shown to be fastest depends on where its plain decoding was measured; how fast each is does not.
        loads = {arm["name"]: arm["loads"][0]["speedup"] for arm in document["arms"] if arm["name"] in ARMS}
        assert max(loads, key=lambda name: loads[name]["value"]) == "good", loads
        return trials


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    port = free_port()
    with ray_nodes(tmp_path_factory.mktemp("home"), "a", "b", "c", ray_client_server_port=port) as nodes:
        nodes.client_port = port
        yield nodes


@pytest.fixture
def driver(cluster: RayNodes, tmp_path: Path) -> Iterator[Driver]:
    """What a test adds to the cluster goes with it."""
    before = set(cluster.nodes)
    yield Driver(tmp_path, cluster)
    for name in set(cluster.nodes) - before:
        cluster.kill(name)


def until(condition: Callable[[], object], *, within_s: float = 200.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_arms_run_side_by_side_with_a_baseline_on_each_node(driver: Driver, cluster: RayNodes) -> None:
    driver.study(FAST)
    reply = driver.run()
    assert reply.returncode == 0, reply.stderr
    trials = driver.check_complete()
    assert {t["node"] for t in trials} == {"a", "b", "c"}
    assert all(t["machine"]["cores"] == os.cpu_count() for t in trials)
    first = {t["node"]: t for t in reversed(trials)}
    started, ended = (
        max(t["started_at"] for t in first.values()),
        min(t["ended_at"] for t in first.values()),
    )
    assert started < ended, "the nodes' first trials did not overlap"
    assert cluster.servers() == []
    again = driver.run()
    assert again.returncode == 0
    assert "nothing left to do" in again.stdout
    assert len(driver.trials()) == len(trials)


def test_two_nodes_killed_in_a_measurement_cost_nothing_but_time(driver: Driver, cluster: RayNodes) -> None:
    for name in ("x", "y", "z"):
        cluster.add(name, resources={"spare": 1})
    cluster.wait()
    driver.study(SLOWER + "ray: {cpus: 1, resources: {spare: 1}}\n")
    process = driver.start()
    for name in ("x", "y"):
        until(partial(measured_on, driver, name))
        cluster.kill(name)
    process.communicate(timeout=500)
    assert process.returncode == 0, driver.said
    trials = driver.check_complete()
    assert driver.said.count(" is repeated elsewhere") == 2
    unfinished = [f for f in driver.folders.iterdir() if not (f / "trial.json").exists()]
    assert len(unfinished) == 2, driver.said
    assert len(trials) + 2 == len(list(driver.folders.iterdir()))
    until(lambda: cluster.servers() == [], within_s=30)


def measured_on(driver: Driver, place: str) -> bool:
    """Whether an arm other than the baseline is being measured there."""
    found = sorted(driver.folders.glob("*/progress.json"))
    for progress in found:
        name = progress.parent.name
        is_baseline = name.partition("-")[2] == found[0].parent.name.partition("-")[2]
        if is_baseline or progress.with_name("trial.json").exists():
            continue
        now = json.loads(progress.read_text())
        if (now["hostname"], now["phase"]) == (place, "measure"):
            return True
    return False


def test_a_killed_driver_leaves_nothing_running_and_its_study_goes_on(
    driver: Driver, cluster: RayNodes
) -> None:
    driver.study(SLOW)
    process = driver.start()
    until(lambda: len(cluster.servers()) >= 2 and driver.trials())
    process.kill()
    process.wait()
    finished = [t["trial_id"] for t in driver.trials()]
    until(lambda: cluster.servers() == [], within_s=60)
    driver.study(SLOW)
    reply = driver.run()
    assert reply.returncode == 0, reply.stderr
    assert [t["trial_id"] for t in driver.check_complete()][: len(finished)] == finished
    assert cluster.servers() == []


def test_ctrl_c_proves_every_server_gone_before_it_returns(driver: Driver, cluster: RayNodes) -> None:
    driver.study(SLOW)
    process = driver.start()
    until(lambda: len(cluster.servers()) >= 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130, driver.said
    assert "Resume with: spectune run studies/study" in driver.said
    assert "Traceback" not in driver.said
    assert cluster.servers() == []


def test_devices_that_ray_gave_are_in_the_record_and_two_trials_share_a_node(
    driver: Driver, cluster: RayNodes
) -> None:
    cluster.add("g", num_cpus=2, num_gpus=2)
    cluster.wait()
    driver.study(FAST + "ray: {gpus: 1, cpus: 1, trials_per_node: 2}\n")
    reply = driver.run()
    assert reply.returncode == 0, reply.stderr
    trials = driver.check_complete()
    devices = {(t["node"], t["env"]["CUDA_VISIBLE_DEVICES"]) for t in trials}
    assert {node for node, _ in devices} == {"g/0", "g/1"}
    assert {device for _, device in devices} == {"0", "1"}
    assert len(devices) == 2, "a lane keeps its devices"


def test_a_node_of_another_kind_is_named_and_not_used(
    driver: Driver, cluster: RayNodes, tmp_path: Path
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\ncase \"$*\" in *compute-apps*) ;; *) echo '0, GPU-1, Fake H9, 600.1, 0, 80000, 0';; esac\n"
    )
    tool.chmod(0o755)
    cluster.add("odd", env_vars={"PATH": f"{tool.parent}:{os.environ['PATH']}"})
    cluster.wait()
    driver.study(FAST)
    reply = driver.run()
    assert reply.returncode == 0, reply.stderr
    assert "not used: odd: it is another kind of machine" in reply.stderr
    assert "odd" not in {t["node"] for t in driver.check_complete()}


def test_the_driver_may_be_outside_of_the_cluster(driver: Driver, cluster: RayNodes) -> None:
    """Through the port that the head keeps for clients."""
    driver.study(FAST.replace("host: ray\n", f"host: ray://127.0.0.1:{cluster.client_port}\n"))
    del driver.env["RAY_ADDRESS"]
    reply = driver.run()
    assert reply.returncode == 0, reply.stderr
    assert len({t["node"] for t in driver.check_complete()}) == 3
    assert cluster.servers() == []


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (("", "ray: {gpus: 3}\n"), 3, "none of the 4 nodes of the cluster has 3 GPU"),
        (("host: ray\n", "host: ray\norder: abba\n"), 2, "abba is for one host"),
        (("host: ray\n", "host: local\nray: {gpus: 1}\n"), 2, "ray: is for `host: ray`"),
    ],
)
def test_bad_requests_are_one_clear_error(
    driver: Driver, change: tuple[str, str], code: int, words: str
) -> None:
    driver.study(FAST.replace(*change) if change[0] else FAST + change[1])
    reply = driver.run()
    assert reply.returncode == code, reply.stderr
    assert words in reply.stderr
    assert "Traceback" not in reply.stderr


def test_without_a_cluster_it_says_how_to_start_one(driver: Driver) -> None:
    driver.env["RAY_ADDRESS"] = "127.0.0.1:1"
    driver.study(FAST)
    reply = driver.run()
    assert reply.returncode == 3
    assert "no Ray cluster" in reply.stderr
    assert "ray start --head" in reply.stderr
    assert "Traceback" not in reply.stderr
