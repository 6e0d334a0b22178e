"""Acceptance figures against hand counts, published definitions and simulation."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from spectune.domain.acceptance import AcceptanceCounts, pool_counts, request_weighted_acceptance_length
from spectune.statistics.intervals import acceptance_length_interval


def test_length_counts_the_bonus_token() -> None:
    # vLLM example in its own log: accepted 54, drafted 305, K = 3 -> mean acceptance length 1.52 (54 / ~102 + 1).
    counts = AcceptanceCounts(num_drafts=102, num_draft_tokens=306, num_accepted_tokens=54)
    assert counts.acceptance_length == pytest.approx(1 + 54 / 102)
    assert counts.acceptance_rate == pytest.approx(54 / 306)


def test_nothing_accepted_is_one_token_per_step_not_unknown() -> None:
    counts = AcceptanceCounts(num_drafts=10, num_draft_tokens=30, num_accepted_tokens=0)
    assert counts.acceptance_length == 1.0
    assert counts.acceptance_rate == 0.0


def test_no_verify_step_is_unknown_not_one() -> None:
    counts = AcceptanceCounts(num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0)
    assert counts.acceptance_length is None
    assert counts.acceptance_rate is None
    assert counts.marginal_acceptance is None


def test_histogram_gives_marginal_and_conditional_by_position() -> None:
    # 10 steps: 4 kept none, 3 kept one, 2 kept two, 1 kept all three.
    counts = AcceptanceCounts.from_histogram([4, 3, 2, 1], num_draft_tokens=30)
    assert counts.num_drafts == 10
    assert counts.num_accepted_tokens == 3 + 4 + 3
    assert counts.marginal_acceptance == (0.6, 0.3, 0.1)
    assert counts.conditional_acceptance == pytest.approx((0.6, 0.5, 1 / 3))


def test_conditional_is_unknown_where_no_step_came() -> None:
    counts = AcceptanceCounts.from_histogram([5, 0, 0], num_draft_tokens=10)
    assert counts.conditional_acceptance == (0.0, None)


def test_a_histogram_cut_at_the_longest_draft_that_was_kept() -> None:
    """SGLang's of a dead drafter has one entry: no position is known to have been kept."""
    counts = AcceptanceCounts.from_histogram([101], num_draft_tokens=303)
    assert counts.acceptance_length == 1.0
    assert counts.marginal_acceptance == ()
    assert counts.conditional_acceptance == ()
    pooled = pool_counts([counts, AcceptanceCounts.from_histogram([8, 2], num_draft_tokens=30)])
    assert pooled is not None
    assert pooled.accepted_per_position == (2,)


def test_more_accepted_than_drafted_is_refused() -> None:
    with pytest.raises(ValidationError, match="accepted of only"):
        AcceptanceCounts(num_drafts=1, num_draft_tokens=2, num_accepted_tokens=3)


def test_token_and_request_weighting_differ_on_unequal_requests() -> None:
    short = AcceptanceCounts(num_drafts=1, num_draft_tokens=3, num_accepted_tokens=3)
    long = AcceptanceCounts(num_drafts=9, num_draft_tokens=27, num_accepted_tokens=0)
    pooled = pool_counts([short, long])
    assert pooled is not None
    assert pooled.acceptance_length == pytest.approx(1.3)
    assert request_weighted_acceptance_length([short, long]) == pytest.approx(2.5)


def test_pool_does_not_invent_what_one_part_does_not_know() -> None:
    known = AcceptanceCounts.from_histogram([1, 1], num_draft_tokens=2)
    unknown = AcceptanceCounts(num_drafts=None, num_draft_tokens=3, num_accepted_tokens=1)
    pooled = pool_counts([known, unknown])
    assert pooled is not None
    assert pooled.num_drafts is None
    assert pooled.acceptance_length is None
    assert pooled.accepted_per_position is None
    assert pooled.num_draft_tokens == 5
    assert pool_counts([]) is None


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8))
def test_length_is_one_plus_the_sum_of_marginals(histogram: list[int]) -> None:
    steps = sum(histogram)
    counts = AcceptanceCounts.from_histogram(histogram, num_draft_tokens=steps * (len(histogram) - 1))
    if steps:
        assert counts.marginal_acceptance is not None
        assert counts.acceptance_length == pytest.approx(1 + sum(counts.marginal_acceptance))


def test_chain_of_constant_alpha_matches_leviathan() -> None:
    """Monte Carlo: alpha 0.7, K = 4 -> (1 - alpha^(K+1)) / (1 - alpha), arXiv:2211.17192 eq. 1."""
    rng = random.Random(1)
    histogram = [0] * 5
    for _ in range(40_000):
        kept = 0
        while kept < 4 and rng.random() < 0.7:
            kept += 1
        histogram[kept] += 1
    counts = AcceptanceCounts.from_histogram(histogram, num_draft_tokens=160_000)
    assert counts.acceptance_length == pytest.approx((1 - 0.7**5) / (1 - 0.7), rel=0.01)
    assert counts.conditional_acceptance == pytest.approx((0.7,) * 4, abs=0.02)


def test_length_interval_covers_the_truth_at_its_level() -> None:
    """200 studies of 24 requests whose own acceptance varies: the 95 % interval holds the truth in 90-99 % of them."""
    rng = random.Random(7)
    truth = 1 + 0.6 + 0.6 * 0.5
    inside = 0
    for _ in range(200):
        parts = []
        for _ in range(24):
            shift = rng.gauss(0, 0.08)
            histogram = [0, 0, 0]
            for _ in range(rng.randint(15, 60)):
                kept = 0
                if rng.random() < 0.6 + shift:
                    kept = 2 if rng.random() < 0.5 else 1
                histogram[kept] += 1
            parts.append(AcceptanceCounts.from_histogram(histogram, num_draft_tokens=2 * sum(histogram)))
        interval = acceptance_length_interval(parts)
        assert interval is not None and interval.low is not None and interval.high is not None
        inside += interval.low <= truth <= interval.high
    assert 180 <= inside <= 198
