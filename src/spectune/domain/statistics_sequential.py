"""Stopping an arm that is clearly worse, while its prompts still run.

Prompts come in blocks, paired with the reference's (the best arm so far).
After each block the arm is stopped if the upper bound of its log ratio lies
below ``margin``: it will not beat the reference by what is worth its prompts.
The error is spent in equal parts over the looks (a union bound: no assumption
on how the looks depend), so an arm that is better than the reference by the
margin is stopped with at most the stated chance over all looks together,
whatever the other arms do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spectune.domain.statistics import t_quantile


@dataclass(frozen=True)
class PooledNoise:
    """Variance of a paired log ratio as earlier arms on the same prompts showed it."""

    variance: float
    degrees: int


@dataclass(frozen=True)
class EarlyStopping:
    """``alpha``: chance, over all looks, that an arm better by ``margin`` is stopped."""

    alpha: float = 0.05
    block: int = 4
    num_prompts: int = 32
    margin: float = 0.01
    launch_log_sd: float = 0.0
    """Spread between launches; a difference this size is not the arm's."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1 or not 2 <= self.block <= self.num_prompts:
            raise ValueError("alpha must lie in (0, 1), and a block hold 2 prompts up to all of them")

    @property
    def looks(self) -> int:
        """After every block but the last: then the arm is measured anyway."""
        return max(1, math.ceil(self.num_prompts / self.block) - 1)

    def is_look(self, prompts: int) -> bool:
        return prompts % self.block == 0 and 0 < prompts < self.num_prompts

    def upper_bound(self, log_ratios: Sequence[float], pooled: PooledNoise | None = None) -> float | None:
        """Of the mean log ratio at this look; ``None`` below two prompts."""
        n = len(log_ratios)
        if n < 2:
            return None
        mean = math.fsum(log_ratios) / n
        squares, degrees = math.fsum((x - mean) ** 2 for x in log_ratios), n - 1
        if pooled is not None:
            squares += pooled.variance * pooled.degrees
            degrees += pooled.degrees
        error = math.sqrt(squares / degrees / n + 2 * self.launch_log_sd**2)
        return mean + t_quantile(1 - self.alpha / self.looks, degrees) * error

    def clearly_worse(self, log_ratios: Sequence[float], pooled: PooledNoise | None = None) -> bool:
        """Whether to stop now; only ever true at a look."""
        if not self.is_look(len(log_ratios)):
            return False
        upper = self.upper_bound(log_ratios, pooled)
        return upper is not None and upper < math.log1p(self.margin)


def pool_noise(arms: Sequence[Sequence[float]]) -> PooledNoise | None:
    """From the paired log ratios of earlier arms; ``None`` without two prompts in any."""
    squares, degrees = 0.0, 0
    for logs in arms:
        if len(logs) >= 2:
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum((x - mean) ** 2 for x in logs)
            degrees += len(logs) - 1
    return PooledNoise(squares / degrees, degrees) if degrees else None
