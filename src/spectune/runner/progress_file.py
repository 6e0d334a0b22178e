"""A watcher that also keeps the progress of its trial on disk."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.runner.events import NodeRow, TrialStart, Watcher
from spectune.store.progress import ProgressFile


class Recorded:
    """Hands everything on to ``watcher``; phases, shares, requests and messages go into the file too."""

    def __init__(self, watcher: Watcher, file: ProgressFile) -> None:
        self._watcher = watcher
        self._file = file

    def on_fetch(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        self._watcher.on_fetch(what, done_bytes, total_bytes)

    def on_study(self, study: Study, *, done: int, total: int) -> None:
        self._watcher.on_study(study, done=done, total=total)

    def on_trial_start(self, start: TrialStart) -> None:
        self._watcher.on_trial_start(start)

    def on_nodes(self, rows: Sequence[NodeRow]) -> None:
        self._watcher.on_nodes(rows)

    def on_phase(self, phase: str) -> None:
        self._file.note_phase(phase)
        self._watcher.on_phase(phase)

    def on_progress(self, share: float) -> None:
        self._file.note_share(share)
        self._watcher.on_progress(share)

    def on_request(self, done: int, total: int) -> None:
        self._file.note_requests(done, total)
        self._watcher.on_request(done, total)

    def on_trial_end(self, trial: Trial, trials: list[Trial]) -> None:
        self._watcher.on_trial_end(trial, trials)

    def on_message(self, text: str) -> None:
        self._file.note_message(text)
        self._watcher.on_message(text)
