"""From the speed of whole requests, which is what is measured and asked for, to that of decoding, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spectune.domain.arm import Arm
from spectune.domain.request_time import RequestTimes
from spectune.models.arm_shape import arm_facts
from spectune.models.observation import Observation
from spectune.statistics.estimate import LogEstimate

_Drafter = tuple[str, str | None]
_LEAST_SHARE = 0.05
"""Of a request in decoding: with less, whole requests tell next to nothing of a step."""


class Requests:
    """What the observations say of the time before the first token; the identity where they say nothing."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        self._plain: dict[int, RequestTimes] = {}
        self._own: dict[tuple[str, int], RequestTimes] = {}
        self._like: dict[tuple[_Drafter, int], RequestTimes] = {}
        for o in observations:
            if o.times is None:
                continue
            if o.arm.is_baseline and o.speedup is None:
                self._plain[o.concurrency] = o.times
                continue
            self._own[arm_facts(o.arm).arm_id, o.concurrency] = o.times
            self._like[_drafter(o.arm), o.concurrency] = o.times

    def of(self, arm: Arm, concurrency: int) -> RequestTimes | None:
        """The arm's own; else of the last with its drafter, which reads the prompt too; else without speculation."""
        return (
            self._own.get((arm_facts(arm).arm_id, concurrency))
            or self._like.get((_drafter(arm), concurrency))
            or self._plain.get(concurrency)
        )

    def decode(self, arm: Arm, concurrency: int, whole: LogEstimate) -> LogEstimate:
        """Speedup of decoding behind a speedup of whole requests."""
        times = self.of(arm, concurrency)
        faster = None if times is None else times.faster_for(whole.value)
        if times is None or faster is None:
            return whole
        share = max(times.decode_share(faster), _LEAST_SHARE)
        return LogEstimate(faster * times.decode_speedup, whole.log_sd / share)

    def whole(self, arm: Arm, concurrency: int, decode: LogEstimate) -> LogEstimate:
        """The speedup of whole requests that a speedup of decoding makes."""
        times = self.of(arm, concurrency)
        if times is None:
            return decode
        log, sd = _whole(times, decode.log, decode.log_sd)
        parts = tuple((w, *_whole(times, at, spread)) for w, at, spread in decode.parts)
        return LogEstimate(math.exp(log), sd, parts)

    def slopes(self, arms: Sequence[Arm], concurrency: int) -> list[RequestTimes | None]:
        """Times of each arm, summed up for work that asks of many."""
        return [None if t is None else t.summed_up() for t in (self.of(arm, concurrency) for arm in arms)]


def _drafter(arm: Arm) -> _Drafter:
    return arm.knobs.method, arm.knobs.drafter


def _whole(times: RequestTimes, log: float, sd: float) -> tuple[float, float]:
    faster = math.exp(log) / times.decode_speedup
    return math.log(times.speedup(faster)), sd * times.decode_share(faster)


def whole_log(times: RequestTimes | None, log: float) -> tuple[float, float]:
    """Log speedup of whole requests, and what a change of decoding's is worth in it."""
    return (log, 1.0) if times is None else _whole(times, log, 1.0)
