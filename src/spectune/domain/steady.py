"""The steady state of a closed loop: all of its streams are in flight, and each that ends is replaced.

Before, the server fills; after the last request was sent it empties, and runs ever smaller batches, which are faster
and gain more from speculation. Speeds at c > 1 are those of the window between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from spectune.domain.measurement import LoadResult, RequestRecord, SteadySpan

_LEAST_PART = 0.5
"""Of a request's time: with less of it in the window its speed is mostly chance."""


@dataclass(frozen=True)
class SteadyWindow:
    """What requests did within the span."""

    start_s: float
    end_s: float

    def has_most_of(self, request: RequestRecord) -> bool:
        whole_s = request.latency_s
        return whole_s is not None and 0 < _LEAST_PART * whole_s <= self._seconds(request)

    def e2e_tok_per_s(self, request: RequestRecord) -> float | None:
        """Tokens that came in the window, per second of the request in it; ``None`` for too small a part."""
        if self._holds(request):
            return request.e2e_tok_per_s
        if len(_arrivals(request)) < 2 or not self.has_most_of(request):
            return None
        tokens = self.tokens(request)
        return tokens / self._seconds(request) if tokens else None

    def decode_tok_per_s(self, request: RequestRecord) -> float | None:
        """The same without the time to the first token: whole gaps between chunks that lie in the window."""
        if self._holds(request):
            return request.decode_tok_per_s
        if request.decode_tok_per_s is None or request.output_tokens is None or not self.has_most_of(request):
            return None
        arrivals = _arrivals(request)
        first, last = bisect_right(arrivals, self.start_s), bisect_right(arrivals, self.end_s)
        span = arrivals[last - 1] - arrivals[first] if last - first > 1 else 0.0
        tokens = (request.output_tokens - 1) * (last - first - 1) / max(1, len(arrivals) - 1)
        return tokens / span if span > 0 else None

    def tokens(self, request: RequestRecord) -> float | None:
        """How many came in the span; chunks are taken to hold equally many."""
        if not request.ok or request.output_tokens is None:
            return None
        arrivals = _arrivals(request)
        inside = bisect_right(arrivals, self.end_s) - bisect_right(arrivals, self.start_s)
        return request.output_tokens * inside / len(arrivals) if arrivals else None

    def _seconds(self, request: RequestRecord) -> float:
        end_s = _end_s(request)
        return 0.0 if end_s is None else max(0.0, min(end_s, self.end_s) - max(request.start_s, self.start_s))

    def _holds(self, request: RequestRecord) -> bool:
        end_s = _end_s(request)
        return end_s is not None and self.start_s <= request.start_s and end_s <= self.end_s


def _arrivals(request: RequestRecord) -> list[float]:
    if request.ttft_s is None or request.latency_s is None:
        return []
    if not request.chunk_gaps_s and request.latency_s > request.ttft_s:  # of a tool that does not say: evenly
        number = max(2, request.output_tokens or 0)
        gap_s = (request.latency_s - request.ttft_s) / (number - 1)
        return [request.start_s + request.ttft_s + gap_s * n for n in range(number)]
    return list(accumulate(request.chunk_gaps_s, initial=request.start_s + request.ttft_s))


def window_of(load: LoadResult) -> SteadyWindow | None:
    """``None``: all of the load point counts."""
    span = load.steady if load.steady is not None else steady_span(load)
    return None if span is None else SteadyWindow(span.start_s, span.end_s)


def steady_span(load: LoadResult) -> SteadySpan | None:
    """``None``: one at a time, arrivals of their own, or never so many in flight as were asked for."""
    wanted = load.load.concurrency
    if load.load.shape != "closed" or wanted is None or wanted < 2 or not load.requests:
        return None
    starts = sorted(r.start_s for r in load.requests if r.turn == 0)
    if len(starts) < wanted:
        return None
    last_turn: dict[str, int] = {}
    for request in load.requests:
        last_turn[request.prompt_id] = max(request.turn, last_turn.get(request.prompt_id, 0))
    ends = _ends(r for r in load.requests if r.turn == last_turn[r.prompt_id])
    start_s, last_start_s = starts[wanted - 1], starts[-1]
    end_s = min((end for end in ends if end > last_start_s), default=last_start_s)
    whole_s = max(ends, default=end_s) - starts[0]
    if end_s <= start_s or whole_s <= 0:
        return None
    return SteadySpan(start_s=start_s, end_s=end_s, frac=min(1.0, (end_s - start_s) / whole_s))


def _end_s(request: RequestRecord) -> float | None:
    """``None``: its end is not known."""
    return None if request.latency_s is None else request.start_s + request.latency_s


def _ends(requests: Iterable[RequestRecord]) -> list[float]:
    return [end_s for r in requests if (end_s := _end_s(r)) is not None]
