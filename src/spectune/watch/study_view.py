"""A study directory while another process works on it: what is running, how far it is, and the report so far.

Everything is read from files, so it is the same for a study on this machine, over ssh and on a cluster.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spectune.analysis.records import StudySummary
from spectune.analysis.summary import summarize
from spectune.analysis.words import one_line, times
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.errors import BadInput
from spectune.exchange.listing import is_running
from spectune.runner.estimate import estimate
from spectune.runner.search import search_estimate
from spectune.store.abort import ask_to_abort, is_abort_asked
from spectune.store.progress import TrialProgress, read_progress
from spectune.store.record_file import open_file, read_file
from spectune.store.study_dir import StudyDir, read_trial
from spectune.watch.log_tail import log_tail
from spectune.watch.records import RunningTrial, Snapshot, WatchState

SILENT_S = 20.0
"""A trial that says nothing for longer is taken for interrupted, unless its process holds the study here."""
MAX_PLAN_BYTES = 1 << 20


class NothingToAbort(Exception):
    """There is no such trial running, or no spectune that could heed the request."""


@dataclass(frozen=True)
class _Read:
    """The study as of one version."""

    version: str
    study: Study
    trials: tuple[Trial, ...]
    summary: StudySummary
    num_total: int
    trial_s: float | None
    """What one more trial is likely to take; ``None`` until one was measured."""


class StudyView:
    """Reads one study directory again and again; only what changed is read anew. Threads may share it."""

    def __init__(
        self,
        directory: StudyDir,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self._now = now
        self._clock = clock
        self._lock = threading.Lock()
        self._read: _Read | None = None
        self._trials: dict[tuple[str, int], Trial] = {}
        self._heard: dict[str, tuple[str, float]] = {}

    def report(self) -> tuple[str, StudySummary]:
        """The version and what the report is drawn from; raises ``BadInput`` if it cannot be read."""
        with self._lock:
            found = self._current()
            return found.version, found.summary

    def snapshot(self) -> Snapshot:
        """Never raises for what the directory holds: it may be half written, or gone."""
        with self._lock:
            try:
                return self._snapshot()
            except BadInput as error:
                return Snapshot(state="unreadable", problem=str(error), version="")
            except OSError as error:
                problem = f"{error.filename or self.directory.path}: {error.strerror or error}"
                return Snapshot(state="unreadable", problem=problem, version="")

    def abort(self, trial_id: str | None) -> None:
        """Asks the spectune that runs it to end the trial, or the whole run. Raises ``NothingToAbort``."""
        now = self.snapshot()
        if not now.can_abort:
            raise NothingToAbort("no spectune is working on this study")
        if trial_id is None:
            ask_to_abort(self.directory.path)
            return
        if trial_id not in {trial.trial_id for trial in now.running}:
            raise NothingToAbort(f"no trial {one_line(trial_id, limit=60)} is running: it has ended")
        ask_to_abort(self.directory.trials_path / trial_id)

    def _snapshot(self) -> Snapshot:
        read = self._current()
        alive = is_running(self.directory.path)
        running = tuple(self._running(alive=alive))
        study, summary = read.study, read.summary
        working = alive or bool(running)
        return Snapshot(
            state=_state(study, summary, working=working, any_trial=bool(running)),
            version=read.version,
            num_ended=len(read.trials),
            num_failed=sum(t.status == "failed" for t in read.trials),
            num_total=max(read.num_total, len(read.trials)),
            total_is_likely=study.search is not None and study.search_end is None,
            left_s=_left_s(read, running) if working else None,
            best=_best_words(summary),
            headline=summary.headline,
            simulated=summary.simulated,
            running=running,
            can_abort=working,
            abort_asked=working and is_abort_asked(self.directory.path),
        )

    def _running(self, *, alive: bool) -> list[RunningTrial]:
        """Open trials whose spectune lives; an earlier, interrupted one is open too."""
        paths = self.directory.trial_paths()
        found = []
        for path in paths:
            if (path / "trial.json").exists():
                continue
            progress = read_progress(path)
            if progress is None:
                if alive and path == paths[-1]:
                    found.append(self._running_trial(path, None, None))
                continue
            silent_s = self._silence(path.name, progress)
            if progress.hostname == socket.gethostname():
                holds = alive and progress.pid == self._holder()
                lives = _is_alive(progress.pid) and (holds or silent_s < SILENT_S)
            else:
                lives = silent_s < SILENT_S
            if lives:
                found.append(self._running_trial(path, progress, silent_s))
        return found

    def _holder(self) -> int | None:
        """Process that wrote itself, and its machine's name, into the study's lock."""
        try:
            words = read_file(self.directory.path / "lock", limit=300).split()
            return int(words[0])
        except (OSError, ValueError, IndexError):
            return None

    def _silence(self, trial_id: str, progress: TrialProgress) -> float:
        """Seconds since the trial was heard of. Counted on our own clock from the second look on: the
        runner's clock may be another machine's."""
        before = self._heard.get(trial_id)
        if before is not None and before[0] == progress.heard_at:
            return self._clock() - before[1]
        age_s = 0.0 if before is not None else max(0.0, self._age_s(progress.heard_at) or 0.0)
        self._heard[trial_id] = (progress.heard_at, self._clock() - age_s)
        return age_s

    def _running_trial(
        self, path: Path, progress: TrialProgress | None, silent_s: float | None
    ) -> RunningTrial:
        arm, hypothesis = _plan_words(path)
        return RunningTrial(
            trial_id=path.name,
            number=int(path.name.split("-")[0]),
            arm=arm or path.name,
            hypothesis=hypothesis,
            phase=None if progress is None or progress.phase is None else one_line(progress.phase, limit=40),
            phase_s=None if progress is None else self._age_s(progress.phase_since),
            share=None if progress is None else progress.share,
            requests_done=None if progress is None else progress.requests_done,
            requests_total=None if progress is None else progress.requests_total,
            message=one_line(progress.message, limit=300) if progress and progress.message else None,
            elapsed_s=self._elapsed_s(path),
            silent_s=silent_s,
            log=tuple(log_tail(path / "server.log")),
            abort_asked=is_abort_asked(path),
        )

    def _elapsed_s(self, path: Path) -> float:
        """Since its plan was written, which is right before the launch."""
        try:
            return max(0.0, self._now().timestamp() - (path / "plan.json").stat().st_mtime)
        except OSError:
            return 0.0

    def _age_s(self, moment: str) -> float | None:
        try:
            then = datetime.fromisoformat(moment)
        except ValueError:
            return None
        return max(0.0, (self._now() - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds())

    def _current(self) -> _Read:
        version = self._version()
        if self._read is None or self._read.version != version:
            study = self.directory.read_study()
            trials = self._read_trials()
            summary = summarize(study, trials)
            total = len(study.plan)
            if study.search is not None and study.search_end is None:
                total = max(len(trials), search_estimate(study, trials).trials_likely)
            measured = any(trial.status == "complete" for trial in trials)
            trial_s = estimate(study, trials, remaining=1).seconds if measured else None
            self._read = _Read(version, study, tuple(trials), summary, total, trial_s)
        return self._read

    def _version(self) -> str:
        """Of everything the report is made of: files are replaced whole, so their times and sizes tell."""
        files = [self.directory.path / "study.json"]
        files += [path / "trial.json" for path in self.directory.trial_paths()]
        marks = []
        for file in files:
            try:
                status = file.stat()
            except FileNotFoundError:
                continue
            marks.append((file.parent.name, status.st_mtime_ns, status.st_size))
        return hashlib.sha256(repr(marks).encode()).hexdigest()[:16]

    def _read_trials(self) -> list[Trial]:
        found: dict[tuple[str, int], Trial] = {}
        for path in self.directory.trial_paths():
            try:
                key = (path.name, (path / "trial.json").stat().st_mtime_ns)
            except FileNotFoundError:
                continue
            trial = self._trials.get(key) or read_trial(path)
            if trial is not None:
                found[key] = trial
        self._trials = found
        return list(found.values())


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    except OverflowError:
        return False
    return True


def _state(study: Study, summary: StudySummary, *, working: bool, any_trial: bool) -> WatchState:
    if study.imported is not None:
        return "imported"
    if working:
        return "running" if any_trial else "between"
    unfinished = summary.study.num_remaining_trials or (study.search is not None and not study.search_end)
    return "stopped" if unfinished else "done"


def _left_s(read: _Read, running: Sequence[RunningTrial]) -> float | None:
    """Until the last launch ends, if each takes as long as those before."""
    left = read.num_total - len(read.trials)
    if read.trial_s is None or left <= 0:
        return None
    spent_s = sum(min(trial.elapsed_s, read.trial_s) for trial in running)
    return max(0.0, left * read.trial_s - spent_s)


def _best_words(summary: StudySummary) -> str | None:
    """``None`` until something was compared."""
    if summary.best_arm_id is None:
        return None
    best = summary.arm(summary.best_arm_id)
    if best.first is None or best.is_baseline:
        return "nothing is shown to be faster than plain decoding"
    return f"{one_line(best.name, limit=60)}, {times(best.first.speedup)}"


def _plan_words(path: Path) -> tuple[str | None, str | None]:
    """The arm's name and why it is launched, from the trial's ``plan.json``."""
    try:
        with open_file(path / "plan.json") as file:
            plan = json.loads(file.read(MAX_PLAN_BYTES))
        return one_line(str(plan["arm"]["name"]), limit=100), one_line(
            str(plan["hypothesis"]["why"]), limit=400
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, None
