"""The main job through the command line, on the scripted fake engine: real processes, sockets and files."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from spectune.hosts.supervisor import MARKER

STUDY = """\
question: Does the fake drafter pay?
engine:
  name: fake
  flags: {tokens-per-s: 400, draft-cost: 0.1}
target: fake-model
arms:
  - {name: good, method: eagle3, drafter: fake-draft, num_draft_tokens: 3, flags: {accept: "0.8"}}
  - {name: dead, method: eagle3, drafter: fake-draft, num_draft_tokens: 2, flags: {accept: "0.0"}}
workload: {prompts: builtin, num_prompts: 6, max_tokens: 40, ignore_eos: true, warmup_requests: 1}
repetitions: 1
noise_floor: false
"""


class Runner:
    """Runs the command line in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SPECTUNE_HOME": str(folder / "home"), "COLUMNS": "100"}

    def study(self, text: str = STUDY) -> Path:
        path = self.folder / "study.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "spectune", *args],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "spectune", *args],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def report(self, folder: str = "studies/study") -> dict[str, Any]:
        reply = self("report", folder, "--json")
        assert reply.returncode == 0, reply.stderr
        document: dict[str, Any] = json.loads(reply.stdout)
        return document

    def servers(self) -> list[psutil.Process]:
        """Processes that carry a marker and run in our folder."""
        found = []
        for process in psutil.process_iter():
            try:
                if MARKER in process.environ() and process.cwd() == str(self.folder):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return [p for p in found if p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(tmp_path)
    yield runner
    for process in runner.servers():  # left by a test that failed half-way
        process.kill()


def test_a_study_becomes_trials_reports_and_a_verdict(run: Runner) -> None:
    run.study(STUDY.replace("repetitions: 1", "repetitions: 2"))
    reply = run("run", "study.yaml")
    assert reply.returncode == 0, reply.stderr + reply.stdout
    assert "not a measurement" in reply.stdout
    assert "before anything is launched" not in reply.stdout + reply.stderr  # the fake engine has no rules
    report = run.report()
    by_name = {arm["name"]: arm for arm in report["arms"]}
    trials = report["trials"]
    names = [t["arm"]["name"] for t in trials]
    assert names == ["baseline", "good", "dead", "baseline", "dead", "good", "baseline"]
    assert all(t["status"] == "complete" for t in trials)
    good, dead = by_name["good"]["loads"][0], by_name["dead"]["loads"][0]
    # alpha 0.8, K = 3: 1 + 0.8 + 0.64 + 0.512 tokens per step; the script draws, so within a tenth or so.
    assert good["acceptance_length"]["value"] == pytest.approx(2.952, rel=0.12)
    assert good["verdict"] == "FASTER"
    assert report["best_arm_id"] == by_name["good"]["arm_id"]
    assert dead["acceptance_length"]["value"] == 1.0
    assert dead["speedup"]["value"] < 1
    assert "dead-drafter" in {f["code"] for f in report["findings"]}
    assert all(t["parity_frac"] == 1.0 for t in trials if not t["is_baseline"])
    folder = run.folder / "studies" / "study"
    for name in ("report.md", "report.html", "report.json", "study.yaml", "study.json"):
        assert (folder / name).exists()
    for path in (folder / "trials").iterdir():
        names = {p.name for p in path.iterdir()}
        assert {"plan.json", "trial.json", "server.log", "requests.jsonl", "result.json"} <= names
        requests = [json.loads(line) for line in (path / "requests.jsonl").read_text().splitlines()]
        assert len(requests) == 6
        assert all(r["output_tokens"] == 40 and r["token_ids"] for r in requests)
    assert run.servers() == []


def test_a_finished_study_resumes_with_nothing_to_do(run: Runner) -> None:
    run.study()
    assert run("run", "study.yaml").returncode == 0
    before = sorted(p.name for p in (run.folder / "studies/study/trials").iterdir())
    reply = run("run", "study.yaml")
    assert reply.returncode == 0
    assert "nothing left to do" in reply.stdout
    assert sorted(p.name for p in (run.folder / "studies/study/trials").iterdir()) == before
    assert run("run", "studies/study").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_a_measurement_leaves_no_server_and_resumes(run: Runner, number: signal.Signals) -> None:
    slow = STUDY.replace("tokens-per-s: 400", "tokens-per-s: 60")
    run.study(slow)
    process = run.start("run", "study.yaml")
    requests = run.folder / "studies/study/trials"
    deadline = time.monotonic() + 60
    while not list(requests.glob("0001-*/requests.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert run.servers()
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "Resume with: spectune run studies/study" in output
    assert output.count("Resume with") == 1
    assert "Traceback" not in output
    assert run.servers() == []
    assert not list(requests.glob("*/trial.json"))
    kept = list(requests.glob("0001-*/requests.jsonl"))
    assert kept and kept[0].read_text().strip()
    if number == signal.SIGINT:  # going on is the same after each
        assert run("run", "studies/study").returncode == 0
        assert [t["number"] for t in run.report()["trials"]] == [2, 3, 4, 5]


def test_failed_arms_are_results_and_the_study_goes_on(run: Runner) -> None:
    text = STUDY.replace(
        "  - {name: dead,",
        "  - {name: dies-loading, method: ngram, num_draft_tokens: 2, flags: {startup-delay-s: 30, die-after-s: 0.2,"
        " die-message: 'RuntimeError: CUDA out of memory', exit-code: 7}}\n"
        "  - {name: dies-measuring, method: ngram, num_draft_tokens: 3, flags: {die-at-request: 5}}\n"
        "  - {name: dead,",
    )
    run.study(text)
    reply = run("run", "study.yaml")
    assert reply.returncode == 1
    trials = {t["arm"]["name"]: t for t in run.report()["trials"] if t["arm"]["name"] != "baseline"}
    assert {name: t["status"] for name, t in trials.items()} == {
        "good": "complete",
        "dies-loading": "failed",
        "dies-measuring": "failed",
        "dead": "complete",
    }
    assert "CUDA out of memory" in trials["dies-loading"]["cause"]
    assert trials["dies-loading"]["failure"]["exit_code"] == 7
    assert trials["dies-measuring"]["failure"]["phase"] == "measuring"
    # A failed arm is not tried again, unless asked.
    again = run("run", "study.yaml")
    assert again.returncode == 1
    assert "nothing left to do" in again.stdout
    retried = run("run", "study.yaml", "--retry-failed")
    assert retried.returncode == 1
    assert sum(t["status"] == "failed" for t in run.report()["trials"]) == 4


def test_a_baseline_that_does_not_start_ends_the_study_at_once(run: Runner) -> None:
    run.study(STUDY.replace("draft-cost: 0.1", "draft-cost: 0.1, die-after-s: 0"))
    reply = run("run", "study.yaml")
    assert reply.returncode == 1
    assert "the baseline does not run" in reply.stdout
    assert len(run.report()["trials"]) == 1


def test_a_budget_ends_the_study_cleanly(run: Runner) -> None:
    run.study(STUDY + "budget: {max_trials: 2}\n")
    reply = run("run", "study.yaml")
    assert reply.returncode == 0
    assert "2 launches left" in reply.stdout
    run.study(STUDY + "precision: 0.0001\nbudget: {max_trials: 5}\n")
    ended = run("run", "study.yaml")
    assert ended.returncode == 0
    assert "the precision of <0.1 % was not reached for" in ended.stdout
    assert len(run.report()["trials"]) == 5
    assert "precision-not-reached" in {finding["code"] for finding in run.report()["findings"]}


def test_a_dry_run_prints_every_command_and_starts_nothing(run: Runner) -> None:
    run.study()
    reply = run("run", "study.yaml", "--dry-run")
    assert reply.returncode == 0
    assert reply.stdout.count("spectune.engines.fake.server") == 3
    assert "--num-draft-tokens 3" in reply.stdout
    assert "4 launches, about" in reply.stdout
    assert not (run.folder / "studies").exists()
    document = json.loads(run("run", "study.yaml", "--dry-run", "--json").stdout)
    assert document["launches"] == 4
    assert set(document["commands"]) == {"baseline", "good", "dead"}


def test_five_mistakes_are_reported_with_lines_and_exit_code_2(run: Runner) -> None:
    run.study(
        "question: q\nengine: {name: fak}\ntarget: m\narms:\n  - method: eagle3\n    num_draft_token: 3\n"
        "    topk: 0\nworkload:\n  max_tokens: many\nrepetition: 1\n"
    )
    reply = run("run", "study.yaml")
    assert reply.returncode == 2
    assert "5 problems" in reply.stderr
    for line in (2, 6, 7, 9, 10):
        assert f"line {line}: " in reply.stderr
    assert "Traceback" not in reply.stderr


def test_a_changed_workload_is_refused_for_an_old_directory(run: Runner) -> None:
    run.study(STUDY + "budget: {max_trials: 1}\n")
    assert run("run", "study.yaml").returncode == 0
    run.study(STUDY.replace("max_tokens: 40", "max_tokens: 41"))
    reply = run("run", "study.yaml")
    assert reply.returncode == 2
    assert "another workload" in reply.stderr
    # Nothing was touched: the directory still reports and resumes what it held.
    assert (
        json.loads((run.folder / "studies/study/study.json").read_text())["workload"]["sampling"][
            "max_tokens"
        ]
        == 40
    )
    run.study(STUDY)
    assert run("run", "study.yaml").returncode == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("target: fake-model", "target: other-model"), "not of other-model on fake"),
        (("tokens-per-s: 400", "tokens-per-s: 300"), "other settings of engine.flags"),
    ],
)
def test_another_study_does_not_go_on_in_this_ones_directory(
    run: Runner, change: tuple[str, str], words: str
) -> None:
    run.study(STUDY + "budget: {max_trials: 1}\n")
    assert run("run", "study.yaml").returncode == 0
    before = (run.folder / "studies/study/study.json").read_bytes()
    run.study(STUDY.replace(*change))
    reply = run("run", "study.yaml")
    assert reply.returncode == 2
    assert words in reply.stderr
    assert (run.folder / "studies/study/study.json").read_bytes() == before


def test_overrides_are_kept_for_resuming_by_directory(run: Runner) -> None:
    run.study(STUDY + "budget: {max_trials: 1}\n")
    assert (
        run("run", "study.yaml", "--set", "workload.max_tokens=20", "--set", "budget.max_trials=2").returncode
        == 0
    )
    reply = run("run", "studies/study", "--json")
    assert reply.returncode == 0
    assert len(json.loads(reply.stdout)["trials"]) == 2
    assert "# --set workload.max_tokens=20" in (run.folder / "studies/study/study.yaml").read_text()


def test_a_full_disk_stops_the_server_and_says_so(run: Runner) -> None:
    """A file size limit stands in for the disk: the write fails in the middle of a measurement."""
    run.study(STUDY.replace("max_tokens: 40", "max_tokens: 400"))
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (12000, 12000));"
        " import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        " sys.argv = ['spectune', 'run', 'study.yaml']; runpy.run_module('spectune', run_name='__main__')"
    )
    reply = subprocess.run(
        [sys.executable, "-c", limited],
        cwd=run.folder,
        env=run.env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert reply.returncode == 3, reply.stderr
    assert "File too large" in reply.stderr
    assert "Traceback" not in reply.stderr
    assert run.servers() == []


def test_a_terminal_that_knows_only_ascii_still_gets_its_table(run: Runner) -> None:
    run.study(STUDY + "budget: {max_trials: 1}\n")
    run.env["PYTHONIOENCODING"] = "ascii"
    reply = run("run", "study.yaml")
    assert reply.returncode == 0, reply.stderr
    assert "baseline" in reply.stdout


def test_an_impatient_ctrl_c_does_not_leave_the_server_of_up(run: Runner) -> None:
    run.study(STUDY.replace("draft-cost: 0.1", "draft-cost: 0.1, ready-delay-s: 60, ignore-sigterm: true"))
    process = run.start("up", "study.yaml")
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "launch"
    assert run.servers()
    for answer in ("SIGINT: stopping", "already stopping", "already stopping"):
        process.send_signal(signal.SIGINT)
        line = process.stdout.readline()
        while line.strip() == "load":  # the next phase, begun before the signal came
            line = process.stdout.readline()
        assert answer in line
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert run.servers() == []


def test_two_spectunes_do_not_work_on_one_study(run: Runner) -> None:
    run.study(STUDY.replace("tokens-per-s: 400", "tokens-per-s: 60"))
    first = run.start("run", "study.yaml")
    deadline = time.monotonic() + 60
    while not list(run.folder.glob("studies/study/trials/*/plan.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    second = run("run", "study.yaml")
    assert second.returncode == 2
    assert f"pid {first.pid}" in second.stderr
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=30)
    assert run.servers() == []


def test_several_loads_are_measured_in_one_launch(run: Runner) -> None:
    run.study(
        STUDY.replace("warmup_requests: 1", "warmup_requests: 1, concurrency: [1, 3], request_rate: 20")
    )
    assert run("run", "study.yaml").returncode == 0
    report = run.report()
    assert len(report["trials"]) == 4
    labels = [load["label"] for load in report["arms"][1]["loads"]]
    assert labels == ["c=1", "c=3", "20 req/s"]
    result = json.loads(next(run.folder.glob("studies/study/trials/0002-*/result.json")).read_text())
    assert result["max_concurrency"] == 1
    assert [load["max_concurrency"] for load in result["spectune_other_loads"]] == [3, None]


def test_a_credential_in_a_study_file_is_refused_and_not_repeated(run: Runner) -> None:
    run.study(STUDY.replace("  name: fake", "  name: fake\n  env: {HF_TOKEN: hunter2secret}"))
    reply = run("run", "study.yaml")
    assert reply.returncode == 2
    assert "HF_TOKEN looks like a credential" in reply.stderr
    assert "hunter2secret" not in reply.stderr + reply.stdout


def test_up_wait_ps_down_leave_nothing_behind(run: Runner) -> None:
    run.study()
    up = run("up", "study.yaml", "--arm", "good", "--json")
    assert up.returncode == 0, up.stderr
    server = json.loads(up.stdout)
    assert run("wait", server["server_id"]).returncode == 0
    listed = json.loads(run("ps", "--json").stdout)["servers"]
    assert [s["server_id"] for s in listed] == [server["server_id"]]
    assert listed[0]["alive"] is True
    bench = run(
        "bench", server["base_url"], "--num-prompts", "4", "--max-tokens", "20", "--engine", "fake", "--json"
    )
    assert bench.returncode == 0, bench.stderr
    load = json.loads(bench.stdout)["loads"][0]
    assert load["completed"] == 4
    assert load["spec_decode_acceptance_length"] > 1.5
    down = run("down", "--all")
    assert down.returncode == 0
    assert "no process left" in down.stdout
    assert run.servers() == []
    assert json.loads(run("ps", "--json").stdout)["servers"] == []


def test_up_of_a_server_that_dies_says_why_and_forgets_it(run: Runner) -> None:
    run.study(
        STUDY.replace("draft-cost: 0.1", "draft-cost: 0.1, die-after-s: 0, die-message: 'ValueError: no'")
    )
    reply = run("up", "study.yaml")
    assert reply.returncode == 3
    assert "ValueError: no" in reply.stderr
    assert json.loads(run("ps", "--json").stdout)["servers"] == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "none.yaml"], "no such study file"),
        (["report", "nowhere"], "not a study directory"),
        (["bench", "http://127.0.0.1:9", "--concurrency", "0"], "whole numbers from 1 to 4096"),
        (["bench", "ftp://x"], "http"),
        (["bench", "http://127.0.0.1:9", "--save-result", "."], "--save-result .: is a folder"),
        (["bench", "http://127.0.0.1:9", "--extra-body", "[1]"], "JSON object"),
        (["bench", "http://127.0.0.1:9", "--prompts", "nothing.jsonl"], "nothing.jsonl"),
        (["down"], "name the servers"),
        (["down", "abc"], "no server 'abc'"),
        (["wait", "abc"], "no server 'abc'"),
    ],
)
def test_bad_input_is_one_clear_error(run: Runner, args: list[str], words: str) -> None:
    reply = run(*args)
    assert reply.returncode == 2, reply.stderr
    assert words in reply.stderr
    assert "Traceback" not in reply.stderr


def test_the_live_view_of_a_terminal_ends_with_the_table(run: Runner) -> None:
    """In a pseudo-terminal of 80 columns: the view is drawn, and the last screen holds the answer."""
    import pty

    run.study()
    run.env["COLUMNS"] = "80"
    run.env["TERM"] = "xterm"
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "spectune", "run", "study.yaml"],
        cwd=run.folder, env=run.env, stdin=follower, stdout=follower, stderr=follower, close_fds=True,
    )  # fmt: skip
    os.close(follower)
    output = bytearray()
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break
        if not part:
            break
        output += part
    assert process.wait(timeout=60) == 0
    os.close(leader)
    text = output.decode("utf-8", errors="replace")
    assert "Traceback" not in text
    for word in ("elapsed", "best", "1/4", "verdict", "report:"):
        assert word in text


def test_bench_of_nobody_is_an_environment_error(run: Runner) -> None:
    reply = run("bench", "http://127.0.0.1:9")
    assert reply.returncode == 3
    assert "no server answers" in reply.stderr
