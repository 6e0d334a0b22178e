"""A command that nobody reads, or that was started in an odd way, goes on to its end; real pipes and processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STUDY = """
question: Does drafting pay?
engine: {name: fake, flags: {tokens-per-s: 2000}}
target: fake-model
arms:
  - {name: good, method: eagle3, drafter: fake-draft, num_draft_tokens: 3, flags: {accept: "0.8"}}
workload: {prompts: builtin, num_prompts: 3, max_tokens: 10, ignore_eos: true, warmup_requests: 1}
noise_floor: false
"""


def start(tmp_path: Path, *args: str, program: tuple[str, ...] = (), **options: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "SPECTUNE_HOME": str(tmp_path / "home")}
    words = [*program, sys.executable, "-m", "spectune", *args]
    return subprocess.Popen(words, cwd=tmp_path, env=env, text=True, **options)


def trials(tmp_path: Path) -> list[str]:
    files = sorted((tmp_path / "studies/study/trials").glob("*/trial.json"))
    return [json.loads(file.read_text(encoding="utf-8"))["status"] for file in files]


def test_a_study_goes_on_when_nobody_reads_its_progress_any_more(tmp_path: Path) -> None:
    """As in ``spectune run STUDY 2>&1 | head -1``, by a shell that ignores SIGCHLD."""
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = start(tmp_path, "run", "study.yaml", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(90) == 0
    assert trials(tmp_path) == ["complete", "complete", "complete"]
    assert list((tmp_path / "home/servers").glob("*/status.json")) == []


@pytest.mark.parametrize(
    ("closed", "shown"),
    [("<&- >&- 2>&-", ""), (">&-", ""), ("2>&-", "no servers\n"), ("2>/dev/full", "no servers\n")],
)
def test_closed_streams_are_no_traceback(tmp_path: Path, closed: str, shown: str) -> None:
    shell = ("sh", "-c", f'exec "$@" {closed}', "sh")
    process = start(tmp_path, "ps", program=shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert output == shown


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the full device is Linux's")
def test_output_that_does_not_fit_on_the_disk_is_one_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = start(tmp_path, "ps", stdout=full, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=60)
    assert errors == "spectune: output: No space left on device; what was to be shown is not whole\n"
    assert process.returncode == 3


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="hiding /proc takes root on Linux")
def test_without_proc_it_is_said_that_nothing_can_be_proven(tmp_path: Path) -> None:
    hide = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
    if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mount namespaces are not allowed here")
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
    for command in (("ps",), ("down", "--all"), ("up", "study.yaml")):
        process = start(tmp_path, *command, program=hide, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 3, output
        assert "/proc is missing" in output
        assert "Traceback" not in output
