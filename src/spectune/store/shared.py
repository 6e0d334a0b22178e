"""A study in an object store: the same files as in a folder, each an object, and a copy here to work on.

A trial is measured and recorded in the working copy, and its objects are
written when it has ended, ``trial.json`` last. Its name carries the session
that made it, so that no two writers ever write one object. What could not be
written stays in the working copy and is brought over by the next one that can.
Commands that only read have a copy of their own.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from spectune.errors import BadInput, EnvironmentFailed, StoreUnreachable
from spectune.store.lease import Lease
from spectune.store.objects import ObjectFacts, ObjectStore
from spectune.store.study_dir import StudyDir, write_atomically

HEAD_FILES = ("study.yaml", "study.json")
REPORT_FILES = ("report.md", "report.html", "report.json")
TRIAL_OBJECT = re.compile(
    r"trials/[0-9]{4,9}-[A-Za-z0-9_-]{1,80}/([a-z]{1,20}\.(json|jsonl|log)|server-rank[1-9][0-9]{0,2}\.log)"
)
READ_FILES = ("trial.json", "requests.jsonl")
_IN_STORE = ".in-store"
_OF_THE_MOMENT = ("progress.json", "abort.json")
"""Between a run and whoever watches it on the same machine."""


class ReadCopy(StudyDir):
    """What an object store held a moment ago, for commands that only read."""

    def __init__(self, store: ObjectStore, path: Path) -> None:
        super().__init__(path)
        self.store = store

    @property
    def place(self) -> str:
        return self.store.place.url

    def publish(self, names: Sequence[str]) -> None:
        try:
            for name in names:
                self.store.put_file(name, self.path / name)
        except BadInput as error:
            raise BadInput(f"{error}\nfiles can be kept here instead: name a folder with --out") from error


class SharedStudyDir(StudyDir):
    """The working copy of a study in an object store; it is written there under ``lock`` or ``join``."""

    def __init__(self, store: ObjectStore, path: Path) -> None:
        super().__init__(path)
        self.store = store
        self.session: str | None = None
        """Names the trials that are made now."""
        self._lease: Lease | None = None
        self._there: set[str] = set()
        self._heads: dict[str, str] = {}
        self._log_bytes: dict[str, int] = {}

    @property
    def place(self) -> str:
        return self.store.place.url

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Here and in the store. Begins with what others wrote, ends with everything of ours brought over."""
        with super().lock():
            lease = Lease(self.store, writer=self._writer())
            lease.acquire()
            try:
                with self._during(lease.session, lease):
                    yield
            finally:
                lease.release()

    @contextmanager
    def join(self) -> Iterator[None]:
        with self._during(secrets.token_hex(3), None):
            yield

    @contextmanager
    def _during(self, session: str, lease: Lease | None) -> Iterator[None]:
        self.session, self._lease = session, lease
        try:
            self.pull()
            try:
                yield
            except BaseException as error:
                self._bring_over_after(error)
                raise
            self._bring_over()
        finally:
            self._lease = None

    def is_seen_elsewhere(self, hostname: str) -> bool:
        return True

    async def settle(self) -> str | None:
        try:
            await asyncio.to_thread(self.push)
            other = None if self._lease is None else await asyncio.to_thread(self._lease.taken_by)
        except (EnvironmentFailed, BadInput) as error:
            return f"{str(error).splitlines()[0]}; the records are kept in {self.path} and brought over later"
        if other is not None:
            raise EnvironmentFailed(
                f"{self.place}: another spectune took this study over while this one was not heard ({other}); "
                "all that was measured here is brought over. Wait for the other, then run the study again"
            )
        return None

    def trial_name(self, number: int, arm_id: str) -> str:
        assert self.session is not None, "a trial is made under lock or join"
        return f"{super().trial_name(number, arm_id)}-{self.session}"

    def bring_over(self) -> None:
        self.push()

    def pull(self) -> None:
        """Trials of others come in; those that somebody took out of the store go to ``removed/``."""
        listing = self.store.listing("trials")
        self._there = ended_trials(listing)
        fetch(self.store, self.path, listing, files=READ_FILES, only=self._there)
        for path in self.trial_paths():
            mark = path / _IN_STORE
            if path.name in self._there:
                mark.touch()
            elif mark.exists():
                set_aside(path, self.path / "removed")
        for name in HEAD_FILES:
            data = self.store.get(name)
            if data is not None:
                write_atomically(self.path / name, data.decode("utf-8", "replace"))
                self._heads[name] = digest(data)

    def push(self, *, interrupted: bool = False) -> int:
        """Writes what the store does not have; the number of trials that ended. Safe to repeat."""
        brought = 0
        for path in self.trial_paths():
            if path.name in self._there:
                self._put_grown_log(path)
                continue
            if not self._is_due(path, interrupted=interrupted):
                continue
            files = (p for p in path.iterdir() if p.is_file() and p.name not in _OF_THE_MOMENT)
            for file in sorted(files, key=lambda p: (p.name == "trial.json", p.name)):
                if file.name.startswith("."):
                    continue
                if file.name == "server.log":
                    self._log_bytes[path.name] = file.stat().st_size
                self.store.put_file(f"trials/{path.name}/{file.name}", file)
            if (path / "trial.json").exists():
                (path / _IN_STORE).touch()
                self._there.add(path.name)
                brought += 1
        for name in (*HEAD_FILES, *REPORT_FILES) if self._lease is not None else ():
            file = self.path / name
            data = file.read_bytes() if file.exists() else b""
            if data and self._heads.get(name) != digest(data):
                self.store.put(name, data)
                self._heads[name] = digest(data)
        return brought

    def _put_grown_log(self, path: Path) -> None:
        """A server that the next trial took over writes on to the log of the trial that started it."""
        before, log = self._log_bytes.get(path.name), path / "server.log"
        if before is not None and log.exists() and log.stat().st_size != before:
            self._log_bytes[path.name] = log.stat().st_size
            self.store.put_file(f"trials/{path.name}/server.log", log)

    def _is_due(self, path: Path, *, interrupted: bool) -> bool:
        return (path / "trial.json").exists() or (
            interrupted and self.session is not None and path.name.endswith(f"-{self.session}")
        )

    def _bring_over(self) -> None:
        try:
            self.push(interrupted=True)
        except (EnvironmentFailed, BadInput) as error:
            raise StoreUnreachable(f"{error}\n{self._how_to_bring_over()}") from error

    def _bring_over_after(self, cause: BaseException) -> None:
        """What ended the work is what is told; that records stayed here is added to it."""
        try:
            self.push(interrupted=True)
        except (EnvironmentFailed, BadInput) as error:
            if isinstance(cause, EnvironmentFailed | BadInput):
                cause.args = (f"{cause}\n{str(error).splitlines()[0]}\n{self._how_to_bring_over()}",)

    def _how_to_bring_over(self) -> str:
        left = sum(p.name not in self._there and (p / "trial.json").exists() for p in self.trial_paths())
        return (
            f"{left} finished trials are only in {self.path} (a study directory: `spectune report` reads it); "
            f"when the store answers, this brings them over and measures nothing twice: spectune run {self.place}"
        )

    def _writer(self) -> str:
        """Names this working copy; whoever holds its lock is the one that lives."""
        file = self.path / ".writer"
        if not file.exists():
            write_atomically(file, secrets.token_hex(4))
        return file.read_text(encoding="utf-8").strip()


def ended_trials(listing: Mapping[str, ObjectFacts]) -> set[str]:
    return {
        name.split("/")[1]
        for name in listing
        if name.endswith("/trial.json") and TRIAL_OBJECT.fullmatch(name)
    }


def fetch(
    store: ObjectStore,
    path: Path,
    listing: Mapping[str, ObjectFacts],
    *,
    files: Sequence[str] | None,
    only: set[str] | None,
) -> None:
    """Objects of trials that are not here yet, or are of another size or time than here; ``trial.json`` last."""
    wanted: dict[str, tuple[Path, ObjectFacts]] = {}
    for name, facts in listing.items():
        if not TRIAL_OBJECT.fullmatch(name):
            continue
        _, trial, file = name.split("/")
        if (files is None or file in files) and (only is None or trial in only):
            here = path / "trials" / trial / file
            if not _is_same(here, facts):
                wanted[name] = (here, facts)
    for trial in ended_trials(listing) if only is None else only:
        records = f"trials/{trial}/requests.jsonl"
        if f"trials/{trial}/trial.json" in wanted and records not in listing:
            # Written while the listing was made: the trial's end was seen, and what comes before it was not.
            wanted[records] = (path / records, listing[f"trials/{trial}/trial.json"])
    ends = {name: target for name, target in wanted.items() if name.endswith("/trial.json")}
    store.get_files({name: target for name, target in wanted.items() if name not in ends})
    store.get_files(ends)


def _is_same(here: Path, facts: ObjectFacts) -> bool:
    try:
        stat = here.stat()
    except OSError:
        return False
    if (here.parent / _IN_STORE).exists():
        return True  # a record that this copy wrote itself, or had before: it never changes
    return stat.st_size == facts.size and abs(stat.st_mtime - facts.modified.timestamp()) < 1


def set_aside(path: Path, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    path.rename(into / f"{path.name}-{stamp}-{secrets.token_hex(2)}")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
