"""Parity of outputs: hand-written texts and token ids."""

from __future__ import annotations

import pytest
from report_studies import prompts, request

from spectune.domain.measurement import RequestRecord
from spectune.domain.parity import first_difference, output_parity
from spectune.domain.workload import Sampling

GREEDY = Sampling()
ONE, TWO, THREE = prompts(3)


def said(text: str, prompt=ONE, **changes) -> RequestRecord:
    return request(prompt, 50, text=text, **changes)


def test_equal_outputs_are_counted_as_equal():
    baseline = [said("one two"), said("three", TWO)]
    parity = output_parity([[said("one two"), said("three", TWO)]], baseline=baseline, sampling=GREEDY)
    assert (parity.num_compared, parity.num_equal, parity.equal_frac) == (2, 2, 1.0)
    assert parity.first_divergences == ()
    assert parity.median_first_divergence is None


def test_first_divergence_is_the_first_differing_character():
    parity = output_parity([[said("abcXe")]], baseline=[said("abcde")], sampling=GREEDY)
    divergence = parity.first_divergences[0]
    assert (parity.unit, divergence.index) == ("characters", 3)
    assert (divergence.prompt_id, divergence.turn) == ("p0", 0)
    assert (divergence.baseline_excerpt, divergence.arm_excerpt) == ("abcde", "abcXe")


def test_token_ids_are_compared_when_every_pair_has_them():
    baseline = [said("a b c", token_ids=(5, 6, 7)), said("d", TWO, token_ids=(8,))]
    arm = [said("a b x", token_ids=(5, 6, 9)), said("d", TWO, token_ids=(8,))]
    parity = output_parity([arm], baseline=baseline, sampling=GREEDY)
    assert (parity.unit, parity.equal_frac) == ("tokens", 0.5)
    assert parity.first_divergences[0].index == 2


def test_characters_are_compared_when_one_output_lacks_token_ids():
    baseline = [said("a b c", token_ids=(5, 6, 7)), said("d", TWO)]
    arm = [said("a b x", token_ids=(5, 6, 9)), said("d", TWO, token_ids=(8,))]
    parity = output_parity([arm], baseline=baseline, sampling=GREEDY)
    assert parity.unit == "characters"
    assert parity.first_divergences[0].index == 4


@pytest.mark.parametrize(
    ("ours", "theirs", "index"), [("", "", None), ("ab", "abc", 2), ("abc", "ab", 2), ("x", "y", 0)]
)
def test_an_output_that_goes_on_differs_where_the_shorter_ends(ours, theirs, index):
    assert first_difference(ours, theirs) == index


def test_median_first_divergence_is_over_the_differing_outputs_only():
    baseline = [said("aaaaaaaaaa"), said("bbbbbbbbbb", TWO), said("cc", THREE)]
    arm = [said("aaXaaaaaaa"), said("bbbbbbXbbb", TWO), said("cc", THREE)]
    parity = output_parity([arm], baseline=baseline, sampling=GREEDY)
    assert (parity.num_equal, parity.num_compared, parity.median_first_divergence) == (1, 3, 4.0)


def test_sampled_outputs_are_not_compared():
    parity = output_parity([[said("x")]], baseline=[said("y")], sampling=Sampling(temperature=0.7))
    assert parity.equal_frac is None
    assert parity.not_compared is not None and "temperature is 0.7" in parity.not_compared


def test_the_temperature_in_extra_body_wins():
    warm = Sampling(temperature=0.0, extra_body={"temperature": 1})
    assert output_parity([[said("x")]], baseline=[said("x")], sampling=warm).equal_frac is None


def test_without_a_baseline_parity_is_unknown_and_says_why():
    parity = output_parity([[said("x")]], baseline=None, sampling=GREEDY)
    assert (parity.equal_frac, parity.num_compared) == (None, 0)
    assert parity.not_compared == "the baseline has no complete trial"


def test_one_baseline_trial_has_nothing_to_be_compared_with():
    assert output_parity([], baseline=[said("x")], sampling=GREEDY).equal_frac is None


def test_failed_requests_are_left_out():
    arm = [said("x"), said("cut of", TWO, error="timeout")]
    parity = output_parity([arm], baseline=[said("x"), said("y", TWO)], sampling=GREEDY)
    assert (parity.num_compared, parity.equal_frac) == (1, 1.0)


def test_turns_after_a_difference_are_not_compared():
    baseline = [said("a"), said("b", turn=1), said("c", turn=2)]
    arm = [said("a"), said("X", turn=1), said("Y", turn=2)]
    parity = output_parity([arm], baseline=baseline, sampling=GREEDY)
    assert (parity.num_compared, parity.num_equal) == (2, 1)


def test_repetitions_of_a_prompt_are_paired_in_the_order_they_were_sent():
    baseline = [said("first", start_s=0.0), said("second", start_s=1.0)]
    arm = [said("second", start_s=1.0), said("first", start_s=0.0)]
    assert output_parity([arm], baseline=baseline, sampling=GREEDY).equal_frac == 1.0


def test_every_trial_of_an_arm_counts():
    baseline = [said("same")]
    parity = output_parity([[said("same")], [said("other")]], baseline=baseline, sampling=GREEDY)
    assert (parity.num_compared, parity.num_equal) == (2, 1)


def test_excerpts_are_short_and_begin_at_the_same_place():
    shared = "s" * 500
    parity = output_parity(
        [[said(shared + "arm" * 99)]], baseline=[said(shared + "base" * 99)], sampling=GREEDY
    )
    divergence = parity.first_divergences[0]
    assert len(divergence.arm_excerpt) < 80
    assert divergence.arm_excerpt[:24] == divergence.baseline_excerpt[:24] == "…" + "s" * 23
