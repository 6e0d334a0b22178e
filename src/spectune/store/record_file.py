"""Opens a file of a record: a file and nothing else, so that no pipe makes us wait and no device has no end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, TextIO

MAX_BYTES = 1 << 30
"""The largest record that is read whole."""


def open_file(path: Path) -> BinaryIO:
    """Raises ``OSError`` also for a pipe, a socket or a device, without waiting for one."""
    return os.fdopen(_descriptor(path, os.O_RDONLY), "rb")


def open_lock(path: Path) -> TextIO:
    """The same, made where it is missing, to be read and written."""
    return os.fdopen(_descriptor(path, os.O_RDWR | os.O_CREAT), "r+", encoding="utf-8")


def _descriptor(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(code, "is a folder, a pipe or a device, not a file", str(path))
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, *, limit: int = MAX_BYTES) -> str:
    """Its text; raises ``OSError`` for what is no file, ``ValueError`` for what is longer or no UTF-8."""
    with open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"more than {limit} bytes")
    return data.decode("utf-8")
