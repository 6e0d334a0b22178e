"""The steady state of a closed loop: all of its streams are in flight, and each that ends is replaced.

Before, the server fills; after the last request was sent it empties, and runs ever smaller batches, which are faster
and gain more from speculation. Speeds at c > 1 are those of the window between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from spectune.domain.measurement import LoadResult, RequestRecord

_LEAST_PART = 0.5
"""Of a request's time: with less of it in the window its speed is mostly chance."""


@dataclass(frozen=True)
class SteadyWindow:
    """Seconds since the start of the load point."""

    start_s: float
    end_s: float
    frac: float
    """Of the load point's time."""

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    def e2e_tok_per_s(self, request: RequestRecord) -> float | None:
        """Tokens that came in the window, per second of the request in it; ``None`` for too small a part."""
        if self._holds(request):
            return request.e2e_tok_per_s
        seconds = self._seconds(request)
        tokens = self.tokens(request)
        if (
            seconds is None
            or not tokens
            or not request.latency_s
            or seconds < _LEAST_PART * request.latency_s
        ):
            return None
        return tokens / seconds

    def decode_tok_per_s(self, request: RequestRecord) -> float | None:
        """The same without the time to the first token: whole gaps between chunks that lie in the window."""
        if self._holds(request):
            return request.decode_tok_per_s
        seconds = self._seconds(request)
        if request.decode_tok_per_s is None or seconds is None or not request.latency_s:
            return None
        arrivals = _arrivals(request)
        first, last = bisect_right(arrivals, self.start_s), bisect_right(arrivals, self.end_s)
        span = arrivals[last - 1] - arrivals[first] if last - first > 1 else 0.0
        if span <= 0 or seconds < _LEAST_PART * request.latency_s or request.output_tokens is None:
            return None
        return (request.output_tokens - 1) * (last - first - 1) / len(request.chunk_gaps_s) / span

    def tokens(self, request: RequestRecord) -> float | None:
        """Chunks are taken to hold equally many; ``None``: not known, or a part of an answer in one chunk."""
        if not request.ok or request.output_tokens is None:
            return None
        arrivals = _arrivals(request)
        inside = bisect_right(arrivals, self.end_s) - bisect_right(arrivals, self.start_s)
        if len(arrivals) == 1 and not self._holds(request):
            return None
        return request.output_tokens * inside / len(arrivals) if arrivals else None

    def _seconds(self, request: RequestRecord) -> float | None:
        if request.latency_s is None:
            return None
        end_s = request.start_s + request.latency_s
        return max(0.0, min(end_s, self.end_s) - max(request.start_s, self.start_s))

    def _holds(self, request: RequestRecord) -> bool:
        end_s = request.start_s + (request.latency_s or 0.0)
        return self.start_s <= request.start_s and end_s <= self.end_s


def _arrivals(request: RequestRecord) -> list[float]:
    if request.ttft_s is None:
        return []
    return list(accumulate(request.chunk_gaps_s, initial=request.start_s + request.ttft_s))


def steady_window(load: LoadResult) -> SteadyWindow | None:
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
    end_s = min((end for end in ends if end >= starts[-1]), default=starts[-1])
    start_s = starts[wanted - 1]
    whole_s = max(ends, default=end_s) - starts[0]
    if end_s <= start_s or whole_s <= 0:
        return None
    return SteadyWindow(start_s, end_s, min(1.0, (end_s - start_s) / whole_s))


def _ends(requests: Iterable[RequestRecord]) -> list[float]:
    return [r.start_s + r.latency_s for r in requests if r.latency_s is not None]
