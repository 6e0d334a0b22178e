"""A server's log file while it grows: phases and the last lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

_TAIL_LINES = 400
_LINE_LIMIT = 2000
_CHUNK_BYTES = 1 << 20


class LogFollower:
    """Reads what was appended since the last call; a line counts once its end has come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._offset = 0
        self._partial = b""

    def new_lines(self) -> Iterator[str]:
        """Complete lines since the last call; progress bars (carriage returns) count as lines."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                while chunk := file.read(_CHUNK_BYTES):
                    self._offset += len(chunk)
                    yield from self._split(chunk)
        except FileNotFoundError:
            return

    def _split(self, chunk: bytes) -> Iterator[str]:
        *whole, rest = (self._partial + chunk).replace(b"\r", b"\n").split(b"\n")
        self._partial = rest[-_LINE_LIMIT:]
        for raw in whole:
            if raw.strip():
                line = raw[:_LINE_LIMIT].decode("utf-8", errors="replace")
                self.tail.append(line)
                yield line

    def last_lines(self, count: int) -> tuple[str, ...]:
        """The last ``count`` lines, an unfinished one included."""
        for _ in self.new_lines():
            pass
        lines = list(self.tail)
        if self._partial.strip():
            lines.append(self._partial.decode("utf-8", errors="replace"))
        return tuple(lines[-count:])
