"""A study directory in the middle of a run, as the runner leaves it, and its live page on a real socket."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spectune.domain.arm import Arm
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.store.progress import ProgressFile
from spectune.store.study_dir import StudyDir, TrialDir
from spectune.watch.server import TOKEN_HEADER, WatchServer
from spectune.watch.study_view import StudyView


def stored(path: Path, of: Study, trials: Sequence[Trial]) -> StudyDir:
    """Ended trials on disk."""
    directory = StudyDir.create(path, study=of, source="question: made up\n")
    for one in trials:
        _, folder = directory.new_trial(one.arm_id)
        for index, load in enumerate(one.loads):
            for record in load.requests:
                folder.append_request(index, record)
        folder.finish(one.model_copy(update={"trial_id": folder.path.name}))
    return directory


def begin_trial(
    directory: StudyDir, arm: Arm, *, log: str = "loading weights ...\n", why: str = "it drafts"
) -> tuple[TrialDir, ProgressFile]:
    """The next trial, launched and loading; nothing runs."""
    _, folder = directory.new_trial(arm.arm_id)
    folder.write_plan(
        {"arm": {"name": arm.name}, "hypothesis": {"why": why}, "command": ["server"], "env": {}}
    )
    folder.log_path.write_text(log, encoding="utf-8")
    progress = ProgressFile(folder.path)
    progress.note_phase("load")
    return folder, progress


@contextmanager
def being_run(directory: StudyDir) -> Iterator[None]:
    """The lock of another spectune: an open file of its own stands for its process."""
    with (directory.path / "lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{os.getpid()} {socket.gethostname()}")
        file.flush()
        yield


class Client:
    """Talks to the page as a browser or a stranger would."""

    def __init__(self, server: WatchServer) -> None:
        self.server = server

    def __call__(
        self, method: str, path: str, *, body: str | None = None, token: str | None = "", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers in lower case, text. ``token``: the right one unless another, or ``None``, is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent[TOKEN_HEADER] = token or self.server.token
        try:
            connection.request(method, path, body=body, headers=sent)
            reply = connection.getresponse()
            found = {name.lower(): value for name, value in reply.getheaders()}
            return reply.status, found, reply.read().decode()
        finally:
            connection.close()

    def state(self) -> dict[str, Any]:
        status, _, text = self("GET", "/state")
        assert status == 200, text
        document: dict[str, Any] = json.loads(text)
        return document


@contextmanager
def served(directory: StudyDir) -> Iterator[Client]:
    """The live page of a directory."""
    with WatchServer(StudyView(directory)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield Client(server)
        finally:
            server.shutdown()
            thread.join(10)
