"""The end of a log that is being written, as text that can be shown."""

from __future__ import annotations

from pathlib import Path

from spectune.analysis.words import visible
from spectune.store.record_file import open_file

READ_BYTES = 1 << 16
LINES = 60
LINE_CHARS = 600


def log_tail(path: Path) -> list[str]:
    """The last lines, cut to what can be read on a page; none where there is no log yet."""
    try:
        with open_file(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - READ_BYTES))
            data = file.read(READ_BYTES)
    except OSError:
        return []
    lines = data.decode("utf-8", errors="replace").replace("\r", "\n").split("\n")
    if size > READ_BYTES and len(lines) > 1:
        lines = lines[1:]  # begun before what was read
    return [_cut(visible(line)) for line in lines if line.strip()][-LINES:]


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"
