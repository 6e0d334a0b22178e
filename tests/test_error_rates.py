"""Stated error rates hold: equal arms, true differences, whole tables, early stops. By simulation."""

import math
import random
import sys
from pathlib import Path

import pytest

from spectune.domain.interval import Interval
from spectune.statistics.drift import detect_drift
from spectune.statistics.intervals import Comparison, SpeedSample, compare_with_baseline
from spectune.statistics.multiple import simultaneous
from spectune.statistics.sample_size import detectable_ratio, more_for_precision, more_needed

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from noise import Machine, called_different, draw_study, early_rates, error_rates

# Standard deviations of log speed seen on the demo's machine, two cores of a shared Intel Xeon (README):
# between launches of one arm 0.113, of one prompt's measurement 0.11.
DEMO_MACHINE = Machine(launch=0.11, prompt=0.12)
QUIET_MACHINE = Machine(launch=0.005, prompt=0.04)


@pytest.mark.parametrize("machine", [DEMO_MACHINE, QUIET_MACHINE], ids=["demo machine", "quiet machine"])
def test_equal_arms_are_called_different_as_often_as_stated(machine: Machine) -> None:
    """400 A/A studies at 95 %: binomial standard error 1.1 points. Three launches of a quiet machine leave it unsure
    how quiet it is, so that fewer are wrong there."""
    found = error_rates(machine, studies=400, launches=3, prompts=12)
    assert found["wrong_of_one_arm"] <= 0.05 + 2 * 0.011
    assert found["coverage"] >= 0.95 - 2 * 0.011


def test_the_rate_holds_for_the_whole_table_and_not_without_adjustment() -> None:
    found = error_rates(DEMO_MACHINE, studies=600, launches=3, prompts=12, seed=5)
    assert found["wrong_in_a_table_of_5"] <= 0.05 + 2 * 0.009
    assert found["wrong_in_a_table_of_5_unadjusted"] > 0.10


def test_an_arm_that_was_asked_no_more_is_called_different_as_seldom() -> None:
    """300 A/A studies of 2 launches, the first ended as enough: standard error 1.3 points."""
    found = early_rates(QUIET_MACHINE, studies=300, launches=2, prompts=24)
    assert found["asked_of_first_launch"] < 0.7
    assert found["wrong_of_one_arm"] <= 0.05 + 2 * 0.013
    assert found["coverage"] >= 0.95 - 2 * 0.013


def test_the_detectable_difference_by_hand() -> None:
    """Normal quantiles 1.960 + 0.842; errors 0.3 % and 0.4 % make 0.5 %: 2.802 * 0.5 % = 1.401 %, so 1.0141."""
    speedup = Interval(value=1.0, low=0.99, high=1.01, n=12, unit="x baseline")
    known = Comparison(
        arm_id="a",
        speedup=speedup,
        verdict="SAME",
        num_prompts=12,
        num_trials=4,
        num_baseline_trials=5,
        trial_noise_frac=0.004,
        degrees=1e7,
        prompt_log_var=0.003**2,
        launch_log_var=0.004**2,
    )
    assert detectable_ratio(known) == pytest.approx(1.0141, abs=1e-4)
    unknown = speedup.model_copy(update={"low": None, "high": None})
    assert detectable_ratio(known.model_copy(update={"speedup": unknown})) is None


def test_what_a_study_says_it_can_tell_apart_it_finds_in_about_four_of_five() -> None:
    """The median of what 100 equal studies state, and 150 studies with that gain: standard error 3.3 points, and the
    median's own."""
    machine, rng = Machine(0.02, 0.05), random.Random(9)
    stated = []
    for _ in range(100):
        found = draw_study(rng, machine, speedups=[1.0], launches=4, prompts=12)["arm0"]
        ratio = detectable_ratio(found)
        assert ratio is not None
        stated.append(ratio)
    gain = sorted(stated)[50]
    assert 1.03 < gain < 1.10
    hits = sum(
        draw_study(rng, machine, speedups=[gain], launches=4, prompts=12)["arm0"].verdict == "FASTER"
        for _ in range(150)
    )
    assert 0.65 <= hits / 150 <= 0.95


def test_no_number_of_prompts_is_promised_that_would_not_do() -> None:
    first = _one_comparison(launches=3, prompts=8, ratio=1.0, seed=1)
    speedup = first.speedup.model_copy(update={"value": 1.01})
    hopeless = first.model_copy(update={"speedup": speedup, "prompt_log_var": 4.0, "launch_log_var": 0.0})
    assert more_needed(hopeless, margin=0.02).more_prompts is None
    assert more_for_precision(hopeless, precision=0.001).more_prompts is None


def _one_comparison(*, launches: int, prompts: int, ratio: float, seed: int) -> Comparison:
    machine = Machine(launch=0.002, prompt=0.15)
    found = draw_study(random.Random(seed), machine, speedups=[ratio], launches=launches, prompts=prompts)
    return found["arm0"]


def test_cannot_tell_says_how_many_more_prompts_would_and_they_do() -> None:
    """Of undecided studies at a true 8 % whose launches are quiet, most are decided with the prompts asked for."""
    decided = undecided = 0
    for seed in range(400):
        first = _one_comparison(launches=5, prompts=8, ratio=1.08, seed=seed)
        if first.verdict != "CANNOT_TELL" or undecided == 40:
            continue
        more = more_needed(first, margin=0.02)
        if more.more_prompts is None or more.more_prompts > 400:
            continue
        undecided += 1
        again = _one_comparison(launches=5, prompts=8 + more.more_prompts, ratio=1.08, seed=1000 + seed)
        decided += again.verdict != "CANNOT_TELL"
        assert f"{more.more_prompts} more prompts" in str(more)
    assert undecided >= 8
    assert decided / undecided > 0.5


def test_where_launches_are_the_noise_more_prompts_are_not_offered() -> None:
    found = draw_study(random.Random(4), DEMO_MACHINE, speedups=[1.03], launches=3, prompts=12)["arm0"]
    assert found.verdict == "CANNOT_TELL"
    more = more_needed(found, margin=0.02)
    assert more.more_prompts is None
    assert more.more_launches is not None and more.more_launches >= 1


def test_as_many_more_launches_as_are_asked_for_decide_it() -> None:
    """Studies of two launches at a true 10 % with 3 % of launch noise: t at two degrees of freedom is not t at ten."""
    machine = Machine(launch=0.03, prompt=0.05)
    asked: list[int] = []
    decided = 0
    for seed in range(150):
        first = draw_study(random.Random(seed), machine, speedups=[1.1], launches=2, prompts=12)["arm0"]
        if first.verdict != "CANNOT_TELL" or len(asked) == 30:
            continue
        more = more_needed(first, margin=0.02)
        if more.more_launches is None:
            assert more.quieter
            continue
        asked.append(more.more_launches)
        again = draw_study(
            random.Random(1000 + seed), machine, speedups=[1.1], launches=2 + asked[-1], prompts=12
        )["arm0"]
        decided += again.verdict != "CANNOT_TELL"
    assert len(asked) >= 15
    assert sorted(asked)[len(asked) // 2] <= 6 and max(asked) <= 20
    assert decided / len(asked) > 0.6


def test_past_twenty_launches_the_machine_must_become_quieter() -> None:
    noisy = Comparison(
        arm_id="a",
        speedup=Interval(value=0.94, low=0.7, high=1.25, n=12, unit="x baseline"),
        verdict="CANNOT_TELL",
        num_prompts=12,
        num_trials=2,
        num_baseline_trials=4,
        trial_noise_frac=0.3,
        degrees=9.0,
        prompt_log_var=0.001,
        launch_log_var=0.09,
    )
    more = more_needed(noisy, margin=0.02)
    assert more.more_launches is None and more.quieter
    assert str(more) == "CANNOT_TELL; the machine must become quieter"
    quiet = noisy.model_copy(update={"launch_log_var": 0.0004, "prompt_log_var": 0.0002})
    assert more_needed(quiet, margin=0.02).more_launches == 1
    # By hand: error 2.45 % * sqrt(2 / 3) = 2.0 %; ln(1 / 0.94) = 6.2 % is 3.1 of these, and t at 9 degrees and more is
    # at most 2.26, with 0.84 for the chance: 3.1.


def test_a_gain_that_restarts_make_is_called_by_nobody_who_launched_once() -> None:
    speeds = {f"p{i}": 50.0 + i for i in range(12)}
    faster = {p: v * (1.05 + 0.001 * i) for i, (p, v) in enumerate(speeds.items())}
    found = compare_with_baseline([SpeedSample("a", 1, faster)], [SpeedSample("b", 0, speeds)])["a"]
    assert found.verdict == "CANNOT_TELL"
    assert found.trial_noise_frac is None


def test_simultaneous_intervals_are_wider_and_keep_their_middle() -> None:
    found = draw_study(random.Random(8), DEMO_MACHINE, speedups=[1.0, 1.5, 0.6], launches=3, prompts=12)
    together = simultaneous(found, margin=0.02)
    for name, before in found.items():
        after = together[name]
        assert after.speedup.value == before.speedup.value
        assert after.speedup.low is not None and before.speedup.low is not None
        assert after.speedup.low < before.speedup.low
    assert called_different(together)


def test_many_arms_beside_two_launches_that_differ_have_a_wide_interval_and_a_finite_one() -> None:
    speeds = {f"p{i}": 50.0 + i for i in range(4)}
    slow = {p: v * 0.6 for p, v in speeds.items()}
    arms = [SpeedSample(f"a{i}", i + 1, {p: v * 1.01 for p, v in speeds.items()}) for i in range(400)]
    found = compare_with_baseline(arms, [SpeedSample("b", 0, speeds), SpeedSample("b", 401, slow)])
    speedup = simultaneous(found, margin=0.02)["a7"].speedup
    assert speedup.low is not None and speedup.high is not None
    assert speedup.low < 0.2 and 5 < speedup.high < math.inf


class TestDrift:
    def samples(self, levels: list[float]) -> list[SpeedSample]:
        return [
            SpeedSample("b", i, {"p": 50 * math.exp(level), "q": 70 * math.exp(level)})
            for i, level in enumerate(levels)
        ]

    def test_a_steady_slowing_is_found_with_its_size(self) -> None:
        drift = detect_drift(self.samples([0.0, -0.05, -0.101, -0.149, -0.2]))
        assert drift is not None and drift.found()
        assert drift.change_frac == pytest.approx(math.expm1(-0.2), abs=0.01)

    def test_noise_without_a_trend_is_found_as_seldom_as_stated(self) -> None:
        rng = random.Random(3)
        found = 0
        for _ in range(1000):
            drift = detect_drift(self.samples([rng.gauss(0, 0.1) for _ in range(6)]))
            assert drift is not None
            found += drift.found()
        assert found / 1000 <= 0.05 + 2 * 0.007

    def test_two_launches_show_no_trend(self) -> None:
        assert detect_drift(self.samples([0.0, 0.5])) is None

    def test_a_still_machine_does_not_drift(self) -> None:
        drift = detect_drift(self.samples([0.0] * 4))
        assert drift is not None and not drift.found()
