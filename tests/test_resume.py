"""A study that goes on launches plain decoding first: no arm is set against one from long before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from exchange_studies import write_study
from report_studies import BASELINE, FAST, SLOW, failed, study, trial

from spectune.analysis.arms import compare_with_new, looks_at
from spectune.analysis.stretches import stretch_places
from spectune.analysis.summary import summarize
from spectune.cluster.schedule import ClusterSchedule
from spectune.domain.arm import Arm
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.study import ClusterSettings, PlannedTrial, Study
from spectune.domain.trial import Trial
from spectune.runner.continues import continued
from spectune.runner.hypotheses import judged
from spectune.runner.resume import baseline_before, why_baseline_first
from spectune.statistics.intervals import SpeedSample
from spectune.store.study_dir import StudyDir

OF = study(FAST, SLOW)
SLOW_NEXT = PlannedTrial(arm_id=SLOW.arm_id, repetition=0)


def measured(*, last: str = "fast") -> list[Trial]:
    made = [trial(OF, BASELINE, 1, speeds=100.0), trial(OF, FAST, 2, speeds=100.0)]
    return made[:1] if last == "baseline" else made


def after(trials: list[Trial], seconds: float) -> datetime:
    return datetime.fromisoformat(trials[-1].ended_at) + timedelta(seconds=seconds)


def test_plain_decoding_comes_first_and_says_how_long_ago_the_last_one_was() -> None:
    trials = measured()  # the arm's trial took 16 s, after plain decoding's
    again = baseline_before(OF, trials, SLOW_NEXT, now=after(trials, 34 * 60 - 16))
    assert again is not None
    assert (again.arm_id, again.repetition) == (BASELINE.arm_id, 1)
    assert again.reason is not None and again.reason.endswith("ended 34 min 00 s ago")


def test_a_launch_of_plain_decoding_that_has_just_ended_is_near_enough() -> None:
    trials = measured(last="baseline")
    assert why_baseline_first(OF, trials, now=after(trials, 30)) is None
    assert why_baseline_first(OF, trials, now=after(trials, 600)) is not None
    assert why_baseline_first(OF, measured(), now=after(measured(), 30)) is not None, "an arm was in between"


def test_a_clock_that_was_set_back_makes_nothing_fresh() -> None:
    trials = measured(last="baseline")
    reason = why_baseline_first(OF, trials, now=after(trials, -3600))
    assert reason is not None and reason.endswith("at an unknown time")


def test_nothing_is_added_where_plain_decoding_is_next_or_was_never_measured() -> None:
    trials = measured()
    own = PlannedTrial(arm_id=BASELINE.arm_id, repetition=1)
    assert baseline_before(OF, trials, own, now=after(trials, 3600)) is None
    never = [failed(OF, BASELINE, 1)]
    assert baseline_before(OF, never, SLOW_NEXT, now=after(never, 3600)) is None


def test_its_repetition_is_one_that_neither_the_plan_nor_the_record_has() -> None:
    plan = tuple(PlannedTrial(arm_id=BASELINE.arm_id, repetition=n) for n in range(3))
    again = baseline_before(
        OF.model_copy(update={"plan": plan}), measured(), SLOW_NEXT, now=after(measured(), 3600)
    )
    assert again is not None and again.repetition == 3


def test_each_node_of_a_cluster_launches_plain_decoding_again_before_its_first_arm(tmp_path: Path) -> None:
    plan = (PlannedTrial(arm_id=FAST.arm_id, repetition=0), SLOW_NEXT)
    of = study(FAST, SLOW, cluster=ClusterSettings(), host="ray", plan=plan)
    earlier = [trial(of, arm, n, speeds=100.0, node="a") for n, arm in enumerate((BASELINE, FAST), start=1)]
    directory = StudyDir(write_study(tmp_path / "s", of, earlier))
    work = ClusterSchedule(directory, retry_failed=False, findings={}, on_message=lambda _: None)
    (first,) = work.take("a")
    assert first.arm_id == BASELINE.arm_id
    assert first.reason is not None and first.reason.startswith("plain decoding first: the study goes on")
    done = trial(of, BASELINE, 3, speeds=100.0, node="a", repetition=first.repetition)
    work.count(done, first, "a")
    assert [p.arm_id for p in work.take("a")] == [SLOW.arm_id]


STUDY = """
question: Does drafting pay?
engine: {name: fake, flags: {tokens-per-s: 600, draft-cost: 0.1, accept: "0.8"}}
target: fake-model
drafter: fake-draft
arms:
  - {name: one, method: eagle3, num_draft_tokens: 1}
  - {name: two, method: eagle3, num_draft_tokens: 2}
workload: {prompts: builtin, num_prompts: 4, max_tokens: 24, ignore_eos: true, warmup_requests: 1}
noise_floor: false
"""


@pytest.mark.parametrize("search", ["all", "one-factor"])
def test_a_run_that_goes_on_half_an_hour_later_begins_with_plain_decoding(
    tmp_path: Path, search: str
) -> None:
    text = STUDY
    if search != "all":
        text = STUDY[: STUDY.index("arms:")] + "factors: {method: [eagle3], num_draft_tokens: [1, 2, 3]}\n"
        text += STUDY[STUDY.index("workload:") :] + f"search: {search}\n"
    (tmp_path / "study.yaml").write_text(text, encoding="utf-8")

    def run(*more: str) -> str:
        reply = subprocess.run(
            [sys.executable, "-m", "spectune", "run", "study.yaml", *more],
            cwd=tmp_path,
            env={**os.environ, "SPECTUNE_HOME": str(tmp_path / "home"), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert reply.returncode == 0, reply.stdout + reply.stderr
        return reply.stdout + reply.stderr

    run("--set", "budget.max_trials=2")
    records = sorted((tmp_path / "studies/study/trials").glob("*/trial.json"))
    assert len(records) == 2
    for record in records:  # as if they had been measured half an hour earlier
        body: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        for key in ("started_at", "ended_at"):
            body[key] = (datetime.fromisoformat(body[key]) - timedelta(minutes=30)).isoformat()
        record.write_text(json.dumps(body), encoding="utf-8")
    assert "plain decoding first" not in run("--set", "budget.max_trials=2")  # nothing is left to launch
    assert all(planned.reason is None for planned in StudyDir(tmp_path / "studies/study").read_study().plan)
    output = run("--set", "budget.max_trials=4")
    trials = StudyDir(tmp_path / "studies/study").read_trials()
    assert [t.arm.is_baseline for t in trials] == [True, False, True, False]
    assert "plain decoding first: the study goes on, and the last launch of it ended 30 min" in output
    assert "ended 30 min" in trials[2].hypothesis.why


class TestLooks:
    """A verdict that was waited for: each wish for more launches is a look at those that were made."""

    def made(self, **changes: Any) -> Study:
        return study(FAST, num_prompts=4).model_copy(update=changes)

    def test_more_repetitions_than_before_are_a_further_look(self) -> None:
        once, twice, thrice = (self.made(repetitions=n) for n in (1, 2, 3))
        trials = [trial(once, arm, i + 1, speeds=50.0) for i, arm in enumerate((BASELINE, FAST, BASELINE))]
        second = continued(once, twice, trials)
        third = continued(second, thrice, trials)
        assert [s.earlier_looks for s in (second, third)] == [1, 2]
        assert looks_at(third, [FAST.arm_id] * 3) == 3
        assert third.created_at == once.created_at

    def test_the_rest_of_a_plan_is_none_and_neither_are_launches_of_plain_decoding_alone(self) -> None:
        once, twice = self.made(repetitions=1), self.made(repetitions=2)
        plain = [trial(once, BASELINE, 1, speeds=50.0)]
        both = [*plain, trial(once, FAST, 2, speeds=60.0)]
        assert continued(once, twice, plain).earlier_looks == 0
        assert continued(twice, twice, both).earlier_looks == 0
        assert continued(continued(once, twice, both), twice, both).earlier_looks == 1

    def test_a_study_that_was_marked_as_noisy_stays_so(self) -> None:
        noisy = self.made(repetitions=1).model_copy(update={"noisy": "This machine was noisy."})
        assert continued(noisy, self.made(repetitions=2), []).noisy == "This machine was noisy."

    def test_looks_for_a_precision_count_when_repetitions_follow(self) -> None:
        """Planned once, launched four times for the precision: four looks, and the fifth is at what comes."""
        once = self.made(repetitions=1, precision=0.01)
        trials = [trial(once, FAST, i + 1, speeds=50.0, repetition=i) for i in range(4)]
        after = continued(once, self.made(repetitions=6), trials)
        assert after.earlier_looks == 4
        assert looks_at(after, [FAST.arm_id] * 6) == 5

    def test_intervals_are_wider_after_a_look(self) -> None:
        of = self.made(repetitions=2)
        order = (BASELINE, FAST, BASELINE, FAST, BASELINE)
        trials = [trial(of, arm, i + 1, speeds=50.0 + i, repetition=i // 2) for i, arm in enumerate(order)]
        widths = []
        for looks in (0, 1):
            seen = of.model_copy(update={"earlier_looks": looks})
            speedup = summarize(seen, trials).arm(FAST.arm_id).loads[0].speedup
            assert speedup is not None and speedup.low is not None and speedup.high is not None
            widths.append(speedup.high / speedup.low)
        assert widths[0] < widths[1]


class TestAPause:
    """Plain decoding from the other side of a pause stands beside no arm."""

    def paused(self, gap_s: float, *, after: tuple[Arm, ...] = (BASELINE, FAST, BASELINE)) -> list[Trial]:
        """100 tok/s before, 50 after; the arm always 20 % faster."""
        of = study(FAST, num_prompts=4)
        trials: list[Trial] = []
        for number, arm in enumerate((BASELINE, FAST, *after), start=1):
            late = number > 2
            made = trial(
                of,
                arm,
                number,
                speeds=(50.0 if late else 100.0) * (1.2 if arm is FAST else 1.0),
                repetition=sum(t.arm_id == arm.arm_id for t in trials),
            )
            shift = timedelta(seconds=gap_s if late else 0.0)
            times = {
                key: (datetime.fromisoformat(getattr(made, key)) + shift).isoformat()
                for key in ("started_at", "ended_at")
            }
            trials.append(made.model_copy(update=times))
        return trials

    def speedup(self, trials: list[Trial]) -> float:
        found = summarize(study(FAST, num_prompts=4), trials).arm(FAST.arm_id).loads[0].speedup
        assert found is not None
        return found.value

    def test_an_arm_is_set_against_plain_decoding_of_its_own_side_alone(self) -> None:
        assert self.speedup(self.paused(3600)) == pytest.approx(1.2, abs=1e-6)
        assert self.speedup(self.paused(60)) == pytest.approx(1.2 * 2**0.25, abs=1e-6)  # one of two, averaged

    def test_a_launch_that_has_just_ended_is_compared_as_the_table_has_it(self) -> None:
        of = study(FAST, num_prompts=4)
        *before, last = self.paused(3600)[:4]
        own = SpeedSample(FAST.arm_id, 4, {p.prompt_id: 60.0 for p in of.workload.prompts}, last.place)
        compared = compare_with_new(of, before, own)
        assert compared is not None and compared.speedup.value == pytest.approx(1.2, abs=1e-6)

    def test_a_hypothesis_about_two_arms_is_judged_on_one_side_alone(self) -> None:
        of = study(FAST, SLOW, num_prompts=4)
        before = self.paused(3600)[:3]
        own = SpeedSample(SLOW.arm_id, 4, {p.prompt_id: 55.0 for p in of.workload.prompts}, before[-1].place)
        expected = Hypothesis(
            compared_with=FAST.arm_id,
            changed=(),
            expectation="faster",
            predicted_tok_per_s=None,
            why="a guess",
        )
        loads = trial(of, SLOW, 4, speeds=55.0).loads
        assert judged(expected, own, loads, study=of, trials=before).verdict == "undecided"
        assert judged(expected, own, loads, study=of, trials=self.paused(60)[:3]).verdict == "refuted"

    def test_arms_without_plain_decoding_of_their_own_keep_the_one_before(self) -> None:
        trials = self.paused(3600, after=(FAST, FAST))
        places = stretch_places(trials, BASELINE.arm_id)
        assert set(places.values()) == {trials[0].place}
        assert len(set(stretch_places(self.paused(3600), BASELINE.arm_id).values())) == 2
