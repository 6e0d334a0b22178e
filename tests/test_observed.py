"""What trials teach the models: paired speedups, drift left out, stopped trials counted by their ratio."""

from __future__ import annotations

import pytest
from report_studies import BASELINE, FAST, counts, load_result, request, speculative, study, trial

from spectune.analysis.observations import observations


def test_a_speedup_is_against_the_baselines_around_it() -> None:
    of = study(FAST)
    trials = [
        trial(of, BASELINE, 1, speeds=100.0),
        trial(of, FAST, 2, speeds=120.0),
        trial(of, BASELINE, 3, speeds=81.0, repetition=1),  # the machine slowed down; the mean of logs is 90
    ]
    (plain, fast, _) = observations(of, trials)
    assert plain.speedup is None
    assert fast.speedup == pytest.approx(120 / 90)
    assert fast.tok_per_s == pytest.approx(120)


def test_a_trial_that_was_stopped_has_the_baselines_speed_times_its_ratio() -> None:
    of = study(FAST)
    uneven = {"p0": 50.0, "p1": 100.0, "p2": 200.0}
    stopped = load_result([request(of.workload.prompts[0], 40.0)], cut_short=True)
    trials = [
        trial(of, BASELINE, 1, speeds=uneven),
        trial(of, FAST, 2, loads=(stopped,), status="pruned"),
    ]
    assert observations(of, trials)[1].tok_per_s == pytest.approx(100 * 40 / 50)


def test_failed_trials_and_soaks_teach_nothing() -> None:
    of = study(FAST)
    assert observations(of, [trial(of, FAST, 1, speeds=100.0, status="failed")]) == []


def test_tokens_per_step_count_where_a_drafter_skips_steps() -> None:
    ngram = speculative("ngram", method="ngram", length=4)
    of = study(ngram)
    # 100 tokens: 10 verify steps keep 30 drafts; 1 from the prompt, 69 steps in all, 59 of them without a draft.
    trials = [
        trial(of, BASELINE, 1, speeds=100.0),
        trial(of, ngram, 2, speeds=120.0, acceptance=counts(10, 30, length=4)),
    ]
    assert observations(of, trials)[1].acceptance_length == pytest.approx((69 + 30) / 69)


def test_an_imposed_acceptance_is_marked() -> None:
    imposed = speculative("synth", length=3, synthetic_acceptance_length=2.0)
    of = study(imposed)
    trials = [trial(of, BASELINE, 1, speeds=100.0), trial(of, imposed, 2, speeds=120.0)]
    assert [o.synthetic for o in observations(of, trials)] == [False, True]
