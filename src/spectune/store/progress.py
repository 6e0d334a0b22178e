"""How far a running trial is: ``progress.json`` in its folder, rewritten while it runs, for whoever watches.

It is a convenience and never a result: it is written without waiting for the disk, and a disk that is
full does not end the trial.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from spectune.domain.record import Record, SafeText
from spectune.domain.trial import SCHEMA_VERSION
from spectune.store.record_file import open_file

FILE = "progress.json"
EVERY_S = 1.0
"""At most so often, a change of phase excepted."""
BEAT_S = 5.0
"""At least so often, so that silence means something."""
MAX_BYTES = 1 << 16


class TrialProgress(Record):
    """One reading. ``share`` is the engine's own, of the phase it is in (loading, compiling, capturing)."""

    schema_version: int = SCHEMA_VERSION
    phase: str | None = None
    phase_since: str
    """UTC, ISO 8601."""
    share: float | None = Field(default=None, ge=0, le=1)
    requests_done: int | None = None
    """Of the load point that is being measured; seconds, in a soak."""
    requests_total: int | None = None
    message: SafeText | None = None
    """The last thing that was said of this trial outside its phases."""
    heard_at: str
    pid: int
    hostname: str


class ProgressFile:
    """Writes the progress of one trial. Every method returns at once, whatever the disk says."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        hostname: str | None = None,
    ) -> None:
        self._path = folder / FILE
        self._clock = clock
        self._now = now
        self._hostname = hostname or socket.gethostname()
        self._written = -BEAT_S
        self._state: dict[str, Any] = {"phase_since": self._stamp()}

    def note_phase(self, phase: str) -> None:
        self._state = {
            "message": self._state.get("message"),
            "phase": phase,
            "phase_since": self._stamp(),
        }
        self._write()

    def note_share(self, share: float) -> None:
        self._note(EVERY_S, share=min(1.0, max(0.0, share)))

    def note_requests(self, done: int, total: int) -> None:
        self._note(EVERY_S, requests_done=done, requests_total=total)

    def note_message(self, text: str) -> None:
        self._note(0.0, message=text[:1000])

    def beat(self) -> None:
        """Says that the trial is still being run, if nothing else has been said for a while."""
        self._note(BEAT_S)

    def _note(self, every_s: float, **changes: Any) -> None:
        self._state.update(changes)
        if self._clock() - self._written >= every_s:
            self._write()

    def _write(self) -> None:
        self._written = self._clock()
        reading = TrialProgress(
            **self._state, heard_at=self._stamp(), pid=os.getpid(), hostname=self._hostname
        )
        temporary = self._path.with_name(f".{FILE}.{os.getpid()}.tmp")
        with suppress(OSError):
            temporary.write_text(reading.model_dump_json(), encoding="utf-8")
            temporary.replace(self._path)

    def _stamp(self) -> str:
        return self._now().isoformat(timespec="milliseconds")


def read_progress(folder: Path) -> TrialProgress | None:
    """The last reading; ``None`` where there is none, or none that this version understands."""
    try:
        with open_file(folder / FILE) as file:
            return TrialProgress.model_validate(json.loads(file.read(MAX_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None
