"""Which tensors hold values that are no finite numbers: weights read once, a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spectune.checkpoints.facts import CheckpointFacts, TensorInfo
from spectune.checkpoints.gguf import read_gguf
from spectune.checkpoints.gguf_types import TYPES
from spectune.checkpoints.reading import LocalFiles, Unreadable
from spectune.checkpoints.safetensors import read_header

MAX_SCANNED_BYTES = 16 * 10**9
"""Of one model: a draft is smaller, and what is larger takes minutes to read."""
_PIECE_BYTES = 4 * 2**20
_EXPONENTS = {"BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00), "F8_E5M2": ("u1", 0x7C)}
"""Type to read as, and the bits that are all set in NaN and infinity."""
_FLOATS = {"F32": "<f4", "F64": "<f8"}
_SCALES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0, 1)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 2),
    "Q3_K": (108, 1),
    "Q6_K": (208, 1),
}
"""Of a GGUF block: where its half-precision scales begin, and how many they are."""
_BLOCK_BYTES = {name: size for name, _, size in TYPES.values()}
_WHOLE_NUMBERS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")


@dataclass(frozen=True)
class Scan:
    """``not_finite``: by tensor, how many values (of a GGUF, scales of blocks) are NaN or infinite."""

    not_finite: Mapping[str, int]
    not_read: tuple[str, ...] = ()
    """What was left out, each with its reason."""


def scan_weights(facts: CheckpointFacts) -> Scan:
    """Reads every weight of a checkpoint on this machine; memory does not grow with it."""
    if facts.kind == "hub":
        return Scan({}, ("values of the weights: not read for a name on the hub; give a folder",))
    if facts.kind == "absent" or not facts.tensors:
        return Scan({})
    if (facts.weight_bytes or 0) > MAX_SCANNED_BYTES:
        size = f"{(facts.weight_bytes or 0) / 1e9:.0f} GB, more than the {MAX_SCANNED_BYTES // 10**9} GB read"
        return Scan({}, (f"values of the weights: {size}",))
    root = Path(facts.source).expanduser()
    files = {info.file for info in facts.tensors.values()}
    found: dict[str, int] = {}
    unknown: dict[str, None] = {}
    notes = []
    for name in sorted(files):
        path = root.with_name(name) if facts.kind == "gguf" else root / name
        try:
            notes += _scan_file(path, facts.kind, found, unknown)
        except (OSError, Unreadable) as error:
            notes.append(f"values of {name}: {error}")
    notes += [f"values of tensors of type {kind}: not understood here" for kind in unknown]
    return Scan(found, tuple(notes))


def _scan_file(path: Path, kind: str, found: dict[str, int], unknown: dict[str, None]) -> list[str]:
    header: Any = read_gguf(path) if kind == "gguf" else read_header(LocalFiles(path.parent), path.name)
    with path.open("rb", buffering=0) as file:
        for name, info in sorted(header.tensors.items(), key=lambda item: header.begins[item[0]]):
            if info.dtype in _WHOLE_NUMBERS:
                continue
            unit = _unit_bytes(info)
            if unit is None or info.num_bytes is None:
                unknown[info.dtype] = None
                continue
            file.seek(header.begins[name])
            count = _count(file, info, unit=unit)
            if count is None:
                return [f"values of {name}: {path.name} ends before them"]
            if count:
                found[name] = count
    return []


def _unit_bytes(info: TensorInfo) -> int | None:
    """Pieces of a tensor are whole numbers of these; ``None``: a type whose values are not understood."""
    if info.dtype in _SCALES:
        return _BLOCK_BYTES[info.dtype]
    if info.dtype == "F8_E4M3":
        return 1
    kind = _FLOATS.get(info.dtype) or _EXPONENTS.get(info.dtype, (None,))[0]
    return None if kind is None else np.dtype(kind).itemsize


def _count(file: Any, info: TensorInfo, *, unit: int) -> int | None:
    """``None``: the file ends before the tensor does."""
    left, count = info.num_bytes or 0, 0
    while left:
        piece = bytearray(min(left, max(1, _PIECE_BYTES // unit) * unit))
        view, at = memoryview(piece), 0
        while at < len(piece):
            read = file.readinto(view[at:])
            if not read:
                return None
            at += read
        count += _not_finite(np.frombuffer(piece, dtype=np.uint8), info.dtype)
        left -= len(piece)
    return count


def _not_finite(content: npt.NDArray[np.uint8], dtype: str) -> int:
    if dtype in _FLOATS:
        return int(content.size // np.dtype(_FLOATS[dtype]).itemsize - _num_finite(content, dtype))
    if dtype == "F8_E4M3":
        return int(((content & 0x7F) == 0x7F).sum())
    if dtype in _SCALES:
        begin, number = _SCALES[dtype]
        blocks = content.reshape(-1, _BLOCK_BYTES[dtype])[:, begin : begin + 2 * number]
        content, dtype = np.ascontiguousarray(blocks).reshape(-1), "F16"
    kind, mask = _EXPONENTS[dtype]
    return int(((content.view(kind) & mask) == mask).sum())


def _num_finite(content: npt.NDArray[np.uint8], dtype: str) -> int:
    return int(np.isfinite(content.view(_FLOATS[dtype])).sum())
