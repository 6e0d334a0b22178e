"""A machine that is too noisy to measure on is said to be, and a run waits for quiet, asks, or marks its study."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from report_studies import BASELINE, machine, speculative, study, trial
from test_run_study import STUDY, Runner, run  # noqa: F401 - a fixture

from spectune.analysis.summary import summarize
from spectune.api.progress import ProgressView
from spectune.domain.study import Budget, Study
from spectune.domain.trial import Trial
from spectune.errors import Interrupted
from spectune.hosts.choose import host_called
from spectune.hosts.facts import Gpu, HostFacts, ProcessorUse, ProcessorUser
from spectune.hosts.supervisor import busy_facts
from spectune.runner.quiet import NoiseWatch, Patience, equal_launches_differ, others_at_work, wait_for_quiet
from spectune.runner.study import fetch_models, run_study
from spectune.store.study_dir import StudyDir

BUSY = "other programs use 1.9 of 2 cores"


@pytest.fixture(autouse=True)
def looks_follow_each_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectune.runner.quiet.LOOK_EVERY_S", 0.0)


def equal_launches(*speeds: float | Mapping[str, float], **changes: Any) -> tuple[Study, list[Trial]]:
    """A study with so many launches of its baseline and no other."""
    of = study(speculative("k3"), **{"num_prompts": 6, **changes})
    return of, [trial(of, BASELINE, n, speeds=s, repetition=n - 1) for n, s in enumerate(speeds, 1)]


def host_facts(**changes: Any) -> HostFacts:
    fields: dict[str, Any] = {
        "machine": machine(),
        "available_bytes": None,
        "shm_free_bytes": None,
        "disk_free_bytes": {},
        "port_owners": {},
    }
    return HostFacts(**{**fields, **changes})


class Looks:
    """Answers to one look after another; the last one repeats. Keeps a clock that only a sleep moves."""

    def __init__(self, *answers: str | None) -> None:
        self.answers, self.now_s = list(answers), 0.0

    async def __call__(self) -> str | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def clock(self) -> float:
        return self.now_s


class TestTwoEqualLaunches:
    def test_agree_within_the_margin(self) -> None:
        assert equal_launches_differ(*equal_launches(100.0, 101.0)) is None

    def test_differ_where_every_prompt_does_by_more_than_the_margin(self) -> None:
        told = equal_launches_differ(*equal_launches(100.0, 110.0))
        assert told == "two equal launches of the baseline differ by 10 %"

    def test_agree_where_prompts_scatter_so_little_that_the_mean_may_be_equal(self) -> None:
        scattered = {f"p{i}": 100 * factor for i, factor in enumerate((0.9, 1.12, 0.95, 1.1, 0.92, 1.08))}
        assert equal_launches_differ(*equal_launches(100.0, scattered)) is None

    def test_differ_where_one_prompt_typically_does_by_ten_margins(self) -> None:
        scattered = {f"p{i}": 100 * factor for i, factor in enumerate((0.6, 1.7, 0.65, 1.6, 0.6, 1.5))}
        told = equal_launches_differ(*equal_launches(100.0, scattered))
        assert told is not None and told.startswith("the same prompt typically differs by 6")

    def test_of_two_prompts_say_nothing(self) -> None:
        assert equal_launches_differ(*equal_launches(100.0, 150.0, num_prompts=2)) is None

    def test_are_the_last_two(self) -> None:
        assert equal_launches_differ(*equal_launches(70.0, 100.0, 100.5)) is None


class TestOthersAtWork:
    def test_are_named_with_the_cores_they_use(self) -> None:
        use = ProcessorUse(1.5, 2, (ProcessorUser(77, "cc1plus big.cc", 1.4),))
        told = others_at_work(host_facts(busy=use))
        assert told == "other programs use 1.5 of 2 cores (pid 77 cc1plus big.cc)"

    def test_that_leave_the_usable_cores_free_disturb_nobody(self) -> None:
        use = ProcessorUse(60.0, 128, (ProcessorUser(77, "other", 60.0),))
        assert others_at_work(host_facts(machine=machine(cores=8), busy=use)) is None

    def test_are_not_made_up_where_the_system_does_not_tell(self) -> None:
        assert others_at_work(host_facts(busy=ProcessorUse(None, 2))) is None

    def test_on_a_gpu_are_told_by_its_use(self) -> None:
        gpu = Gpu(index=3, uuid="GPU-3", name="H200", driver="580", used_mib=9, total_mib=10, use_percent=97)
        assert others_at_work(host_facts(gpus=(gpu,))) == "other programs use 97 % of GPU 3"

    def test_a_command_with_escapes_is_shown_harmless(self) -> None:
        use = ProcessorUse(2.0, 2, (ProcessorUser(7, "a\x1b[31mb\nc", 2.0),))
        told = others_at_work(host_facts(busy=use))
        assert told is not None and "\x1b" not in told and "\n" not in told

    def test_a_process_that_only_counts_is_seen_by_the_host(self) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=-1
        ) as loop:
            try:
                assert loop.stdout is not None and loop.stdout.readline()
                busy = busy_facts(0.3)
            finally:
                loop.kill()
        users = {user["pid"]: user["cores"] for user in busy["users"]}
        assert loop.pid in users or len(users) == 5  # five others used more
        assert os.getpid() not in users
        if sys.platform == "linux":
            assert busy["cores"] > 0 and busy["of_cores"] >= 1


class TestWaiting:
    def test_ends_after_two_looks_that_saw_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("spectune.runner.quiet.LOOK_EVERY_S", 5.0)
        looks = Looks(BUSY, None, BUSY, None, None)
        left = asyncio.run(wait_for_quiet(looks, limit_s=100, sleep=looks.sleep, clock=looks.clock))
        assert (left, looks.now_s) == (None, 20.0)

    def test_ends_at_its_limit_and_says_who_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("spectune.runner.quiet.LOOK_EVERY_S", 5.0)
        looks = Looks(BUSY)
        left = asyncio.run(wait_for_quiet(looks, limit_s=12, sleep=looks.sleep, clock=looks.clock))
        assert (left, looks.now_s) == (BUSY, 12.0)


class TestANoisyMachine:
    DIFFERENT = equal_launches(100.0, 140.0)

    def faced(self, looks: Looks, patience: Patience) -> tuple[tuple[bool, str | None], list[str]]:
        said: list[str] = []
        watch = NoiseWatch(looks, patience, say=said.append)
        return asyncio.run(watch.after_equal_launches(*self.DIFFERENT)), said

    def test_that_becomes_quiet_is_measured_again(self) -> None:
        answer, said = self.faced(Looks(BUSY, None), Patience(wait_s=30))
        assert answer == (True, None)
        assert "waiting for quiet, at most 30 s (--noisy goes on at once)" in said[0] and BUSY in said[0]

    def test_that_nobody_else_uses_is_not_waited_for_and_the_study_is_marked(self) -> None:
        (again, mark), said = self.faced(Looks(None), Patience(wait_s=30))
        assert not again
        assert mark == "This machine was noisy: two equal launches of the baseline differ by 40 %."
        assert len(said) == 1 and "waiting" not in said[0]

    def test_that_stays_busy_is_gone_on_with_after_the_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("spectune.runner.quiet.LOOK_EVERY_S", 0.01)
        (again, mark), said = self.faced(Looks(BUSY), Patience(wait_s=0.03))
        assert not again and mark is not None and "while other programs were at work" in mark
        assert said[1].endswith(f"and {BUSY}, after 0 s of waiting; going on, and the report says so")

    def test_is_gone_on_with_at_once_if_asked_for(self) -> None:
        (again, mark), said = self.faced(Looks(BUSY), Patience(wait_s=0))
        assert not again and mark is not None and "going on, as asked for" in said[0]

    @pytest.mark.parametrize("answer", [True, False])
    def test_is_gone_on_with_if_a_person_says_so(self, answer: bool) -> None:
        asked: list[str] = []

        async def ask(text: str) -> bool:
            asked.append(text)
            return answer

        patience = Patience(wait_s=1, ask=ask)
        if answer:
            assert self.faced(Looks(None), patience)[0][1] is not None
        else:
            with pytest.raises(Interrupted, match="too noisy"):
                self.faced(Looks(None), patience)
        assert asked == ["This machine is noisy: two equal launches of the baseline differ by 40 %."]

    def test_opens_the_answer_of_the_report(self) -> None:
        of, trials = self.DIFFERENT
        marked = of.model_copy(update={"noisy": "This machine was noisy: X."})
        assert summarize(marked, trials).headline.startswith("This machine was noisy: X.")


def test_a_question_that_is_not_answered_in_time_is_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "w") as person, io.StringIO() as shown:
        monkeypatch.setattr(sys, "stdin", stdin)
        view = ProgressView(stream=shown)
        monkeypatch.setattr("spectune.api.progress.ANSWER_WITHIN_S", 0.01)
        assert asyncio.run(view.ask("noisy")) is True
        monkeypatch.setattr("spectune.api.progress.ANSWER_WITHIN_S", 60)
        for typed, meant in (("n\n", False), ("y\n", True), ("\n", False)):
            person.write(typed)
            person.flush()
            assert asyncio.run(view.ask("noisy")) is meant


def test_a_run_on_a_machine_that_became_quiet_launches_the_baseline_twice_more(
    run: Runner,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first two equal launches are said to differ, whatever they measured, and the next two are not."""

    def differ(_study: Study, trials: list[Trial]) -> str | None:
        return "they differ" if len(trials) == 2 else None

    monkeypatch.setattr("spectune.runner.quiet.equal_launches_differ", differ)
    run.study(STUDY.replace("noise_floor: false", "noise_floor: true") + "budget: {max_trials: 1}\n")
    assert run("run", "study.yaml").returncode == 0
    directory = StudyDir.open(run.folder / "studies/study")
    directory.replace_study(directory.read_study().model_copy(update={"budget": Budget(max_trials=5)}))
    said: list[str] = []
    asyncio.run(_rest_of(run, directory, said))
    trials = [json.loads(p.read_text()) for p in sorted((directory.path / "trials").glob("*/trial.json"))]
    order = [t["arm"]["name"] for t in trials]
    assert order == ["baseline"] * 4 + ["good"]
    assert any("it is quiet now" in text for text in said)
    study_now = directory.read_study()
    assert study_now.noisy is None
    assert len({(p.arm_id, p.repetition) for p in study_now.plan}) == len(study_now.plan) == 2 + 5


async def _rest_of(run: Runner, directory: StudyDir, said: list[str]) -> None:  # noqa: F811
    class Hears:
        def on_message(self, text: str) -> None:
            said.append(text)

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    home = Path(run.env["SPECTUNE_HOME"])
    models = fetch_models(directory.read_study(), home=home, on_fetch=lambda *_: None)
    patience = Patience(wait_s=30, look=Looks(None, BUSY, None))
    host = host_called("local", home=home)
    await run_study(directory, models=models, watcher=Hears(), host=host, patience=patience)
