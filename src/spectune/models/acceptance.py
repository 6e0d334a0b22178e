"""Acceptance of a chain drafter by position, and what it says of chains of other lengths.

A chain's first positions do not know how long the chain is, so one run at K
tokens gives the acceptance length of every chain of k <= K:
``AL(k) = 1 + sum_i prod_(j<=i) a_j`` with ``a_j`` the conditional acceptance
(Leviathan et al. 2023, arXiv:2211.17192, with alpha by position). Beyond K a
decaying model ``a_i = first * decay^i`` goes on, with an uncertainty that grows.

Trees, drafters of variable length (ngram, ``p_min``) and block drafters do not
obey this; ``acceptance_model_family`` decides by residuals who does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spectune.domain.acceptance import AcceptanceCounts
from spectune.statistics.estimate import LogEstimate

DESIGN_EFFECT = 3.0
"""Verify steps of one request resemble each other: so many count as one independent step (declared)."""
RUN_TO_RUN_LOG_SD = 0.012
"""Acceptance length of the same arm on the same prompts in two runs (declared)."""
INVENTED_LOG_SD = 0.2
"""Of the conditional acceptance at a position never drafted, common to all of them: on nine published
curves, lengths extrapolated from 3 positions then lie one standard deviation off in the root mean square."""
LENGTH_LOG_SD = 0.03
"""Of an acceptance length that came without counts or a range (declared)."""
LENGTH_ONLY_LOG_SD = 0.05
"""Of a chain derived from acceptance lengths alone: peers' mean error of constant alpha is 6 %."""
TYPICAL_FIRST, TYPICAL_DECAY = 0.78, 0.96
"""Of the published EAGLE-3 and MTP curves: where nothing is measured yet."""
_DECAY_LOG_SD = 0.02
_COUNTING_APART = 0.3
"""Share of a length's counting error that other lengths of the same run do not have."""


@dataclass(frozen=True)
class ChainProfile:
    """Conditional acceptance by position; ``tested[i]`` steps reached position i (in independent steps)."""

    conditional: tuple[float, ...]
    tested: tuple[float, ...]
    first: float
    decay: float
    from_lengths: bool = False
    """Derived from acceptance lengths, not from counts by position."""

    @property
    def positions(self) -> int:
        return len(self.conditional)

    def at(self, position: int) -> float:
        if position < self.positions:
            return self.conditional[position]
        last = self.conditional[-1] if self.conditional else 1.0
        return min(0.999, self.first * self.decay**position, max(last, 1e-9))

    def length(self, k: int) -> LogEstimate:
        """Acceptance length of a chain of ``k`` drafted tokens."""
        value = chain_length([self.at(i) for i in range(k)])
        variance = self._counting_variance(min(k, self.positions))
        invented_sd = self._invented_sd(k)
        relative = math.sqrt(variance + invented_sd**2) / value
        extra = LENGTH_ONLY_LOG_SD if self.from_lengths else 0.0
        return LogEstimate(value, math.sqrt(relative**2 + RUN_TO_RUN_LOG_SD**2 + extra**2))

    def apart_log_sd(self, k: int) -> float:
        """Of ``length(k)`` beside an error that the lengths of all chains share.

        Steps counted by chance move the lengths of all chains together, and
        costs are derived from the same lengths, so most of it cancels in a
        speed.
        """
        own = self._counting_variance(min(k, self.positions)) * _COUNTING_APART**2
        relative2 = (own + self._invented_sd(k) ** 2) / chain_length([self.at(i) for i in range(k)]) ** 2
        extra = LENGTH_ONLY_LOG_SD if self.from_lengths else 0.0
        return math.sqrt(relative2 + RUN_TO_RUN_LOG_SD**2 + extra**2)

    def invented(self, k: int) -> int:
        """How many positions of a chain of ``k`` were never drafted."""
        return max(0, k - self.positions)

    def _counting_variance(self, k: int) -> float:
        """Of ``AL(k)`` under independent Beta posteriors (Jeffreys prior) of the conditionals."""
        reached, variance = 1.0, 0.0
        tails = self._tails(k)
        for i in range(k):
            a, n = self.conditional[i], self.tested[i] + 1
            spread = max(a * (1 - a), 0.25 / n) / (n + 1)
            variance += (reached * tails[i]) ** 2 * spread
            reached *= a
        return variance

    def _tails(self, k: int) -> list[float]:
        """``[i]``: derivative of the length by ``a_i``, given that position i is reached."""
        tails = [0.0] * k
        after = 0.0
        for i in range(k - 1, -1, -1):
            tails[i] = 1 + after
            after = self.at(i) * tails[i]
        return tails

    def _invented_sd(self, k: int) -> float:
        marginal, spread = 1.0, 0.0
        for i in range(k):
            marginal *= self.at(i)
            if i >= self.positions:
                spread += marginal * INVENTED_LOG_SD * (i - self.positions + 1)
        return spread


def chain_length(conditional: Sequence[float]) -> float:
    """``1 + a_1 + a_1 a_2 + ...``: the bonus token is the 1."""
    total, marginal = 1.0, 1.0
    for a in conditional:
        marginal *= a
        total += marginal
    return total


TYPICAL = ChainProfile(conditional=(), tested=(), first=TYPICAL_FIRST, decay=TYPICAL_DECAY)
"""A decent drafter, where nothing is known."""


def profile_from_counts(parts: Sequence[AcceptanceCounts]) -> ChainProfile | None:
    """Pooled over runs of one drafter at any lengths; ``None`` without counts by position."""
    kept: list[float] = []
    tested: list[float] = []
    for part in parts:
        positions = part.accepted_per_position
        if not positions or not part.num_drafts:
            continue
        reached = float(part.num_drafts)
        for i, count in enumerate(positions):
            if i == len(kept):
                kept.append(0.0)
                tested.append(0.0)
            kept[i] += count
            tested[i] += reached
            reached = float(count)
    known = [i for i, n in enumerate(tested) if n > 0]
    if not known:
        return None
    conditional = tuple(kept[i] / tested[i] for i in known)
    effective = tuple(tested[i] / DESIGN_EFFECT for i in known)
    first, decay = fit_decay(conditional, effective)
    return ChainProfile(conditional, effective, first, decay)


def fit_decay(conditional: Sequence[float], tested: Sequence[float]) -> tuple[float, float]:
    """``first`` and ``decay`` of ``a_i = first * decay^i``: weighted least squares on logarithms.

    The decay has a prior around the published curves', which decides while
    only one position is known.
    """
    weights, logs = [], []
    for a, n in zip(conditional, tested, strict=True):
        clipped = min(max(a, 0.5 / (n + 1)), 1 - 0.5 / (n + 1))
        variance = (1 - clipped) / (clipped * max(n, 1e-9)) + 0.02**2
        weights.append(1 / variance)
        logs.append(math.log(clipped))
    total = math.fsum(weights)
    mean_i = math.fsum(w * i for i, w in enumerate(weights)) / total
    mean_y = math.fsum(w * y for w, y in zip(weights, logs, strict=True)) / total
    spread = math.fsum(w * (i - mean_i) ** 2 for i, w in enumerate(weights))
    slope = math.fsum(
        w * (i - mean_i) * (y - mean_y) for i, (w, y) in enumerate(zip(weights, logs, strict=True))
    )
    confidence = 1 / _DECAY_LOG_SD**2
    decay = (slope + confidence * math.log(TYPICAL_DECAY)) / (spread + confidence)
    return math.exp(mean_y - decay * mean_i), math.exp(min(decay, 0.0))


def profile_from_lengths(lengths: Mapping[int, float]) -> ChainProfile | None:
    """From acceptance lengths by number of drafted tokens: the decaying model that fits them best."""
    known = {k: length for k, length in lengths.items() if k >= 1 and length > 1}
    if not known:
        return None
    candidates = []
    for step in range(16):
        decay = 0.80 + 0.015 * step if len(known) > 1 else TYPICAL_DECAY
        firsts = [_first_for(k, length, decay) for k, length in known.items()]
        first = math.exp(math.fsum(math.log(f) for f in firsts) / len(firsts))
        error = math.fsum(
            math.log(chain_length([min(1.0, first * decay**i) for i in range(k)]) / length) ** 2
            for k, length in known.items()
        )
        candidates.append((error + 0.02**2 * ((decay - TYPICAL_DECAY) / _DECAY_LOG_SD) ** 2, first, decay))
    _, first, decay = min(candidates)
    longest = max(known)
    conditional = tuple(min(1.0, first * decay**i) for i in range(longest))
    return ChainProfile(conditional, (1e6,) * longest, first, decay, from_lengths=True)


def _first_for(k: int, length: float, decay: float) -> float:
    """``first`` at which a chain of ``k`` has this acceptance length, by bisection."""
    low, high = 1e-6, decay ** -(k - 1)
    for _ in range(60):
        middle = (low + high) / 2
        if chain_length([min(1.0, middle * decay**i) for i in range(k)]) < length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def length_log_sd(counts: AcceptanceCounts) -> float:
    """Standard error of the logarithm of one run's acceptance length."""
    steps, length = counts.num_drafts, counts.acceptance_length
    if not steps or length is None:
        return 0.1
    positions = counts.marginal_acceptance
    if positions:
        mean = math.fsum(positions)
        square = math.fsum((2 * i + 1) * p for i, p in enumerate(positions))
        variance = max(square - mean * mean, 0.0)
    else:
        drafted = counts.num_draft_tokens / steps
        variance = max((length - 1) * (drafted - length + 1), 0.0)
    counting = math.sqrt(variance * DESIGN_EFFECT / steps) / length
    return math.hypot(counting, RUN_TO_RUN_LOG_SD)
