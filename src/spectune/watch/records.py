"""What the live page asks for every second. Fields may be added, never renamed; ``None`` is unknown."""

from __future__ import annotations

from typing import Literal

from spectune.domain.record import Record

WATCH_SCHEMA_VERSION = 1
WatchState = Literal["running", "between", "stopped", "done", "imported", "unreadable"]
"""``between``: a spectune works on the study, and no trial runs. ``stopped``: none does, and launches are left."""


class RunningTrial(Record):
    """One trial that has begun and has not ended."""

    trial_id: str
    number: int
    arm: str
    hypothesis: str | None
    phase: str | None
    phase_s: float | None
    share: float | None
    requests_done: int | None
    requests_total: int | None
    message: str | None
    elapsed_s: float
    silent_s: float | None
    """Since the spectune that runs it was last heard of; large: it hangs, or its machine is away."""
    log: tuple[str, ...]
    abort_asked: bool


class Snapshot(Record):
    """A study at one instant."""

    schema_version: int = WATCH_SCHEMA_VERSION
    state: WatchState
    problem: str | None = None
    """Why it cannot be read, with what to do."""
    version: str
    """Changes when the report does."""
    num_ended: int = 0
    num_failed: int = 0
    num_total: int | None = None
    total_is_likely: bool = False
    """In a search: what such searches take."""
    left_s: float | None = None
    best: str | None = None
    headline: str | None = None
    simulated: bool = False
    running: tuple[RunningTrial, ...] = ()
    can_abort: bool = False
    abort_asked: bool = False
    """Of the whole run."""
