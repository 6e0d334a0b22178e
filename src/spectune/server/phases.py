"""Where the time of a trial goes."""

from __future__ import annotations

import time
from collections.abc import Callable


class PhaseClock:
    """Adds up seconds per phase; one phase is current at a time."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, on_change: Callable[[str], None] | None = None
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._since = clock()
        self.current: str | None = None
        self.latest: str | None = None
        """The current phase, or the one before, in the time between."""
        self.seconds: dict[str, float] = {}

    def enter(self, phase: str) -> None:
        """Ends the current phase and begins this one; entering the current one again changes nothing."""
        if phase == self.current:
            return
        self.close()
        self.current = self.latest = phase
        if self._on_change is not None:
            self._on_change(phase)

    def close(self) -> None:
        """Books the time since the last change."""
        now = self._clock()
        if self.current is not None:
            self.seconds[self.current] = self.seconds.get(self.current, 0.0) + now - self._since
        self._since = now
        self.current = None
