"""GGUF: metadata and tensor entries, streamed, without the data behind them.

Layout (version 2 and 3, little-endian): magic, version, counts; key-value
pairs; tensor entries; then the data from the next multiple of the alignment.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from spectune.checkpoints.facts import TensorInfo
from spectune.checkpoints.gguf_types import tensor_bytes, type_name
from spectune.checkpoints.reading import MAX_CHECKPOINT_BYTES, Damaged, Unreadable

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_KEYS = 65_536
_MAX_TENSORS = 2_000_000
_MAX_STRING = 4_000_000
_MAX_ITEMS = 4_000_000
_KEPT_ITEMS = 1_024
"""Arrays up to this length are kept; of longer ones only length and hash."""
_MAX_RANK = 4
_CHUNK = 1 << 18


@dataclass(frozen=True)
class LongArray:
    """An array that is not kept: its length and a hash of its items in order."""

    length: int
    digest: str


@dataclass
class GgufHeader:
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    bytes_read: int = 0


class _Cursor:
    """A forward reader over a file that counts what it reads and never holds more than one value."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._buffer = b""
        self._at = 0
        self.size = size
        self.position = 0
        self.bytes_read = 0

    def take(self, length: int) -> bytes:
        if self.position + length > self.size:
            raise Damaged(f"cut short: {length} bytes expected at {self.position}, the file has {self.size}")
        if self._at + length > len(self._buffer):
            self._fill(length)
        piece = self._buffer[self._at : self._at + length]
        self._at += length
        self.position += length
        return piece

    def _fill(self, length: int) -> None:
        rest = self._buffer[self._at :]
        wanted = max(length - len(rest), _CHUNK)
        if self.bytes_read + wanted > MAX_CHECKPOINT_BYTES:
            raise Unreadable(f"metadata of more than {MAX_CHECKPOINT_BYTES // 1_000_000} MB")
        more = self._file.read(wanted)
        self.bytes_read += len(more)
        self._buffer, self._at = rest + more, 0
        if len(self._buffer) < length:
            raise Damaged(f"cut short at byte {self.position}")

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def string(self, limit: int = _MAX_STRING) -> bytes:
        length = self.number("Q")
        if length > limit:
            raise Damaged(f"a text of {length} bytes at {self.position}, more than {limit}")
        return self.take(length)


def read_gguf(path: Path) -> GgufHeader:
    """Raises ``Damaged`` for a file llama.cpp could not load either, ``Unreadable`` for one not looked at."""
    try:
        size = path.stat().st_size
        with path.open("rb", buffering=0) as file:
            cursor = _Cursor(file, size)
            header = _read(cursor, path.name)
            header.bytes_read = cursor.bytes_read
            return header
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error


def _read(cursor: _Cursor, name: str) -> GgufHeader:
    if cursor.size < 24 or cursor.take(4) != b"GGUF":
        raise Damaged("not a GGUF file: it does not begin with 'GGUF'")
    version = cursor.number("I")
    if version not in (2, 3):
        raise Unreadable(f"GGUF version {version}; versions 2 and 3, little-endian, are read")
    num_tensors, num_keys = cursor.number("Q"), cursor.number("Q")
    if num_tensors > _MAX_TENSORS or num_keys > _MAX_KEYS:
        raise Damaged(f"{num_tensors} tensors and {num_keys} keys claimed")
    header = GgufHeader()
    for _ in range(num_keys):
        key = cursor.string(65_536).decode("utf-8", "replace")
        header.metadata[key] = _value(cursor, cursor.number("I"))
    entries = [_tensor(cursor) for _ in range(num_tensors)]
    _place(header, entries, cursor, name)
    return header


def _value(cursor: _Cursor, kind: int) -> Any:
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind])
    if kind == _STRING:
        return cursor.string().decode("utf-8", "replace")
    if kind != _ARRAY:
        raise Damaged(f"metadata of unknown type {kind} at byte {cursor.position}")
    item_kind, length = cursor.number("I"), cursor.number("Q")
    if length > _MAX_ITEMS:
        raise Damaged(f"an array of {length} items at byte {cursor.position}")
    if item_kind in _SCALARS:
        return _scalars(cursor, _SCALARS[item_kind], length)
    if item_kind == _STRING:
        return _strings(cursor, length)
    raise Damaged(f"an array of type {item_kind} at byte {cursor.position}")


def _scalars(cursor: _Cursor, code: str, length: int) -> Any:
    width = struct.calcsize(f"<{code}")
    if length <= _KEPT_ITEMS:
        return list(struct.unpack(f"<{length}{code}", cursor.take(length * width)))
    digest = hashlib.sha256()
    left = length * width
    while left:
        piece = cursor.take(min(left, _CHUNK))
        digest.update(piece)
        left -= len(piece)
    return LongArray(length, digest.hexdigest()[:16])


def _strings(cursor: _Cursor, length: int) -> Any:
    kept: list[str] = []
    digest = hashlib.sha256()
    take, update, unpack = cursor.take, digest.update, struct.Struct("<Q").unpack
    for _ in range(length):
        prefix = take(8)
        (size,) = unpack(prefix)
        if size > _MAX_STRING:
            raise Damaged(f"a text of {size} bytes at {cursor.position}, more than {_MAX_STRING}")
        item = take(size)
        update(prefix)
        update(item)
        if length <= _KEPT_ITEMS:
            kept.append(item.decode("utf-8", "replace"))
    return kept if length <= _KEPT_ITEMS else LongArray(length, digest.hexdigest()[:16])


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string(65_536).decode("utf-8", "replace")
    rank = cursor.number("I")
    if rank > _MAX_RANK:
        raise Damaged(f"tensor {name[:80]!r} of rank {rank}")
    shape = tuple(cursor.number("Q") for _ in range(rank))
    return name, tuple(reversed(shape)), cursor.number("I"), cursor.number("Q")


def _place(
    header: GgufHeader, entries: list[tuple[str, tuple[int, ...], int, int]], cursor: _Cursor, file: str
) -> None:
    alignment = header.metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20:
        alignment = 32
    data_begins = -(-cursor.position // alignment) * alignment
    end = data_begins if entries else 0
    for name, shape, kind, offset in entries:
        num_bytes = tensor_bytes(kind, shape)
        header.tensors[name] = TensorInfo(shape, type_name(kind), file, num_bytes)
        header.begins[name] = data_begins + offset
        end = max(end, data_begins + offset + (num_bytes or 0))
    if end > cursor.size:
        header.faults.append(f"{file}: cut short, {end - cursor.size} bytes of {end} are missing")
