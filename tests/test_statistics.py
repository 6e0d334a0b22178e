"""Comparisons are tested by coverage: draw, and count how often the truth is inside."""

import math
import random

import pytest

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.interval import Interval
from spectune.statistics.intervals import (
    Comparison,
    SpeedSample,
    acceptance_length_interval,
    compare_with_baseline,
    geometric_mean_interval,
    judge,
    mean_interval,
    t_quantile,
)
from spectune.statistics.multiple import simultaneous


def test_t_quantiles_match_the_published_table() -> None:
    # Student's t, two-sided 95 %: df 1, 5, 30 (any statistics textbook).
    assert t_quantile(0.975, 1) == pytest.approx(12.706, abs=1e-3)
    assert t_quantile(0.975, 5) == pytest.approx(2.571, abs=1e-3)
    assert t_quantile(0.975, 30) == pytest.approx(2.042, abs=1e-3)


def test_mean_interval_by_hand() -> None:
    interval = mean_interval([1.0, 2.0, 3.0], unit="s")
    assert interval is not None
    assert interval.value == 2.0
    # sd 1, n 3: half width 4.303 / sqrt(3).
    assert interval.half_width == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)


def test_one_value_has_no_bounds_and_none_has_no_interval() -> None:
    single = mean_interval([5.0], unit="s")
    assert single is not None
    assert (single.low, single.high, single.n) == (None, None, 1)
    assert mean_interval([], unit="s") is None


def test_geometric_mean_is_symmetric_in_ratios() -> None:
    interval = geometric_mean_interval([0.5, 1.0, 2.0], unit="x")
    assert interval is not None
    assert interval.value == pytest.approx(1.0)
    assert interval.low is not None and interval.high is not None
    assert interval.low * interval.high == pytest.approx(1.0)


def test_two_prompts_make_no_interval_and_no_verdict() -> None:
    pair = geometric_mean_interval([0.5, 2.0], unit="x")
    assert pair is not None and (pair.low, pair.high, pair.n) == (None, None, 2)
    kept = [AcceptanceCounts(num_drafts=9, num_draft_tokens=27, num_accepted_tokens=n) for n in (8, 9)]
    length = acceptance_length_interval(kept)
    assert length is not None and length.low is None
    for names in ("ab", "abc"):
        plain = [SpeedSample("base", i, dict.fromkeys(names, 50.0)) for i in (0, 2, 4)]
        arm = [SpeedSample("a", i, {n: 90.0 + i + k / 10 for k, n in enumerate(names)}) for i in (1, 3)]
        found = simultaneous(compare_with_baseline(arm, plain), margin=0.02)["a"]
        assert (found.verdict == "CANNOT_TELL") is (names == "ab")
        assert (found.speedup.low is None) is (names == "ab")


def _interval(low: float, high: float) -> Interval:
    return Interval(value=math.sqrt(low * high), low=low, high=high, n=10, unit="x baseline")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.05, 1.20, "FASTER"),
        (0.80, 0.95, "SLOWER"),
        (0.99, 1.01, "SAME"),
        (1.001, 1.015, "SAME"),
        (0.95, 1.10, "CANNOT_TELL"),
    ],
)
def test_verdict_by_the_side_of_one(low: float, high: float, verdict: str) -> None:
    assert judge(_interval(low, high), margin=0.02) == verdict


def test_no_bounds_cannot_tell() -> None:
    assert judge(Interval(value=2.0, low=None, high=None, n=1, unit="x"), margin=0.02) == "CANNOT_TELL"


def _study(
    rng: random.Random, *, speedup: float, launch_sd: float, prompt_sd: float, prompts: int, trials: int
) -> Comparison:
    """Baseline, arm, baseline, arm, ...: each launch shifts all prompts; each measurement has its own noise."""
    base = {f"p{i}": rng.uniform(60, 90) for i in range(prompts)}
    arm_samples, baselines, order = [], [], 0

    def measure(ratio: float) -> dict[str, float]:
        shift = rng.gauss(0, launch_sd)
        return {p: v * ratio * math.exp(shift + rng.gauss(0, prompt_sd)) for p, v in base.items()}

    for _ in range(trials):
        baselines.append(SpeedSample("base", order, measure(1.0)))
        arm_samples.append(SpeedSample("arm", order + 1, measure(speedup)))
        order += 2
    baselines.append(SpeedSample("base", order, measure(1.0)))
    return compare_with_baseline(arm_samples, baselines)["arm"]


def test_interval_covers_the_true_speedup_despite_launch_noise() -> None:
    """400 studies, 3 % launch noise: the 95 % interval holds the truth in 93 % or more."""
    rng = random.Random(3)
    inside = 0
    for _ in range(400):
        found = _study(rng, speedup=1.1, launch_sd=0.03, prompt_sd=0.04, prompts=16, trials=3)
        assert found.speedup.low is not None and found.speedup.high is not None
        inside += found.speedup.low <= 1.1 <= found.speedup.high
    assert inside >= 372


def test_equal_arms_are_seldom_called_different() -> None:
    rng = random.Random(4)
    wrong = 0
    for _ in range(400):
        found = _study(rng, speedup=1.0, launch_sd=0.03, prompt_sd=0.04, prompts=16, trials=3)
        wrong += found.verdict in ("FASTER", "SLOWER")
    assert wrong <= 28


def test_single_launches_take_their_noise_from_the_baselines() -> None:
    rng = random.Random(5)
    wrong = 0
    for _ in range(300):
        base = {f"p{i}": 70.0 + i for i in range(12)}

        def measure(ratio: float, base: dict[str, float] = base) -> dict[str, float]:
            shift = rng.gauss(0, 0.05)
            return {p: v * ratio * math.exp(shift + rng.gauss(0, 0.01)) for p, v in base.items()}

        baselines = [SpeedSample("base", i * 3, measure(1.0)) for i in range(5)]
        arms = [SpeedSample(f"arm{i}", i * 3 + 1, measure(1.0)) for i in range(4)]
        compared = compare_with_baseline(arms, baselines)
        wrong += compared["arm0"].verdict in ("FASTER", "SLOWER")
    assert wrong <= 30


def test_a_steady_drift_cancels_between_bracketing_baselines() -> None:
    def at(order: int, ratio: float) -> SpeedSample:
        drift = math.exp(-0.05 * order)
        return SpeedSample(
            "x", order, {p: v * ratio * drift for p, v in {"a": 80.0, "b": 60.0, "c": 70.0}.items()}
        )

    baselines = [at(0, 1.0), at(2, 1.0), at(4, 1.0)]
    compared = compare_with_baseline([at(1, 1.2), at(3, 1.2)], baselines)
    assert compared["x"].speedup.value == pytest.approx(1.2)


def test_pairing_finds_what_unpaired_means_hide() -> None:
    """Prompts differ fourfold in speed; a 3 % difference on each is still seen."""
    rng = random.Random(6)
    base = {f"p{i}": 20.0 * (1 + i % 4) for i in range(24)}

    def measure(ratio: float) -> dict[str, float]:
        return {p: v * ratio * math.exp(rng.gauss(0, 0.01)) for p, v in base.items()}

    baselines = [SpeedSample("b", i, measure(1.0)) for i in (0, 2, 4, 6)]
    compared = compare_with_baseline(
        [SpeedSample("a", i, measure(1.03)) for i in (1, 3, 5)], baselines, margin=0.01
    )
    assert compared["a"].verdict == "FASTER"


def test_an_arm_without_common_prompts_is_not_compared() -> None:
    assert compare_with_baseline([SpeedSample("a", 1, {"p": 1.0})], [SpeedSample("b", 0, {"q": 1.0})]) == {}


def test_without_a_baseline_there_is_nothing_to_compare() -> None:
    assert compare_with_baseline([SpeedSample("a", 1, {"p": 1.0})], []) == {}


class TestPromptsNotAllAsked:
    """A launch that ended early asked some prompts, the next one of the arm all of them."""

    def compared(self, first: dict[str, float], second: dict[str, float]) -> Comparison:
        plain = {"p": 100.0, "q": 100.0}
        baselines = [SpeedSample("b", 0, plain), SpeedSample("b", 9, {"p": 110.0, "q": 110.0})]
        arms = [SpeedSample("a", 3, first), SpeedSample("a", 6, second)]
        return compare_with_baseline(arms, baselines)["a"]

    def test_other_prompts_are_no_noise_of_launches(self) -> None:
        uneven = {"p": 200.0, "q": 50.0}
        whole = self.compared(uneven, uneven)
        part = self.compared({"p": 200.0}, uneven)
        assert part.trial_noise_frac == pytest.approx(whole.trial_noise_frac)
