"""Safetensors headers: names, types and shapes, without the data behind them.

Layout: 8 bytes of header length, little-endian; a JSON object of that length;
then the data, to which ``data_offsets`` are relative.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from spectune.checkpoints.facts import TensorInfo
from spectune.checkpoints.reading import Damaged, ModelFiles, Unreadable, parse_json_object

MAX_HEADER_BYTES = 16_000_000
_FIRST_READ = 65_536
"""Over a network one larger request, which mostly holds the whole header, beats two."""
_MAX_RANK = 16

DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}


@dataclass(frozen=True)
class Header:
    """One file's tensors and where their bytes lie."""

    tensors: dict[str, TensorInfo]
    begins: dict[str, int]
    """Offset in the file of each tensor's first byte."""
    faults: tuple[str, ...]


def read_header(files: ModelFiles, name: str) -> Header:
    """Raises ``Damaged`` for a file no engine could load, ``Unreadable`` for one that was not looked at."""
    size = files.size(name)
    begin = _FIRST_READ if files.parallel > 1 else 8
    first = files.read(name, length=begin if size is None else min(begin, size))
    if len(first) < 8:
        raise Damaged(f"{len(first)} bytes: too short for a safetensors header")
    (length,) = struct.unpack("<Q", first[:8])
    if size is not None and 8 + length > size:
        raise Damaged(f"the header claims {length} bytes in a file of {size}: cut short, or not safetensors")
    if length > MAX_HEADER_BYTES:
        raise Unreadable(f"a header of {length} bytes, more than the {MAX_HEADER_BYTES} read")
    content = first[8 : 8 + length]
    if len(content) < length:
        content += files.read(name, start=8 + len(content), length=length - len(content))
    if len(content) < length:
        raise Damaged(f"cut short: {len(content)} of {length} header bytes")
    try:
        entries = parse_json_object(content)
    except Unreadable as error:
        raise Damaged(f"header: {error}") from error
    return _header(entries, name, data_begins=8 + length, size=size)


def _header(entries: dict[str, Any], name: str, *, data_begins: int, size: int | None) -> Header:
    tensors: dict[str, TensorInfo] = {}
    begins: dict[str, int] = {}
    malformed: list[str] = []
    furthest = 0
    for key, entry in entries.items():
        if key == "__metadata__":
            continue
        parsed = _tensor(entry, name)
        if parsed is None:
            malformed.append(key)
            continue
        info, begin, end = parsed
        tensors[key] = info
        begins[key] = data_begins + begin
        furthest = max(furthest, end)
    faults = []
    if malformed:
        faults.append(f"{name}: {len(malformed)} malformed header entries, first {malformed[0][:80]!r}")
    if size is not None and data_begins + furthest > size:
        missing = data_begins + furthest - size
        faults.append(f"{name}: cut short, {missing} bytes of {data_begins + furthest} are missing")
    return Header(tensors, begins, tuple(faults))


def _tensor(entry: Any, name: str) -> tuple[TensorInfo, int, int] | None:
    """``None``: malformed. Written out, not split up: it runs for each of 100,000 tensors."""
    if type(entry) is not dict:
        return None
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if type(dtype) is not str or type(shape) is not list or len(shape) > _MAX_RANK:
        return None
    if type(offsets) is not list or len(offsets) != 2:
        return None
    begin, end = offsets
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
        return None
    count = 1
    for size in shape:
        if type(size) is not int or size < 0:
            return None
        count *= size
    bits = DTYPE_BITS.get(dtype)
    if bits is not None and (count * bits + 7) // 8 != end - begin:
        return None
    return TensorInfo(tuple(shape), dtype, name, end - begin), begin, end
