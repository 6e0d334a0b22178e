"""``drafter data --study``: the server is a study's own, and nothing of it is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from spectune.cluster.data_server import for_streams
from spectune.domain.machine import Machine
from spectune.home import data_home
from spectune.hosts.supervisor import MARKER
from spectune.runner.plan import resolve_study
from spectune.study_file.load import load_study_file

ROOT = Path(__file__).parent.parent
STUDY = """
question: none
engine: {{name: {engine}, flags: {{{flags}}}}}
target: {target}
arms: [{{name: draws, method: ngram, num_draft_tokens: 3}}]
workload: {{prompts: builtin, num_prompts: 2, concurrency: {concurrency}}}
lease_s: 2
"""


def study_file(
    folder: Path,
    *,
    engine: str = "fake",
    flags: str = "",
    target: str = "fake-model",
    concurrency: int = 1,
) -> Path:
    path = folder / "study.yaml"
    path.write_text(STUDY.format(engine=engine, flags=flags, target=target, concurrency=concurrency))
    return path


def command(folder: Path, *more: str) -> list[str]:
    words = ["drafter", "data", "--study", str(folder / "study.yaml"), "--out", str(folder / "d")]
    return [sys.executable, "-m", "spectune", *words, *more]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "SPECTUNE_HOME": str(folder / "home")}


def run(folder: Path, *more: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *more),
        env=env or environment(folder),
        capture_output=True,
        text=True,
        timeout=1500,
    )


def manifest_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "d" / "manifest.json").read_text())
    return found


def servers(owner: Path) -> list[psutil.Process]:
    """Living servers whose log is in the data set's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            files = [str(Path(f"/proc/{process.pid}/fd/1").readlink())] if MARKER in process.environ() else []
            if process.status() != psutil.STATUS_ZOMBIE and any(f.startswith(str(owner)) for f in files):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def until(condition: Callable[[], object], *, limit_s: float = 60) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s
        time.sleep(0.02)


def num_answered(folder: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in (folder / "d" / "journal").glob("*.jsonl"))


@pytest.mark.drafter
def test_the_arms_server_answers_and_is_gone(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    study_file(tmp_path)
    reply = run(tmp_path, "--generate", "24", "--max-tokens", "8", "--concurrency", "6", "--arm", "draws")
    assert reply.returncode == 0, reply.stderr
    assert "the server is gone" in reply.stderr
    assert servers(tmp_path) == []
    manifest = manifest_of(tmp_path)
    assert (manifest["complete"], manifest["num_rows"]) == (True, 24)
    begin = manifest["runs"][0]["begin"]
    assert (begin["engine"], begin["target"], begin["concurrency"]) == ("fake", "fake-model", 6)
    assert "ngram" in " ".join(begin["command"])
    assert manifest["token_ids_from"] == {"server": 24}
    # With nothing left to answer, nothing is started.
    again = run(tmp_path, "--generate", "24", "--max-tokens", "8", "--arm", "draws")
    assert again.returncode == 0 and "starting the server" not in again.stderr


@pytest.mark.drafter
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_both_and_the_same_command_goes_on(tmp_path: Path, signal_number: int) -> None:
    pytest.importorskip("pyarrow.parquet")
    study_file(tmp_path, flags="tokens-per-s: 100")
    arguments = ("--generate", "60", "--max-tokens", "16", "--concurrency", "4")
    process = subprocess.Popen(
        command(tmp_path, *arguments),
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: num_answered(tmp_path) >= 8)
    assert len(servers(tmp_path)) == 1
    process.send_signal(signal_number)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "every finished sample is kept" in said and "Run the same command again" in said
    assert servers(tmp_path) == []
    done = num_answered(tmp_path)
    reply = run(tmp_path, *arguments)
    assert reply.returncode == 0, reply.stderr
    manifest = manifest_of(tmp_path)
    assert (manifest["num_rows"], manifest["complete"], len(manifest["runs"])) == (60, True, 2)
    assert manifest["runs"][1]["end"]["num_samples"] == 60 - done


@pytest.mark.drafter
def test_a_killed_run_leaves_no_server_longer_than_its_lease(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    study_file(tmp_path, flags="tokens-per-s: 100")
    arguments = ("--generate", "40", "--max-tokens", "16", "--concurrency", "4")
    process = subprocess.Popen(
        command(tmp_path, *arguments),
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: num_answered(tmp_path) >= 4)
    process.kill()
    process.wait(30)
    until(lambda: servers(tmp_path) == [], limit_s=20)
    assert run(tmp_path, *arguments).returncode == 0
    assert manifest_of(tmp_path)["num_rows"] == 40


@pytest.mark.drafter
def test_a_server_that_dies_is_named_with_its_cause_and_what_was_answered_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    study_file(tmp_path, flags="die-at-request: 20, exit-code: 9")
    arguments = ("--generate", "60", "--max-tokens", "8", "--concurrency", "4")
    reply = run(tmp_path, *arguments)
    assert reply.returncode == 3
    assert "server exited with code 9" in reply.stderr
    assert "of 60 samples are done and kept; run the same command again" in reply.stderr
    assert 10 <= num_answered(tmp_path) < 20
    assert servers(tmp_path) == []


@pytest.mark.drafter
def test_a_request_that_is_wrong_is_refused_before_a_server_is_started(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    study_file(tmp_path)
    reply = run(tmp_path, "--generate", "5", "--categories", "poems")
    assert (reply.returncode, "poems; valid are code" in reply.stderr) == (2, True)
    assert not (tmp_path / "d" / "servers").exists()
    reply = run(tmp_path, "--generate", "5", "--arm", "best")
    assert (reply.returncode, "--arm best: no such arm; valid: baseline, draws" in reply.stderr) == (2, True)
    reply = run(tmp_path, "--generate", "5", "--url", "http://127.0.0.1:9")
    assert (reply.returncode, "--url and --study: one server answers" in reply.stderr) == (2, True)


@pytest.mark.parametrize(("context", "expected"), [(None, 5 * 2048), (900, 5 * 900)])
def test_a_context_is_for_each_request_of_a_llamacpp(
    tmp_path: Path, context: int | None, expected: int
) -> None:
    path = study_file(
        tmp_path,
        engine="llamacpp",
        flags="ctx-size: 8192, threads: 2",
        target="smollm2-135m-instruct",
        concurrency=4,
    )
    spec, _, document = load_study_file(path, overrides=[])
    machine = Machine(hostname="m", os="linux", cpu="c", cores=2, memory_bytes=1, gpus=(), python="3.11")
    study = resolve_study(spec, document, path=path, machine=machine)
    assert for_streams(study, 5, context_tokens=context).engine.flags == {"ctx-size": expected, "threads": 2}
    assert study.engine.flags["ctx-size"] == 8192


@pytest.mark.drafter
@pytest.mark.embedded
def test_the_real_llamacpp_of_the_demo_answers_with_its_own_ids(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    study_file(tmp_path, engine="llamacpp", target="smollm2-135m-instruct")
    env = {**os.environ, "SPECTUNE_HOME": str(data_home())}
    arguments = ("--generate", "12", "--max-tokens", "24", "--concurrency", "4", "--context", "768")
    reply = run(tmp_path, *arguments, env=env)
    assert reply.returncode == 0, reply.stderr
    assert servers(tmp_path) == []
    manifest = manifest_of(tmp_path)
    assert (manifest["num_rows"], manifest["token_ids_from"]) == (12, {"server": 12})
    rows = parquet.read_table(tmp_path / "d" / "parts" / "part-00000.parquet").to_pylist()
    assert all(sum(row["loss_mask"]) <= 24 and row["answer_text"].strip() for row in rows)
    begin = manifest["runs"][0]["begin"]
    assert (begin["engine"], "3072" in begin["command"]) == ("llamacpp", True)


@pytest.mark.drafter
@pytest.mark.engine
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_real_engine_in_its_own_environment_answers_with_its_own_ids(engine: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    status = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "engines" / "install.py"), "status"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(status.stdout)[engine]
    assert found["ready"], f"{engine} is not installed: run `make engines`"
    own = {
        "vllm": {"max-model-len": 1024, "gpu-memory-utilization": 0.3, "enforce-eager": True},
        "sglang": {"device": "cpu", "attention-backend": "intel_amx", "max-total-tokens": 8192},
    }
    target = str(data_home() / "models" / "smollm2-135m-instruct-hf")
    study = {
        "question": "none",
        "engine": {
            "name": engine,
            "python": found["python"],
            "env": {**found["env"], "HF_HUB_OFFLINE": "1"},
            "flags": own[engine],
        },
        "target": target,
        "arms": [{"method": "ngram", "num_draft_tokens": 3}],
    }
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    # The tokenizer is only compared with the server: the ids are the server's.
    arguments = ("--generate", "12", "--max-tokens", "16", "--concurrency", "6", "--tokenizer", target)
    reply = subprocess.run(command(tmp_path, *arguments), capture_output=True, text=True, timeout=2500)
    assert reply.returncode == 0, reply.stderr[-3000:]
    assert servers(tmp_path) == []
    manifest = manifest_of(tmp_path)
    assert (manifest["num_rows"], manifest["token_ids_from"]) == (12, {"server": 12})
    assert manifest["runs"][0]["end"]["num_compared"] == 12
    rows = parquet.read_table(tmp_path / "d" / "parts" / "part-00000.parquet").to_pylist()
    assert all(0 < sum(row["loss_mask"]) <= 16 for row in rows)
