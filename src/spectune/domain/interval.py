"""A number with its uncertainty."""

from __future__ import annotations

from spectune.domain.record import Record


class Interval(Record):
    """``value`` with a two-sided interval at ``level``; ``n`` is what it was computed from.

    ``low`` and ``high`` are ``None`` when one observation says nothing about spread.
    """

    value: float
    low: float | None
    high: float | None
    level: float = 0.95
    n: int
    unit: str

    @property
    def half_width(self) -> float | None:
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2
