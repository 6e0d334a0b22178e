"""Hypotheses are written from what was measured, and judged by what came."""

import pytest

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm, Knobs, baseline_arm, differing_factors
from spectune.domain.hypothesis import Expectation
from spectune.domain.interval import Interval
from spectune.domain.study import ArmExpectation
from spectune.models.arm_shape import shape_of
from spectune.models.prediction import Observation, judge_hypothesis, prediction_error, propose
from spectune.statistics.intervals import Comparison, Verdict

BASE = baseline_arm(engine="vllm", target="m")


def chain(length: int, method: str = "eagle3") -> Arm:
    knobs = Knobs(method=method, drafter="d", num_draft_tokens=length)
    return Arm(name=f"{method}-k{length}", engine="vllm", target="m", knobs=knobs)


# 100 steps; 60 keep position 0, 30 also position 1, 15 also position 2.
COUNTS = AcceptanceCounts(
    num_drafts=100, num_draft_tokens=300, num_accepted_tokens=105, accepted_per_position=(60, 30, 15)
)


def interval(value: float, low: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high, n=10, unit="tok/s")


def test_the_first_baseline_is_the_reference_and_is_not_judged() -> None:
    hypothesis = propose(BASE, baseline=BASE, observed=[])
    assert hypothesis.expectation == "reference"
    judged = judge_hypothesis(hypothesis, observed=interval(80, 78, 82), over_reference=None)
    assert judged.verdict is None


def test_a_new_method_claims_a_direction_and_no_number() -> None:
    observed = [Observation(BASE, 80.0, None, None)]
    hypothesis = propose(chain(3), baseline=BASE, observed=observed)
    assert hypothesis.compared_with == BASE.arm_id
    assert hypothesis.expectation == "faster"
    assert hypothesis.predicted_tok_per_s is None
    assert "not known yet" in hypothesis.why


def test_a_shorter_chain_is_predicted_from_the_longer_by_hand() -> None:
    # K = 3: acceptance length 2.05, speedup 0.82 -> 2.5 baseline steps; linear from 1: K = 1 costs 1.5.
    # The model also allows a part that does not depend on K, so it may say a little more than 1.5.
    observed = [Observation(BASE, 80.0, None, None), Observation(chain(3), 65.6, 0.82, COUNTS)]
    hypothesis = propose(chain(1), baseline=BASE, observed=observed)
    assert hypothesis.compared_with == chain(3).arm_id
    assert hypothesis.changed == ("num_draft_tokens",)
    by_hand = 80 * 1.6 / 1.5
    predicted = hypothesis.predicted_tok_per_s
    assert predicted is not None and predicted.low is not None and predicted.high is not None
    assert predicted.value == pytest.approx(by_hand, rel=0.08)
    assert predicted.low < by_hand < predicted.high
    assert hypothesis.expectation == "faster"


def test_n_grams_of_another_length_get_no_number() -> None:
    knobs = Knobs(method="ngram", num_draft_tokens=4)
    four = Arm(name="n4", engine="llamacpp", target="m", knobs=knobs)
    eight = four.model_copy(update={"knobs": knobs.model_copy(update={"num_draft_tokens": 8})})
    observed = [Observation(BASE, 80.0, None, None), Observation(four, 84.0, 1.05, COUNTS)]
    hypothesis = propose(eight, baseline=BASE, observed=observed)
    assert hypothesis.predicted_tok_per_s is None and hypothesis.predicted_speedup is None
    assert "says nothing of another" in hypothesis.why


def test_two_measured_lengths_give_the_cost_of_the_one_between() -> None:
    short = AcceptanceCounts(
        num_drafts=100, num_draft_tokens=100, num_accepted_tokens=60, accepted_per_position=(60,)
    )
    observed = [
        Observation(BASE, 100.0, None, None),
        Observation(chain(1), 128.0, 1.28, short),  # 1.6 / 1.28 = 1.25
        Observation(chain(3), 102.5, 1.025, COUNTS),  # 2.05 / 1.025 = 2.0
    ]
    hypothesis = propose(chain(2), baseline=BASE, observed=observed)
    assert hypothesis.predicted_tok_per_s is not None
    assert hypothesis.predicted_tok_per_s.value == pytest.approx(100 * 1.9 / 1.625, rel=0.05)


def test_flags_are_not_predicted() -> None:
    observed = [Observation(BASE, 80.0, None, None), Observation(chain(3), 65.6, 0.82, COUNTS)]
    arm = chain(3).model_copy(update={"flags": {"p-min": 0.7}})
    hypothesis = propose(arm, baseline=BASE, observed=observed)
    assert hypothesis.changed == ("flags.p-min",)
    assert hypothesis.predicted_tok_per_s is None


def test_a_repetition_predicts_itself() -> None:
    observed = [Observation(BASE, 80.0, None, None), Observation(chain(3), 65.6, 0.82, COUNTS)]
    hypothesis = propose(chain(3), baseline=BASE, observed=observed)
    assert hypothesis.changed == ()
    assert hypothesis.predicted_tok_per_s is not None
    assert hypothesis.predicted_tok_per_s.value == 65.6


def test_the_users_expectation_and_reason_stand() -> None:
    observed = [Observation(BASE, 80.0, None, None)]
    expectation = ArmExpectation(expect="slower", why="the draft is weak")
    hypothesis = propose(chain(3), baseline=BASE, observed=observed, expectation=expectation)
    assert (hypothesis.expectation, hypothesis.why) == ("slower", "the draft is weak")
    judged = judge_hypothesis(
        hypothesis, observed=interval(64, 60, 68), over_reference=compared(0.8, "SLOWER")
    )
    assert judged.verdict == "confirmed"
    assert judged.observed == "64.0 tok/s, 0.80x baseline (slower)"


def compared(speedup: float, verdict: Verdict) -> Comparison:
    """The interval alone would tell: only the verdict counts."""
    interval_of = Interval(value=speedup, low=0.99 * speedup, high=1.01 * speedup, n=10, unit="x baseline")
    return Comparison(
        arm_id="k3",
        speedup=interval_of,
        verdict=verdict,
        num_prompts=10,
        num_trials=1,
        num_baseline_trials=2,
        trial_noise_frac=None,
    )


@pytest.mark.parametrize(
    ("expectation", "verdict", "judgement"),
    [
        ("faster", "FASTER", "confirmed"),
        ("faster", "CANNOT_TELL", "undecided"),
        ("faster", "SAME", "refuted"),
        ("slower", "FASTER", "refuted"),
        ("same", "SAME", "confirmed"),
        ("same", "SLOWER", "refuted"),
    ],
)
def test_a_direction_is_judged_by_the_tables_own_verdict(
    expectation: Expectation, verdict: Verdict, judgement: str
) -> None:
    wanted = ArmExpectation(expect=expectation)
    hypothesis = propose(
        chain(3), baseline=BASE, observed=[Observation(BASE, 80.0, None, None)], expectation=wanted
    )
    judged = judge_hypothesis(
        hypothesis, observed=interval(125, 120, 130), over_reference=compared(1.56, verdict)
    )
    assert judged.verdict == judgement


def test_a_number_that_came_true_confirms_no_direction_that_nothing_tells() -> None:
    observed = [Observation(BASE, 80.0, None, None), Observation(chain(3), 120.0, 1.5, COUNTS)]
    hypothesis = propose(chain(2), baseline=BASE, observed=observed)
    assert hypothesis.predicted_tok_per_s is not None
    there = interval(hypothesis.predicted_tok_per_s.value, 1, 1000)
    right: Verdict = "FASTER" if hypothesis.expectation == "faster" else "SLOWER"
    told = judge_hypothesis(hypothesis, observed=there, over_reference=compared(1.56, right))
    open_ = judge_hypothesis(hypothesis, observed=there, over_reference=compared(1.56, "CANNOT_TELL"))
    assert (told.verdict, open_.verdict) == ("confirmed", "undecided")
    assert open_.observed is not None and open_.observed.endswith("(cannot tell)")


@pytest.mark.parametrize(
    ("observed", "verdict"),
    [
        (interval(105, 100, 110), "confirmed"),
        (interval(140, 135, 145), "refuted"),
        (interval(112, 108, 116), "undecided"),
    ],
)
def test_a_prediction_is_judged_by_where_the_observation_lies(observed: Interval, verdict: str) -> None:
    hypothesis = propose(chain(3), baseline=BASE, observed=[Observation(chain(3), 100.0, 1.0, COUNTS)])
    assert judge_hypothesis(hypothesis, observed=observed, over_reference=None).verdict == verdict


def test_the_error_of_predictions_so_far_by_hand() -> None:
    pairs = [(interval(100, 90, 110), 105.0), (interval(80, 70, 90), 100.0), (interval(50, 45, 55), 50.0)]
    error = prediction_error(pairs)
    assert error is not None
    # |100/105 - 1| = 4.8 %, |80/100 - 1| = 20 %, 0 %.
    assert error.median_abs_frac == pytest.approx(5 / 105)
    assert error.worst_abs_frac == pytest.approx(0.2)
    assert error.inside_frac == pytest.approx(2 / 3)
    assert prediction_error([]) is None


def test_nothing_observed_is_undecided() -> None:
    hypothesis = propose(chain(3), baseline=BASE, observed=[Observation(BASE, 80.0, None, None)])
    assert judge_hypothesis(hypothesis, observed=None, over_reference=None).verdict == "undecided"


def test_differing_factors_name_knobs_and_flags() -> None:
    other = chain(2).model_copy(update={"flags": {"x": 1}})
    assert differing_factors(chain(3), other) == ("num_draft_tokens", "flags.x")
    assert differing_factors(chain(3), chain(3)) == ()


def test_a_truth_value_in_a_request_is_no_draft_length() -> None:
    limited = chain(3).model_copy(update={"request": {"speculative.n_max": 2}})
    asked = chain(3).model_copy(update={"request": {"speculative.n_max": True}})
    assert shape_of(limited).tokens == 2
    assert shape_of(asked) == shape_of(chain(3))
