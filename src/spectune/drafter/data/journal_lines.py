"""Lines of a journal: each on disk whole, or not at all once the file is opened again."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import IO, Any


def line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n"


def write_whole(file: IO[bytes], line: bytes) -> None:
    """All of the line, or none of it: a full disk may take a part, which is cut off again."""
    begin = file.seek(0, os.SEEK_END)
    written = 0
    try:
        while written < len(line):
            written += file.write(line[written:])
    except OSError:
        with contextlib.suppress(OSError):  # else the next start cuts it off
            file.truncate(begin)
        raise


def cut_torn_line(path: Path) -> None:
    """A kill in the middle of a write leaves a last line without its end."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        kept = size
        while kept:
            begin = max(0, kept - 65_536)
            file.seek(begin)
            newline = file.read(kept - begin).rfind(b"\n")
            if newline >= 0:
                kept = begin + newline + 1
                break
            kept = begin
        if kept < size:
            file.truncate(kept)
