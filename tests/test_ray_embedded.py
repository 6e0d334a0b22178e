"""The real llama.cpp engine on a Ray cluster of three nodes, two of which are killed while they measure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from ray_cluster_fixture import ray_nodes

from spectune.home import data_home

pytestmark = [pytest.mark.ray, pytest.mark.embedded, pytest.mark.timeout(600)]
pytest.importorskip("ray", reason="needs Ray: make test-ray")

STUDY = """\
question: What does the shipped draft bring?
host: ray
engine: {name: llamacpp, flags: {threads: 1}}
target: smollm2-135m-instruct
drafter: smollm2-135m-eagle3
arms:
  - {name: eagle3-k2, method: eagle3, num_draft_tokens: 2}
  - {name: ngram-k3, method: ngram, num_draft_tokens: 3}
workload: {prompts: "builtin:code", num_prompts: 4, max_tokens: 48, ignore_eos: true, warmup_requests: 1}
noise_floor: false
lease_s: 5
"""


def test_real_servers_survive_the_loss_of_two_nodes_and_nothing_is_left(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(data_home() / "models")  # fetched once per machine
    with ray_nodes(home, "a", "b", "c") as nodes:
        (tmp_path / "study.yaml").write_text(STUDY)
        process = subprocess.Popen(
            [sys.executable, "-m", "spectune", "run", "study.yaml"],
            cwd=tmp_path,
            env={**os.environ, "RAY_ADDRESS": nodes.address},
            stdout=subprocess.DEVNULL,
            stderr=(tmp_path / "stderr").open("w"),
        )
        folder = tmp_path / "studies" / "study" / "trials"
        killed: list[str] = []
        while process.poll() is None:
            time.sleep(0.1)
            for line in (tmp_path / "stderr").read_text().splitlines():
                node = line.rpartition("launch 1 on ")[2][:1]
                if line.startswith("[") and "baseline" not in line and len(killed) < 2 and node not in killed:
                    nodes.kill(node)
                    killed.append(node)
        said = (tmp_path / "stderr").read_text()
        assert process.returncode == 0, said
        assert len(killed) == 2, said
        deadline = time.monotonic() + 30
        while nodes.servers() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert nodes.servers() == []
    trials = [json.loads(path.read_text()) for path in sorted(folder.glob("*/trial.json"))]
    arms = Counter(t["arm"]["name"] for t in trials if t["arm"]["name"] != "baseline")
    assert arms == {"eagle3-k2": 1, "ngram-k3": 1}
    assert {t["status"] for t in trials} == {"complete"}
    assert all(t["server"]["engine"] == "llamacpp" and t["stop"]["no_child_left"] for t in trials)
    survivor = ({"a", "b", "c"} - set(killed)).pop()
    assert {t["node"] for t in trials if t["arm"]["name"] != "baseline"} == {survivor}
    report = json.loads((tmp_path / "studies" / "study" / "report.json").read_text())
    verdicts = {a["name"]: a["loads"][0]["verdict"] for a in report["arms"]}
    assert verdicts["eagle3-k2"] is not None and verdicts["ngram-k3"] is not None
