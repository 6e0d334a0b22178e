"""Intervals and comparisons. Everything about speed is done on logarithms, so ratios are symmetric.

The unit of pairing is the prompt; the unit of repetition is the trial (one
launch of a server), because restarts alone move medians by 10-20 % (docs/design).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.interval import Interval
from spectune.domain.record import Record
from spectune.domain.statistics_launches import (
    FEW_DEGREES,
    KNOWN_DEGREES,
    PairedTrial,
    SpeedSample,
    covariance,
    launch_noise,
    mean_var,
    pair_trial,
)

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
    verdict: Verdict
    num_prompts: int
    num_trials: int
    num_baseline_trials: int
    trial_noise_frac: float | None
    """Standard deviation of one launch's log speed; ``None``: nothing was launched twice."""
    degrees: float | None = None
    """Of freedom, of the interval."""
    prompt_log_var: float | None = None
    """Variance of the mean log ratio from prompts; ``launch_log_var`` from launches (``None``: unknown)."""
    launch_log_var: float | None = None


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
    known_launch_log_sd: float | None = None,
    known_degrees: float = KNOWN_DEGREES,
) -> dict[str, Comparison]:
    """Each arm against the baseline trials that bracket it in time, prompt by prompt.

    Two sources of error are added: spread over prompts of the paired log
    ratios, and spread between launches; degrees of freedom by Satterthwaite
    (1946). A slow drift of the machine cancels between the bracketing trials.
    Arms sharing no prompt with the baseline are left out. ``known_launch_log_sd``
    is a noise floor measured before, from ``known_degrees`` degrees of freedom.
    """
    if not baselines:
        return {}
    ordered = sorted(baselines, key=lambda b: b.order)
    paired: dict[str, list[PairedTrial]] = {}
    for trial in arms:
        pair = pair_trial(trial, ordered)
        if pair.logs:
            paired.setdefault(trial.arm_id, []).append(pair)
    known = None if known_launch_log_sd is None else (known_launch_log_sd**2, known_degrees)
    noise = launch_noise(paired, ordered, known)
    return {
        arm_id: _compare_one(arm_id, trials, noise=noise, level=level, margin=margin)
        for arm_id, trials in paired.items()
    }


def _shares(trials: Sequence[PairedTrial], prompts: Sequence[str]) -> list[float]:
    """How much of the mean is each trial's: equal, unless one did not ask every prompt."""
    seen = {p: sum(p in t.logs for t in trials) for p in prompts}
    return [math.fsum(1 / seen[p] for p in t.logs) / len(prompts) for t in trials]


def _compare_one(
    arm_id: str,
    trials: Sequence[PairedTrial],
    *,
    noise: tuple[float, float] | None,
    level: float,
    margin: float,
) -> Comparison:
    m = len(trials)
    prompts = sorted(set().union(*(t.logs for t in trials)))
    per_prompt = []
    for prompt in prompts:
        seen = [t.logs[prompt] for t in trials if prompt in t.logs]
        per_prompt.append(math.fsum(seen) / len(seen))
    mean, prompt_variance = mean_var(per_prompt)
    n = len(per_prompt)
    low = high = degrees = launch_var = None
    if prompt_variance is not None:
        parts = [(prompt_variance / n, float(n - 1))]
        if noise is not None:
            weights = _shares(trials, prompts)
            launches = math.fsum(
                v * w * covariance(a, b)
                for a, v in zip(trials, weights, strict=True)
                for b, w in zip(trials, weights, strict=True)
            )
            launch_var = noise[0] * launches
            parts.append((launch_var, noise[1]))
        variance = sum(v for v, _ in parts)
        spread = math.fsum(v * v / df for v, df in parts)
        degrees = variance**2 / spread if spread > 0 else float(n - 1)
        if noise is not None and noise[1] < FEW_DEGREES:
            degrees = min(degrees, noise[1])
        half = t_quantile((1 + level) / 2, degrees) * math.sqrt(variance)
        if n >= LEAST_FOR_INTERVAL:
            low, high = ratio_of(mean - half), ratio_of(mean + half)
    speedup = Interval(value=math.exp(mean), low=low, high=high, level=level, n=n, unit="x baseline")
    return Comparison(
        arm_id=arm_id,
        speedup=speedup,
        verdict=judge(speedup, margin=margin),
        num_prompts=n,
        num_trials=m,
        num_baseline_trials=len(set().union(*(t.weights for t in trials))),
        trial_noise_frac=None if noise is None else math.sqrt(noise[0]),
        degrees=degrees,
        prompt_log_var=None if prompt_variance is None else prompt_variance / n,
        launch_log_var=launch_var,
    )
