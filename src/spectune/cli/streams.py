"""Standard streams and signals as a command needs them, however it was started and whoever stops reading it."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from typing import Any

_NOBODY_READS = (errno.EPIPE, errno.EIO)
"""The pipe's reader has ended (``| head``), or the terminal is gone."""


class _Outlasting(io.FileIO):
    """A standard stream. Once nobody reads it, what is written there is dropped, and the command goes on to its end.

    Any other fault of it, as a full disk, is raised once: Python would meet it again as it ends, and show a traceback.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if error.errno not in _NOBODY_READS and self.fileno() != 2:
                raise OSError(
                    error.errno, f"{error.strerror}; what was to be shown is not whole", "output"
                ) from None
            return len(memoryview(data).cast("B"))


def outlast_callers() -> None:
    """Makes closed streams empty ones, lets a command outlive its readers, and undoes an ignored SIGCHLD.

    A study must not end, nor a server be left, because nobody reads the progress any more.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None or (stream is getattr(sys, f"__{name}__") and type(stream) is io.TextIOWrapper):
            setattr(sys, name, _outlasting(number, stream))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else no exit code of a program would ever be seen


def _outlasting(number: int, stream: io.TextIOWrapper | None) -> io.TextIOWrapper:
    """A terminal that knows only ASCII still gets its table."""
    if stream is not None:
        stream.flush()
    at_once = number == 2 or os.isatty(number)
    return io.TextIOWrapper(
        io.BufferedWriter(_Outlasting(number, "wb", closefd=False)),
        encoding=stream.encoding if stream is not None else "utf-8",
        errors="replace",
        line_buffering=at_once,
        write_through=at_once,
    )
