"""Sums over windows, in memory that does not grow with the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spectune.diagnose.facts import AcceptanceFacts, Slice

_MAX_SLICES = 48
_SPEED_STEP = math.log(1.01)


@dataclass
class Sum:
    """Verify steps and the drafted tokens kept in them."""

    steps: float = 0.0
    kept: float = 0.0

    def add(self, steps: float, kept: float) -> None:
        self.steps += steps
        self.kept += kept

    @property
    def length(self) -> float:
        return 1 + self.kept / self.steps if self.steps else 1.0


@dataclass
class TimeSlices:
    """At most 48 slices of equally many windows; when full, neighbours are merged."""

    per_slice: int = 1
    slices: list[Sum] = field(default_factory=list)
    _in_last: int = 0

    def add(self, steps: float, kept: float) -> None:
        if not self.slices or self._in_last >= self.per_slice:
            if len(self.slices) >= _MAX_SLICES:
                self.slices = [
                    Sum(a.steps + b.steps, a.kept + b.kept)
                    for a, b in zip(self.slices[::2], self.slices[1::2], strict=True)
                ]
                self.per_slice *= 2
            self.slices.append(Sum())
            self._in_last = 0
        self.slices[-1].add(steps, kept)
        self._in_last += 1


@dataclass
class Median:
    """A median to one per cent from a histogram with logarithmic bins."""

    bins: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def add(self, value: float) -> None:
        if value > 0:
            index = round(math.log(value) / _SPEED_STEP)
            self.bins[index] = self.bins.get(index, 0) + 1
            self.count += 1

    @property
    def value(self) -> float | None:
        seen = 0
        for index in sorted(self.bins):
            seen += self.bins[index]
            if 2 * seen >= self.count:
                return math.exp(index * _SPEED_STEP)
        return None


@dataclass
class AcceptanceTally:
    """Acceptance over windows. ``steps`` may be relative where the log interval is not known yet."""

    windows: int = 0
    windows_at_one: int = 0
    idle_windows: int = 0
    total: Sum = field(default_factory=Sum)
    drafted: int = 0
    accepted: int = 0
    counted: bool = True
    """Every window gave its counts of drafted and accepted tokens."""
    with_steps: int = 0
    positions: list[float] = field(default_factory=list)
    position_steps: float = 0.0
    by_running: dict[int, Sum] = field(default_factory=dict)
    by_context: dict[int, Sum] = field(default_factory=dict)
    by_time: TimeSlices = field(default_factory=TimeSlices)
    rates: Sum = field(default_factory=Sum)
    """Printed accept rates: steps and rate x steps."""

    def add(
        self,
        *,
        steps: float | None,
        kept: float,
        drafted: int | None = None,
        running: int | None = None,
        context: float | None = None,
        per_position: tuple[float, ...] | None = None,
        printed_rate: float | None = None,
    ) -> None:
        """One window. ``kept``: accepted tokens; without ``steps`` only counts are pooled."""
        self.windows += 1
        if kept <= 0:
            self.windows_at_one += 1
        if drafted is None:
            self.counted = False
        else:
            self.drafted += drafted
            self.accepted += round(kept)
        if steps is None or steps <= 0:
            return
        self.with_steps += 1
        self.total.add(steps, kept)
        self.by_time.add(steps, kept)
        if running:
            self._slice(self.by_running, running, steps, kept)
        if context and context >= 1:
            self._slice(self.by_context, context, steps, kept)
        if printed_rate is not None:
            self.rates.add(steps, printed_rate * steps)
        if per_position:
            width = max(len(self.positions), len(per_position))
            self.positions += [0.0] * (width - len(self.positions))
            for i, share in enumerate(per_position):
                self.positions[i] += share * steps
            self.position_steps += steps

    @staticmethod
    def _slice(into: dict[int, Sum], value: float, steps: float, kept: float) -> None:
        power = int(value).bit_length() - 1
        into.setdefault(power, Sum()).add(steps, kept)

    def facts(
        self,
        source: str,
        *,
        steps_per_window: float = 1.0,
        estimated: bool = False,
        drafted_per_step: int | None = None,
        cumulative: bool = False,
    ) -> AcceptanceFacts | None:
        """``steps_per_window`` scales relative steps; ``drafted_per_step`` fills counts that lines leave out."""
        if not self.windows:
            return (
                AcceptanceFacts(source=source, windows=0, idle_windows=self.idle_windows)
                if self.idle_windows
                else None
            )
        known = self.with_steps > 0
        steps = round(self.total.steps * steps_per_window) if known else None
        drafted = self.drafted if self.counted else None
        accepted: int | None = self.accepted if self.counted else None
        if not self.counted and steps is not None:
            accepted = round(self.total.kept * steps_per_window)
            if drafted_per_step is not None:
                drafted = max(steps * drafted_per_step, accepted)
        length = self.total.length if known else None
        if steps is None and drafted and drafted_per_step:
            steps = round(drafted / drafted_per_step)
            length = 1 + (accepted or 0) / steps if steps else None
        return AcceptanceFacts(
            source=source,
            windows=self.windows,
            windows_at_one=self.windows_at_one,
            idle_windows=self.idle_windows,
            steps=steps,
            steps_estimated=estimated,
            drafted=drafted,
            accepted=accepted,
            length=length,
            rate=accepted / drafted if drafted and accepted is not None else None,
            per_position=tuple(min(p / self.position_steps, 1.0) for p in self.positions)
            if self.position_steps
            else None,
            cumulative=cumulative,
            by_concurrency=_slices(self.by_running, steps_per_window, _power_label),
            by_context=_slices(self.by_context, steps_per_window, _power_label),
            by_time=tuple(
                Slice(label=str(i + 1), steps=round(s.steps * steps_per_window), length=s.length)
                for i, s in enumerate(self.by_time.slices)
            ),
            printed_rate=self.rates.kept / self.rates.steps if self.rates.steps else None,
        )


def _slices(sums: Mapping[int, Sum], scale: float, label: Callable[[int], str]) -> tuple[Slice, ...]:
    return tuple(
        Slice(label=label(power), steps=round(sums[power].steps * scale), length=sums[power].length)
        for power in sorted(sums)
    )


def _power_label(power: int) -> str:
    low, high = 2**power, 2 ** (power + 1) - 1
    return str(low) if low == high else f"{low}-{high}"
