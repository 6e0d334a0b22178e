"""One forward pass of a measured row, and what whole requests make of it. Costs come from decoding alone."""

from __future__ import annotations

from dataclasses import dataclass

from spectune.analysis.explain.measured import MeasuredRow
from spectune.domain.interval import Interval
from spectune.domain.request_time import RequestTimes, all_decode
from spectune.models.speed import SpeedModel
from spectune.statistics.estimate import LogEstimate


@dataclass(frozen=True)
class Step:
    """Of a row whose tokens per forward pass are known."""

    row: MeasuredRow
    tokens: float
    """Per forward pass."""
    times: RequestTimes
    baseline_tok_per_s: float
    forward_s: float
    """A forward pass without speculation."""

    @property
    def ratio(self) -> float:
        """Its cost in forward passes without speculation: the tokens per pass at which decoding breaks even."""
        return self.tokens / self.times.decode_speedup

    @property
    def s(self) -> float:
        return self.ratio * self.forward_s

    @property
    def first_token_share(self) -> float:
        """Of a request's time, before its first token."""
        return 1 - self.times.decode_share()

    @property
    def first_token_s(self) -> float:
        """Before the first token, by token of the answer: the rest of what a token takes is decoding."""
        return self.first_token_share / (self.baseline_tok_per_s * self.times.speedup())

    def tokens_for(self, speedup: float) -> float | None:
        """Per forward pass, for whole requests at so many times the speed without speculation; ``None``: no number is
        enough."""
        faster = self.times.faster_for(speedup)
        return None if faster is None else self.tokens * faster

    def length_for(self, speedup: float) -> Interval | None:
        """The acceptance length behind ``tokens_for``, with its error."""
        tokens = self.tokens_for(speedup)
        if tokens is None:
            return None
        return self._length(tokens)

    @property
    def break_even_length(self) -> Interval:
        """The acceptance length at which decoding is as fast as without speculation."""
        return self._length(self.ratio)

    def _length(self, tokens: float) -> Interval:
        length = max(1e-3, self.row.as_length(tokens))
        error = self.row.length_error(self.times.decode_share(tokens / self.tokens))
        return LogEstimate(length, error).interval(unit="tokens/step", level=0.9)

    def speed(self, *, tokens: float | None = None, ratio: float | None = None) -> LogEstimate:
        """tok/s of whole requests with other tokens per pass, or another cost of one."""
        faster = (self.tokens if tokens is None else tokens) / self.tokens
        faster *= 1.0 if ratio is None else self.ratio / ratio
        share = self.times.decode_share(faster)
        return LogEstimate(self.baseline_tok_per_s * self.times.speedup(faster), self.row.step_error(share))

    def can_reach(self, tokens: float | None) -> bool | None:
        """Whether a draft of this depth can give so many per pass; ``None``: the depth is not known."""
        if tokens is None:
            return False
        return None if self.row.most_tokens is None else tokens <= self.row.most_tokens + 1e-9


def step_of(row: MeasuredRow, model: SpeedModel) -> Step | None:
    """``None`` without an acceptance length; raises ``ValueError`` where no baseline was measured."""
    baseline, forward_s = model.baseline_tok_per_s(row.concurrency), model.forward_s(row.concurrency)
    if baseline is None or forward_s is None:
        raise ValueError("no baseline was measured")
    if row.tokens_per_step is None:
        return None
    times = row.observation.times
    if row.is_baseline or times is None:
        times = all_decode(row.tok_per_s / baseline)
    return Step(row, row.tokens_per_step, times, baseline, forward_s)
