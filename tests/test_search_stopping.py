"""Ending an arm's prompts early: what it costs in the arm that is chosen, and what it saves."""

import math
import random
import statistics

import pytest

from spectune.statistics.estimate import normal_gain
from spectune.statistics.intervals import mean_interval
from spectune.statistics.sequential import Expected, PooledNoise, WorthStopping, pool_noise

NOISE = 0.06
POOLED = PooledNoise(NOISE**2, 40)


def measure(rule: WorthStopping, rng: random.Random, *, effect: float) -> tuple[int, str | None]:
    """Prompts measured of an arm with this true log ratio to the reference, and how it ended."""
    logs: list[float] = []
    for _ in range(rule.num_prompts):
        logs.append(effect + rng.gauss(0, NOISE))
        verdict = rule.verdict(logs, logs, pooled=POOLED, pooled_to_baseline=POOLED)
        if verdict is not None:
            return len(logs), verdict
    return len(logs), None


def test_the_expected_gain_of_a_normal_quantity_agrees_with_drawing_it() -> None:
    rng = random.Random(1)
    for gap, sd in ((-0.05, 0.03), (0.0, 0.02), (0.04, 0.05)):
        drawn = statistics.fmean(max(0.0, rng.gauss(gap, sd)) for _ in range(100_000))
        assert normal_gain(gap, sd) == pytest.approx(drawn, rel=0.03)
    assert normal_gain(-0.1, 0.0) == 0.0
    assert normal_gain(0.1, 0.0) == 0.1


def test_stopping_costs_no_more_than_it_says_whatever_the_arm() -> None:
    """Against measuring whole: mean loss in the chosen arm's log speed over 3,000 arms around the reference."""
    rule, rng = WorthStopping(tolerance=0.002), random.Random(2)
    lost = []
    for _ in range(3000):
        effect = rng.gauss(0, 0.05)
        logs = [effect + rng.gauss(0, NOISE) for _ in range(rule.num_prompts)]
        n = next(
            (n for n in range(1, 33) if rule.verdict(logs[:n], logs[:n], pooled=POOLED) == "worse"), None
        )
        whole = effect if statistics.fmean(logs) > 0 else 0.0
        early = 0.0 if n is not None else whole
        lost.append(whole - early)
    assert statistics.fmean(lost) <= 0.002


def test_a_clearly_worse_arm_takes_a_few_prompts() -> None:
    rule, rng = WorthStopping(), random.Random(3)
    taken = [measure(rule, rng, effect=math.log(0.8)) for _ in range(300)]
    assert statistics.fmean(n for n, _ in taken) < 5
    assert sum(verdict == "worse" for _, verdict in taken) >= 298


def test_a_better_arm_is_measured_until_it_is_known_well_enough() -> None:
    rng = random.Random(4)
    effect = math.log(1.2)
    whole = [measure(WorthStopping(), rng, effect=effect) for _ in range(100)]
    assert all(found == (32, None) for found in whole)
    enough = [measure(WorthStopping(precision=0.02), rng, effect=effect) for _ in range(100)]
    # 0.06 / sqrt(n) is at most 0.02 from n = 9 on; looks come at even numbers, the variance is pooled.
    assert all(8 <= n <= 16 and verdict == "enough" for n, verdict in enough)


@pytest.mark.parametrize("earlier", [0, 11])
@pytest.mark.parametrize("noise", [0.03, 0.085, 0.12])
def test_the_interval_of_an_arm_that_ended_as_enough_holds_as_often_as_it_says(
    noise: float, earlier: int
) -> None:
    """The t interval of its own prompts, as reports give it; within two points of 95 %, for 1,500 arms."""
    rule, rng = WorthStopping(precision=0.03), random.Random(5)
    held = early = 0
    for _ in range(1500):
        drawn = math.fsum(rng.gauss(0, noise) ** 2 for _ in range(earlier))
        pooled = PooledNoise(drawn / earlier, earlier) if earlier else None
        logs = [rng.gauss(0, noise) for _ in range(32)]
        ended = next(
            (n for n in range(2, 32, 2) if rule.verdict([], logs[:n], pooled_to_baseline=pooled) == "enough"),
            32,
        )
        early += ended < 32
        interval = mean_interval(logs[:ended], unit="")
        assert interval is not None and interval.low is not None and interval.high is not None
        held += interval.low <= 0 <= interval.high
    assert early > 1000
    assert held / 1500 == pytest.approx(0.95, abs=0.02)


def test_it_is_scatter_that_ends_an_arm_and_never_its_speed() -> None:
    rule = WorthStopping(precision=0.02)
    logs = [0.01, -0.02, 0.03, -0.01, 0.02, -0.03, 0.01, -0.01]
    for shift in (-0.5, 0.0, 0.5):
        moved = [x + shift for x in logs]
        assert rule.verdict([], moved, pooled_to_baseline=PooledNoise(0.0004, 12)) == "enough"
        assert rule.verdict([], moved, pooled_to_baseline=PooledNoise(0.04, 12)) is None


def test_few_prompts_are_never_enough_however_alike() -> None:
    rule = WorthStopping(precision=0.02)
    assert rule.verdict([], [0.1] * 4, pooled_to_baseline=PooledNoise(0.0, 40)) is None
    assert rule.verdict([], [0.1] * 6, pooled_to_baseline=PooledNoise(0.0, 40)) == "enough"
    # Without earlier arms their own scatter has to tell: 11 degrees of freedom take 12 prompts.
    assert rule.verdict([], [0.1] * 10) is None
    assert rule.verdict([], [0.1] * 12) == "enough"


def test_what_a_model_expects_decides_where_prompts_are_few() -> None:
    rule = WorthStopping()
    logs = [-0.01, -0.03]
    assert rule.verdict(logs, logs, pooled=POOLED) is None
    assert rule.verdict(logs, logs, pooled=POOLED, expected=Expected(-0.15, 0.04)) == "worse"
    assert rule.verdict(logs, logs, pooled=POOLED, expected=Expected(0.1, 0.04)) is None


def test_prompts_the_reference_does_not_have_teach_nothing_of_the_difference() -> None:
    rule = WorthStopping()
    few = rule.worth_of_the_rest([-0.02] * 8, pooled=POOLED, most_pairs=8)
    many = rule.worth_of_the_rest([-0.02] * 8, pooled=POOLED)
    assert few is not None and many is not None
    assert few[1] < 1e-6 < many[1]


def test_one_or_two_prompts_alone_decide_nothing() -> None:
    assert WorthStopping(block=1).verdict([-1.0], [-1.0]) is None
    assert WorthStopping(block=1).verdict([-1.0, -1.01], [-1.0, -1.01]) is None


def test_prompts_are_worth_less_where_launches_differ_by_more_than_they_tell() -> None:
    logs = [-0.05, 0.03, -0.06, 0.02]
    equal = Expected(0.0, 0.03)
    quiet = WorthStopping().worth_of_the_rest(logs, expected=equal)
    noisy = WorthStopping(launch_log_sd=0.1).worth_of_the_rest(logs, expected=equal)
    assert quiet is not None and noisy is not None
    assert noisy[1] < 0.5 * quiet[1]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="tolerance"):
        WorthStopping(tolerance=0.0)
    with pytest.raises(ValueError, match="block"):
        WorthStopping(block=33)


def test_prompts_that_do_not_differ_at_all_decide_at_once() -> None:
    logs = [-0.1] * 4
    assert WorthStopping().verdict(logs, logs, pooled=PooledNoise(0.0, 10)) == "worse"
    assert WorthStopping(least=6).verdict(logs, logs, pooled=PooledNoise(0.0, 10)) is None


def test_noise_is_pooled_within_arms_and_not_between_them() -> None:
    pooled = pool_noise([[0.0, 0.2], [5.0, 5.2, 5.1]])
    assert pooled is not None
    # Squares within: 0.02 and 0.02, over 1 + 2 degrees.
    assert pooled.degrees == 3
    assert pooled.variance == pytest.approx(0.04 / 3)
    assert pool_noise([[1.0]]) is None
