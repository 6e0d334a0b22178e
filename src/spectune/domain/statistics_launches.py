"""Noise between launches: paired trials, and the variance of a launch's log speed.

The unit of repetition is the trial (one launch of a server), because restarts
alone move medians by 10-20 % (docs/design).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KNOWN_DEGREES = 1000.0
FEW_DEGREES = 1.5
"""Below these, launch noise may look like nothing by luck, and Satterthwaite's degrees trust it too much."""
_CONTRADICTION = 0.95
"""Two estimates of launch noise contradict each other beyond this quantile of F."""


def mean_var(values: Sequence[float]) -> tuple[float, float | None]:
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)


@dataclass(frozen=True)
class SpeedSample:
    """One trial's speed of each prompt at one load point. ``order`` is the place of its launch in time.

    Trials of one launch share it: what their server is off by, all of them are.
    """

    arm_id: str
    order: int
    speed_by_prompt: Mapping[str, float]
    place: str = ""
    """The node it ran on. Samples of two places are never set against each other: their nodes may differ."""


@dataclass(frozen=True)
class PairedTrial:
    """One trial's log ratio to the baseline around it, per prompt, and each baseline trial's weight in that."""

    logs: Mapping[str, float]
    weights: Mapping[int, float]
    launch: int = 0

    @property
    def effect(self) -> float:
        return math.fsum(self.logs.values()) / len(self.logs)


def pair_trial(trial: SpeedSample, baselines: Sequence[SpeedSample]) -> PairedTrial:
    """Against the mean of the baseline trial before it and the one after it (one of them at an end), at its place.

    Without logs if the baseline was not measured there.
    """
    before = [b for b in baselines if b.place == trial.place and b.order <= trial.order]
    after = [b for b in baselines if b.place == trial.place and b.order > trial.order]
    around = [*before[-1:], *after[:1]]
    if not around:
        return PairedTrial({}, {}, trial.order)
    prompts = set(trial.speed_by_prompt).intersection(*(b.speed_by_prompt for b in around))
    logs = {
        p: math.log(trial.speed_by_prompt[p])
        - math.fsum(math.log(b.speed_by_prompt[p]) for b in around) / len(around)
        for p in prompts
    }
    return PairedTrial(logs, {b.order: 1 / len(around) for b in around}, trial.order)


def _overlap(first: Mapping[int, float], second: Mapping[int, float]) -> float:
    """Covariance of two trials' ratios through shared baseline trials, in launch variances."""
    return math.fsum(weight * second.get(order, 0.0) for order, weight in first.items())


def launch_noise(
    paired: Mapping[str, Sequence[PairedTrial]],
    baselines: Sequence[SpeedSample],
    known: tuple[float, float] | None = None,
) -> tuple[float, float] | None:
    """Variance of a launch's log speed, prompts' own noise taken out, and its degrees of freedom.

    Up to three sources. Repeated arms: their spread, divided by what it would
    be for launches of variance one, given the baseline trials they share.
    Baseline trials: half the mean square of the steps from one to the next,
    which a slow drift hardly moves (von Neumann 1941). What was known before.
    They are pooled unless one contradicts the others (speculation can make
    launches noisier than plain decoding): then the larger counts alone.
    """
    found = [part for part in (_from_arms(paired), _from_baselines(baselines), known) if part is not None]
    if not found:
        return None
    pooled, *others = sorted(found)
    for larger in others:
        if larger[0] > pooled[0] * f_quantile(_CONTRADICTION, larger[1], pooled[1]):
            pooled = larger
        else:
            degrees = pooled[1] + larger[1]
            pooled = ((pooled[0] * pooled[1] + larger[0] * larger[1]) / degrees, degrees)
    return pooled


def _from_arms(paired: Mapping[str, Sequence[PairedTrial]]) -> tuple[float, float] | None:
    """Arms that shared their launches tell of them once, whatever their number: each counts for its part."""
    repeated = [trials for trials in paired.values() if len(trials) > 1]
    sharing = Counter(trial.launch for trials in repeated for trial in trials)
    squares, expected, degrees = 0.0, 0.0, 0.0
    for trials in repeated:
        m = len(trials)
        part = m / sum(sharing[t.launch] for t in trials)
        effects = _effects(trials)
        mean, _ = mean_var(effects)
        squares += part * (math.fsum((x - mean) ** 2 for x in effects) - _measuring_noise(trials))
        own = math.fsum(1 + _overlap(t.weights, t.weights) for t in trials)
        expected += part * (own - math.fsum(covariance(a, b) for a in trials for b in trials) / m)
        degrees += part * (m - 1)
    return (max(0.0, squares / expected), degrees) if degrees else None


def _effects(trials: Sequence[PairedTrial]) -> list[float]:
    """On the prompts that all asked: an arm's other prompts are no noise of its launches."""
    common = set(trials[0].logs).intersection(*(t.logs for t in trials[1:]))
    if not common:
        return [t.effect for t in trials]
    return [math.fsum(t.logs[p] for p in common) / len(common) for t in trials]


def _measuring_noise(trials: Sequence[PairedTrial]) -> float:
    """The part of the trials' sum of squares that comes from their prompts: residuals of prompt x trial."""
    m = len(trials)
    prompts = set(trials[0].logs).intersection(*(t.logs for t in trials[1:]))
    n = len(prompts)
    if n < 2:
        return 0.0
    by_trial = [math.fsum(t.logs[p] for p in prompts) / n for t in trials]
    grand = math.fsum(by_trial) / m
    squares = 0.0
    for prompt in prompts:
        mean = math.fsum(t.logs[prompt] for t in trials) / m
        squares += math.fsum(
            (t.logs[prompt] - mean - level + grand) ** 2 for t, level in zip(trials, by_trial, strict=True)
        )
    return squares / (n - 1) / n


def _from_baselines(baselines: Sequence[SpeedSample]) -> tuple[float, float] | None:
    """Steps within a place; what nodes differ by is no noise of a launch."""
    steps: list[tuple[float, float]] = []
    degrees = 0.0
    for place in dict.fromkeys(b.place for b in baselines):
        own = [b for b in baselines if b.place == place]
        found = [step for pair in itertools.pairwise(own) if (step := _step(*pair)) is not None]
        steps += found
        degrees += degrees_of_steps(len(found)) if found else 0.0
    if not steps:
        return None
    variance = math.fsum(square - noise for square, noise in steps) / len(steps) / 2
    return max(0.0, variance), degrees


def degrees_of_steps(count: int) -> float:
    """Steps share their ends, so n of them are worth fewer degrees (von Neumann 1941): n^2 / (1.5 n - 0.5)."""
    return count**2 / (1.5 * count - 0.5)


def f_quantile(probability: float, numerator: float, denominator: float) -> float:
    from scipy.special import fdtri  # as in t_quantile

    return float(fdtri(numerator, denominator, probability))


def covariance(a: PairedTrial, b: PairedTrial) -> float:
    return (1.0 if a is b else 0.0) + _overlap(a.weights, b.weights)


def _step(first: SpeedSample, second: SpeedSample) -> tuple[float, float] | None:
    """Square of the mean log change over common prompts, and how much of it their own noise makes."""
    shared = first.speed_by_prompt.keys() & second.speed_by_prompt.keys()
    if not shared:
        return None
    mean, variance = mean_var(
        [math.log(second.speed_by_prompt[p] / first.speed_by_prompt[p]) for p in shared]
    )
    return mean * mean, 0.0 if variance is None else variance / len(shared)
