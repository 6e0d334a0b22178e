"""Folders of a worker on a node; what a killed worker leaves, prompts and logs among it, the next one removes."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

_LOCK = ".lock"
LEFT_AFTER_S = 3600.0
"""Far beyond any lease: no server of the killed worker writes there any more."""


class Scratch:
    """A folder under the machine's temporary one, locked for as long as this process has it."""

    def __init__(self, prefix: str) -> None:
        _remove_left(prefix)
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = os.open(self.folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _remove_left(prefix: str) -> None:
    """Only folders of this user whose process is gone; what is a link, or another's, is left alone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            old = time.time() - os.fstat(lock).st_mtime > LEFT_AFTER_S
            if old:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # its process lives
        finally:
            os.close(lock)
