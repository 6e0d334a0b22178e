"""Where the time of a request goes: before its first token, and in decoding. Only decoding speculates.

A verify step's cost, the break-even and the ceilings are properties of decoding. The speed of a whole request also has
the time to the first token in it, which no draft shortens, so each is worked out in its own unit and joined here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from spectune.domain.record import Record

_STEPS_OF_BISECTION = 60
_LARGEST_FACTOR = 1e6


class RequestTimes(Record):
    """An arm's requests, prompt by prompt, in units of the same request without speculation."""

    plain_first: tuple[float, ...]
    """Before the first token, without speculation; the rest of 1 is decoding."""
    first: tuple[float, ...]
    """Before the first token, with the arm."""
    decode: tuple[float, ...]
    """After it."""

    @property
    def decode_speedup(self) -> float:
        """Of the decoding alone; a geometric mean over prompts, as every speedup is."""
        logs = [math.log((1 - p) / d) for p, d in zip(self.plain_first, self.decode, strict=True)]
        return math.exp(math.fsum(logs) / len(logs))

    def speedup(self, faster: float = 1.0) -> float:
        """Of whole requests, if decoding were so many times as fast as it is."""
        logs = [math.log(f + d / faster) for f, d in self._pairs]
        return math.exp(-math.fsum(logs) / len(logs))

    @property
    def most_speedup(self) -> float:
        """If decoding took no time at all."""
        if any(f <= 0 for f in self.first):
            return math.inf
        return math.exp(-math.fsum(map(math.log, self.first)) / len(self.first))

    def decode_share(self, faster: float = 1.0) -> float:
        """Of a request's time; also what a percent of decoding speed is worth in the whole request's."""
        return math.fsum(d / (f * faster + d) for f, d in self._pairs) / len(self.first)

    def faster_for(self, speedup: float) -> float | None:
        """How many times as fast decoding must be for this speedup of whole requests; ``None``: no speed is enough."""
        if all(f == 0 for f in self.first):
            return speedup / self.speedup()
        if speedup >= self.most_speedup:
            return None
        low, high = 1 / _LARGEST_FACTOR, _LARGEST_FACTOR
        for _ in range(_STEPS_OF_BISECTION):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.speedup(middle) < speedup else (low, middle)
        return math.sqrt(low * high) if high < _LARGEST_FACTOR else None

    @property
    def _pairs(self) -> list[tuple[float, float]]:
        return list(zip(self.first, self.decode, strict=True))

    def summed_up(self, groups: int = 8) -> RequestTimes:
        """The same with at most so many prompts, alike ones taken together: for work that asks often."""
        if len(self.first) <= groups:
            return self
        order = sorted(range(len(self.first)), key=lambda i: self.first[i] / (self.first[i] + self.decode[i]))
        ends = [round(g * len(order) / groups) for g in range(groups + 1)]
        parts = [order[low:high] for low, high in pairwise(ends)]

        def means(values: Sequence[float]) -> tuple[float, ...]:
            return tuple(math.fsum(values[i] for i in part) / len(part) for part in parts)

        return RequestTimes(
            plain_first=means(self.plain_first), first=means(self.first), decode=means(self.decode)
        )


def all_decode(speedup: float) -> RequestTimes:
    """Where nothing says how long the first token took: the whole request is taken for decoding."""
    return RequestTimes(plain_first=(0.0,), first=(0.0,), decode=(1 / speedup,))


def of_plain(first_shares: Sequence[float]) -> RequestTimes | None:
    """Requests without speculation, of which these shares pass before the first token."""
    known = tuple(share for share in first_shares if 0 <= share < 1)
    if not known:
        return None
    return RequestTimes(plain_first=known, first=known, decode=tuple(1 - share for share in known))


def against_plain(
    plain_shares: Mapping[str, float],
    own_shares: Mapping[str, float],
    ratios: Mapping[str, float],
    *,
    speedup: float,
) -> RequestTimes | None:
    """From the share before the first token and the ratio of whole speeds, by prompt; ``None`` for no common prompt.

    ``ratios`` are scaled to ``speedup``, the one ratio that is reported: it has no drift of the machine in it.
    """
    prompts = [
        p
        for p in sorted(plain_shares.keys() & own_shares.keys() & ratios.keys())
        if 0 <= plain_shares[p] < 1 and 0 <= own_shares[p] < 1 and ratios[p] > 0
    ]
    if not prompts or speedup <= 0:
        return None
    level = math.fsum(math.log(ratios[p]) for p in prompts) / len(prompts) - math.log(speedup)
    whole = [math.exp(level) / ratios[p] for p in prompts]
    return RequestTimes(
        plain_first=tuple(plain_shares[p] for p in prompts),
        first=tuple(own_shares[p] * w for p, w in zip(prompts, whole, strict=True)),
        decode=tuple((1 - own_shares[p]) * w for p, w in zip(prompts, whole, strict=True)),
    )
