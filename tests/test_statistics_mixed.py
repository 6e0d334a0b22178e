"""Launches of unequal noise: the stated error rates hold, counted over simulated studies of known truth."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from spectune.domain.interval import Interval
from spectune.statistics.intervals import (
    Comparison,
    SpeedSample,
    acceptance_length_interval,
    compare_with_baseline,
)
from spectune.statistics.mixed import ASSUMED_LAUNCH_LOG_SD, LaunchSpeed, launch_error
from spectune.statistics.multiple import simultaneous

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from noise_machine import Machine, draw
from noise_table import Cell, measure

EQUAL = (1.0,) * 5


@pytest.mark.parametrize("launches", [1, 2, 3, 5])
def test_drafting_launches_noisier_than_plain_ones_are_seldom_called_different(launches: int) -> None:
    """11 against 0.5 %, a published case. 5 % wrong: 14 or more of 120 come up once in two hundred such tests."""
    cell = Cell("drafting", Machine(0.005, 0.05, drafting=0.11), launches, EQUAL)
    assert measure(cell, studies=120)["wrong"] <= 14 / 120


def test_a_table_of_noisy_drafting_launches_is_seldom_wrong_anywhere() -> None:
    """Three launches, 11 against 0.5 %: 7 to 9 % of such tables had a wrong call. Now about 1 %."""
    cell = Cell("drafting", Machine(0.005, 0.05, drafting=0.11), 3, EQUAL)
    assert measure(cell, studies=120, seed=2)["table"] <= 6 / 120


def test_an_arm_whose_launches_agree_by_luck_is_as_noisy_as_half_the_typical_one() -> None:
    """Launch variances 1, 4 and 9 in ten thousand: the median is 4, so that of the first is taken as 2."""
    found = _compared([0.0001, 0.0004, 0.0009])
    table = simultaneous(found, margin=0.02)
    assert [c.launch_log_var for c in table.values()] == pytest.approx([0.0002, 0.0004, 0.0009])
    assert [c.launch_log_var for c in simultaneous(dict(list(found.items())[::2]), margin=0.02).values()] == [
        0.0001,
        0.0009,
    ]


def _compared(launch_vars: list[float]) -> dict[str, Comparison]:
    speedup = Interval(value=1.0, low=0.9, high=1.1, n=12, unit="x baseline")
    return {
        f"a{i}": Comparison(
            arm_id=f"a{i}",
            speedup=speedup,
            verdict="CANNOT_TELL",
            num_prompts=12,
            num_trials=3,
            num_baseline_trials=4,
            trial_noise_frac=0.01,
            degrees=5.0,
            prompt_log_var=0.0001,
            launch_log_var=variance,
            launch_degrees=4.0,
        )
        for i, variance in enumerate(launch_vars)
    }


@pytest.mark.parametrize("launches", [2, 3, 5])
def test_one_noisy_arm_among_quiet_ones_is_seldom_called_different(launches: int) -> None:
    cell = Cell("one noisy", Machine(0.01, 0.05, noisy=0.1), launches, EQUAL)
    assert measure(cell, studies=120)["wrong"] <= 18 / 120  # 7 %


def test_a_true_gain_of_a_fifth_is_found_on_a_machine_whose_speed_wanders_by_a_fifth() -> None:
    """Five launches; taken as noise of launches alone it was found in half of the studies."""
    cell = Cell("slow", Machine(0.01, 0.05, slow=0.2), 5, (1.2,))
    assert measure(cell, studies=80)["found"] >= 0.65


def test_a_quiet_machine_finds_five_percent_with_five_launches() -> None:
    assert measure(Cell("quiet", Machine(0.01, 0.05), 5, (1.05,)), studies=60)["found"] >= 0.85


def test_one_launch_calls_a_gain_that_no_restart_makes_and_no_smaller_one() -> None:
    def verdict(ratio: float) -> str:
        drawn = draw(random.Random(1), Machine(0.005, 0.02), speedups=[ratio], launches=1, prompts=12)
        return compare_with_baseline(drawn.arms, drawn.baselines)["arm0"].verdict

    assert (verdict(2.0), verdict(1.2), verdict(0.5)) == ("FASTER", "CANNOT_TELL", "SLOWER")


def test_an_arm_launched_once_has_the_assumed_noise_beside_a_baseline_that_repeats() -> None:
    def plain(order: int) -> LaunchSpeed:
        return LaunchSpeed(0.001 * (order % 3), order, "", False, -0.5 if order in (0, 2) else 0.0)

    arm = LaunchSpeed(0.3, 1, "", True, 1.0)
    error = launch_error([plain(0), arm, plain(2), plain(3), plain(4), plain(5)])
    assert error.variance**0.5 == pytest.approx(ASSUMED_LAUNCH_LOG_SD, rel=0.05)


def test_each_further_look_makes_the_intervals_wider() -> None:
    drawn = draw(random.Random(2), Machine(0.01, 0.05), speedups=[1.1], launches=3, prompts=12)
    compared = compare_with_baseline(drawn.arms, drawn.baselines)
    halves = []
    for looks in (1, 2, 5):
        speedup = simultaneous(compared, margin=0.02, looks=looks)["arm0"].speedup
        assert speedup.low is not None and speedup.high is not None
        halves.append(speedup.high / speedup.low)
    assert halves == sorted(halves) and halves[0] < halves[1] < halves[2]


def test_these_prompts_are_told_where_prompts_like_these_are_not() -> None:
    """Five prompts that gain between -16 and +3 %, the same at each of three launches: 0.92x on these for certain."""
    gains = {"a": 0.84, "b": 0.86, "c": 0.92, "d": 0.97, "e": 1.03}
    base = {"a": 50.0, "b": 60.0, "c": 70.0, "d": 80.0, "e": 90.0}
    plain = [SpeedSample("b", i, base) for i in (0, 2, 4, 6)]
    arm = [SpeedSample("k", i, {p: v * gains[p] for p, v in base.items()}) for i in (1, 3, 5)]
    found = compare_with_baseline(arm, plain)["k"]
    assert found.speedup.value == pytest.approx(0.9214, abs=0.001)
    assert found.verdict == "CANNOT_TELL"
    assert found.these_prompts is not None and found.these_prompts.high is not None
    assert found.these_prompts.high < 0.96


def test_a_report_says_what_is_known_of_these_prompts() -> None:
    """The case of a published study: five prompts, three launches of each, a steady 0.92x."""
    from report_studies import BASELINE, FAST, study, trial

    from spectune.analysis.summary import summarize

    gains = (0.84, 0.86, 0.92, 0.97, 1.03)
    of = study(FAST, num_prompts=5)
    plain = {f"p{i}": 50.0 + 10 * i for i in range(5)}
    drafted = {f"p{i}": plain[f"p{i}"] * gain for i, gain in enumerate(gains)}
    trials = [
        trial(of, FAST, n, speeds=drafted, repetition=n // 2)
        if n % 2 == 0
        else trial(of, BASELINE, n, speeds=plain, repetition=n // 2)
        for n in range(1, 8)
    ]
    told = summarize(of, trials).headline
    assert "which could be either side of 1" in told
    assert "On these 5 prompts themselves it is slower: 0.92x [0." in told


def test_counts_of_a_prompt_asked_again_are_no_new_prompts() -> None:
    from report_studies import counts, load_result, prompts, request

    from spectune.analysis.pooling import acceptance_length, pooled_acceptance

    kept = (30, 60, 90, 45)
    asked = [request(p, 50, acceptance=counts(100, k)) for p, k in zip(prompts(4), kept, strict=True)]
    once, often = [load_result(asked)], [load_result(asked) for _ in range(5)]
    narrow, same = (acceptance_length(pooled_acceptance(x), x, level=0.95) for x in (often, once))
    assert narrow is not None and same is not None
    assert (narrow.value, narrow.low, narrow.high) == pytest.approx((same.value, same.low, same.high))
    by_hand = acceptance_length_interval([counts(100, k) for k in kept])
    assert by_hand is not None and by_hand.low == pytest.approx(same.low)
