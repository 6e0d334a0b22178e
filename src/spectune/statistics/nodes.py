"""Nodes of one kind need not be equally fast: what the baseline says of each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from spectune.statistics.intervals import ratio_of, t_quantile
from spectune.statistics.launches import SpeedSample, launch_noise


@dataclass(frozen=True)
class NodeDifference:
    """The baseline on the fastest and on the slowest node."""

    fastest: str
    slowest: str
    ratio: float
    """Of their geometric mean speeds over the prompts that every launch answered; at least 1."""
    smallest_found: float | None
    """The ratio that noise between launches reaches in 5 % of studies with equal nodes; ``None``: noise is unknown."""
    levels: dict[str, float]
    """Geometric mean tok/s by node."""

    @property
    def is_found(self) -> bool | None:
        """Whether noise does not explain it; ``None``: nothing was launched twice on any node."""
        return None if self.smallest_found is None else self.ratio > self.smallest_found


def compare_nodes(baselines: Sequence[SpeedSample], *, rate: float = 0.05) -> NodeDifference | None:
    """``None`` for fewer than two nodes, or no prompt in common.

    Every pair of nodes is looked at, so the quantile is Bonferroni's over the
    pairs. The noise of a launch is that of steps within nodes.
    """
    places = list(dict.fromkeys(b.place for b in baselines))
    if len(places) < 2:
        return None
    prompts = set(baselines[0].speed_by_prompt).intersection(*(b.speed_by_prompt for b in baselines[1:]))
    if not prompts:
        return None
    logs: dict[str, list[float]] = {}
    for sample in baselines:
        level = math.fsum(math.log(sample.speed_by_prompt[p]) for p in prompts) / len(prompts)
        logs.setdefault(sample.place, []).append(level)
    means = {place: math.fsum(values) / len(values) for place, values in logs.items()}
    fastest, slowest = max(means, key=lambda p: means[p]), min(means, key=lambda p: means[p])
    noise = launch_noise(sorted(baselines, key=lambda b: b.order))
    smallest = None
    if noise is not None:
        variance, degrees = noise
        pairs = sum(1 for _ in itertools.combinations(places, 2))
        spread = math.sqrt(variance * (1 / len(logs[fastest]) + 1 / len(logs[slowest])))
        smallest = ratio_of(t_quantile(1 - rate / 2 / pairs, degrees) * spread)
    return NodeDifference(
        fastest=fastest,
        slowest=slowest,
        ratio=math.exp(means[fastest] - means[slowest]),
        smallest_found=smallest,
        levels={place: math.exp(mean) for place, mean in means.items()},
    )
