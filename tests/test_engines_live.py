"""The live checks: real vLLM and real SGLang (its CPU kernels replaced), through the command line of a study.

Speeds seen here are not SGLang's: never quote them. ``make engines`` makes the environments.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_engines import engine_of, model_of

from spectune.domain.arm import Arm, Knobs
from spectune.engines.adapter import EngineSetup, Launch
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput
from spectune.hosts.supervisor import MARKER
from spectune.store.study_dir import StudyDir

pytestmark = [pytest.mark.engine, pytest.mark.timeout(5400)]
ROOT = Path(__file__).parent.parent
TRAINED = ROOT / "src" / "spectune" / "embedded" / "drafts" / "smollm2-135m-eagle3"


THIS_TEST = "PROCESSES_OF_THIS_TEST"


@pytest.fixture(autouse=True)
def known_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test starts inherits a variable of its own."""
    monkeypatch.setenv(THIS_TEST, str(tmp_path))


def run_study(folder: Path, study: dict[str, Any], *extra: str) -> dict[str, Any]:
    """Runs a study to its end and returns its report; no server may be left."""
    path = folder / "study.yaml"
    path.write_text(json.dumps(study), encoding="utf-8")  # JSON is YAML
    reply = subprocess.run(
        [sys.executable, "-m", "spectune", "run", str(path), "--dir", str(folder / "out"), "--json", *extra],
        capture_output=True,
        text=True,
        timeout=5000,
    )
    assert reply.stdout, reply.stderr[-3000:]
    assert left_over() == []
    report: dict[str, Any] = json.loads(reply.stdout)
    failed = {
        t["trial_id"]: (t["cause"], t["failure"]["log_tail"])
        for t in report["trials"]
        if t["status"] != "complete"
    }
    assert failed == {}
    assert reply.returncode == 0
    return report


def left_over() -> list[psutil.Process]:
    """Living processes that carry a marker and were started by this test, whatever else runs on the machine."""
    found = []
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            if (
                MARKER in environ
                and environ.get(THIS_TEST) == os.environ[THIS_TEST]
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def check_own_counts_against_counters(folder: Path) -> int:
    """Acceptance summed over requests equals the server's counter differences to the token; trials checked."""
    checked = 0
    for trial in StudyDir.open(folder / "out").read_trials():
        for load in trial.loads:
            before, after = load.counters_before, load.counters_after
            assert before is not None and after is not None
            assert load.foreign_tokens == 0
            if trial.arm.knobs.method == "none" or before.acceptance is None or after.acceptance is None:
                continue
            own = load.acceptance
            assert own is not None and load.acceptance_source == "per-request"
            assert own.num_drafts == (after.acceptance.num_drafts or 0) - (before.acceptance.num_drafts or 0)
            assert (
                own.num_draft_tokens == after.acceptance.num_draft_tokens - before.acceptance.num_draft_tokens
            )
            assert (
                own.num_accepted_tokens
                == after.acceptance.num_accepted_tokens - before.acceptance.num_accepted_tokens
            )
            checked += 1
    return checked


def arms_by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {arm["name"]: {**arm, **arm["loads"][0]} for arm in report["arms"]}


def test_vllm_none_ngram_and_two_eagle3_drafts(tmp_path: Path) -> None:
    engine = engine_of("vllm")
    report = run_study(
        tmp_path,
        {
            "question": "Does spectune see what vLLM does?",
            "engine": {
                "name": "vllm",
                "python": engine["python"],
                "env": engine["env"],
                "flags": {"max-model-len": 2048, "gpu-memory-utilization": 0.5},
            },
            "target": model_of("smollm2-135m-instruct-hf"),
            "factors": {"method": ["none"]},
            "arms": [
                {"name": "ngram", "method": "ngram", "num_draft_tokens": 3, "cuda_graphs": False},
                {"name": "trained", "method": "eagle3", "drafter": str(TRAINED), "num_draft_tokens": 3,
                 "cuda_graphs": False},
                {"name": "random", "method": "eagle3", "drafter": model_of("smollm2-135m-instruct-random-draft"),
                 "num_draft_tokens": 3, "cuda_graphs": False},
            ],
            "workload": {"num_prompts": 6, "max_tokens": 32, "concurrency": [1, 3], "requests_per_load": 6},
            "noise_floor": False,
            "baseline_every": 4,
        },
        "--set", "engine.flags.enforce-eager=true",
    )  # fmt: skip
    arms = arms_by_name(report)
    assert check_own_counts_against_counters(tmp_path) == 6
    assert arms["trained"]["acceptance_length"]["value"] > 1.3
    assert arms["random"]["acceptance_length"]["value"] < 1.02
    assert len(arms["trained"]["accepted_per_position"]) == 3
    dead = {"dead-drafter", "draft-contributes-nothing", "no-draft-ever-accepted"}
    assert len([f for f in report["findings"] if f["code"] in dead and f["subject"] == "random"]) == 1
    trial = next(t for t in StudyDir.open(tmp_path / "out").read_trials() if t.arm.name == "trained")
    assert trial.server is not None and trial.server.version == "0.32.0"
    assert trial.server.effective is not None and trial.server.effective.num_draft_tokens == 3
    assert {"launch", "load", "warm-up", "measure", "stop"} <= set(trial.phases_s)


WITHOUT_AMX = """
import torch

_all = torch.cpu.get_capabilities
torch.cpu.get_capabilities = lambda: {**_all(), "amx_tile": False}
"""


def test_sglang_none_ngram_and_the_wrong_flag(tmp_path: Path) -> None:
    """On a processor that reports no AMX tiles, whatever this one has: SGLang does not speculate there by itself."""
    engine = engine_of("sglang")
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_AMX, encoding="utf-8")
    report = run_study(
        tmp_path,
        {
            "question": "Does spectune see what SGLang does, an EAGLE-3 draft under the flag EAGLE included?",
            "engine": {
                "name": "sglang",
                "python": engine["python"],
                "env": {**engine["env"], "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(tmp_path)},
                "flags": {"device": "cpu", "attention-backend": "intel_amx", "max-total-tokens": 8192,
                          "decode-log-interval": 5},
            },
            "target": model_of("smollm2-135m-instruct-hf"),
            "arms": [
                {"name": "ngram", "method": "ngram", "num_draft_tokens": 7},
                {"name": "trained", "method": "eagle3", "drafter": str(TRAINED), "num_draft_tokens": 3},
                {"name": "wrong-flag", "method": "eagle", "drafter": str(TRAINED), "num_draft_tokens": 3},
                {"name": "random", "method": "eagle3", "drafter": model_of("smollm2-135m-instruct-random-draft"),
                 "num_draft_tokens": 3},
            ],
            "workload": {"num_prompts": 6, "max_tokens": 24, "warmup_requests": 2},
            "noise_floor": False,
            "baseline_every": 4,
        },
        "--allow", "draft-algorithm-mismatch",
    )  # fmt: skip
    told = {f["code"]: f for f in report["findings"] if f["subject"] == "wrong-flag"}
    assert told["draft-algorithm-mismatch"]["severity"] == "error"  # from the files, before the launch
    assert told["eagle3-draft-under-eagle"]["severity"] == "error"  # from its log, afterwards
    assert "dead-drafter" not in told
    arms = arms_by_name(report)
    assert arms["trained"]["acceptance_length"]["value"] > 1.3
    assert arms["wrong-flag"]["acceptance_length"]["value"] < 1.06
    assert arms["random"]["acceptance_length"]["value"] < 1.02
    assert arms["ngram"]["acceptance_counts"]["num_drafts"] > 0
    trials = {t.arm.name: t for t in StudyDir.open(tmp_path / "out").read_trials()}
    for trial in trials.values():
        assert trial.loads[0].foreign_tokens == 0
        assert trial.server is not None and trial.server.effective is not None
        assert trial.server.effective.method == trial.arm.knobs.method
    effective = trials["trained"].server
    assert effective is not None and effective.effective is not None
    assert (
        effective.effective.num_steps,
        effective.effective.topk,
        effective.effective.num_draft_tokens,
    ) == (3, 1, 3)


def test_a_dead_vllm_names_its_cause_at_once(tmp_path: Path) -> None:
    engine = engine_of("vllm")
    study = {
        "question": "q",
        "engine": {
            "name": "vllm",
            "python": engine["python"],
            "env": engine["env"],
            "flags": {"no-such-flag": 1},
        },
        "target": model_of("smollm2-135m-instruct-hf"),
        "arms": [{"method": "ngram", "num_draft_tokens": 3}],
    }
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study), encoding="utf-8")
    reply = subprocess.run(
        [sys.executable, "-m", "spectune", "run", str(path), "--dir", str(tmp_path / "out"), "--json",
         "--no-check"],
        capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert reply.returncode == 1
    (trial,) = json.loads(reply.stdout)["trials"]
    assert "--no-such-flag" in trial["cause"]
    assert left_over() == []


def test_interrupting_vllm_while_it_loads_leaves_nothing(tmp_path: Path) -> None:
    engine = engine_of("vllm")
    study = {
        "question": "q",
        "engine": {"name": "vllm", "python": engine["python"], "env": engine["env"],
                   "flags": {"max-model-len": 2048, "gpu-memory-utilization": 0.5}},
        "target": model_of("smollm2-135m-instruct-hf"),
        "arms": [{"method": "ngram", "num_draft_tokens": 3}],
    }  # fmt: skip
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "spectune", "run", str(path), "--dir", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.strip() == "load":
            break
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(timeout=600) == 130, rest
    assert left_over() == []


def sglang_commands() -> list[list[str]]:
    """Every kind of command the adapter makes: methods x lengths x trees x graphs x concurrency."""
    adapter = adapter_for("sglang")
    commands = []
    lengths = (None, 1, 3, 7)
    trees = ((None, None), (3, 1), (2, 2), (5, 4))
    for method, length, (steps, topk), graphs, concurrency in itertools.product(
        adapter.methods, lengths, trees, (None, False), (1, 64)
    ):
        knobs = Knobs(
            method=method,
            drafter=None if method in ("none", "ngram") else "DRAFT",
            num_steps=steps,
            topk=topk,
            num_draft_tokens=length,
            cuda_graphs=graphs,
        )
        launch = Launch(
            arm=Arm(
                name="a", engine="sglang", target="TARGET", knobs=knobs, flags={"mem-fraction-static": 0.8}
            ),
            setup=EngineSetup(name="sglang", command=("SERVER",)),
            host="127.0.0.1",
            port=30000,
            target_path="TARGET",
            drafter_path=knobs.drafter,
            max_concurrency=concurrency,
        )
        try:
            commands.append(list(adapter.command(launch).argv[1:]))
        except BadInput:
            continue
    return commands


def test_every_sglang_command_is_accepted_by_the_real_parser() -> None:
    engine = engine_of("sglang")
    commands = sglang_commands()
    assert len(commands) > 150
    commands.append([*commands[0], "--no-such-flag", "1"])
    reply = subprocess.run(
        [engine["python"], str(ROOT / "tools" / "engines" / "check_sglang_argv.py")],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=1500,
        env={**os.environ, **engine["env"]},
    )
    verdicts = json.loads(reply.stdout)
    refused = [(c, v["error"]) for c, v in zip(commands, verdicts, strict=True) if not v["ok"]]
    assert [c[-2] for c, _ in refused] == ["--no-such-flag"]


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_our_verdict_on_forty_commands_is_the_real_parsers(tmp_path: Path, name: str) -> None:
    engine_of(name)
    answers = tmp_path / "agreement.json"
    script = ROOT / "benchmarks" / "parser_agreement.py"
    reply = subprocess.run(
        [sys.executable, str(script), "--engine", name, "--number", "40", "--json", str(answers)],
        capture_output=True,
        text=True,
        timeout=5000,
    )
    assert reply.returncode in (0, 1), reply.stderr[-3000:]
    (result,) = json.loads(answers.read_text(encoding="utf-8"))["results"]
    assert result["number"] == len(result["rows"]) == 40
    assert 0 < result["legal"] < 40
    differing = [row for row in result["rows"] if not row["agree"]]
    assert [row for row in differing if row["explanation"] is None] == []
