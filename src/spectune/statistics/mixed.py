"""How far a speedup may be off because of its launches: a mixed model of their mean log speeds.

One launch is one number, its mean log speed. It is what the arm adds, plus the machine's level at that moment (a
random walk over the launches of one place), plus the launch's own noise, which may be larger for an arm than for plain
decoding.
The three standard deviations are not known: each combination on a grid is weighed by its restricted likelihood (REML,
Patterson and Thompson 1971), and the error of the speedup is the mixture. Few launches leave many combinations likely,
which gives it the heavy tails of Student's t, and it ends where no server's noise lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ASSUMED_LAUNCH_LOG_SD = 0.15
"""Assumed standard deviation of log speed between launches, for an arm launched once: restarts move it by 10-20 %."""
_SMALLEST, _LARGEST = 0.0025, 0.32
_WALK_SDS = (0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Standard deviations that the machine's level (log speed) may change by from one launch to the next."""
_MANY = 24
"""So many launches tell their noise sharply, and ask for a finer grid of it."""
_STEP, _FINE_STEP = 2.0, math.sqrt(2)
"""From one standard deviation of the grid to the next."""
_LEAST_WEIGHT = 1e-6
_LARGEST_DEGREES = 1000.0


@dataclass(frozen=True)
class LaunchSpeed:
    """One launch of an arm or of plain decoding, and how much of the estimated speedup is its."""

    log_speed: float
    order: float
    place: str
    is_arm: bool
    weight: float


@dataclass(frozen=True)
class LaunchError:
    """The error of a log speedup, as of Student's t: what its quantiles at 95 and 99 % are."""

    variance: float
    """The square of the t distribution's scale."""
    degrees: float
    launch_log_sd: float | None
    """Likely standard deviation of one launch of the arm, else of plain decoding; ``None``: it is assumed, for nothing
    was launched twice in one place."""


def launch_error(launches: Sequence[LaunchSpeed]) -> LaunchError:
    """The error of the weighted sum of log speeds; the arm and plain decoding must both be among ``launches``."""
    plain_repeated, arm_repeated = (_repeated(launches, is_arm=side) for side in (False, True))
    plain_sds, arm_sds, walk_sds = _grid(plain_repeated, arm_repeated, len(launches) > _MANY)
    is_arm = np.array([x.is_arm for x in launches])
    noise = np.where(is_arm[None, :], arm_sds[:, None], plain_sds[:, None]) ** 2
    covariance = walk_sds[:, None, None] ** 2 * _walk(launches)[None]
    covariance[:, np.arange(len(launches)), np.arange(len(launches))] += noise
    weights = _likelihoods(launches, covariance)
    shares = np.array([x.weight for x in launches])
    variances = np.einsum("i,gij,j->g", shares, covariance, shares)
    kept = weights > _LEAST_WEIGHT
    weights, variances = weights[kept] / weights[kept].sum(), variances[kept]
    halves = [_half_width(level, weights, variances) for level in (0.95, 0.99)]
    degrees = _degrees_with(halves[1] / halves[0])
    scale = halves[0] / _t_half(0.95, degrees)
    seen = arm_sds if arm_repeated else plain_sds if plain_repeated else None
    return LaunchError(scale**2, degrees, None if seen is None else _median(seen[kept], weights))


def _repeated(launches: Sequence[LaunchSpeed], *, is_arm: bool) -> bool:
    """Whether some place has two launches, which tell of their noise."""
    places = [x.place for x in launches if x.is_arm == is_arm]
    return len(places) > (1 if is_arm else len(set(places)))


@cache
def _grid(plain_repeated: bool, arm_repeated: bool, many: bool) -> tuple[Floats, Floats, Floats]:
    """Standard deviations of a launch of plain decoding, of the arm (at least as large), and of the level's step."""
    step, walks = (_FINE_STEP, _WALK_SDS[::2]) if many else (_STEP, _WALK_SDS)
    sds = [_SMALLEST * step**i for i in range(1 + round(math.log(_LARGEST / _SMALLEST, step)))]
    if not plain_repeated and not arm_repeated:
        sds = [ASSUMED_LAUNCH_LOG_SD]
    found = []
    for plain in sds:
        larger = [sd for sd in sds if sd >= plain] if plain_repeated else [plain]
        arms = larger if arm_repeated else [max(plain, ASSUMED_LAUNCH_LOG_SD)]
        found += [(plain, arm, walk) for arm in arms for walk in walks]
    plain_sds, arm_sds, walk_sds = (np.array(column) for column in zip(*found, strict=True))
    return plain_sds, arm_sds, walk_sds


def _walk(launches: Sequence[LaunchSpeed]) -> Floats:
    """Covariance of a random walk of step variance 1 within each place."""
    order = np.array([x.order for x in launches], dtype=float)
    place = np.array([x.place for x in launches])
    shared = np.minimum(order[:, None], order[None, :]) - order.min()
    return np.where(place[:, None] == place[None, :], shared, 0.0)


def _likelihoods(launches: Sequence[LaunchSpeed], covariance: Floats) -> Floats:
    """Restricted likelihood of each covariance, all together 1; each place has a level of its own."""
    places = dict.fromkeys(x.place for x in launches)
    columns = [[float(x.place == place) for x in launches] for place in places]
    columns.append([float(x.is_arm) for x in launches])
    known = np.array([*columns, [x.log_speed for x in launches]]).T
    factor = np.linalg.cholesky(covariance)
    white = np.linalg.solve(factor, np.broadcast_to(known, (len(covariance), *known.shape)))
    design, speeds = white[:, :, :-1], white[:, :, -1]
    information = np.einsum("gij,gik->gjk", design, design)
    moments = np.einsum("gij,gi->gj", design, speeds)
    fitted = np.einsum("gj,gj->g", moments, np.linalg.solve(information, moments[:, :, None])[:, :, 0])
    squares = np.einsum("gi,gi->g", speeds, speeds) - fitted
    log_determinant = 2 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    log_weight = -0.5 * (log_determinant + np.linalg.slogdet(information)[1] + squares)
    weight = np.exp(log_weight - log_weight.max())
    normalised: Floats = weight / weight.sum()
    return normalised


def _median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    place = int(np.searchsorted(np.cumsum(weights[order]), 0.5))
    return float(values[order][min(place, len(values) - 1)])


def _half_width(level: float, weights: Floats, variances: Floats) -> float:
    """Half of the central interval of a mixture of normal distributions around 0."""
    from scipy.special import ndtr  # takes half a second to import, and most commands do not need it

    sds = np.sqrt(variances)
    low, high = 0.0, 10.0 * float(sds.max())
    for _ in range(40):
        middle = (low + high) / 2
        inside = 2 * float(weights @ ndtr(middle / sds)) - 1
        low, high = (middle, high) if inside < level else (low, middle)
    return high


@cache
def _ratios() -> Mapping[float, float]:
    """By degrees of freedom: how much wider an interval of 99 % is than one of 95 %; it falls to the normal one's."""
    found = [1.0 * 1.1**i for i in range(72)]
    return {degrees: _t_half(0.99, degrees) / _t_half(0.95, degrees) for degrees in found}


def _degrees_with(ratio: float) -> float:
    return next((degrees for degrees, wider in _ratios().items() if wider <= ratio), _LARGEST_DEGREES)


@cache
def _t_half(level: float, degrees: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + level) / 2))
