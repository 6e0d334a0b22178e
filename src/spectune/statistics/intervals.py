"""Intervals and comparisons. Everything about speed is done on logarithms, so ratios are symmetric.

The unit of pairing is the prompt; the unit of repetition is the trial (one
launch of a server), because restarts alone move medians by 10-20 % (docs/design).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.interval import Interval
from spectune.domain.record import Record
from spectune.statistics.launches import (
    FEW_DEGREES,
    PairedTrial,
    SpeedSample,
    mean_var,
    pair_trial,
    residual_variance,
)
from spectune.statistics.mixed import LaunchSpeed, launch_error

__all__ = [
    "Comparison",
    "SpeedSample",
    "Verdict",
    "acceptance_length_interval",
    "compare_with_baseline",
    "geometric_mean_interval",
    "judge",
    "mean_interval",
    "ratio_of",
    "t_quantile",
]

LEAST_FOR_INTERVAL = 3
"""Prompts: the interval of two has one degree of freedom, its ends lie beyond any number, and it says nothing."""
_LARGEST_LOG = 300.0
Verdict = Literal["FASTER", "SLOWER", "SAME", "CANNOT_TELL"]


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Quantile of Student's t distribution."""
    from scipy.special import stdtrit  # takes half a second to import, and most commands do not need it

    return float(stdtrit(degrees_of_freedom, probability))


def ratio_of(log: float) -> float:
    """``exp``, bounded: with one degree of freedom and many arms an interval may end beyond any number."""
    return math.exp(min(max(log, -_LARGEST_LOG), _LARGEST_LOG))


def mean_interval(values: Sequence[float], *, unit: str, level: float = 0.95) -> Interval | None:
    """Arithmetic mean with a t interval; ``None`` for no values."""
    if not values:
        return None
    mean, variance = mean_var(values)
    if variance is None or len(values) < LEAST_FOR_INTERVAL:
        return Interval(value=mean, low=None, high=None, level=level, n=len(values), unit=unit)
    half = t_quantile((1 + level) / 2, len(values) - 1) * math.sqrt(variance / len(values))
    return Interval(value=mean, low=mean - half, high=mean + half, level=level, n=len(values), unit=unit)


def geometric_mean_interval(values: Sequence[float], *, unit: str, level: float = 0.95) -> Interval | None:
    """Geometric mean of positive values with a t interval on the log scale."""
    logs = mean_interval([math.log(v) for v in values], unit=unit, level=level)
    if logs is None:
        return None
    return Interval(
        value=math.exp(logs.value),
        low=None if logs.low is None else ratio_of(logs.low),
        high=None if logs.high is None else ratio_of(logs.high),
        level=level,
        n=logs.n,
        unit=unit,
    )


def acceptance_length_interval(parts: Sequence[AcceptanceCounts], *, level: float = 0.95) -> Interval | None:
    """Token-weighted acceptance length over requests, with a t interval.

    A ratio estimator: verify steps of one request are not independent, so the
    request is the sampling unit (Cochran 1977, section 6.3, linearised variance).
    """
    pairs = [(p.num_accepted_tokens, p.num_drafts) for p in parts if p.num_drafts]
    if not pairs:
        return None
    drafts = sum(d for _, d in pairs)
    ratio = sum(a for a, _ in pairs) / drafts
    n = len(pairs)
    if n < LEAST_FOR_INTERVAL:
        return Interval(value=1 + ratio, low=None, high=None, level=level, n=n, unit="tokens/step")
    mean_drafts = drafts / n
    variance = math.fsum((a - ratio * d) ** 2 for a, d in pairs) / (n - 1) / n / mean_drafts**2
    half = t_quantile((1 + level) / 2, n - 1) * math.sqrt(variance)
    return Interval(
        value=1 + ratio,
        low=max(1.0, 1 + ratio - half),
        high=1 + ratio + half,
        level=level,
        n=n,
        unit="tokens/step",
    )


class Comparison(Record):
    """An arm against the baseline: ``speedup`` is a ratio of geometric means, paired by prompt."""

    arm_id: str
    speedup: Interval
    """Its interval is for prompts like these: how they differ among each other is in it."""
    verdict: Verdict
    these_prompts: Interval | None = None
    """The ratio with an interval for these very prompts: it holds the noise of launches alone."""
    num_prompts: int
    num_trials: int
    num_baseline_trials: int
    trial_noise_frac: float | None
    """Standard deviation of one launch's log speed; ``None``: nothing was launched twice, and it is assumed."""
    degrees: float | None = None
    """Of freedom, of the interval."""
    prompt_log_var: float | None = None
    """Variance of the mean log ratio from prompts; ``launch_log_var`` from launches (``None``: unknown)."""
    launch_log_var: float | None = None
    launch_degrees: float | None = None


def judge(speedup: Interval, *, margin: float) -> Verdict:
    """SAME when the whole interval lies within ``margin`` of 1, else by the side of 1 it lies on."""
    if speedup.low is None or speedup.high is None:
        return "CANNOT_TELL"
    if speedup.low >= 1 / (1 + margin) and speedup.high <= 1 + margin:
        return "SAME"
    if speedup.low > 1:
        return "FASTER"
    if speedup.high < 1:
        return "SLOWER"
    return "CANNOT_TELL"


def compare_with_baseline(
    arms: Sequence[SpeedSample],
    baselines: Sequence[SpeedSample],
    *,
    level: float = 0.95,
    margin: float = 0.02,
) -> dict[str, Comparison]:
    """Each arm against the baseline trials that bracket it in time, prompt by prompt.

    Two sources of error are added: how an arm's gain differs from prompt to prompt, and what launches are off by
    (``statistics_mixed``); degrees of freedom by Satterthwaite (1946). A slow drift of the machine cancels between the
    bracketing trials. An arm that was launched once has an assumed noise of launches. Arms that share no prompt with
    the baseline are left out.
    """
    if not baselines:
        return {}
    ordered = sorted(baselines, key=lambda b: b.order)
    samples: dict[str, list[SpeedSample]] = {}
    paired: dict[str, list[PairedTrial]] = {}
    for sample in arms:
        pair = pair_trial(sample, ordered)
        if pair.logs:
            samples.setdefault(sample.arm_id, []).append(sample)
            paired.setdefault(sample.arm_id, []).append(pair)
    return {
        arm_id: _compare_one(samples[arm_id], trials, ordered, level=level, margin=margin)
        for arm_id, trials in paired.items()
    }


def _shares(trials: Sequence[PairedTrial], prompts: Sequence[str]) -> list[float]:
    """How much of the mean is each trial's: equal, unless one did not ask every prompt."""
    seen = {p: sum(p in t.logs for t in trials) for p in prompts}
    return [math.fsum(1 / seen[p] for p in t.logs) / len(prompts) for t in trials]


def _compare_one(
    samples: Sequence[SpeedSample],
    trials: Sequence[PairedTrial],
    baselines: Sequence[SpeedSample],
    *,
    level: float,
    margin: float,
) -> Comparison:
    gains = {}
    for prompt in sorted(set().union(*(t.logs for t in trials))):
        seen = [t.logs[prompt] for t in trials if prompt in t.logs]
        gains[prompt] = math.fsum(seen) / len(seen)
    mean, prompt_variance = mean_var(list(gains.values()))
    n = len(gains)
    speedup = Interval(value=math.exp(mean), low=None, high=None, level=level, n=n, unit="x baseline")
    these = degrees = prompt_part = launch = None
    if prompt_variance is not None:
        launch = launch_error(_weighted(samples, trials, baselines, gains))
        prompt_part = max(0.0, prompt_variance - residual_variance(trials) / len(trials)) / n
        variance = prompt_part + launch.variance
        degrees = combined_degrees(prompt_part, n - 1, launch.variance, launch.degrees)
        if n >= LEAST_FOR_INTERVAL:
            speedup = around(speedup, math.sqrt(variance), degrees)
            these = around(speedup, math.sqrt(launch.variance), launch.degrees)
    return Comparison(
        arm_id=samples[0].arm_id,
        speedup=speedup,
        verdict=judge(speedup, margin=margin),
        these_prompts=these,
        num_prompts=n,
        num_trials=len(trials),
        num_baseline_trials=len(set().union(*(t.weights for t in trials))),
        trial_noise_frac=None if launch is None else launch.launch_log_sd,
        degrees=degrees,
        prompt_log_var=prompt_part,
        launch_log_var=None if launch is None else launch.variance,
        launch_degrees=None if launch is None else launch.degrees,
    )


def combined_degrees(prompts: float, prompt_degrees: float, launches: float, launch_degrees: float) -> float:
    """Degrees of freedom of the sum of two variances, that of prompts and that of launches (Satterthwaite 1946)."""
    degrees = (prompts + launches) ** 2 / (prompts**2 / prompt_degrees + launches**2 / launch_degrees)
    return min(degrees, launch_degrees) if launch_degrees < FEW_DEGREES else degrees


def around(ratio: Interval, error: float, degrees: float, *, level: float | None = None) -> Interval:
    """``ratio`` with the ends that a standard error of its logarithm gives it, at ``level`` or its own."""
    reach = t_quantile((1 + (ratio.level if level is None else level)) / 2, degrees)
    middle, half = math.log(ratio.value), reach * error
    return ratio.model_copy(update={"low": ratio_of(middle - half), "high": ratio_of(middle + half)})


def _weighted(
    samples: Sequence[SpeedSample],
    trials: Sequence[PairedTrial],
    baselines: Sequence[SpeedSample],
    gains: Mapping[str, float],
) -> list[LaunchSpeed]:
    """The launches behind a speedup with their parts of it, what prompts differ by in speed and gain taken out."""
    places = {sample.place for sample in samples}
    plain = [b for b in baselines if b.place in places]
    seen: dict[str, list[float]] = {}
    for sample in plain:
        for prompt, speed in sample.speed_by_prompt.items():
            seen.setdefault(prompt, []).append(math.log(speed))
    usual = {prompt: math.fsum(logs) / len(logs) for prompt, logs in seen.items()}
    with_gain = {prompt: usual[prompt] + gain for prompt, gain in gains.items() if prompt in usual}
    weights: dict[tuple[str, int], float] = {}
    shares = _shares(trials, list(gains))
    for sample, trial, share in zip(samples, trials, shares, strict=True):
        for order, weight in trial.weights.items():
            key = (sample.place, order)
            weights[key] = weights.get(key, 0.0) - share * weight
    found = [
        LaunchSpeed(_usual_log(b, usual), b.order, b.place, False, weights.get((b.place, b.order), 0.0))
        for b in plain
    ]
    found += [
        LaunchSpeed(_usual_log(sample, with_gain), sample.order, sample.place, True, share)
        for sample, share in zip(samples, shares, strict=True)
    ]
    return found


def _usual_log(sample: SpeedSample, usual: Mapping[str, float]) -> float:
    """Mean log speed against what is usual for the same prompts."""
    logs = [math.log(v) - usual[p] for p, v in sample.speed_by_prompt.items() if p in usual]
    return math.fsum(logs) / len(logs)
