"""Curves of acceptance length against training samples, fitted to few points, with honest intervals.

All forms begin at 1 for no data: an untrained draft is never right.

=================  ====================================================  ==========
power              L - 1 = a n^b                                         2, no bound
logarithmic        L - 1 = a + b log n, at least 0                       2, no bound
saturating         L - 1 = c n / (n + h)                                 2, bound c
bounded power      logit(alpha) = u + b log n, L = sum alpha^i, i=0..K   2, bound K + 1
power deficit      L = c - a n^-b                                        3, bound c
=================  ====================================================  ==========

Power laws of loss in data: Kaplan et al. 2020, arXiv:2001.08361; with an
irreducible part: Hoffmann et al. 2022, arXiv:2203.15556. Which of them
acceptance follows is not known, so a forecast mixes them by how well they fit
(Akaike weights, Burnham and Anderson 2002), and none is ruled out by three
points: each keeps a share of at least one twentieth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
RUN_TO_RUN_FRAC = 0.02
"""Of ``L - 1``: another seed of the same training. Added to what evaluation alone leaves uncertain."""
MAX_DEPTH = 64
"""Drafted tokens per step; as far as ``drafter evaluate`` goes."""
_DEFICIT_FLOOR = 1e-3
_LEAST_WEIGHT = 0.05
_PULL = 0.02
_ITERATIONS = 60
_DIFFERENCE = 1e-6
_LONGEST_STEP = 2.0


@dataclass(frozen=True)
class DataPoint:
    """One trained draft; ``sd`` is the standard error of its evaluation, if known."""

    num_samples: float
    acceptance_length: float
    sd: float | None = None

    @property
    def total_sd(self) -> float:
        run = RUN_TO_RUN_FRAC * max(self.acceptance_length - 1, 0.1)
        return math.hypot(run, self.sd or 0.0)


def longest_length(depth: int | None) -> float:
    """That a step of so many drafted tokens can give, or any step where the number is not known."""
    return (MAX_DEPTH if depth is None else depth) + 1.0


@dataclass(frozen=True)
class Form:
    """``excess(parameters[..., P], n[M])`` is ``L - 1``, ``[..., M]``. Parameters are unbounded reals."""

    name: str
    num_parameters: int
    excess: Callable[[Floats, Floats], Floats]
    start: Callable[[Floats, Floats], Floats]


def _power(p: Floats, n: Floats) -> Floats:
    return _exp(p[..., :1] + np.exp(p[..., 1:2]) * np.log(n))


def _logarithmic(p: Floats, n: Floats) -> Floats:
    return np.maximum(p[..., :1] + _exp(p[..., 1:2]) * np.log(n), 0.0)


def _saturating(p: Floats, n: Floats) -> Floats:
    return _exp(p[..., :1]) / (1 + _exp(p[..., 1:2] - np.log(n)))


def _deficit(p: Floats, n: Floats) -> Floats:
    return np.maximum(_exp(p[..., :1]) - _exp(p[..., 1:2] - np.exp(p[..., 2:3]) * np.log(n)), 0.0)


def _bounded(depth: int) -> Callable[[Floats, Floats], Floats]:
    def excess(p: Floats, n: Floats) -> Floats:
        alpha = 1 / (1 + _exp(-(p[..., :1] + np.exp(p[..., 1:2]) * np.log(n))))
        total: Floats = sum((alpha**i for i in range(1, depth + 1)), start=np.zeros_like(alpha))
        return total

    return excess


def _exp(x: Floats) -> Floats:
    result: Floats = np.exp(np.clip(x, -60.0, 60.0))
    return result


def _slope(n: Floats, y: Floats) -> tuple[float, float]:
    """Intercept and slope of log y against log n, the slope kept positive."""
    x = np.log(n)
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (np.log(y) - np.log(y).mean())).sum()) / spread if spread else 0.2
    slope = min(max(slope, 0.01), 1.0)
    return float(np.log(y).mean() - slope * x.mean()), slope


def _start_power(n: Floats, y: Floats) -> Floats:
    intercept, slope = _slope(n, y)
    return np.array([intercept, math.log(slope)])


def _start_logarithmic(n: Floats, y: Floats) -> Floats:
    x = np.log(n)
    slope = max(float(np.polyfit(x, y, 1)[0]), 0.005)
    return np.array([float(y.mean() - slope * x.mean()), math.log(slope)])


def _start_saturating(n: Floats, y: Floats) -> Floats:
    return np.array([math.log(float(y.max()) * 1.2), math.log(float(n.min()) / 2)])


def _start_deficit(n: Floats, y: Floats) -> Floats:
    top = float(y.max()) * 1.3
    short = float(np.clip(top - y[0], _DEFICIT_FLOOR, None))
    return np.array([math.log(top), math.log(short) + 0.4 * math.log(float(n[0])), math.log(0.4)])


def _start_bounded(n: Floats, y: Floats) -> Floats:
    alpha = np.clip(y / (1 + y), 0.02, 0.98)
    intercept, slope = _slope(n, alpha / (1 - alpha))
    return np.array([intercept, math.log(slope)])


def forms_for(*, num_points: int, depth: int | None) -> tuple[Form, ...]:
    """Those with no more parameters than can be told from so many points."""
    forms = [
        Form("power", 2, _power, _start_power),
        Form("logarithmic", 2, _logarithmic, _start_logarithmic),
        Form("saturating", 2, _saturating, _start_saturating),
    ]
    if depth is not None:
        forms.append(Form("bounded power", 2, _bounded(depth), _start_bounded))
    if num_points >= 3:
        forms.append(Form("power deficit", 3, _deficit, _start_deficit))
    return tuple(forms)


@dataclass(frozen=True)
class FittedForm:
    """One form with its parameters, for the points and for each resampled set of them."""

    form: Form
    parameters: Floats
    chi2: float
    draws: Floats
    """``[draw, parameter]``."""

    def length(self, n: float) -> float:
        return 1 + float(self.form.excess(self.parameters, np.array([n]))[0])

    def lengths_of_draws(self, n: float) -> Floats:
        lengths: Floats = 1 + self.form.excess(self.draws, np.array([n]))[:, 0]
        return lengths


@dataclass(frozen=True)
class Curve:
    """All forms with their weights; ``depth``: the drafted tokens per step, if known, that bound a length."""

    points: tuple[DataPoint, ...]
    fits: tuple[FittedForm, ...]
    weights: tuple[float, ...]
    depth: int | None
    picks: npt.NDArray[np.int64]
    """Which form each draw follows: as many draws of a form as its weight."""

    @property
    def longest(self) -> float:
        """Acceptance length."""
        return longest_length(self.depth)

    def draws(self, n: float) -> Floats:
        """Possible acceptance lengths of a draft trained on ``n`` samples, without the noise of its own run."""
        by_form = np.stack([fit.lengths_of_draws(n) for fit in self.fits])
        chosen: Floats = by_form[self.picks, np.arange(by_form.shape[1])]
        return np.clip(chosen, 1.0, self.longest)

    def samples_for(self, length: float, *, largest: float) -> Floats:
        """By draw: the least number of samples that gives ``length``; infinite beyond ``largest``."""
        low = min(point.num_samples for point in self.points) / 100
        grid = np.geomspace(max(low, 1.0), largest, 160)
        reached = np.stack([self.draws(float(n)) for n in grid]) >= length
        first = reached.argmax(axis=0)
        return np.where(reached.any(axis=0), grid[first], np.inf)


def fit_curve(
    points: Sequence[DataPoint], *, depth: int | None, seed: int = 0, num_draws: int = 400
) -> Curve:
    """Weighted least squares and a parametric bootstrap, form by form. At least two points, of different sizes."""
    ordered = tuple(sorted(points, key=lambda point: point.num_samples))
    n = np.array([point.num_samples for point in ordered])
    y = np.array([max(point.acceptance_length - 1, 1e-3) for point in ordered])
    sd = np.array([point.total_sd for point in ordered])
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((num_draws, len(ordered))) * sd
    fits = []
    for form in forms_for(num_points=len(set(n.tolist())), depth=depth):
        start = form.start(n, y)
        best = _fit(form, n, y[None, :], sd, start)[0]
        draws = _fit(form, n, np.maximum(y + noise, 1e-3), sd, best)
        chi2 = float((((form.excess(best, n) - y) / sd) ** 2).sum())
        fits.append(FittedForm(form, best, chi2, draws))
    scores = np.array([-0.5 * fit.chi2 - fit.form.num_parameters for fit in fits])
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    weights = _LEAST_WEIGHT + (1 - _LEAST_WEIGHT * len(fits)) * weights
    picks = rng.choice(len(fits), size=num_draws, p=weights)
    return Curve(ordered, tuple(fits), tuple(float(w) for w in weights), depth, picks)


def _fit(form: Form, n: Floats, y_DM: Floats, sd: Floats, start: Floats) -> Floats:
    """Levenberg-Marquardt on all rows of ``y_DM`` at once: parameters ``[D, P]``.

    A weak pull to the start keeps parameters finite that the points say nothing about.
    """

    def residuals(p: Floats) -> Floats:
        return np.concatenate([(form.excess(p, n) - y_DM) / sd, (p - start) * _PULL], axis=1)

    p = np.repeat(start[None, :], len(y_DM), axis=0)
    damping = np.full((len(p), 1, 1), 1e-2)
    r = residuals(p)
    identity = np.eye(len(start))
    for _ in range(_ITERATIONS):
        steps = [(residuals(p + _DIFFERENCE * unit) - r) / _DIFFERENCE for unit in identity]
        jacobian = np.stack(steps, axis=2)
        normal = np.einsum("dmp,dmq->dpq", jacobian, jacobian)
        gradient = np.einsum("dmp,dm->dp", jacobian, r)
        step = np.linalg.solve(normal + damping * (identity * normal + 1e-9 * identity), gradient[..., None])[
            ..., 0
        ]
        tried = p - np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
        r_tried = residuals(tried)
        better = (r_tried**2).sum(axis=1) < (r**2).sum(axis=1)
        p[better], r[better] = tried[better], r_tried[better]
        damping = np.clip(np.where(better[:, None, None], damping / 4, damping * 6), 1e-9, 1e6)
    return p
