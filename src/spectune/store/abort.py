"""A request to stop, left as a file for the spectune that runs the study: it alone ends what it started.

``abort.json`` in a trial's folder ends that trial, in the study's directory the whole run.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from spectune.domain.trial import SCHEMA_VERSION
from spectune.store.study_dir import write_atomically

FILE = "abort.json"


def ask_to_abort(folder: Path) -> None:
    """Leaves the request; raises ``OSError`` where the folder cannot be written."""
    asked = {"schema_version": SCHEMA_VERSION, "asked_at": datetime.now(UTC).isoformat(timespec="seconds")}
    write_atomically(folder / FILE, json.dumps(asked) + "\n")


def is_abort_asked(folder: Path) -> bool:
    return (folder / FILE).exists()


def forget_abort(folder: Path) -> None:
    """Takes the request away: it was heeded, or it was meant for a run that has ended."""
    with suppress(OSError):
        (folder / FILE).unlink(missing_ok=True)
