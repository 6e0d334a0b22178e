"""The study directory: append-only, atomic, readable without spectune.

::

    STUDY_DIR/
      study.yaml             the file the user gave, without credentials in its comments
      study.json             ``Study``: everything resolved
      lock                   held while a spectune works on it
      trials/0003-1f2e3d4c/
        plan.json            arm, hypothesis, command: written before the launch
        server.log           the server's whole output
        server-rank1.log     the same of another rank, for a server over several nodes
        progress.json        how far the running trial is, for whoever watches
        abort.json           somebody asks to end this trial; one beside study.json asks to end the run
        requests.jsonl       one record per finished request, as it finished
        result.json          the field names of ``vllm bench serve --save-result``
        trial.json           ``Trial``; its presence means the trial has ended

A trial folder without ``trial.json`` was interrupted: it is kept, and its arm is run again.
A study in an object store has the same files (``shared.py``); there the name of a trial ends with the
session that made it: ``0003-1f2e3d4c-a1b2c3``.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import random
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spectune.domain.hypothesis import Hypothesis
from spectune.domain.measurement import RequestRecord
from spectune.domain.secrets import redact_text, redacted
from spectune.domain.study import Study
from spectune.domain.trial import SCHEMA_VERSION, Trial
from spectune.errors import BadInput, EnvironmentFailed
from spectune.store.numbering import numbered_apart
from spectune.store.record_file import open_file, open_lock, read_file
from spectune.store.replacing import check_lock_text, check_replaceable

REPORTS = ("report.md", "report.html", "report.json")
_ENDED = "trial.json"
_FILES_OF_A_TRIAL = ("plan.json", "server.log", "requests.jsonl", "result.json")
_RANK_LOG = re.compile(r"server-rank[1-9][0-9]{0,2}\.log")
_LONG_NUMBER = re.compile(r"[0-9]{19}")
_TRIAL_NAME = re.compile(r"[0-9]{4,9}-")


def write_atomically(path: Path, text: str) -> None:
    """Whole or not at all, also when the machine stops half-way.

    A name of a file that is no UTF-8 is written with escapes, which are JSON's own inside a JSON text.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}.tmp")
    with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def check_output_file(said: str, path: Path) -> None:
    """Raises ``BadInput`` where no file can be put: a folder, a device, a place in what is no folder.

    ``said``: how it was asked for. A device or a pipe would be replaced by a file of its name.
    """
    if path.is_dir():
        raise BadInput(f"{said}: is a folder; give the name of a file in it, e.g. {path / 'result'}")
    if path.exists() and not path.is_file():
        raise BadInput(f"{said}: is a device or a pipe; name a file")
    if not path.parent.is_dir():
        what = "is no folder" if path.parent.exists() else "does not exist; make it"
        raise BadInput(f"{said}: {path.parent} {what}, or name a file elsewhere")


def _to_json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(frozen=True)
class TrialDir:
    """The folder of one trial while it is being written."""

    path: Path

    @property
    def log_path(self) -> Path:
        return self.path / "server.log"

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        write_atomically(self.path / "plan.json", _to_json(redacted(plan)))

    def append_request(self, load_index: int, record: RequestRecord) -> None:
        """One line, flushed: a kill loses at most the line being written."""
        with (self.path / "requests.jsonl").open("a", encoding="utf-8") as file:
            file.write(_request_line(load_index, record))

    def replace_requests(self, by_load: Sequence[Sequence[RequestRecord]]) -> None:
        """The same records once more, now with what is only known after a load point (token ids)."""
        lines = [_request_line(index, record) for index, load in enumerate(by_load) for record in load]
        write_atomically(self.path / "requests.jsonl", "".join(lines))

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_atomically(self.path / "result.json", _to_json(result))

    def receive(self, files: Mapping[str, bytes]) -> Trial | None:
        """Takes the files that a node made of this trial; ``None`` if they hold no ended trial.

        The trial is returned and not yet ended here: ``finish`` does that. Names that no trial has are left out.
        """
        for name, data in files.items():
            if name in _FILES_OF_A_TRIAL or _RANK_LOG.fullmatch(name):
                (self.path / name).write_bytes(data)
        if _ENDED not in files:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.path.name
            path.mkdir()
            for name in (_ENDED, "requests.jsonl"):
                if name in files:
                    (path / name).write_bytes(files[name])
            return read_trial(path)

    def finish(self, trial: Trial) -> None:
        """Ends the trial; request records stay in ``requests.jsonl`` and are not repeated here."""
        body = trial.model_dump(mode="json")
        for load in body["loads"]:
            load["num_requests"] = len(load.pop("requests"))
        write_atomically(self.path / "trial.json", _to_json(body))


def rank_log(log_path: Path, rank: int) -> Path:
    """Beside the log of rank 0."""
    return log_path.with_name(f"{log_path.stem}-rank{rank}{log_path.suffix}")


def rank_logs(folder: Path) -> dict[int, Path]:
    """Of a trial's folder: the logs of ranks beside rank 0, by rank."""
    names = sorted(path.name for path in folder.glob("server-rank*.log"))
    found = {int(name[11:-4]): folder / name for name in names if _RANK_LOG.fullmatch(name)}
    return dict(sorted(found.items()))


def _request_line(load_index: int, record: RequestRecord) -> str:
    return json.dumps({"load": load_index, **record.model_dump(mode="json")}, ensure_ascii=False) + "\n"


def _loads(text: str) -> Any:
    """``ValueError`` also for a whole number that no count can be, and that arithmetic would stumble over."""
    return json.loads(text, parse_int=_count) if _LONG_NUMBER.search(text) else json.loads(text)


def _count(digits: str) -> int:
    if len(digits) > 19:
        raise ValueError(f"{digits[:12]}... is a number of {len(digits)} digits")
    return int(digits)


class _Shared:
    """What the requests of a file have in common is kept once: names, answers, which fields were given."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._fields: dict[frozenset[str], set[str]] = {}

    def of(self, record: RequestRecord) -> RequestRecord:
        values = record.__dict__
        for name in ("prompt_id", "category", "text", "finish_reason"):
            if (text := values[name]) is not None:
                values[name] = self._texts.setdefault(text, text)
        if timings := values["server_timings"]:
            values["server_timings"] = {self._texts.setdefault(key, key): v for key, v in timings.items()}
        for part in (record, record.acceptance):
            if part is not None:
                given = part.model_fields_set
                known = self._fields.setdefault(frozenset(given), given)
                object.__setattr__(part, "__pydantic_fields_set__", known)
        return record


def _read_requests(path: Path) -> dict[int, list[RequestRecord]]:
    """By load index, each made a record at once; a torn last line (a kill while writing) is left out."""
    by_load: dict[int, list[RequestRecord]] = {}
    shared = _Shared()
    if not path.exists():
        return by_load
    with io.TextIOWrapper(open_file(path), encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                record = _loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(record, dict) or "load" not in record:
                continue
            try:
                by_load.setdefault(record.pop("load"), []).append(
                    shared.of(RequestRecord.model_validate(record))
                )
            except ValidationError as error:
                raise ValueError(f"{path.name} line {number}: {_first_line(error)}") from error
    return by_load


def read_trial(path: Path) -> Trial | None:
    """The ended trial in this folder, its requests included; ``None`` if it was interrupted."""
    file = path / "trial.json"
    if not file.exists():
        return None
    try:
        body = _loads(read_file(file))
        _check_version(body, file)
        requests = _read_requests(path / "requests.jsonl")
        for index, load in enumerate(body["loads"]):
            load["requests"] = requests.get(index, [])
            expected = load.pop("num_requests")
            if len(load["requests"]) != expected:
                raise ValueError(f"requests.jsonl holds {len(load['requests'])} of {expected} records")
        trial = Trial.model_validate(body)
        if trial.trial_id != path.name:
            raise ValueError(f"it is the record of trial {trial.trial_id}; is this folder a copy?")
        for moment in (trial.started_at, trial.ended_at):
            datetime.fromisoformat(moment)
        return trial
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(
            f"{file}: not a trial record of this version: {_first_line(error)}\n"
            "Move the trial's folder out of the study to have it measured again."
        ) from error


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"[:300]
    return " ".join(str(error).split())[:300]


def _check_version(body: Any, file: Path) -> None:
    version = body.get("schema_version") if isinstance(body, dict) else None
    if not isinstance(version, int):
        raise BadInput(f"{file}: is damaged (no schema version)")
    if version > SCHEMA_VERSION:
        raise BadInput(
            f"{file}: schema version {version!r}; this spectune reads up to {SCHEMA_VERSION}: update spectune"
        )


class StudyDir:
    """Reads and extends one study directory. Make one with ``create`` or ``open``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def place(self) -> str:
        """Where the study lies, as a user names it."""
        return str(self.path)

    @property
    def trials_path(self) -> Path:
        return self.path / "trials"

    def is_seen_elsewhere(self, hostname: str) -> bool:
        """Whether trials made on ``hostname`` may be another machine's."""
        return hostname != socket.gethostname()

    async def settle(self) -> str | None:
        """Between two trials: what has ended goes where it belongs. What the user should be told, if anything."""
        return None

    def bring_over(self) -> None:
        """What has ended goes where it belongs, or an error says why not."""

    def publish(self, names: Sequence[str]) -> None:
        """Files that were written beside the study go where the study lies."""

    @classmethod
    def create(cls, path: Path, *, study: Study, source: str) -> StudyDir:
        """A new directory; ``source`` is the text of the user's study file.

        ``BadInput`` if something that is no study would be replaced.
        """
        _check_new(path, source)
        try:
            (path / "trials").mkdir(parents=True, exist_ok=True)
            write_atomically(path / "study.yaml", redact_text(source))
            write_atomically(path / "study.json", _to_json(study.model_dump(mode="json")))
        except OSError as error:
            raise EnvironmentFailed(f"{path}: cannot write the study: {error.strerror or error}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> StudyDir:
        if not (path / "study.json").exists():
            raise BadInput(
                f"{path}: not a study directory (no study.json); `spectune run STUDY.yaml` makes one"
            )
        return cls(path)

    @staticmethod
    def exists(path: Path) -> bool:
        return (path / "study.json").exists()

    def read_study(self) -> Study:
        file = self.path / "study.json"
        try:
            body = _loads(read_file(file))
            _check_version(body, file)
            return Study.model_validate(body)
        except (OSError, ValueError, RecursionError) as error:
            raise BadInput(
                f"{file}: not a study record of this version: {_first_line(error)}\n"
                "Its trials are not touched. Put a copy of the file back, or measure into another directory (--dir)."
            ) from error

    def replace_study(self, study: Study) -> None:
        """The same study with more launches in its plan, or with the end of its search."""
        write_atomically(self.path / "study.json", _to_json(study.model_dump(mode="json")))

    def extend(self, study: Study, *, source: str) -> None:
        """Replaces the plan by a changed one; trials are never touched."""
        write_atomically(self.path / "study.yaml", redact_text(source))
        write_atomically(self.path / "study.json", _to_json(study.model_dump(mode="json")))

    def trial_paths(self) -> list[Path]:
        if not self.trials_path.exists():
            return []
        found = (p for p in self.trials_path.iterdir() if p.is_dir() and _TRIAL_NAME.match(p.name))
        return sorted(found, key=lambda p: (_number_of(p), p.name))

    def read_trials(self) -> list[Trial]:
        """Ended trials in the order of their start; each has a number of its own."""
        trials = [trial for path in self.trial_paths() if (trial := read_trial(path)) is not None]
        return numbered_apart(trials)

    def trial_name(self, number: int, arm_id: str) -> str:
        return f"{number:04d}-{arm_id}"

    def new_trial(self, arm_id: str) -> tuple[int, TrialDir]:
        """The next number and its folder; several writers, also on other machines, never get one number."""
        number = 0
        while True:
            known = self.trial_paths()
            number = max([number, len(known), *map(_number_of, known)]) + 1
            path = self.trials_path / self.trial_name(number, arm_id)
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            if all(_number_of(p) != number or p.name == path.name for p in self.trial_paths()):
                return number, TrialDir(path)
            path.rmdir()
            time.sleep(random.uniform(0.001, 0.03))  # noqa: S311  # two that step back together part here

    @contextmanager
    def join(self) -> Iterator[None]:
        """Adds trials beside whoever holds the lock, which alone writes the plan and the reports."""
        yield

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held by the one spectune that works on this study; the system releases it when that one dies.

        The folder is locked as well, where its file system does that: a lock file can be deleted meanwhile.
        """
        try:
            opened = open_lock(self.path / "lock")
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EISDIR, errno.ENXIO):
                raise
            raise BadInput(
                f"{self.path / 'lock'}: is a folder, a pipe or a device, where spectune keeps its lock file; "
                "move it away, or give another folder"
            ) from error
        with opened as file, _opened(self.path) as folder:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _lock_folder(folder)
            except BlockingIOError:
                file.seek(0)
                pid, _, hostname = file.read(300).strip().partition(" ")
                where = "" if hostname in ("", socket.gethostname()) else f" on {hostname}"
                raise BadInput(
                    f"{self.place}: another spectune (pid {pid or 'unknown'}{where}) is working on this study; "
                    "wait for it, or give this one its own directory with --dir"
                ) from None
            except OSError as error:
                raise EnvironmentFailed(
                    f"{self.path}: its file system gives no locks ({error.strerror or error}); mount it with them "
                    "(Lustre: -o flock; NFS: without -o nolock), or keep the study elsewhere"
                ) from error
            file.seek(0)
            check_lock_text(self.path / "lock", file.read(300))
            file.seek(0)
            file.truncate()
            file.write(f"{os.getpid()} {socket.gethostname()}")
            file.flush()
            yield


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock_folder(folder: int) -> None:
    """``BlockingIOError``: another has it. File systems of a network may lock files alone."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _check_new(path: Path, source: str) -> None:
    trials = path / "trials"
    if trials.is_dir() and any(_TRIAL_NAME.match(trial.name) for trial in trials.iterdir()):
        return  # a study that has lost its study.json
    there = path / "study.yaml"
    is_copy = there.is_file() and there.read_text(encoding="utf-8", errors="backslashreplace") == source
    names = REPORTS if is_copy else (*REPORTS, there.name)
    check_replaceable(str(path), path, names=names, marks=())


def _number_of(path: Path) -> int:
    return int(path.name.split("-")[0])


def plan_record(
    *,
    hypothesis: Hypothesis,
    arm: Any,
    command: tuple[str, ...],
    env: Mapping[str, str],
    ranks: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What is known before a launch, for ``plan.json``; ``ranks``: node, command and variables of each of several."""
    several = {"ranks": [dict(rank) for rank in ranks]} if ranks else {}
    return {
        "schema_version": SCHEMA_VERSION,
        "arm": arm.model_dump(mode="json"),
        "hypothesis": hypothesis.model_dump(mode="json"),
        "command": list(command),
        "env": dict(env),
        **several,
    }
