"""The answer in words, and where the time went."""

from __future__ import annotations

from datetime import timedelta

import pytest
from report_studies import (
    BASELINE,
    FAST,
    SLOW,
    START,
    UNEVEN,
    bracketed,
    counts,
    failed,
    load_result,
    request,
    scaled,
    speculative,
    study,
    trial,
)

from spectune.analysis.summary import summarize
from spectune.domain.trial import Trial

UNTRIED = speculative("untried", length=9)


class TestHeadline:
    def test_names_the_fastest_with_its_interval_and_basis(self):
        summary = summarize(*bracketed(FAST, scaled(2.0), acceptance=counts(66, 33)))
        assert summary.headline == (  # one launch: restarts alone move speeds by 15 %
            "fast is fastest: 2.00x [1.46, 2.73] of plain decoding (95 %, 3 prompts, 1 launch), "
            "1.50 tokens per forward pass."
        )

    def test_says_what_would_break_even_when_nothing_is_faster(self):
        summary = summarize(*bracketed(FAST, scaled(0.5), acceptance=counts(66, 33)))
        assert summary.headline == (
            "Nothing is faster than plain decoding on this machine; closest: fast at 0.50x [0.37, 0.68] "
            "(95 %, 3 prompts, 1 launch). It makes 1.50 tokens per forward pass and needs 3.00 to pay off."
        )

    def test_does_not_claim_what_it_cannot_tell(self):
        summary = summarize(*bracketed(FAST, {"p0": 50 * 3, "p1": 100 * 0.6, "p2": 200 * 2}))
        assert summary.headline.startswith("Nothing is shown to be faster than plain decoding")

    def test_says_that_the_output_changed(self):
        of = study(FAST)
        records = [request(p, 150, text="else") for p in of.workload.prompts]
        trials = [
            trial(of, BASELINE, 1, speeds=100.0),
            trial(of, FAST, 2, loads=(load_result(records),)),
            trial(of, BASELINE, 3, speeds=100.0, repetition=1),
        ]
        assert "Its output differs from plain decoding's in 3 of 3 answers." in summarize(of, trials).headline

    def test_of_an_empty_study_claims_nothing(self):
        summary = summarize(study(FAST), [])
        assert summary.headline == "No answer yet: the baseline has not been measured."
        assert summary.best_arm_id is None

    def test_of_a_failed_baseline_gives_the_cause(self):
        of = study(FAST)
        summary = summarize(of, [failed(of, BASELINE, 1, cause="no such model")])
        assert summary.headline.startswith("No answer: the baseline failed (no such model)")
        assert summary.best_arm_id is None

    def test_of_a_lone_baseline_is_its_speed(self):
        of = study(FAST)
        summary = summarize(of, [trial(of, BASELINE, 1, speeds=100.0), failed(of, FAST, 2)])
        assert summary.headline == "Only plain decoding was measured: 100 tok/s; the only other arm failed."
        assert summary.best_arm_id == BASELINE.arm_id

    def test_of_arms_that_were_all_stopped_early_says_that_they_are_slower(self):
        of = study(FAST, SLOW, UNTRIED, search="predict", search_end="predict: nothing is likely to win")
        of = of.model_copy(update={"plan": ()})
        whole = trial(of, FAST, 2, speeds=60.0)
        stopped = whole.model_copy(update={"status": "pruned", "pruned": "at most 0.70x"})
        summary = summarize(of, [trial(of, BASELINE, 1, speeds=100.0), stopped])
        assert summary.headline == (
            "Nothing that was launched is faster than plain decoding, 100 tok/s: fast was stopped early, slower "
            "on the first prompts. 2 more arms were not launched: the search expects no gain."
        )
        assert summary.best_arm_id == BASELINE.arm_id
        again = summarize(
            of, [trial(of, BASELINE, 1, speeds=100.0), stopped, trial(of, SLOW, 3, speeds=240.0)]
        ).headline
        assert again.startswith("slow is fastest: 2.40x")
        assert "Stopped early, slower on the first prompts: fast. 1 more arm was not launched" in again

    @pytest.mark.parametrize(
        ("end", "words"),
        [
            (
                "predict: the budget of 2 launches is spent",
                "the budget was spent before, so it may be faster.",
            ),
            ("predict: no arm left has a chance of 10 % or more", "the search expects no gain."),
            ("one-factor: no single change of fast is left", "one-factor did not come to it."),
        ],
    )
    def test_of_a_search_says_why_arms_were_not_launched(self, end, words):
        of = study(FAST, SLOW, search=end.partition(":")[0], search_end=end).model_copy(update={"plan": ()})
        trials = [trial(of, BASELINE, 1, speeds=100.0), trial(of, FAST, 2, speeds=120.0)]
        assert summarize(of, trials).headline.endswith(f"1 more arm was not launched: {words}")

    def test_of_an_unfinished_study_says_so(self):
        of = study(FAST, SLOW)
        trials = [trial(of, BASELINE, 1, speeds=UNEVEN), trial(of, FAST, 2, speeds=scaled(1.2))]
        assert summarize(of, trials).headline.endswith("Preliminary: 1 of 3 launches still to come.")

    def test_of_an_unfinished_search_says_so_whatever_its_plan_holds(self):
        """The plan of a search has the launches that were asked for, and grows."""
        of = study(FAST, SLOW, search="predict").model_copy(update={"plan": ()})
        trials = [trial(of, BASELINE, 1, speeds=UNEVEN), trial(of, FAST, 2, speeds=scaled(1.2))]
        assert summarize(of, trials).headline.endswith("Preliminary: the search has not ended.")

    def test_of_a_simulated_engine_says_first_that_it_is_no_measurement(self):
        of = study(FAST)
        trials = [
            trial(of, BASELINE, 1, speeds=100.0, simulated=True),
            trial(of, FAST, 2, speeds=120.0, simulated=True),
        ]
        summary = summarize(of, trials)
        assert summary.headline.startswith("Simulated engine: not a measurement.")
        assert summary.simulated


class TestTimeline:
    def _trial(self, of, number, *, start_s, wall_s, phases_s) -> Trial:
        begun = START + timedelta(seconds=start_s)
        return trial(
            of,
            BASELINE,
            number,
            speeds=100.0,
            started_at=begun.isoformat(),
            ended_at=(begun + timedelta(seconds=wall_s)).isoformat(),
            phases_s=phases_s,
        )

    def test_own_time_is_what_no_phase_explains_and_the_gaps_between(self):
        of = study(FAST)
        first = self._trial(of, 1, start_s=0, wall_s=10, phases_s={"launch": 4, "measure": 5.5})
        second = self._trial(of, 2, start_s=11, wall_s=10, phases_s={"launch": 4, "measure": 5.5})
        time = summarize(of, [first, second]).time
        assert time.wall_s == pytest.approx(21)
        assert time.own_s == pytest.approx(0.5 + 1 + 0.5)
        assert time.own_frac == pytest.approx(2 / 21)
        assert time.phases_s == {"launch": 8, "measure": 11}

    def test_a_pause_is_nobodys_time(self):
        of = study(FAST)
        first = self._trial(of, 1, start_s=0, wall_s=10, phases_s={"measure": 10})
        second = self._trial(of, 2, start_s=3610, wall_s=10, phases_s={"measure": 10})
        time = summarize(of, [first, second]).time
        assert (time.wall_s, time.own_s, time.num_pauses, time.pauses_s) == (20, 0, 1, 3600)

    def test_the_gap_around_an_interrupted_trial_is_a_pause_however_short(self):
        of = study(FAST)
        first = self._trial(of, 1, start_s=0, wall_s=10, phases_s={"measure": 10})
        third = self._trial(of, 3, start_s=25, wall_s=10, phases_s={"measure": 10})
        time = summarize(of, [first, third]).time
        assert (time.own_s, time.num_pauses, time.pauses_s) == (0, 1, 15)

    def test_phases_longer_than_the_wall_leave_no_negative_time(self):
        of = study(FAST)
        only = self._trial(of, 1, start_s=0, wall_s=9, phases_s={"measure": 10})
        time = summarize(of, [only]).time
        assert (time.wall_s, time.own_s) == (10, 0)

    def test_an_unreadable_clock_leaves_the_phases(self):
        of = study(FAST)
        only = trial(of, BASELINE, 1, speeds=100.0, started_at="yesterday", phases_s={"measure": 3.0})
        assert summarize(of, [only]).time.wall_s == 3.0
