"""Simulated machines and the studies measured on them: what `noise.py` counts wrong and right verdicts of.

Nothing here knows how spectune decides. The log speed of a request is its prompt's, plus the arm's effect, plus what
the arm does to this prompt, plus the machine's level at this moment, plus its launch's, plus its own noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from spectune.statistics.intervals import SpeedSample

STARTUP_S = 20.0
REQUEST_S = 2.0


@dataclass(frozen=True)
class Machine:
    """Standard deviations of log speed; ``prompt`` is one measurement's, so a paired ratio has sqrt(2) of it."""

    launch: float
    prompt: float
    drafting: float | None = None
    """Of a launch of an arm, where it is not plain decoding's."""
    noisy: float | None = None
    """Of a launch of the first arm alone."""
    tails: float | None = None
    """Degrees of freedom of launch noise of Student's t (the same standard deviation); ``None``: normal."""
    slow: float = 0.0
    """Of a level that wanders with the time constant ``slow_s`` (Ornstein-Uhlenbeck), all arms alike."""
    slow_s: float = 120.0
    drift: float = 0.0
    """Change of the log speed from the first launch to the last, in a straight line."""
    interaction: float = 0.0
    """How an arm's true log ratio differs from prompt to prompt."""

    def launch_sd(self, arm: int | None) -> float:
        """``None``: plain decoding."""
        if arm is None:
            return self.launch
        if arm == 0 and self.noisy is not None:
            return self.noisy
        return self.launch if self.drafting is None else self.drafting


@dataclass(frozen=True)
class Drawn:
    """What one study measured, and the truth on its own prompts (log ratio by arm)."""

    arms: list[SpeedSample]
    baselines: list[SpeedSample]
    on_these_prompts: dict[str, float]


class Drawing:
    """Launches of one machine, one after the other."""

    def __init__(
        self, rng: random.Random, machine: Machine, *, speedups: Sequence[float], prompts: int
    ) -> None:
        self._rng, self._machine, self._speedups = rng, machine, speedups
        self._base = [math.log(rng.uniform(40, 90)) for _ in range(prompts)]
        self._extra = [[rng.gauss(0, machine.interaction) for _ in range(prompts)] for _ in speedups]
        self._level, self._at_s, self._order = rng.gauss(0, machine.slow), 0.0, 0
        self.launches = 1
        """Of the whole study, for the drift."""

    @property
    def on_these_prompts(self) -> dict[str, float]:
        return {
            f"arm{i}": math.log(ratio) + sum(extra) / len(extra)
            for i, (ratio, extra) in enumerate(zip(self._speedups, self._extra, strict=True))
        }

    def launch(self, arm: int | None) -> SpeedSample:
        """Plain decoding for ``None``."""
        rng, machine = self._rng, self._machine
        shift = self._launch_noise(machine.launch_sd(arm)) + machine.drift * self._order / self.launches
        if arm is not None:
            shift += math.log(self._speedups[arm])
        self._pass(STARTUP_S)
        speeds = {}
        for i, base in enumerate(self._base):
            self._pass(REQUEST_S)
            extra = 0.0 if arm is None else self._extra[arm][i]
            speeds[f"p{i}"] = math.exp(base + shift + extra + self._level + rng.gauss(0, machine.prompt))
        sample = SpeedSample("baseline" if arm is None else f"arm{arm}", self._order, speeds)
        self._order += 1
        return sample

    def _launch_noise(self, sd: float) -> float:
        df = self._machine.tails
        if df is None:
            return self._rng.gauss(0, sd)
        chi2 = self._rng.gammavariate(df / 2, 2)
        return sd * self._rng.gauss(0, 1) / math.sqrt(chi2 / df) * math.sqrt((df - 2) / df)

    def _pass(self, seconds: float) -> None:
        self._at_s += seconds
        if self._machine.slow:
            kept = math.exp(-seconds / self._machine.slow_s)
            fresh = self._machine.slow * math.sqrt(1 - kept * kept)
            self._level = kept * self._level + self._rng.gauss(0, fresh)


def draw(
    rng: random.Random,
    machine: Machine,
    *,
    speedups: Sequence[float],
    launches: int,
    prompts: int,
    every: int | None = None,
) -> Drawn:
    """``launches`` of every arm, plain decoding around every ``every`` of them (``None``: around all), odd rounds
    backwards, as `order: interleaved` does."""
    drawing = Drawing(rng, machine, speedups=speedups, prompts=prompts)
    step = every or len(speedups)
    drawing.launches = launches * (len(speedups) + math.ceil(len(speedups) / step)) + 1
    arms, baselines = [], [drawing.launch(None)]
    for number in range(launches):
        order = list(range(len(speedups)))
        order = order[::-1] if number % 2 else order
        for start in range(0, len(order), step):
            arms += [drawing.launch(i) for i in order[start : start + step]]
            baselines.append(drawing.launch(None))
    return Drawn(arms, baselines, drawing.on_these_prompts)
