"""The studies below a folder: name, state, best arm, age."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from spectune.analysis.summary import summarize
from spectune.domain.interval import Interval
from spectune.domain.record import Record
from spectune.errors import BadInput
from spectune.store.lease import holder_of
from spectune.store.opening import open_study, studies_below
from spectune.store.places import Bucket, place_of
from spectune.store.record_file import open_file, read_file
from spectune.store.shared import ReadCopy
from spectune.store.study_dir import StudyDir

MAX_DEPTH = 6
MAX_FOLDERS = 20_000
_SKIPPED = frozenset({"trials", "node_modules", "__pycache__"})

State = Literal["running", "done", "unfinished", "imported", "damaged"]


class ListedStudy(Record):
    """One line of ``spectune ls``."""

    study_dir: str
    name: str | None
    state: State
    num_trials: int
    num_planned: int | None
    best_arm: str | None = None
    """The baseline's name where nothing is faster."""
    speedup: Interval | None = None
    """``None`` also where the baseline is best."""
    simulated: bool = False
    last_change: str | None
    """UTC, ISO 8601: of the newest trial, else of the study."""
    problem: str | None = None


def find_studies(root: Path) -> list[Path]:
    """Folders with a ``study.json``, ``root`` included; links to folders are not followed."""
    if not root.is_dir():
        raise BadInput(f"{root}: no such folder")
    return sorted(_walk(root))


def _walk(root: Path) -> Iterator[Path]:
    seen = 0
    pending = [(root, 0)]
    while pending:
        folder, depth = pending.pop()
        seen += 1
        if seen > MAX_FOLDERS:
            raise BadInput(f"{root}: more than {MAX_FOLDERS} folders; name one nearer to the studies")
        try:
            if StudyDir.exists(folder):
                yield folder
                continue  # a study holds trials, not studies
            if depth == MAX_DEPTH:
                continue
            entries = [e for e in os.scandir(folder) if e.is_dir(follow_symlinks=False)]
        except PermissionError:
            if folder == root:
                raise
            continue  # not ours to read
        except OSError:
            continue  # it is gone by now
        pending += [
            (Path(e.path), depth + 1)
            for e in entries
            if not e.name.startswith(".") and e.name not in _SKIPPED
        ]


def places_below(text: str) -> list[str]:
    """The studies at a place and below it, as `StudyDir` and `open_study` take them."""
    place = place_of(text)
    if isinstance(place, Bucket):
        return studies_below(place, max_depth=MAX_DEPTH, max_folders=MAX_FOLDERS, skipped=_SKIPPED)
    return [str(path) for path in find_studies(place)]


def list_studies(root: Path | str) -> list[ListedStudy]:
    """Newest first."""
    if isinstance(place_of(str(root)), Bucket):
        found = [_list_shared(place) for place in places_below(str(root))]
    else:
        found = [list_study(path) for path in find_studies(Path(root))]
    return sorted(found, key=lambda s: s.last_change or "", reverse=True)


def list_study(path: Path) -> ListedStudy:
    """Never raises for what a study directory may hold: a damaged one is listed with its problem."""
    directory = StudyDir(path)
    ended = [p for p in directory.trial_paths() if (p / "trial.json").exists()]
    last = _last_change([path / "study.json", *(p / "trial.json" for p in ended)])
    try:
        study = directory.read_study()
        best = _fresh_report(path, ended) or _summarized(directory)
    except BadInput as error:
        return ListedStudy(
            study_dir=str(path),
            name=None,
            state="damaged",
            num_trials=len(ended),
            num_planned=None,
            last_change=last,
            problem=str(error).splitlines()[0],
        )
    searches = study.search is not None and study.search_end is None  # its plan grows as it goes
    state: State = "unfinished" if best["num_remaining"] or searches else "done"
    if study.imported is not None:
        state, last = "imported", study.created_at
    elif is_running(path):
        state = "running"
    return ListedStudy(
        study_dir=str(path),
        name=study.name,
        state=state,
        num_trials=len(ended),
        num_planned=len(study.plan),
        best_arm=best["best_arm"],
        speedup=best["speedup"],
        simulated=best["simulated"],
        last_change=last,
    )


def _list_shared(place: str) -> ListedStudy:
    """One in an object store, from the copy that is fetched of it."""
    directory = open_study(place)
    listed = list_study(directory.path)
    state: State = listed.state
    if state in ("done", "unfinished") and isinstance(directory, ReadCopy) and holder_of(directory.store):
        state = "running"
    return listed.model_copy(update={"study_dir": place, "state": state})


def _last_change(files: list[Path]) -> str | None:
    times = [f.stat().st_mtime for f in files if f.exists()]
    return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds") if times else None


def _fresh_report(path: Path, ended: list[Path]) -> dict[str, Any] | None:
    """From ``report.json`` if it is newer than everything it was made from; ``None`` if it is not, or is odd."""
    report = path / "report.json"
    try:
        made = report.stat().st_mtime_ns
        sources = [path / "study.json", *(p / "trial.json" for p in ended)]
        if any(source.stat().st_mtime_ns > made for source in sources):
            return None
        body = json.loads(read_file(report))
        arms = {arm["arm_id"]: arm for arm in body["arms"]}
        best = arms.get(body["best_arm_id"])
        speedup = best["loads"][0]["speedup"] if best and best["loads"] else None
        return {
            "best_arm": None if best is None else str(best["name"]),
            "speedup": None if speedup is None else Interval.model_validate(speedup),
            "simulated": body["simulated"] is True,
            "num_remaining": int(body["study"]["num_remaining_trials"]),
        }
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def _summarized(directory: StudyDir) -> dict[str, Any]:
    summary = summarize(directory.read_study(), directory.read_trials())
    best = None if summary.best_arm_id is None else summary.arm(summary.best_arm_id)
    return {
        "best_arm": None if best is None else best.name,
        "speedup": best.first.speedup if best is not None and best.first is not None else None,
        "simulated": summary.simulated,
        "num_remaining": summary.study.num_remaining_trials,
    }


def is_running(path: Path) -> bool:
    """Whether a spectune holds the study's lock; another machine's is seen where the file system passes locks on."""
    try:
        with open_file(path / "lock") as file:
            pid, _, hostname = file.read(300).decode("utf-8", "replace").strip().partition(" ")
            here = hostname in ("", socket.gethostname())
            if not pid.isdecimal() or (here and not Path(f"/proc/{pid}").exists()):
                return False
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except OSError:
        return False


def age_of(moment: str | None, *, now: datetime) -> str:
    """``3 h``, ``12 d``; a dash where it is unknown."""
    try:
        then = datetime.fromisoformat(moment or "")
    except ValueError:
        return "–"
    passed_s = max(0.0, (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds())
    for limit, unit, size in ((60, "s", 1), (3600, "min", 60), (86400, "h", 3600), (86400 * 400, "d", 86400)):
        if passed_s < limit:
            return f"{int(passed_s // size)} {unit}"
    return f"{int(passed_s // (365.25 * 86400))} y"
