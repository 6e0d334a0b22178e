"""What ``spectune diagnose`` is pointed at, turned into facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from spectune.diagnose.facts import RunFacts
from spectune.diagnose.log.lines import LogSource, from_stream, open_log
from spectune.diagnose.log.reader import LogReader
from spectune.diagnose.rules.requests import trial_findings
from spectune.diagnose.verdict import NotChecked
from spectune.domain.findings import Finding
from spectune.domain.trial import Trial
from spectune.engines.registry import ENGINE_NAMES
from spectune.errors import BadInput
from spectune.store.study_dir import StudyDir, rank_logs, read_trial


def read_log(
    path: Path, *, engine: str | None, skipped: NotChecked, subject: str | None = None
) -> tuple[RunFacts, ...]:
    """The runs of one log file. Raises ``BadInput`` if it cannot be read."""
    with open_log(path) as source:
        return _read(source, engine=engine, skipped=skipped, subject=subject or path.name)


def read_stream(file: BinaryIO, *, engine: str | None, skipped: NotChecked) -> tuple[RunFacts, ...]:
    """The runs of a log that comes through a pipe."""
    source = from_stream(file)
    return _read(source, engine=engine, skipped=skipped, subject=source.name)


def _read(
    source: LogSource, *, engine: str | None, skipped: NotChecked, subject: str
) -> tuple[RunFacts, ...]:
    reader = LogReader(subject, engine=engine)
    reader.read(source)
    if source.cut is not None:
        skipped.add(f"{subject}: what follows line {reader.num_lines} (not read: {source.cut})")
    if reader.runs_left_out:
        skipped.add(f"{subject}: {reader.runs_left_out} of its starts (only the first 200 are judged)")
    runs = reader.runs()
    if not runs:
        skipped.add(f"{subject}: everything ({reader.num_lines} lines, none of a known engine)")
    return runs


def log_in_folder(path: Path) -> Path | None:
    """The server's log in one trial's folder."""
    log = path / "server.log"
    return log if log.is_file() else None


def logs_of_dead_ranks(
    directory: StudyDir, trials: Sequence[Trial], *, skipped: NotChecked
) -> Iterator[tuple[RunFacts, ...]]:
    """The facts of the logs of ranks beside rank 0 that ended before anybody stopped them.

    A rank that served until it was stopped says nothing of requests, and what ended it was not a fault of its own.
    """
    for trial in trials:
        ended = [rank for rank in trial.ranks if rank.rank and rank.ended is not None]
        logs = rank_logs(directory.trials_path / trial.trial_id) if ended and not trial.simulated else {}
        for rank in ended:
            name = f"{trial.arm.name} (trial {trial.trial_id}), rank {rank.rank} on {rank.node}"
            if rank.rank in logs:
                engine = trial.arm.engine if trial.arm.engine in ENGINE_NAMES else None
                yield read_log(logs[rank.rank], engine=engine, skipped=skipped, subject=name)
            elif not trial.simulated:
                skipped.add(f"{name}: its log (there is none)")


def study_logs(
    directory: StudyDir, *, skipped: NotChecked
) -> Iterator[tuple[tuple[RunFacts, ...], list[Finding]]]:
    """For each trial of a study: the facts of its server's log (rank 0's), and findings over its requests."""
    for path in directory.trial_paths():
        found: list[Finding] = []
        engine: str | None = None
        name = path.name
        try:
            trial = read_trial(path)
        except BadInput as error:
            skipped.add(str(error).splitlines()[0])
            trial = None
        if trial is not None:
            name = f"{trial.arm.name} (trial {trial.trial_id})"
            engine = trial.arm.engine if trial.arm.engine in ENGINE_NAMES else None
            found += trial_findings(trial, skipped)
            if trial.simulated:
                skipped.add(f"{name}: its log (a scripted server)")
                yield (), found
                continue
        if trial is not None and trial.launch_number != trial.number:
            skipped.add(f"{name}: its log (its server was that of trial {trial.launch_number}, judged there)")
            yield (), found
            continue
        log = log_in_folder(path)
        if log is None:
            skipped.add(f"{name}: its log (there is no server.log)")
            yield (), found
            continue
        yield read_log(log, engine=engine, skipped=skipped, subject=name), found
