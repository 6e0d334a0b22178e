"""What more training data would buy: acceptance length, tokens per second, and whether to go on."""

from __future__ import annotations

import numpy as np

from spectune.domain.interval import Interval
from spectune.drafter.forecast.advice import REACH, advise, category_rows, largest_fall
from spectune.drafter.forecast.forms import (
    MAX_DEPTH,
    RUN_TO_RUN_FRAC,
    Curve,
    Floats,
    fit_curve,
    longest_length,
)
from spectune.drafter.forecast.records import (
    SPEEDUPS,
    CheckedForecast,
    CostFacts,
    Forecast,
    ForecastReport,
    ForecastRequest,
    FormRow,
    Needed,
    SpeedFacts,
)
from spectune.errors import BadInput

_LEVEL = 0.95
_LEAST_SPAN = 1.5
"""The largest data size over the smallest: over less, lengths differ by noise, and any curve fits them."""


def make_forecast(request: ForecastRequest) -> ForecastReport:
    """Raises ``BadInput`` for fewer than three data sizes, or points that no draft could have."""
    _check(request)
    curve = fit_curve(request.points, depth=request.depth, seed=request.seed)
    largest = curve.points[-1].num_samples
    sizes = request.at_samples or (3 * largest, 10 * largest)
    goals = dict.fromkeys((*SPEEDUPS, request.goal_speedup))
    needed = (
        tuple(_needed(curve, speedup, request.speed, largest) for speedup in sorted(goals))
        if request.speed
        else ()
    )
    categories = category_rows(request.categories)
    advice, because, samples, category = advise(request, curve, needed, categories)
    return ForecastReport(
        num_draft_tokens=request.depth,
        forms=tuple(
            FormRow(
                name=fit.form.name,
                weight=weight,
                chi2=fit.chi2,
                at_samples=max(sizes),
                acceptance_length=_bounded(fit.length(max(sizes)), request.depth),
            )
            for fit, weight in zip(curve.fits, curve.weights, strict=True)
        ),
        forecasts=tuple(_forecast(curve, size, request, largest) for size in sorted(sizes)),
        needed=needed,
        categories=categories,
        check=_check_last(request) if request.check_last else None,
        advice=advice,
        because=because,
        train_to_samples=samples,
        category=category,
        assumptions=_assumptions(request),
    )


def _check(request: ForecastRequest) -> None:
    sizes = {point.num_samples for point in request.points}
    if len(sizes) < 3:
        raise BadInput(
            f"a forecast needs at least three data sizes, got {len(sizes)}; add --point SAMPLES=LENGTH"
        )
    if max(sizes) < _LEAST_SPAN * min(sizes):
        raise BadInput(
            f"data sizes from {min(sizes):,.0f} to {max(sizes):,.0f}: the largest must be at least {_LEAST_SPAN:g} "
            "times the smallest, and better nine times: over less, noise is all that is seen"
        )
    if request.depth is not None and not 1 <= request.depth <= MAX_DEPTH:
        raise BadInput(f"--num-draft-tokens: must be from 1 to {MAX_DEPTH}, got {request.depth}")
    top = longest_length(request.depth)
    named = [("", point) for point in request.points]
    named += [(f"{name}:", point) for name, points in request.categories.items() for point in points]
    for name, point in named:
        if not 1 <= point.acceptance_length <= top:
            limit = f"from 1 to {'' if request.depth is None else 'K + 1 = '}{top:g}"
            raise BadInput(
                f"{name}{point.num_samples:g}={point.acceptance_length:g}: an acceptance length counts the bonus "
                f"token, so it is {limit}"
            )


def _bounded(length: float, depth: int | None) -> float:
    return max(1.0, min(length, longest_length(depth)))


def _interval(draws: Floats, *, unit: str, n: int) -> Interval:
    low, middle, high = (float(q) for q in np.quantile(draws, ((1 - _LEVEL) / 2, 0.5, (1 + _LEVEL) / 2)))
    return Interval(value=middle, low=low, high=high, level=_LEVEL, n=n, unit=unit)


def predicted_lengths(curve: Curve, size: float, *, seed: int) -> Floats:
    """Draws of what would be measured: the curve, and the noise of one more training run."""
    lengths = curve.draws(size)
    rng = np.random.default_rng([seed, 1])
    run = rng.standard_normal(len(lengths)) * RUN_TO_RUN_FRAC * np.maximum(lengths - 1, 0.1)
    return np.clip(lengths + run, 1.0, curve.longest)


def _forecast(curve: Curve, size: float, request: ForecastRequest, largest: float) -> Forecast:
    draws, n, speed = predicted_lengths(curve, size, seed=request.seed), len(curve.points), request.speed
    hours, price = _cost(request.cost, size, largest)
    return Forecast(
        num_samples=size,
        acceptance_length=_interval(draws, unit="tokens per step", n=n),
        tok_per_s=_interval(speed.tok_per_s(draws), unit="tok/s", n=n) if speed else None,
        speedup=_interval(speed.tok_per_s(draws) / speed.baseline_tok_per_s, unit="x", n=n)
        if speed
        else None,
        train_hours=hours,
        price=price,
    )


def _cost(cost: CostFacts, size: float, have: float) -> tuple[float | None, float | None]:
    """Training on all of it, and answering what is not there yet."""
    if cost.train_s_per_sample is None and cost.data_s_per_sample is None:
        return None, None
    seconds = size * (cost.train_s_per_sample or 0.0) + max(0.0, size - have) * (
        cost.data_s_per_sample or 0.0
    )
    hours = seconds / 3600
    return hours, None if cost.price_per_hour is None else hours * cost.price_per_hour


def _needed(curve: Curve, speedup: float, speed: SpeedFacts, largest: float) -> Needed:
    length = speed.length_for(speedup)
    if length is None:
        return Needed(
            speedup=speedup,
            acceptance_length=None,
            possible=False,
            num_samples=None,
            low_samples=None,
            high_samples=None,
            chance=0.0,
        )
    possible = curve.depth is None or length <= curve.depth + 1
    samples = curve.samples_for(length, largest=largest * REACH)
    quantiles = np.quantile(np.where(np.isfinite(samples), samples, 1e300), (0.1, 0.5, 0.9))
    low, middle, high = (float(q) if q < 1e299 else None for q in quantiles)
    return Needed(
        speedup=speedup,
        acceptance_length=length,
        possible=possible,
        num_samples=middle,
        low_samples=low,
        high_samples=high,
        chance=float(np.isfinite(samples).mean()),
    )


def _check_last(request: ForecastRequest) -> CheckedForecast:
    """The largest measured size, forecast from the smaller ones alone."""
    ordered = sorted(request.points, key=lambda point: point.num_samples)
    largest = ordered[-1].num_samples
    known = [point for point in ordered if point.num_samples < largest]
    curve = fit_curve(known, depth=request.depth, seed=request.seed)
    forecast = _interval(
        predicted_lengths(curve, largest, seed=request.seed), unit="tokens per step", n=len(known)
    )
    measured = float(np.mean([point.acceptance_length for point in ordered if point.num_samples == largest]))
    assert forecast.low is not None and forecast.high is not None
    return CheckedForecast(
        num_samples=largest,
        forecast=forecast,
        measured=measured,
        error_frac=forecast.value / measured - 1,
        inside=forecast.low <= measured <= forecast.high,
    )


def _assumptions(request: ForecastRequest) -> tuple[str, ...]:
    lines = [
        "more data of the same kind, with the same epochs, drafter and training",
        f"another run of the same training differs by {RUN_TO_RUN_FRAC:.0%} of L - 1 (one standard deviation)",
    ]
    if largest_fall(request.points) is not None:
        lines.append("lengths that rise with data, which these points contradict: no interval here holds")
    if request.speed is not None:
        lines.append("a verify step costs the same however good the draft is")
    if request.depth is None:
        lines.append(
            f"no bound on the length but {longest_length(None):g}, because the number of drafted tokens is not given"
        )
    return tuple(lines)
