"""A trial or a run that somebody asked to end: what it started is undone first, and the record says so."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from watched_study import served

from spectune.errors import TeardownUnproven
from spectune.hosts.supervisor import MARKER
from spectune.runner.abort import ABORTED, Aborted, unless_aborted
from spectune.store.abort import ask_to_abort, is_abort_asked
from spectune.store.study_dir import StudyDir

STUDY = """
question: Does drafting pay?
engine: {name: fake, flags: {tokens-per-s: 400, draft-cost: 0.1}}
target: fake-model
arms:
  - {name: slow, method: eagle3, drafter: fake-draft, num_draft_tokens: 3, flags: {accept: "0.8", tokens-per-s: 8}}
  - {name: dead, method: eagle3, drafter: fake-draft, num_draft_tokens: 2, flags: {accept: "0.0", tokens-per-s: 9}}
workload: {prompts: builtin, num_prompts: 4, max_tokens: 40, ignore_eos: true, warmup_requests: 1}
lease_s: 5
noise_floor: false
"""


async def resting(done: list[str], *, fails: Exception | None = None) -> str:
    """Work that takes for ever, and time to undo."""
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.01)
        done.append("undone")
        if fails is not None:
            raise fails
    raise AssertionError


class TestUnlessAborted:
    def test_work_that_nobody_stops_gives_its_result(self, tmp_path: Path) -> None:
        async def work() -> int:
            await asyncio.sleep(0.01)
            return 7

        assert asyncio.run(unless_aborted(work(), folder=tmp_path, every_s=0.001)) == 7

    def test_a_request_ends_it_once_it_has_undone_what_it_did(self, tmp_path: Path) -> None:
        done: list[str] = []
        ask_to_abort(tmp_path)
        with pytest.raises(Aborted):
            asyncio.run(unless_aborted(resting(done), folder=tmp_path, every_s=0.001))
        assert done == ["undone"]

    def test_what_could_not_be_undone_is_louder_than_the_request(self, tmp_path: Path) -> None:
        ask_to_abort(tmp_path)
        error = TeardownUnproven("pid 1 lives", left=("pid 1",))
        work = resting([], fails=error)
        with pytest.raises(TeardownUnproven, match="pid 1 lives"):
            asyncio.run(unless_aborted(work, folder=tmp_path, every_s=0.001))

    def test_a_request_waits_while_the_work_may_not_be_cut(self, tmp_path: Path) -> None:
        ask_to_abort(tmp_path)
        polls: list[int] = []

        async def work() -> int:
            while len(polls) < 3:
                await asyncio.sleep(0.001)
            return 7

        found = unless_aborted(
            work(),
            folder=tmp_path,
            may_abort=lambda: False,
            on_poll=lambda: polls.append(1),
            every_s=0.001,
        )
        assert asyncio.run(found) == 7

    @pytest.mark.parametrize("times", [1, 3])
    def test_our_own_cancellation_is_handed_on_and_waited_for(self, tmp_path: Path, times: int) -> None:
        done: list[str] = []

        async def cancelled() -> None:
            task = asyncio.ensure_future(unless_aborted(resting(done), folder=tmp_path, every_s=0.001))
            await asyncio.sleep(0.01)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        assert done == ["undone"]


class Run:
    """``spectune run`` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SPECTUNE_HOME": str(folder / "home"), "COLUMNS": "100"}
        (folder / "study.yaml").write_text(STUDY, encoding="utf-8")

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "spectune", "run", "study.yaml"],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def directory(self) -> StudyDir:
        return StudyDir(self.folder / "studies" / "study")

    def servers(self) -> list[psutil.Process]:
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


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    for process in made.servers():  # left by a test that failed half-way
        process.kill()


def until(condition: Callable[[], Any], *, limit_s: float = 60) -> Any:
    began = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - began < limit_s
        time.sleep(0.05)
    return found


def test_a_trial_and_then_the_run_are_stopped_from_the_live_page(run: Run) -> None:
    process = run.start()
    until(lambda: StudyDir.exists(run.directory.path))
    with served(run.directory) as page:

        def measuring(arm: str) -> dict[str, Any] | None:
            found = [t for t in page.state()["running"] if t["arm"] == arm and t["phase"] == "measure"]
            return found[0] if found else None

        slow = until(lambda: measuring("slow"))
        assert "ready" in slow["log"]
        assert page("POST", "/abort", body=json.dumps({"trial_id": slow["trial_id"]}))[0] == 202
        until(lambda: measuring("dead"))
        assert page("POST", "/abort", body=json.dumps({"trial_id": None}))[0] == 202
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130, output
        assert "stopped, as somebody asked for. Resume with: spectune run" in output
        assert "Traceback" not in output
        state = page.state()
        assert (state["state"], state["can_abort"], state["num_failed"]) == ("stopped", False, 1)
    assert run.servers() == []
    assert not is_abort_asked(run.directory.path)
    by_name = {t.arm.name: t for t in run.directory.read_trials()}
    assert sorted(by_name) == ["baseline", "slow"], "the trial that the end of the run cut stays open"
    stopped = by_name["slow"]
    assert stopped.status == "failed" and stopped.failure is not None and stopped.stop is not None
    assert (stopped.failure.cause, stopped.failure.phase) == (ABORTED, "measure")
    assert stopped.stop.no_child_left is True
    assert ABORTED in (run.directory.path / "report.html").read_text(encoding="utf-8")
