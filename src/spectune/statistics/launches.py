"""Noise between launches: paired trials, and the variance of a launch's log speed.

The unit of repetition is the trial (one launch of a server), because restarts
alone move medians by 10-20 % (docs/design).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FEW_DEGREES = 1.5
"""Below these, launch noise may look like nothing by luck, and Satterthwaite's degrees trust it too much."""


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


def residual_variance(trials: Sequence[PairedTrial]) -> float:
    """Variance of one prompt's log ratio in one trial beyond what prompt and trial explain; 0 where none can tell."""
    m = len(trials)
    prompts = set(trials[0].logs).intersection(*(t.logs for t in trials[1:]))
    n = len(prompts)
    if n < 2 or m < 2:
        return 0.0
    by_trial = [math.fsum(t.logs[p] for p in prompts) / n for t in trials]
    grand = math.fsum(by_trial) / m
    squares = 0.0
    for prompt in prompts:
        mean = math.fsum(t.logs[prompt] for t in trials) / m
        squares += math.fsum(
            (t.logs[prompt] - mean - level + grand) ** 2 for t, level in zip(trials, by_trial, strict=True)
        )
    return squares / (n - 1) / (m - 1)


def launch_noise(baselines: Sequence[SpeedSample]) -> tuple[float, float] | None:
    """Variance of a launch's log speed, prompts' own noise taken out, and its degrees of freedom.

    Half the mean square of the steps from one baseline launch to the next, which a slow drift hardly moves (von
    Neumann 1941); ``None`` where no place has two.
    """
    steps: list[tuple[float, float]] = []
    degrees = 0.0
    for place in dict.fromkeys(b.place for b in baselines):
        own = [b for b in baselines if b.place == place]
        found = [step for pair in itertools.pairwise(own) if (step := _step(*pair)) is not None]
        steps += found
        degrees += _degrees_of_steps(len(found)) if found else 0.0
    if not steps:
        return None
    variance = math.fsum(square - noise for square, noise in steps) / len(steps) / 2
    return max(0.0, variance), degrees


def _degrees_of_steps(count: int) -> float:
    """Steps share their ends, so n of them are worth fewer degrees (von Neumann 1941): n^2 / (1.5 n - 0.5)."""
    return count**2 / (1.5 * count - 0.5)


def f_quantile(probability: float, numerator: float, denominator: float) -> float:
    from scipy.special import fdtri  # as in t_quantile

    return float(fdtri(numerator, denominator, probability))


def _step(first: SpeedSample, second: SpeedSample) -> tuple[float, float] | None:
    """Square of the mean log change over common prompts, and how much of it their own noise makes."""
    shared = first.speed_by_prompt.keys() & second.speed_by_prompt.keys()
    if not shared:
        return None
    mean, variance = mean_var(
        [math.log(second.speed_by_prompt[p] / first.speed_by_prompt[p]) for p in shared]
    )
    return mean * mean, 0.0 if variance is None else variance / len(shared)
