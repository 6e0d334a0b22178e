"""``spectune run`` killed, suspended, cut off: no server outlives its lease, and the study goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sshd_fixture import Sshd, sshd  # noqa: F401 - a fixture

from spectune.hosts.supervisor import MARKER

STUDY = """
question: Does drafting pay?
engine: {{name: fake, flags: {{tokens-per-s: {speed}, draft-cost: 0.1{flags}}}}}
target: fake-model
arms:
  - {{name: good, method: eagle3, drafter: fake-draft, num_draft_tokens: 3, flags: {{accept: "0.8"}}}}
workload: {{prompts: builtin, num_prompts: {prompts}, max_tokens: 40, ignore_eos: true, warmup_requests: 1}}
lease_s: {lease}
noise_floor: false
{more}
"""


class Study:
    """The command line in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SPECTUNE_HOME": str(folder / "home"), "COLUMNS": "100"}

    def write(
        self,
        *,
        speed: int = 400,
        prompts: int = 4,
        lease: float = 2,
        flags: str = "",
        more: str = "",
    ) -> None:
        text = STUDY.format(speed=speed, prompts=prompts, lease=lease, flags=flags, more=more)
        (self.folder / "study.yaml").write_text(text, encoding="utf-8")

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "spectune", *(args or ("run", "study.yaml"))],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, *args: str) -> str:
        process = self.start(*args)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        return output

    def servers(self) -> list[psutil.Process]:
        """Living processes of servers: they carry a marker, and say so in our folder's terms."""
        found = []
        for process in psutil.process_iter():
            try:
                environ = process.environ()
                ours = MARKER in environ and environ.get("SPECTUNE_HOME") == self.env["SPECTUNE_HOME"]
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def trials(self) -> list[dict[str, Any]]:
        paths = sorted((self.folder / "studies" / "study" / "trials").glob("*/trial.json"))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def arms(self) -> list[tuple[str, int, str]]:
        return sorted((t["arm"]["name"], t["repetition"], t["status"]) for t in self.trials())

    def num_requests(self) -> int:
        logs = (self.folder / "studies" / "study" / "trials").glob("*/requests.jsonl")
        return sum(len(log.read_text(encoding="utf-8").splitlines()) for log in logs)


WHOLE = [("baseline", 0, "complete"), ("baseline", 1, "complete"), ("good", 0, "complete")]


def until(condition: Callable[[], object], *, limit_s: float = 30) -> float:
    """Seconds until ``condition`` holds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    made = Study(tmp_path)
    yield made
    for process in made.servers():  # left by a test that failed half-way
        process.kill()


def test_a_killed_run_leaves_no_server_longer_than_its_lease_and_resumes(study: Study) -> None:
    study.write(speed=80, lease=2)
    process = study.start()
    until(lambda: study.num_requests() >= 1)
    process.kill()
    process.wait()
    assert study.servers(), "the server goes on, within its lease"
    assert until(lambda: not study.servers(), limit_s=15) < 6
    study.finish()
    assert study.arms() == WHOLE
    assert study.servers() == []


def test_a_run_takes_hold_of_the_server_that_a_killed_one_left(study: Study) -> None:
    study.write(speed=80, lease=30)
    process = study.start()
    until(lambda: study.num_requests() >= 1)
    (server,) = study.servers()
    process.kill()
    process.wait()
    output = study.finish()
    assert f"taking hold of the server that an earlier run left (pid {server.pid})" in output
    assert study.arms() == WHOLE
    first = study.trials()[0]
    assert first["reattached"] is True
    assert [t["reattached"] for t in study.trials()[1:]] == [False, False]
    assert len(first["loads"]) == 1
    assert first["stop"]["no_child_left"] is True
    assert study.servers() == []


def test_a_server_that_the_next_trial_cannot_use_is_stopped(study: Study) -> None:
    study.write(speed=40, lease=30)
    process = study.start()
    until(lambda: study.num_requests() >= 1)
    process.kill()
    process.wait()
    study.write(speed=400, lease=30, flags=", seed: 7")
    output = study.finish("run", "study.yaml", "--dir", "studies/other")
    assert "taking hold" not in output
    assert len(study.servers()) == 1, "another study's server is not ours to stop"
    stopped = study.finish("down", "--all")
    assert "no process left" in stopped
    assert study.servers() == []


def test_a_server_that_another_terminal_ended_is_launched_again(study: Study) -> None:
    study.write(speed=20, prompts=48, lease=30)  # two minutes of measuring
    process = study.start()
    until(lambda: study.num_requests() >= 1)
    study.finish("down", "--all")
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said = " ".join((said + " " + line).split())
        if "launching baseline again" in said:
            break
    assert "another command asked for it" in said
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert study.servers() == []


def test_a_run_that_slept_past_its_lease_repeats_the_trial(study: Study) -> None:
    study.write(speed=80, prompts=6, lease=1)
    process = study.start()
    until(lambda: study.num_requests() >= 1)
    process.send_signal(signal.SIGSTOP)
    until(lambda: not study.servers())
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "without a sign of life from spectune" in output
    assert study.arms() == WHOLE
    assert study.servers() == []


def test_the_best_arm_is_soaked_and_a_crash_there_is_a_result(study: Study) -> None:
    study.write(speed=100, more="soak_s: 1.5")
    study.finish()
    soak = study.trials()[-1]
    assert (soak["arm"]["name"], soak["status"]) == ("good", "complete")
    assert soak["soak"]["num_failed"] == 0
    assert soak["soak"]["ran_s"] >= 1.5
    assert soak["loads"] == []
    report = json.loads(study.finish("report", "studies/study", "--json"))
    assert "soak-held" in {finding["code"] for finding in report["findings"]}
    assert "nothing left to do" in study.finish()


def test_a_server_that_crashes_under_a_long_load_is_not_recommended(study: Study) -> None:
    # 1 probe, 1 warm-up and 4 measured requests are answered; the 20th is not.
    study.write(speed=100, more="soak_s: 20")
    text = (study.folder / "study.yaml").read_text(encoding="utf-8")
    text = text.replace('accept: "0.8"', 'accept: "0.8", die-at-request: 20')
    (study.folder / "study.yaml").write_text(text, encoding="utf-8")
    process = study.start()
    process.communicate(timeout=120)
    assert process.returncode == 1
    soak = study.trials()[-1]
    assert soak["status"] == "failed"
    assert 0 < soak["soak"]["ran_s"] < 20
    reply = study.start("report", "studies/study", "--json")
    findings = {f["code"]: f for f in json.loads(reply.communicate()[0])["findings"]}
    assert "scripted death" in findings["soak-failed"]["message"]
    assert findings["soak-failed"]["severity"] == "error"


def test_what_was_measured_before_a_death_is_kept_and_marked(study: Study) -> None:
    study.write(speed=200, prompts=6)
    text = (study.folder / "study.yaml").read_text(encoding="utf-8")
    text = text.replace('accept: "0.8"', 'accept: "0.8", die-at-request: 5')
    (study.folder / "study.yaml").write_text(text, encoding="utf-8")
    process = study.start()
    process.communicate(timeout=120)
    assert process.returncode == 1
    (died,) = [t for t in study.trials() if t["arm"]["name"] == "good"]
    assert died["status"] == "failed"
    assert "scripted death" in died["failure"]["cause"]
    (load,) = died["loads"]
    assert load["cut_short"] is True
    lines = (
        (study.folder / "studies/study/trials" / died["trial_id"] / "requests.jsonl").read_text().splitlines()
    )
    assert load["num_requests"] == len(lines)
    assert sum(json.loads(line)["error"] is None for line in lines) == 2, "of 5: a probe, two to warm up"


def test_a_study_over_ssh_with_a_cut_connection_gives_the_same_trials(sshd: Sshd, study: Study) -> None:  # noqa: F811
    study.write(speed=60, prompts=4, lease=30, flags=", startup-delay-s: 1.5")
    study.env["SPECTUNE_SSH_COMMAND"] = sshd.ssh_command
    study.env["SPECTUNE_HOME"] = str(sshd.home / "unused")
    process = study.start("run", "study.yaml", "--host", sshd.destination)
    remote = sshd.home / ".cache" / "spectune" / "servers"
    until(lambda: any(remote.glob("*/status.json")))
    sshd.cut()  # while the server is loading
    until(lambda: study.num_requests() >= 2)
    sshd.cut()  # in the middle of a measurement
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert study.arms() == WHOLE
    assert all(len(t["loads"]) == 1 and t["loads"][0]["num_requests"] == 4 for t in study.trials())
    assert all(t["stop"]["no_child_left"] is True for t in study.trials())
    assert list(remote.glob("*/status.json")) == []
    assert all("ready" in log.read_text() for log in (study.folder / "studies").rglob("server.log"))
