"""Opens studies wherever they lie: in a folder, or in an object store with a copy here."""

from __future__ import annotations

import re
from pathlib import Path

from spectune.domain.study import Study
from spectune.errors import BadInput, EnvironmentFailed
from spectune.home import data_home
from spectune.store.objects import ObjectStore
from spectune.store.places import Bucket, place_of
from spectune.store.shared import (
    HEAD_FILES,
    READ_FILES,
    TRIAL_OBJECT,
    ReadCopy,
    SharedStudyDir,
    digest,
    fetch,
    set_aside,
)
from spectune.store.study_dir import StudyDir, write_atomically


def study_exists(text: str) -> bool:
    """Whether a study lies there."""
    place = place_of(text)
    if isinstance(place, Path):
        return StudyDir.exists(place)
    return ObjectStore(place).get("study.json") is not None


def open_study(text: str, *, whole: bool = False) -> StudyDir:
    """A study to read. From an object store its records are fetched first, new ones only; logs and all if ``whole``."""
    place = place_of(text)
    if isinstance(place, Path):
        return StudyDir.open(place)
    store, path = ObjectStore(place), _copy_of(place) / "read"
    _require(store)
    (path / "trials").mkdir(parents=True, exist_ok=True)
    listing = store.listing()
    fetch(store, path, listing, files=None if whole else READ_FILES, only=None)
    kept = {name.split("/")[1] for name in listing if TRIAL_OBJECT.fullmatch(name)}
    copy = ReadCopy(store, path)
    for folder in copy.trial_paths():
        if folder.name not in kept:
            set_aside(folder, path / "removed")
    for name in HEAD_FILES:
        write_atomically(path / name, (store.get(name) or b"").decode("utf-8", "replace"))
    return copy


def live_study(text: str) -> StudyDir:
    """A study to watch while it runs here: of one in an object store, its working copy."""
    place = place_of(text)
    path = place if isinstance(place, Path) else _copy_of(place) / "work"
    if isinstance(place, Bucket) and not StudyDir.exists(path):
        raise BadInput(
            f"{place.url}: has not been run on this machine; watch it on the one that runs it "
            f"(`spectune ls {place.url}` says if any does), or see `spectune report {place.url}`"
        )
    return StudyDir.open(path)


def work_on(text: str, *, copy: Path | None = None) -> StudyDir:
    """A study to go on with. ``copy``: where to keep the working copy of one in an object store."""
    place = place_of(text)
    if isinstance(place, Path):
        return StudyDir.open(place)
    directory = _working_copy(place, copy)
    _require(directory.store)
    with StudyDir.lock(directory):
        directory.pull()
    return directory


def create_study(text: str, *, study: Study, source: str, copy: Path | None = None) -> StudyDir:
    """A new study there."""
    place = place_of(text)
    if isinstance(place, Path):
        return StudyDir.create(place, study=study, source=source)
    directory = _working_copy(place, copy)
    if StudyDir.exists(directory.path):  # of a study that was here before, and was deleted in the store
        with StudyDir.lock(directory):
            set_aside(directory.path, directory.path.parent / "earlier")
        directory = _working_copy(place, copy)
    with directory.lock():
        if directory.store.get("study.json") is not None:
            raise BadInput(
                f"{place.url}: somebody made a study here just now; run it again to go on with that"
            )
        StudyDir.create(directory.path, study=study, source=source)
    return directory


def studies_below(place: Bucket, *, max_depth: int, max_folders: int, skipped: frozenset[str]) -> list[str]:
    """Addresses of the studies there and below."""
    store, found, seen = ObjectStore(place), [], 0
    pending = [("", 0)]
    while pending:
        folder, depth = pending.pop()
        seen += 1
        if seen > max_folders:
            raise BadInput(f"{place.url}: more than {max_folders} folders; name one nearer to the studies")
        folders, files = store.children(folder)
        if "study.json" in files:
            found.append(place.below(folder).url)
        elif depth < max_depth:
            pending += [(f"{folder}/{name}".strip("/"), depth + 1) for name in folders if name not in skipped]
    return sorted(found)


def _require(store: ObjectStore) -> None:
    if store.get("study.json") is None:
        raise BadInput(
            f"{store.place.url}: no study there (no study.json); "
            f"`spectune run STUDY.yaml --dir {store.place.url}` makes one"
        )


def _working_copy(place: Bucket, copy: Path | None) -> SharedStudyDir:
    store = ObjectStore(place)
    path = copy or _copy_of(place) / "work"
    try:
        (path / "trials").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFailed(f"{path}: cannot keep the working copy: {error.strerror or error}") from error
    return SharedStudyDir(store, path)


def _copy_of(place: Bucket) -> Path:
    shown = re.sub(r"[^A-Za-z0-9.-]+", "-", place.url.removeprefix("s3://"))[-60:].strip("-.")
    return data_home() / "shared" / f"{shown}-{digest(place.url.encode())[:8]}"
