"""One measured line of a table or study: the input of every explanation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spectune.domain.arm import Arm
from spectune.domain.interval import Interval
from spectune.models.acceptance import LENGTH_LOG_SD, length_log_sd
from spectune.models.arm_shape import VARIABLE_METHODS
from spectune.models.observation import Observation
from spectune.models.speed import DEFAULT_LOG_SD
from spectune.statistics.intervals import Verdict

_LEAST_SHARE = 0.05
"""Of a request in decoding: with less, its time tells next to nothing of a step."""


@dataclass(frozen=True)
class MeasuredRow:
    """An arm at one concurrency. ``tokens_per_step`` differs from the acceptance length only for
    drafters that skip steps (ngram, ``p_min``)."""

    name: str
    observation: Observation
    acceptance_length: Interval | None
    assumed_from: str | None = None
    """The row whose acceptance length stands in for this one's."""
    verdict: Verdict | None = None
    """The study's, against no speculation; ``None`` in a table, whose figures say nothing of their scatter."""
    depth: int | None = None
    """Draft steps: one more is the most tokens a step can give. ``None``: unknown."""

    @property
    def arm(self) -> Arm:
        return self.observation.arm

    @property
    def tok_per_s(self) -> float:
        return self.observation.tok_per_s

    @property
    def concurrency(self) -> int:
        return self.observation.concurrency

    @property
    def is_baseline(self) -> bool:
        return self.arm.is_baseline

    @property
    def has_drafter(self) -> bool:
        """Not of plain decoding, nor of drafts that are looked up, which nothing trains."""
        return not self.is_baseline and self.arm.knobs.method not in VARIABLE_METHODS

    @property
    def tokens_per_step(self) -> float | None:
        return 1.0 if self.is_baseline else self.observation.acceptance_length

    @property
    def verify_frac(self) -> float:
        """Share of forward passes that check a draft: T = 1 + f (L - 1), with T tokens per step."""
        tokens, length = self.tokens_per_step, self.acceptance_length
        if tokens is None or length is None or length.value <= 1 or self.is_baseline:
            return 1.0
        return min(1.0, max(1e-3, (tokens - 1) / (length.value - 1)))

    def as_length(self, tokens: float) -> float:
        """The acceptance length that gives so many tokens per step, if as many passes check a draft as now."""
        return 1 + (tokens - 1) / self.verify_frac

    @property
    def speed_error(self) -> float:
        """Standard error of the logarithm of the speed; a declared one where none is known."""
        known = self.observation.log_sd
        return DEFAULT_LOG_SD if known is None else known

    @property
    def decode_error(self) -> float:
        """As above, of the speed of decoding: an error of a whole request's time is taken for its decoding's."""
        times = self.observation.times
        return self.speed_error / (1.0 if times is None else max(_LEAST_SHARE, times.decode_share()))

    def step_error(self, decode_share: float = 1.0) -> float:
        """As above, of a speed at another length, where decoding has this share of a request's time."""
        return decode_share * math.hypot(self.decode_error, self._length_sd)

    def length_error(self, decode_share: float = 1.0) -> float:
        """As above, of a length worked out from this row's speed, its length and plain decoding's speed."""
        own_baseline = self.observation.speedup is not None  # the error of a speedup holds plain decoding's
        speed = math.hypot(self.speed_error, 0.0 if own_baseline else DEFAULT_LOG_SD)
        return math.hypot(speed / max(_LEAST_SHARE, decode_share), self._length_sd)

    @property
    def _length_sd(self) -> float:
        known = log_sd_of(self.acceptance_length) or self.observation.length_log_sd
        if known is not None:
            return known
        counts = self.observation.acceptance
        return LENGTH_LOG_SD if counts is None else length_log_sd(counts)

    @property
    def most_tokens(self) -> float | None:
        """Per step, were every draft kept; ``None``: depth unknown."""
        return None if not self.depth else 1 + self.verify_frac * self.depth


def baselines(rows: Sequence[MeasuredRow], concurrency: int) -> list[MeasuredRow]:
    """Rows of plain decoding that others are set against: those with graphs, or where none has them all."""
    plain = [r for r in rows if r.is_baseline and r.concurrency == concurrency]
    return [r for r in plain if r.arm.knobs.cuda_graphs is not False] or plain


def told_apart(row: MeasuredRow, other: MeasuredRow, *, margin: float) -> bool:
    """Whether two speeds differ: by the study's verdict where it has one, by their errors, or else by the margin."""
    drafting = other if row.is_baseline else row
    if row.is_baseline != other.is_baseline and drafting.verdict is not None:
        return drafting.verdict in ("FASTER", "SLOWER")
    sds = [sd for r in (row, other) if (sd := r.observation.log_sd) is not None]
    least = 1.96 * math.hypot(*sds) if len(sds) == 2 else math.log1p(margin)
    return abs(math.log(row.tok_per_s / other.tok_per_s)) > least


@dataclass(frozen=True)
class Prediction:
    """What was expected of an arm before it was measured, and what it then did (``None``: not measured)."""

    arm: str
    predicted_tok_per_s: Interval | None
    predicted_speedup: Interval | None
    measured_tok_per_s: float | None
    measured_speedup: float | None

    @property
    def pair(self) -> tuple[Interval, float] | None:
        """Predicted and measured: speedups where both are known, for these do not drift, else tok/s."""
        if self.predicted_speedup is not None and self.measured_speedup is not None:
            return self.predicted_speedup, self.measured_speedup
        if self.predicted_tok_per_s is not None and self.measured_tok_per_s is not None:
            return self.predicted_tok_per_s, self.measured_tok_per_s
        return None


def tok_per_s_words(value: float) -> str:
    """``82.3 tok/s``; slow ones with more digits."""
    return f"{three_digits(value)} tok/s"


def three_digits(value: float) -> str:
    """``82.3``, ``0.410``: speeds and milliseconds."""
    size = abs(value)
    return f"{value:.{1 if size >= 9.95 else 2 if size >= 0.995 else 3}f}"


def log_sd_of(interval: Interval | None, *, reach: float = 1.96) -> float | None:
    """Standard error of the logarithm behind a 95 % interval, or one of this many; ``None`` where it has no bounds."""
    if interval is None or not interval.low or not interval.high:
        return None
    return math.log(interval.high / interval.low) / (2 * reach)
