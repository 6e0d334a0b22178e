"""Intervals and comparisons. Everything about speed is done on logarithms, so ratios are symmetric.

The unit of pairing is the prompt; the unit of repetition is the trial (one
launch of a server), because restarts alone move medians by 10-20 % (docs/design).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.interval import Interval
from spectune.domain.record import Record

Verdict = Literal["FASTER", "SLOWER", "SAME", "CANNOT_TELL"]


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Quantile of Student's t distribution."""
    from scipy.special import stdtrit  # takes half a second to import, and most commands do not need it

    return float(stdtrit(degrees_of_freedom, probability))


def _mean_var(values: Sequence[float]) -> tuple[float, float | None]:
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)


def mean_interval(values: Sequence[float], *, unit: str, level: float = 0.95) -> Interval | None:
    """Arithmetic mean with a t interval; ``None`` for no values."""
    if not values:
        return None
    mean, variance = _mean_var(values)
    if variance is None:
        return Interval(value=mean, low=None, high=None, level=level, n=1, unit=unit)
    half = t_quantile((1 + level) / 2, len(values) - 1) * math.sqrt(variance / len(values))
    return Interval(value=mean, low=mean - half, high=mean + half, level=level, n=len(values), unit=unit)


def geometric_mean_interval(values: Sequence[float], *, unit: str, level: float = 0.95) -> Interval | None:
    """Geometric mean of positive values with a t interval on the log scale."""
    logs = mean_interval([math.log(v) for v in values], unit=unit, level=level)
    if logs is None:
        return None
    return Interval(
        value=math.exp(logs.value),
        low=None if logs.low is None else math.exp(logs.low),
        high=None if logs.high is None else math.exp(logs.high),
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
    if n < 2:
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


@dataclass(frozen=True)
class SpeedSample:
    """One trial's speed of each prompt at one load point. ``order`` is its place in time."""

    arm_id: str
    order: int
    speed_by_prompt: Mapping[str, float]


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


@dataclass(frozen=True)
class _PairedTrial:
    """One trial's log ratio to the baseline around it, per prompt, and each baseline trial's weight in that."""

    logs: Mapping[str, float]
    weights: Mapping[int, float]

    @property
    def effect(self) -> float:
        return math.fsum(self.logs.values()) / len(self.logs)


def _pair(trial: SpeedSample, baselines: Sequence[SpeedSample]) -> _PairedTrial:
    """Against the mean of the baseline trial before it and the one after it (one of them at an end)."""
    before = [b for b in baselines if b.order < trial.order]
    after = [b for b in baselines if b.order > trial.order]
    around = [*before[-1:], *after[:1]]
    prompts = set(trial.speed_by_prompt).intersection(*(b.speed_by_prompt for b in around))
    logs = {
        p: math.log(trial.speed_by_prompt[p])
        - math.fsum(math.log(b.speed_by_prompt[p]) for b in around) / len(around)
        for p in prompts
    }
    return _PairedTrial(logs, {b.order: 1 / len(around) for b in around})


def _overlap(first: Mapping[int, float], second: Mapping[int, float]) -> float:
    """Covariance of two trials' ratios through shared baseline trials, in launch variances."""
    return math.fsum(weight * second.get(order, 0.0) for order, weight in first.items())


def _launch_noise(
    paired: Mapping[str, Sequence[_PairedTrial]], baselines: Sequence[SpeedSample]
) -> tuple[float, int] | None:
    """Variance of a launch's log speed and its degrees of freedom: the larger of what two sources say.

    Repeated arms: their spread, divided by what it would be for launches of
    variance one, given the baseline trials they share. Baseline trials: half
    the mean square of the steps from one to the next, which a slow drift
    hardly moves (von Neumann 1941).
    """
    candidates: list[tuple[float, int]] = []
    squares, expected, degrees = 0.0, 0.0, 0
    for trials in paired.values():
        m = len(trials)
        if m > 1:
            mean, _ = _mean_var([t.effect for t in trials])
            squares += math.fsum((t.effect - mean) ** 2 for t in trials)
            own = math.fsum(1 + _overlap(t.weights, t.weights) for t in trials)
            expected += own - math.fsum(_covariance(a, b) for a in trials for b in trials) / m
            degrees += m - 1
    if degrees:
        candidates.append((squares / expected, degrees))
    steps = [step for pair in itertools.pairwise(baselines) if (step := _step(*pair)) is not None]
    if steps:
        candidates.append((math.fsum(s * s for s in steps) / len(steps) / 2, len(steps)))
    return max(candidates, default=None)


def _covariance(a: _PairedTrial, b: _PairedTrial) -> float:
    return (1.0 if a is b else 0.0) + _overlap(a.weights, b.weights)


def _step(first: SpeedSample, second: SpeedSample) -> float | None:
    """Mean log change from one baseline trial to the next over their common prompts."""
    shared = first.speed_by_prompt.keys() & second.speed_by_prompt.keys()
    if not shared:
        return None
    logs = (math.log(second.speed_by_prompt[p] / first.speed_by_prompt[p]) for p in shared)
    return math.fsum(logs) / len(shared)


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

    Two sources of error are added: spread over prompts of the paired log
    ratios, and spread between launches; degrees of freedom by Satterthwaite
    (1946). A slow drift of the machine cancels between the bracketing trials.
    Arms sharing no prompt with the baseline are left out.
    """
    if not baselines:
        return {}
    ordered = sorted(baselines, key=lambda b: b.order)
    paired: dict[str, list[_PairedTrial]] = {}
    for trial in arms:
        pair = _pair(trial, ordered)
        if pair.logs:
            paired.setdefault(trial.arm_id, []).append(pair)
    noise = _launch_noise(paired, ordered)
    return {
        arm_id: _compare_one(arm_id, trials, noise=noise, level=level, margin=margin)
        for arm_id, trials in paired.items()
    }


def _compare_one(
    arm_id: str,
    trials: Sequence[_PairedTrial],
    *,
    noise: tuple[float, int] | None,
    level: float,
    margin: float,
) -> Comparison:
    m = len(trials)
    prompts = sorted(set().union(*(t.logs for t in trials)))
    per_prompt = []
    for prompt in prompts:
        seen = [t.logs[prompt] for t in trials if prompt in t.logs]
        per_prompt.append(math.fsum(seen) / len(seen))
    mean, prompt_variance = _mean_var(per_prompt)
    n = len(per_prompt)
    low = high = None
    if prompt_variance is not None:
        parts = [(prompt_variance / n, n - 1)]
        if noise is not None:
            launches = math.fsum(_covariance(a, b) for a in trials for b in trials) / m**2
            parts.append((noise[0] * launches, noise[1]))
        variance = sum(v for v, _ in parts)
        spread = sum(v * v / df for v, df in parts)
        degrees = variance**2 / spread if spread > 0 else float(n - 1)
        half = t_quantile((1 + level) / 2, degrees) * math.sqrt(variance)
        low, high = math.exp(mean - half), math.exp(mean + half)
    speedup = Interval(value=math.exp(mean), low=low, high=high, level=level, n=n, unit="x baseline")
    return Comparison(
        arm_id=arm_id,
        speedup=speedup,
        verdict=judge(speedup, margin=margin),
        num_prompts=n,
        num_trials=m,
        num_baseline_trials=len(set().union(*(t.weights for t in trials))),
        trial_noise_frac=None if noise is None else math.sqrt(noise[0]),
    )
