"""A server's log file while it grows: phases and the last lines."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

_TAIL_LINES = 400
_LINE_LIMIT = 2000
_CHUNK_BYTES = 1 << 20
_MAX_BEHIND_BYTES = 4 << 20
_KEPT_BYTES = 1 << 20


_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[@-_]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def printable(text: str) -> str:
    """``text`` without what a terminal would obey: the log is the server's, the terminal is the user's."""
    return _CONTROL.sub("", text)


class LogFollower:
    """Reads what was appended since the last call; a line counts once its end has come."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self.path = path
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._offset = start
        self._partial = b""

    def new_lines(self, *, at_most_bytes: int | None = None) -> Iterator[str]:
        """Complete lines since the last call; progress bars (carriage returns) count as lines.

        A server that prints faster than lines are read is not followed word by
        word: what lies more than a few megabytes back is skipped.
        """
        try:
            with self.path.open("rb") as file:
                behind = os.fstat(file.fileno()).st_size - self._offset
                if behind > _MAX_BEHIND_BYTES:
                    self._offset += behind - _KEPT_BYTES
                    self._partial = b""
                file.seek(self._offset)
                left = behind if at_most_bytes is None else at_most_bytes
                while left > 0 and (chunk := file.read(min(_CHUNK_BYTES, left))):
                    self._offset += len(chunk)
                    left -= len(chunk)
                    yield from self._split(chunk)
        except FileNotFoundError:
            return

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read now."""
        try:
            return self.path.stat().st_size > self._offset
        except OSError:
            return False

    def _split(self, chunk: bytes) -> Iterator[str]:
        *whole, rest = (self._partial + chunk).replace(b"\r", b"\n").split(b"\n")
        self._partial = rest[-_LINE_LIMIT:]
        for raw in whole:
            if raw.strip():
                line = printable(raw[:_LINE_LIMIT].decode("utf-8", errors="replace"))
                self.tail.append(line)
                yield line

    def last_lines(self, count: int) -> tuple[str, ...]:
        """The last ``count`` lines, an unfinished one included."""
        for _ in self.new_lines():
            pass
        lines = list(self.tail)
        if self._partial.strip():
            lines.append(printable(self._partial.decode("utf-8", errors="replace")))
        return tuple(lines[-count:])
