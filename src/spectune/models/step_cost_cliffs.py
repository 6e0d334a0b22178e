"""Where a step's cost may jump: tile and captured graph sizes, at some number of drafted tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

Cliffs = tuple[tuple[int | None, float], ...]
"""Places with prior weights; ``None`` is no cliff."""

MEAN, SD = 0.15, 0.25
"""Of a cliff's size, in baseline steps."""
_PLACES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64)
_EQUAL_UP_TO = 4
_SHARES = {
    place: 1 / max(place, _EQUAL_UP_TO) / math.fsum(1 / max(p, _EQUAL_UP_TO) for p in _PLACES)
    for place in _PLACES
}
"""In small drafts a place is one of few, in large ones of many."""
NONE_WEIGHT, ONE_WEIGHT, SEVERAL_WEIGHT = 0.3, 0.5, 0.2
"""Prior weights of no cliff, one, and several."""
_SEVERAL = 2.0
"""Expected number of cliffs where there are several."""


def patterns(tokens: Sequence[int]) -> dict[tuple[float, ...], Cliffs]:
    """No cliff or one, by which of these numbers of tokens lie behind it."""
    none = tuple(0.0 for _ in tokens)
    found: dict[tuple[float, ...], list[tuple[int | None, float]]] = {none: [(None, NONE_WEIGHT)]}
    for place, share in _SHARES.items():
        pattern = tuple(float(t >= place) for t in tokens)
        found.setdefault(pattern, []).append((place, ONE_WEIGHT * share))
    return {pattern: tuple(cliffs) for pattern, cliffs in found.items()}


def share_behind(cliffs: Cliffs, tokens: int) -> float:
    """Of these cliffs' prior weight, how much lies at or before ``tokens``."""
    behind = math.fsum(w for place, w in cliffs if place is not None and tokens >= place)
    return behind / math.fsum(w for _, w in cliffs)


def divided(cliffs: Cliffs, tokens: Sequence[int]) -> dict[tuple[float, ...], float]:
    """Of these cliffs' prior weight, how much splits ``tokens`` in which way."""
    total = math.fsum(w for _, w in cliffs)
    found: dict[tuple[float, ...], float] = {}
    for place, weight in cliffs:
        pattern = tuple(float(place is not None and t >= place) for t in tokens)
        found[pattern] = found.get(pattern, 0.0) + weight / total
    return found


@cache
def walk(tokens: int) -> tuple[float, float]:
    """Mean and variance of the sum of the cliffs up to ``tokens``, where each is there by its own chance.

    Its covariance between two numbers of tokens is the variance at the smaller one.
    """
    chances = [min(1.0, _SEVERAL * share) for place, share in _SHARES.items() if place <= tokens]
    variance = math.fsum(p * (SD * SD + MEAN * MEAN) - (p * MEAN) ** 2 for p in chances)
    return MEAN * math.fsum(chances), variance
