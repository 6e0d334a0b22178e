"""Arms that differ in their requests alone are measured on one server; a repetition is always a new one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sshd_fixture import Sshd, sshd  # noqa: F401 - a fixture
from test_run_study import Runner, run  # noqa: F401 - a fixture

from spectune.domain.trial import Trial
from spectune.hosts.choose import host_called
from spectune.runner.study import fetch_models, run_study
from spectune.store.study_dir import StudyDir

STUDY = """\
question: Which limit on drafts is fastest?
engine: {name: fake, flags: {tokens-per-s: 1000, draft-cost: 0.1, accept: "0.8"FLAGS}}
target: fake-model
drafter: fake-draft
arms:
  - {name: three, method: eagle3, num_draft_tokens: 3}
  - {name: one, method: eagle3, num_draft_tokens: 3, request: {speculative.n_max: 1}}
  - {name: plain-flags, method: eagle3, num_draft_tokens: 5}
  - {name: two, method: eagle3, num_draft_tokens: 3, request: {speculative.n_max: 2}}
workload: {prompts: builtin, num_prompts: 6, max_tokens: 40, ignore_eos: true, warmup_requests: 1}
noise_floor: false
"""
ALONE = STUDY.replace("  - {name: plain-flags, method: eagle3, num_draft_tokens: 5}\n", "")


def trials_of(folder: Path) -> list[dict[str, Any]]:
    paths = sorted((folder / "studies/study/trials").glob("*/trial.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def shown(trials: list[dict[str, Any]]) -> list[tuple[str, int, bool]]:
    """Name, the trial that launched its server, and whether it holds the proof of the stop."""
    return [(t["arm"]["name"], t["launch"], t["stop"] is not None) for t in trials]


def until(condition: Callable[[], object], *, limit_s: float = 240) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s
        time.sleep(0.02)


def test_arms_of_a_launch_are_measured_one_after_another_on_one_server(run: Runner) -> None:  # noqa: F811
    run.study(STUDY.replace("FLAGS", "") + "repetitions: 2\n")
    reply = run("run", "study.yaml")
    assert reply.returncode == 0, reply.stderr + reply.stdout
    trials = trials_of(run.folder)
    assert shown(trials) == [
        ("baseline", 1, True),
        ("three", 2, False),
        ("one", 2, False),
        ("two", 2, True),
        ("plain-flags", 5, True),
        ("baseline", 6, True),
        ("plain-flags", 7, True),
        ("two", 8, False),
        ("one", 8, False),
        ("three", 8, True),
        ("baseline", 11, True),
    ]
    assert not any(t["reattached"] for t in trials)
    assert all(t["status"] == "complete" and t["loads"][0]["num_requests"] == 6 for t in trials)
    drafted = {
        t["arm"]["name"]: t["loads"][0]["acceptance"]["num_draft_tokens"]
        / t["loads"][0]["acceptance"]["num_drafts"]
        for t in trials
        if t["arm"]["name"] != "baseline"
    }
    assert drafted == {"three": 3, "one": 1, "two": 2, "plain-flags": 5}
    assert all(
        (run.folder / "studies/study/trials" / t["trial_id"] / "server.log").stat().st_size for t in trials
    )
    assert run.servers() == []
    report = run.report()
    assert [t["launch"] for t in report["trials"]] == [t["launch"] for t in trials]
    by_name = {arm["name"]: arm["loads"][0] for arm in report["arms"]}
    # alpha 0.8, 1 + 0.8 tokens in 1.1 steps; 2.952 in 1.3.
    # 1.8 / 1.1 and 2.952 / 1.3 by the engine's own arithmetic, which a busy machine flattens.
    assert by_name["three"]["speedup"]["value"] > by_name["one"]["speedup"]["value"] > 1.1
    assert "nothing left to do" in run("run", "study.yaml").stdout


def test_a_server_that_dies_fails_the_trial_it_runs_and_no_other(run: Runner) -> None:  # noqa: F811
    # A trial asks 8 times: to see whether it generates, to warm up, and 6 that count. The second trial's 4th kills it.
    run.study(ALONE.replace("FLAGS", ", die-at-request: 12"))
    assert run("run", "study.yaml").returncode == 1
    trials = trials_of(run.folder)
    assert [(*row, t["status"]) for row, t in zip(shown(trials), trials, strict=True)] == [
        ("baseline", 1, True, "complete"),
        ("three", 2, False, "complete"),
        ("one", 2, True, "failed"),
        ("two", 4, True, "complete"),
        ("baseline", 5, True, "complete"),
    ]
    assert "scripted death" in trials[2]["failure"]["cause"]
    assert run.servers() == []


def test_a_server_that_did_not_answer_every_request_is_not_kept(run: Runner) -> None:  # noqa: F811
    run.study(ALONE.replace("FLAGS", ", fail-request: 5"))
    run("run", "study.yaml")
    assert [launch for _, launch, _ in shown(trials_of(run.folder))] == [1, 2, 3, 4, 5]
    assert run.servers() == []


def test_a_budget_of_launches_is_not_spent_by_arms_that_need_none(run: Runner) -> None:  # noqa: F811
    run.study(STUDY.replace("FLAGS", "") + "budget: {max_trials: 2}\n")
    reply = run("run", "study.yaml")
    assert reply.returncode == 0, reply.stderr
    assert [name for name, _, _ in shown(trials_of(run.folder))] == ["baseline", "three", "one", "two"]
    assert "stopped by the budget with 2 launches left" in reply.stdout
    assert run.servers() == []


def test_a_killed_run_takes_hold_of_the_shared_server_and_goes_on_with_its_launch(run: Runner) -> None:  # noqa: F811
    run.study(ALONE.replace("FLAGS", "").replace("tokens-per-s: 1000", "tokens-per-s: 60"))
    process = run.start("run", "study.yaml")
    requests = run.folder / "studies/study/trials"
    until(lambda: list(requests.glob("0003-*/requests.jsonl")))
    process.kill()
    process.communicate()
    reply = run("run", "study.yaml")
    assert reply.returncode == 0, reply.stderr + reply.stdout
    assert "taking hold of the server that an earlier run left" in reply.stdout + reply.stderr
    assert shown(trials_of(run.folder)) == [
        ("baseline", 1, True),
        ("three", 2, False),
        ("one", 2, False),
        ("two", 2, True),
        ("baseline", 6, True),
    ]
    assert [t["reattached"] for t in trials_of(run.folder)] == [False, False, True, False, False]
    assert run.servers() == []


def test_a_signal_on_a_shared_server_stops_it(run: Runner) -> None:  # noqa: F811
    run.study(ALONE.replace("FLAGS", "").replace("tokens-per-s: 1000", "tokens-per-s: 60"))
    process = run.start("run", "study.yaml")
    until(lambda: list((run.folder / "studies/study/trials").glob("0003-*/requests.jsonl")))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert run.servers() == []
    assert run("run", "study.yaml").returncode == 0
    # The launch was broken off with the trial on it: after plain decoding, the two arms that are left share one.
    assert [launch for _, launch, _ in shown(trials_of(run.folder))] == [1, 2, 4, 5, 5, 7]


class Between:
    """Does something at the moment between two trials of one launch."""

    def __init__(self, act: Callable[[Trial], None]) -> None:
        self._act = act
        self._done = False

    def on_trial_end(self, trial: Trial, trials: list[Trial]) -> None:
        if trial.stop is None and not self._done:
            self._done = True
            self._act(trial)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def run_here(run: Runner, act: Callable[[Trial], None]) -> None:  # noqa: F811
    """The study of ``run``'s folder in this process; it was made, and its first launch done, by the command line."""
    directory = StudyDir.open(run.folder / "studies/study")
    home = run.folder / "home"
    models = fetch_models(directory.read_study(), home=home, on_fetch=lambda *_: None)

    async def scenario() -> None:
        await run_study(directory, models=models, watcher=Between(act), host=host_called("local", home=home))

    asyncio.run(scenario())


@pytest.fixture
def begun(run: Runner, monkeypatch: pytest.MonkeyPatch) -> Runner:  # noqa: F811
    run.study(ALONE.replace("FLAGS", "") + "budget: {max_trials: 1}\n")
    assert run("run", "study.yaml").returncode == 0
    study = run.folder / "studies/study/study.json"
    body = json.loads(study.read_text(encoding="utf-8"))
    study.write_text(json.dumps({**body, "budget": {}}), encoding="utf-8")
    monkeypatch.chdir(run.folder)
    return run


def test_ending_between_two_trials_stops_the_server(begun: Runner) -> None:
    def cancel(_trial: Trial) -> None:
        assert len(begun.servers()) == 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        run_here(begun, cancel)
    assert begun.servers() == []
    assert [name for name, _, _ in shown(trials_of(begun.folder))] == ["baseline", "three"]
    assert begun("run", "studies/study").returncode == 0
    assert [launch for _, launch, _ in shown(trials_of(begun.folder))] == [1, 2, 3, 4, 4, 6]


def test_a_server_that_dies_between_two_trials_is_launched_anew_and_fails_nothing(begun: Runner) -> None:
    def kill(_trial: Trial) -> None:
        (server,) = begun.servers()
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not begun.servers())

    run_here(begun, kill)
    trials = trials_of(begun.folder)
    assert all(t["status"] == "complete" for t in trials)
    assert [launch for _, launch, _ in shown(trials)] == [1, 2, 3, 3, 5]
    assert begun.servers() == []


SEARCH = """\
question: Which limit is fastest?
engine: {name: fake, flags: {tokens-per-s: 1000, draft-cost: 0.12, accept: "0.8,0.7,0.6,0.4,0.2"}}
target: fake-model
drafter: fake-draft
factors:
  method: [eagle3]
  num_draft_tokens: [8]
  request.speculative.n_max: [1, 2, 3, 4, 6, 8]
workload: {prompts: builtin, num_prompts: 12, max_tokens: 32, ignore_eos: true, warmup_requests: 1}
"""


def test_a_search_over_a_field_of_the_requests_needs_one_launch_beside_the_baselines(run: Runner) -> None:  # noqa: F811
    run.study(SEARCH)
    reply = run("run", "study.yaml")
    assert reply.returncode == 0, reply.stderr + reply.stdout
    trials = trials_of(run.folder)
    launches = {t["launch"] for t in trials if t["arm"]["name"] != "baseline"}
    assert len(launches) == 1
    assert sum(t["arm"]["name"] != "baseline" for t in trials) >= 3
    (last,) = [t for t in trials if t["launch"] in launches and t["stop"] is not None]
    assert last["number"] == max(t["number"] for t in trials if t["launch"] in launches)
    report = run.report()
    assert report["best_arm_id"] in {a["arm_id"] for a in report["arms"]}
    assert run.servers() == []


def test_a_launch_is_shared_over_ssh_too(sshd: Sshd, run: Runner) -> None:  # noqa: F811
    run.study(ALONE.replace("FLAGS", ""))
    run.env["SPECTUNE_SSH_COMMAND"] = sshd.ssh_command
    reply = run("run", "study.yaml", "--host", sshd.destination)
    assert reply.returncode == 0, reply.stderr + reply.stdout
    trials = trials_of(run.folder)
    assert [launch for _, launch, _ in shown(trials)] == [1, 2, 2, 2, 5]
    logs = [run.folder / "studies/study/trials" / t["trial_id"] / "server.log" for t in trials]
    assert all("ready" in log.read_text(encoding="utf-8") for log in logs)
    remote = sshd.home / ".cache" / "spectune" / "servers"
    assert list(remote.glob("*/status.json")) == []
