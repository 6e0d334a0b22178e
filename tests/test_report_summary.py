"""The summary of made-up studies, against figures worked out by hand."""

from __future__ import annotations

import math

import pytest
from report_studies import (
    BASELINE,
    FAST,
    SLOW,
    UNEVEN,
    bracketed,
    counts,
    failed,
    load_result,
    request,
    scaled,
    study,
    trial,
)

from spectune.analysis.pooling import percentile
from spectune.analysis.summary import summarize
from spectune.domain.arm import baseline_arm
from spectune.domain.workload import LoadPoint, Sampling


def test_speed_is_the_geometric_mean_over_prompts():
    base = summarize(*bracketed(FAST, scaled(1.2))).baseline.first
    assert base.e2e_tok_per_s.value == pytest.approx(100.0)  # cube root of 50 * 100 * 200
    assert base.e2e_tok_per_s.n == 3


def test_speedup_is_paired_by_prompt():
    row = summarize(*bracketed(FAST, scaled(2.0))).arm(FAST.arm_id)
    assert row.first.speedup.value == pytest.approx(2.0)
    # Every prompt and both baselines agree: what is left is one launch, whose restart moves speeds by 15 %.
    assert row.first.speedup.low == pytest.approx(2.0 * math.exp(-1.96 * 0.15), rel=0.02)
    assert row.first.verdict == "FASTER"


def test_decode_speed_leaves_the_first_token_out():
    base = summarize(*bracketed(FAST, scaled(1.2))).baseline.first
    assert base.decode_tok_per_s.value == pytest.approx(110.0)  # 99 tokens in 0.9 of the time of 100


def test_output_throughput_is_all_tokens_over_all_time():
    base = summarize(*bracketed(FAST, scaled(1.2))).baseline.first
    assert base.output_tok_per_s == pytest.approx(300 / (2 + 1 + 0.5))


def test_output_throughput_is_unknown_when_one_request_lacks_usage():
    of = study(FAST)
    first = of.workload.prompts[0]
    loads = (load_result([request(first, 50), request(first, 50, output_tokens=None)]),)
    row = summarize(of, [trial(of, BASELINE, 1, loads=loads)]).baseline
    assert row.first.output_tok_per_s is None


def test_the_best_arm_is_the_fastest_of_the_faster():
    of = study(FAST, SLOW)
    trials = [
        trial(of, BASELINE, 1, speeds=UNEVEN),
        trial(of, SLOW, 2, speeds=scaled(1.7)),
        trial(of, FAST, 3, speeds=scaled(1.9)),
        trial(of, BASELINE, 4, speeds=UNEVEN, repetition=1),
    ]
    assert summarize(of, trials).best_arm_id == FAST.arm_id


def test_the_baseline_is_best_when_nothing_is_faster():
    summary = summarize(*bracketed(FAST, scaled(0.5)))
    assert summary.best_arm_id == BASELINE.arm_id
    assert summary.arm(FAST.arm_id).first.verdict == "SLOWER"


def test_a_large_speedup_that_cannot_be_told_from_noise_is_not_best():
    noisy = {"p0": 50 * 3, "p1": 100 * 0.6, "p2": 200 * 2}
    summary = summarize(*bracketed(FAST, noisy))
    assert summary.arm(FAST.arm_id).first.speedup.value > 1.4
    assert summary.best_arm_id == BASELINE.arm_id


def test_one_prompt_gives_a_speedup_without_an_interval():
    summary = summarize(*bracketed(FAST, {"p0": 75.0}, num_prompts=1))
    speedup = summary.arm(FAST.arm_id).first.speedup
    assert (speedup.value, speedup.low, speedup.high) == (pytest.approx(1.5), None, None)
    assert summary.arm(FAST.arm_id).first.verdict == "CANNOT_TELL"


def test_acceptance_length_is_weighted_by_tokens_and_by_request_under_two_names():
    of = study(FAST)
    parts = [counts(50, 25), counts(50, 75), counts(100, 20)]
    records = [request(p, 100, acceptance=c) for p, c in zip(of.workload.prompts, parts, strict=True)]
    row = summarize(of, [trial(of, FAST, 1, loads=(load_result(records),))]).arm(FAST.arm_id).first
    assert row.acceptance_length.value == pytest.approx(1 + 120 / 200)
    assert row.request_weighted_acceptance_length == pytest.approx((1.5 + 2.5 + 1.2) / 3)
    assert row.acceptance_rate == pytest.approx(120 / 600)
    assert row.acceptance_source == "per-request"
    assert row.acceptance_length.low < 1.6 < row.acceptance_length.high


def test_positions_are_marginal_and_conditional():
    of = study(FAST)
    part = counts(100, 80).model_copy(update={"accepted_per_position": (50, 20, 10)})
    records = [request(of.workload.prompts[0], 100, acceptance=part)]
    row = summarize(of, [trial(of, FAST, 1, loads=(load_result(records),))]).arm(FAST.arm_id).first
    assert row.accepted_per_position == pytest.approx((0.5, 0.2, 0.1))
    assert row.conditional_per_position == pytest.approx((0.5, 0.4, 0.5))


def test_counters_of_the_server_give_a_length_without_an_interval():
    of = study(FAST)
    requests = [request(p, 100) for p in of.workload.prompts]
    loads = (load_result(requests, acceptance=counts(100, 50), acceptance_source="counters"),)
    row = summarize(of, [trial(of, FAST, 1, loads=loads)]).arm(FAST.arm_id).first
    assert (row.acceptance_length.value, row.acceptance_length.low) == (1.5, None)
    assert row.request_weighted_acceptance_length is None
    assert row.acceptance_source == "counters"


def test_acceptance_of_plain_decoding_is_unknown_not_one():
    base = summarize(*bracketed(FAST, scaled(1.2))).baseline.first
    assert base.acceptance_length is None
    assert base.acceptance_rate is None


def test_break_even_is_length_over_speedup_when_every_step_verifies():
    # 100 tokens: the prompt's pass gives one, 66 passes give 66 and 33 drafts: all 66 verify.
    row = summarize(*bracketed(FAST, scaled(1.2), acceptance=counts(66, 33))).arm(FAST.arm_id)
    assert row.first.tokens_per_decode_step == pytest.approx(1.5)
    assert row.first.verify_step_frac == pytest.approx(1.0)
    assert row.step_cost_ratio == pytest.approx(1.5 / 1.2)
    assert row.break_even_acceptance_length == pytest.approx(1.5 / 1.2)
    assert row.step_cost_ratio == pytest.approx(1.25)
    assert not row.break_even_approximate


def test_break_even_of_a_drafter_that_skips_steps_counts_the_plain_steps_in():
    # 33 of 66 passes verify and keep one draft each: T = 1.5, L = 2, cost 1.5 / 1.2 = 1.25, 1 + 0.25 / 0.5.
    row = summarize(*bracketed(FAST, scaled(1.2), acceptance=counts(33, 33))).arm(FAST.arm_id)
    assert row.first.acceptance_length.value == pytest.approx(2.0)
    assert row.first.verify_step_frac == pytest.approx(0.5)
    assert row.break_even_tokens_per_pass == pytest.approx(1.25)
    assert row.break_even_acceptance_length == pytest.approx(1.5)


def test_break_even_is_approximate_when_the_number_of_steps_is_unknown():
    of = study(FAST)
    records = [request(p, 120, acceptance=counts(66, 33)) for p in of.workload.prompts]
    records[0] = records[0].model_copy(update={"output_tokens": None})
    trials = [trial(of, BASELINE, 1, speeds=100.0), trial(of, FAST, 2, loads=(load_result(records),))]
    row = summarize(of, trials).arm(FAST.arm_id)
    assert row.break_even_approximate
    assert row.break_even_acceptance_length == pytest.approx(1.25)


def test_categories_have_their_own_speedup_and_acceptance():
    of = study(FAST, num_prompts=4)
    fast = {"p0": 200.0, "p1": 90.0, "p2": 200.0, "p3": 90.0}  # p0, p2 are code; p1, p3 chat
    summary = summarize(
        of,
        [trial(of, BASELINE, 1, speeds=100.0), trial(of, FAST, 2, speeds=fast, acceptance=counts(60, 30))],
    )
    rows = {row.category: row for row in summary.arm(FAST.arm_id).first.categories}
    assert rows["code"].speedup.value == pytest.approx(2.0)
    assert rows["chat"].speedup.value == pytest.approx(0.9)
    assert rows["code"].num_prompts == 2
    assert rows["chat"].acceptance_length.value == pytest.approx(1.5)


def test_latencies_pool_the_requests_of_all_trials():
    summary = summarize(*bracketed(FAST, scaled(1.2)))
    base = summary.baseline.first
    assert base.median_ttft_s == pytest.approx(0.1)  # 0.2, 0.1, 0.05 twice
    assert base.median_tpot_s == pytest.approx(0.9 / 99)
    assert base.median_itl_s == pytest.approx(0.01)
    assert base.num_requests == 6


@pytest.mark.parametrize(("q", "expected"), [(0, 1.0), (50, 2.5), (99, 3.97), (100, 4.0)])
def test_percentiles_are_linear_between_ranks(q, expected):
    assert percentile([4.0, 1.0, 3.0, 2.0], q) == pytest.approx(expected)


def test_parity_is_against_the_first_baseline_trial():
    of = study(FAST)
    other = [request(p, 120, text="something else") for p in of.workload.prompts[:1]]
    same = [request(p, 120) for p in of.workload.prompts[1:]]
    summary = summarize(
        of,
        [
            trial(of, BASELINE, 1, speeds=100.0),
            trial(of, FAST, 2, loads=(load_result(other + same),)),
            trial(of, BASELINE, 3, speeds=100.0, repetition=1),
        ],
    )
    assert summary.arm(FAST.arm_id).first.parity.equal_frac == pytest.approx(2 / 3)
    assert [t.parity_frac for t in summary.trials] == [None, pytest.approx(2 / 3), 1.0]
    assert summary.baseline.first.parity.num_compared == 3


def test_a_sampled_workload_has_no_parity():
    summary = summarize(*bracketed(FAST, scaled(1.2), sampling=Sampling(temperature=1.0)))
    assert summary.trials[1].parity_frac is None


def test_a_repeated_arm_is_pooled_and_each_trial_keeps_its_own_speedup():
    of = study(FAST, repetitions=2)
    trials = [
        trial(of, BASELINE, 1, speeds=100.0),
        trial(of, FAST, 2, speeds=110.0),
        trial(of, BASELINE, 3, speeds=100.0, repetition=1),
        trial(of, FAST, 4, speeds=121.0, repetition=1),
    ]
    summary = summarize(of, trials)
    assert summary.arm(FAST.arm_id).first.speedup.value == pytest.approx((1.1 * 1.21) ** 0.5)
    assert summary.trials[1].speedup.value == pytest.approx(1.1)
    assert summary.trials[3].speedup.value == pytest.approx(1.21)
    assert summary.arm(FAST.arm_id).first.num_trials == 2


def test_each_load_point_is_compared_by_itself():
    points = (LoadPoint.closed(1), LoadPoint.closed(8))
    of = study(FAST, loads=points)

    def at(arm, number, single, eight):
        loads = tuple(
            load_result([request(p, speed) for p in of.workload.prompts], point)
            for point, speed in zip(points, (single, eight), strict=True)
        )
        return trial(of, arm, number, loads=loads)

    summary = summarize(of, [at(BASELINE, 1, 100.0, 50.0), at(FAST, 2, 250.0, 20.0)])
    first, second = summary.arm(FAST.arm_id).loads
    assert (first.label, first.speedup.value) == ("c=1", pytest.approx(2.5))
    assert (second.label, second.speedup.value) == ("c=8", pytest.approx(0.4))
    assert summary.best_arm_id == FAST.arm_id
    assert "At c=8 nothing is faster." in summary.headline


def test_the_baseline_is_the_studys_first_arm_not_every_arm_without_speculation():
    plain_too = baseline_arm(engine="llamacpp", target="smollm2", flags={"threads": 1}).model_copy(
        update={"name": "one thread"}
    )
    summary = summarize(*bracketed(plain_too, scaled(0.5)))
    assert summary.arm(plain_too.arm_id).first.speedup.value == pytest.approx(0.5)
    assert [arm.is_baseline for arm in summary.arms] == [True, False]


def test_a_failed_trial_shows_its_cause_and_no_figures():
    of = study(FAST)
    partial = (load_result([request(of.workload.prompts[0], 120)]),)
    summary = summarize(of, [trial(of, BASELINE, 1, speeds=100.0), failed(of, FAST, 2, loads=partial)])
    row = summary.trials[1]
    assert (row.status, row.cause, row.e2e_tok_per_s, row.verdict) == ("failed", "out of memory", None, None)
    assert summary.arm(FAST.arm_id).status == "failed"
    assert summary.arm(FAST.arm_id).loads == ()


def test_trials_of_another_workload_are_compared_with_nothing():
    of = study(FAST)
    trials = [
        trial(of, BASELINE, 1, speeds=100.0),
        trial(of, FAST, 2, speeds=150.0, workload_hash="another"),
    ]
    summary = summarize(of, trials)
    assert summary.trials[1].speedup is None
    assert "workload-changed" in {finding.code for finding in summary.findings}
