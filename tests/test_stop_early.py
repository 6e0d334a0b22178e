"""When a search stops asking an arm: clearly worse, or known well enough; what the record and the report say of it."""

from __future__ import annotations

import math
import random

import pytest
from report_studies import BASELINE, FAST, load_result, request, speculative, study, trial

from spectune.analysis.summary import summarize
from spectune.domain.measurement import RequestRecord
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import EarlyEnd, Trial
from spectune.domain.workload import LoadPoint
from spectune.report.markdown import render_markdown
from spectune.runner.stop_early import EndsEarly, enough_log_sd, stop_rule

OTHER = speculative("other", length=5)
PLANNED = PlannedTrial(arm_id=OTHER.arm_id, repetition=0)
PLAIN_S = 2.0
"""Of each prompt: 100 tokens at 50 tok/s."""


def searched(**changes: object) -> Study:
    return study(FAST, OTHER, **{"num_prompts": 32, "search": "predict", **changes})  # type: ignore[arg-type]


def speeds(of: Study, ratio: float, *, scatter: float, seed: int) -> dict[str, float]:
    rng = random.Random(seed)
    return {p.prompt_id: 50 * ratio * math.exp(rng.gauss(0, scatter)) for p in of.workload.prompts}


def before(of: Study, *, scatter: float = 0.03) -> list[Trial]:
    return [
        trial(of, BASELINE, 1, speeds=50.0),
        trial(of, FAST, 2, speeds=speeds(of, 1.2, scatter=scatter, seed=1)),
    ]


def ask(rule: EndsEarly | None, of: Study, ratio: float, *, scatter: float = 0.03) -> EarlyEnd | None:
    """Prompt after prompt of an arm at ``ratio`` of plain decoding, until the rule ends it."""
    assert rule is not None
    drawn = speeds(of, ratio, scatter=scatter, seed=2)
    records: list[RequestRecord] = []
    for prompt in of.workload.prompts:
        records.append(request(prompt, drawn[prompt.prompt_id]))
        end = rule(records)
        if end is not None:
            return end
    return None


def rule_for(of: Study, trials: list[Trial], planned: PlannedTrial = PLANNED) -> EndsEarly | None:
    return stop_rule(of, trials, planned, launch_log_sd=0.01)


def test_an_arm_whose_prompts_agree_is_asked_no_more_than_the_search_needs() -> None:
    of = searched()
    end = ask(rule_for(of, before(of)), of, 1.25)
    assert end is not None and end.verdict == "enough"
    # The scatter of 0.03 would do with one prompt (the margin of 2 % asks for 0.0297); six are the least.
    assert (end.num_prompts, end.of_prompts) == (6, 32)
    assert end.reason.startswith("enough after 6 of 32 prompts: 1.2")
    assert "the search needs 3.0%" in end.reason
    # 26 prompts of plain decoding's 2 s each, at about 1.25 times its speed.
    assert end.saved_s == pytest.approx(26 * PLAIN_S / 1.25, rel=0.04)


def test_a_clearly_slower_arm_is_worse_and_not_enough() -> None:
    of = searched()
    end = ask(rule_for(of, before(of)), of, 0.8)
    assert end is not None and end.verdict == "worse"
    assert end.num_prompts == 4
    assert end.reason.startswith("stopped after 4 of 32 prompts: at most 0.")
    assert end.saved_s == pytest.approx(28 * PLAIN_S / 0.8, rel=0.05)


def test_imposed_acceptance_is_measured_whole_however_slow() -> None:
    imposed = speculative("imposed", length=5, synthetic_acceptance_length=2.0)
    of = study(FAST, imposed, num_prompts=32, search="predict")
    assert rule_for(of, before(of), PlannedTrial(arm_id=imposed.arm_id, repetition=0)) is None


def test_no_arm_is_worse_before_every_category_was_asked_or_half_of_the_prompts() -> None:
    kinds = ("code", "maths", "chat", "summary", "translation", "structured", "code", "maths")
    again = PlannedTrial(arm_id=OTHER.arm_id, repetition=1)
    of = searched(categories=kinds * 4)
    end = ask(rule_for(of, before(of), again), of, 0.8)
    assert end is not None and (end.verdict, end.num_prompts) == ("worse", 6)
    of = searched(categories=("code",) * 31 + ("chat",))
    end = ask(rule_for(of, before(of), again), of, 0.8)
    assert end is not None and (end.verdict, end.num_prompts) == ("worse", 16)


def test_prompts_that_scatter_are_all_asked() -> None:
    of = searched()
    assert ask(rule_for(of, before(of, scatter=0.25)), of, 1.6, scatter=0.25) is None


def test_no_other_search_and_no_repetition_ends_as_enough() -> None:
    for of, repetition in ((searched(search="grid"), 0), (searched(search="one-factor"), 0), (searched(), 1)):
        planned = PlannedTrial(arm_id=OTHER.arm_id, repetition=repetition)
        assert ask(rule_for(of, before(of), planned), of, 1.25) is None
    of = searched(search=None)
    assert rule_for(of, before(of)) is None


def test_several_requests_at_once_are_all_measured_unless_worse() -> None:
    of = searched(loads=(LoadPoint.closed(4),))
    four = [
        trial(of, arm, number, loads=(load_result([request(p, v) for p in of.workload.prompts], LoadPoint.closed(4)),))
        for number, (arm, v) in enumerate(((BASELINE, 50.0), (FAST, 60.0)), start=1)
    ]  # fmt: skip
    assert ask(rule_for(of, four), of, 1.25) is None
    end = ask(rule_for(of, four), of, 0.8)
    assert end is not None and end.verdict == "worse"


def test_every_category_has_its_share_before_an_arm_ends_as_enough() -> None:
    of = searched(categories=("code",) * 16 + ("chat",) * 16)
    end = ask(rule_for(of, before(of)), of, 1.25)
    # A file sorted by category: half of the prompts are code, so chat has its half of n only at the very end.
    assert end is None or end.num_prompts >= 31


def test_an_arm_is_asked_more_where_more_precision_is_wanted() -> None:
    assert enough_log_sd(searched()) == pytest.approx(1.5 * math.log(1.02))
    assert enough_log_sd(searched(precision=0.02)) == pytest.approx(math.log(1.02) / 2)
    of = searched(precision=0.01)
    end = ask(rule_for(of, before(of)), of, 1.25)
    # 0.03 / sqrt(n) against half of 1 %: 36 prompts.
    assert end is None


def test_an_expected_loser_ends_after_fewer_prompts() -> None:
    of = searched()
    trials = before(of, scatter=0.12)
    hypothesis = trials[1].hypothesis.model_copy(
        update={
            "predicted_speedup": summarize(of, trials)
            .arm(FAST.arm_id)
            .loads[0]
            .speedup.model_copy(  # type: ignore[union-attr]
                update={"value": 0.8, "low": 0.76, "high": 0.84, "level": 0.8}
            )
        }
    )
    blind = ask(rule_for(of, trials), of, 1.1, scatter=0.12)
    told = ask(
        stop_rule(of, trials, PLANNED, hypothesis=hypothesis, launch_log_sd=0.01), of, 1.1, scatter=0.12
    )
    assert told is not None and told.verdict == "worse" and "expected" in told.reason
    assert blind is None or blind.num_prompts > told.num_prompts


def test_the_report_says_who_needed_no_more_and_what_it_saved() -> None:
    of = searched()
    end = EarlyEnd(
        verdict="enough", reason="enough after 8 of 32 prompts", num_prompts=8, of_prompts=32, saved_s=36.0
    )
    eight = load_result([request(p, 62.0) for p in of.workload.prompts[:8]], cut_short=True)
    trials = [*before(of), trial(of, OTHER, 3, loads=(eight,), ended_early=end)]
    found = summarize(of, trials)
    assert (found.time.num_ended_early, found.time.saved_s) == (1, 36.0)
    (told,) = [f for f in found.findings if f.code == "enough-prompts"]
    assert told.subject == "other" and ("saved", "about 36.0 s of measuring") in {
        (e.source, e.detail) for e in told.evidence
    }
    row = found.arm(OTHER.arm_id)
    assert row.status == "complete"
    speedup = row.loads[0].speedup
    assert speedup is not None and speedup.n == 8
    assert speedup.value == pytest.approx(62 / 50)
    # 36 s saved beside 3 trials of 12 s.
    assert (
        "1 trial did not need every prompt, which saved about 36.0 s, 50 % of the measuring."
        in render_markdown(found)
    )
