"""Byte ranges of a model's files, within a budget: what the readers of formats stand on."""

from __future__ import annotations

import gc
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

MAX_CHECKPOINT_BYTES = 48_000_000
"""Most that is read of one model: headers, configurations and vocabularies, never weights."""
MAX_FILES = 20_000
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Unreadable(Exception):
    """One file could not be read or understood; the text is the reason, without the file's name."""


class Damaged(Unreadable):
    """The file contradicts itself: an engine that loads it fails too."""


class Unreachable(Unreadable):
    """The file may be in order: whoever holds it did not hand it over."""


class ModelFiles(Protocol):
    """The files of one model, wherever they are."""

    bytes_read: int
    parallel: int
    """How many reads may be under way at once; 1 for a disk."""

    def names(self) -> frozenset[str]:
        """File names at the top of the model's folder."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of the file; ``None`` if only a read would tell."""
        ...

    def read(self, name: str, *, start: int = 0, length: int) -> bytes:
        """At most ``length`` bytes; fewer at the end of the file. Raises ``Unreadable``."""
        ...


class LocalFiles:
    """The regular files of one folder; links are followed, pipes and devices are not opened."""

    parallel = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bytes_read = 0
        self._sizes: dict[str, int] = {}
        self.problems: list[str] = []
        with os.scandir(folder) as entries:
            for index, entry in enumerate(entries):
                if index >= MAX_FILES:
                    self.problems.append(
                        f"{folder}: more than {MAX_FILES} entries; the rest was not looked at"
                    )
                    break
                self._add(entry)

    def _add(self, entry: os.DirEntry[str]) -> None:
        try:
            status = entry.stat()
        except OSError as error:
            self.problems.append(f"{entry.name}: {error.strerror or error}")
            return
        if stat.S_ISREG(status.st_mode):
            self._sizes[entry.name] = status.st_size

    def names(self) -> frozenset[str]:
        return frozenset(self._sizes)

    def size(self, name: str) -> int | None:
        return self._sizes.get(name)

    def read(self, name: str, *, start: int = 0, length: int) -> bytes:
        _within_budget(self.bytes_read, length)
        try:
            with (self.folder / name).open("rb", buffering=0) as file:
                file.seek(start)
                content = _read_exactly(file.read, length)
        except OSError as error:
            raise Unreadable(error.strerror or str(error)) from error
        except (OverflowError, ValueError) as error:
            raise Unreadable(f"cannot read from byte {start}: {error}") from error
        self.bytes_read += len(content)
        return content


def _read_exactly(read: Any, length: int) -> bytes:
    """Unbuffered reads may return less than asked for."""
    pieces: list[bytes] = []
    while length > 0:
        piece: bytes = read(length)
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def _within_budget(spent: int, length: int) -> None:
    if spent + length > MAX_CHECKPOINT_BYTES:
        raise Unreadable(
            f"reading {length} more bytes would pass the {MAX_CHECKPOINT_BYTES // 1_000_000} MB read per model"
        )


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile: 100,000 header entries hold no cycles, and looking for some takes a third."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_whole(files: ModelFiles, name: str, *, limit: int) -> bytes:
    """A whole small file; raises ``Unreadable`` if it is larger than ``limit`` bytes."""
    size = files.size(name)
    if size is not None and size > limit:
        raise Unreadable(f"{size} bytes, more than the {limit} read of such a file")
    content = files.read(name, length=(size if size is not None else limit + 1))
    if len(content) > limit:
        raise Unreadable(f"more than the {limit} bytes read of such a file")
    return content


def parse_json_object(content: bytes) -> dict[str, Any]:
    """Raises ``Unreadable`` for anything that is not one JSON object, however deep or long."""
    try:
        value = json.loads(content)
        if _SURROGATE.search(content):
            value = _well_formed(value)
    except UnicodeDecodeError as error:
        raise Unreadable("not JSON: not UTF-8 text") from error
    except RecursionError as error:
        raise Unreadable("not JSON that can be read: nested too deeply") from error
    except ValueError as error:
        raise Unreadable(f"not JSON: {str(error)[:120]}") from error
    if not isinstance(value, dict):
        raise Unreadable(f"expected a JSON object, got {type(value).__name__}")
    return value


def _well_formed(value: Any) -> Any:
    """Without halves of surrogate pairs: such a name could be written nowhere."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_well_formed(item) for item in value]
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed(item) for key, item in value.items()}
    return value


def read_json(files: ModelFiles, name: str, *, limit: int) -> dict[str, Any]:
    """A JSON object from a file of at most ``limit`` bytes; raises ``Unreadable``."""
    return parse_json_object(read_whole(files, name, limit=limit))
