"""What a trial was expected to show, and whether it did."""

from __future__ import annotations

from typing import Literal

from spectune.domain.interval import Interval
from spectune.domain.record import Record

Expectation = Literal["faster", "slower", "same", "reference"]
Judgement = Literal["confirmed", "refuted", "undecided"]


class Hypothesis(Record):
    """Written to disk before the launch; ``verdict`` and ``observed`` are filled in afterwards.

    ``changed`` names the factors that differ from ``compared_with`` (an arm
    id): one for a careful study, more when the user's arms differ in more.
    """

    compared_with: str | None
    compared_with_name: str | None = None
    changed: tuple[str, ...]
    expectation: Expectation
    predicted_tok_per_s: Interval | None
    """End-to-end tok/s; ``None`` when nothing measured so far bears on it."""
    predicted_speedup: Interval | None = None
    """Against plain decoding measured around it: free of the machine's drift, so judged before tok/s."""
    why: str
    verdict: Judgement | None = None
    observed: str | None = None
