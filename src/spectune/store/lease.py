"""Who works on a study in an object store: an object per worker under ``writers/``, renewed while it lives.

No conditional write is needed. A worker writes its own object, lists, and
gives way if any other live one is there. The listing of whoever wins came
before the other's write, so the other sees the winner: two cannot both win.
Life is judged by the store's clock alone.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spectune.errors import BadInput, EnvironmentFailed
from spectune.store.objects import ObjectStore

LEASE_S, RENEW_S = 120.0, 30.0
ATTEMPTS = 3
FOLDER = "writers"


@dataclass(frozen=True)
class Holder:
    """A worker as its object says; ``holds`` is false while it still asks."""

    writer: str
    session: str
    hostname: str
    pid: int
    holds: bool
    silent_s: float

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.hostname}, last heard of {self.silent_s:.0f} s ago"


class Lease:
    """``acquire``, then it is renewed by a thread until ``release``.

    ``writer`` names the working copy, which has a lock of its own.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        writer: str,
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._writer, self._pause = store, writer, pause
        self._lease_s, self._renew_s = lease_s, renew_s
        self.session = secrets.token_hex(3)
        self._name = f"{FOLDER}/{writer}-{self.session}.json"
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """``BadInput`` names who works on the study already."""
        others: list[Holder] = []
        for attempt in range(ATTEMPTS):
            if attempt:
                self._pause(random.uniform(0.3, 1.5))  # noqa: S311  # two that ask at once part here
            self._write(holds=False)
            others = self._others()
            if not others:
                self._write(holds=True)
                self._thread = threading.Thread(target=self._keep, name="spectune lease", daemon=True)
                self._thread.start()
                return
            self._store.delete(self._name)
        raise BadInput(
            f"{self._store.place.url}: another spectune is working on this study ({others[0]}); wait for it "
            f"(a worker that died is forgotten after {self._lease_s:.0f} s), or give this one its own place with --dir"
        )

    def taken_by(self) -> Holder | None:
        """Another that holds the study too: it took over while this one could not be heard."""
        return next((other for other in self._others() if other.holds), None)

    def release(self) -> None:
        """Also where the store is out of reach: then the others wait for the lease to end."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self._store.delete(self._name)
        except (EnvironmentFailed, BadInput):
            return

    def _keep(self) -> None:
        while not self._ended.wait(self._renew_s):
            try:
                self._write(holds=True)
            except (EnvironmentFailed, BadInput):
                continue  # said by whatever writes records next

    def _write(self, *, holds: bool) -> None:
        body = {
            "schema_version": 1,
            "writer": self._writer,
            "session": self.session,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "holds": holds,
            "renewed_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._store.put(self._name, json.dumps(body).encode())

    def _others(self) -> list[Holder]:
        """Live workers of other working copies, by the store's clock; forgotten ones are swept away."""
        listed = self._store.listing(FOLDER)
        now = listed[self._name].modified if self._name in listed else datetime.now(UTC)
        found = []
        for name, facts in listed.items():
            if name.startswith(f"{FOLDER}/{self._writer}-"):
                continue  # ours, or left by one that died: this copy's lock is held by us
            silent = now - facts.modified
            if silent >= timedelta(seconds=self._lease_s):
                self._store.delete(name)
            elif (holder := _read(self._store, name, silent)) is not None:
                found.append(holder)
        return found


def holder_of(store: ObjectStore, *, lease_s: float = LEASE_S) -> Holder | None:
    """Who works on the study now, by this machine's clock: good enough to show, not to decide by."""
    now = datetime.now(UTC)
    for name, facts in store.listing(FOLDER).items():
        silent = now - facts.modified
        if silent < timedelta(seconds=lease_s):
            holder = _read(store, name, silent)
            if holder is not None and holder.holds:
                return holder
    return None


def _read(store: ObjectStore, name: str, silent: timedelta) -> Holder | None:
    data = store.get(name)
    if data is None:
        return None
    silent_s = max(0.0, silent.total_seconds())
    try:
        body = json.loads(data)
        return Holder(
            writer=str(body["writer"]),
            session=str(body["session"]),
            hostname=str(body["hostname"])[:120],
            pid=int(body["pid"]),
            holds=body["holds"] is True,
            silent_s=silent_s,
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return Holder("?", "?", f"an unreadable {name}", 0, True, silent_s)
