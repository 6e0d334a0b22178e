"""What a launch is worth when another may follow: by hand, and against drawing it."""

import math
import random
import statistics

import pytest

from spectune.models.speed import JointSpeed
from spectune.search.lookahead import levels, worth_of_looking


def one(
    logs: tuple[float, ...], covariance: tuple[tuple[float, ...], ...], weight: float = 1.0
) -> JointSpeed:
    return JointSpeed(weight, logs, tuple(row[i] for i, row in enumerate(covariance)), covariance)


def test_an_arm_of_which_all_is_known_is_worth_what_it_is() -> None:
    joint = [one((0.1, 0.0), ((0.0, 0.0), (0.0, 0.0)))]
    assert worth_of_looking(joint, 0, best_log=0.05, noise_log_sd=0.01) == pytest.approx(0.1)
    assert worth_of_looking(joint, 1, best_log=0.05, noise_log_sd=0.01) == pytest.approx(0.1)


def test_worth_agrees_with_drawing_outcomes_and_taking_the_best_next() -> None:
    covariance = ((0.01, 0.008, 0.0), (0.008, 0.01, 0.0), (0.0, 0.0, 0.0025))
    joint = [one((0.0, 0.0, 0.02), covariance)]
    rng, drawn = random.Random(1), []
    for _ in range(40_000):
        z = rng.gauss(0, 0.1)
        best = max(0.0, z)
        # Given the first: the second has mean 0.8 z and variance 0.01 - 0.008 * 0.8; the third does not move.
        options = ((0.8 * z, math.sqrt(0.0036)), (0.02, 0.05))
        drawn.append(best + max(expected_gain(mean - best, sd) for mean, sd in options))
    found = worth_of_looking(joint, 0, best_log=0.0, noise_log_sd=1e-6)
    assert found == pytest.approx(statistics.fmean(drawn), rel=0.1)


def expected_gain(gap: float, sd: float) -> float:
    z = gap / sd
    normal = statistics.NormalDist()
    return gap * normal.cdf(z) + sd * normal.pdf(z)


def test_an_arm_that_tells_which_of_two_is_best_beats_one_that_gains_a_little() -> None:
    """Two explanations, in each of which another arm wins by 0.15; measuring the second arm tells them apart."""
    tiny = tuple(tuple(1e-6 if i == j else 0.0 for j in range(4)) for i in range(4))
    joint = [one((0.01, -0.02, 0.15, -0.3), tiny, 0.5), one((0.01, -0.2, -0.3, 0.15), tiny, 0.5)]
    gains, tells = (worth_of_looking(joint, arm, best_log=0.0, noise_log_sd=0.01) for arm in (0, 1))
    assert tells == pytest.approx(0.15, rel=0.02)
    assert gains == pytest.approx(0.01 + 0.5 * 0.14, rel=0.02)


def test_levels_are_quantiles_of_the_mixture() -> None:
    joint = [one((0.0,), ((1e-8,),), 0.95), one((1.0,), ((1e-8,),), 0.05)]
    found = levels(joint, 0)
    assert found[:-1] == pytest.approx([0.0] * (len(found) - 1), abs=1e-3)
    assert found[-1] == pytest.approx(1.0, abs=1e-3)
