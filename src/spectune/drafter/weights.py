"""Safetensors read and written whole, with numpy alone: bytes stay as they are, whatever their type."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spectune.checkpoints.reading import LocalFiles, Unreadable
from spectune.checkpoints.safetensors import DTYPE_BITS, read_header
from spectune.errors import BadInput

Array = npt.NDArray[Any]
_NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "U16": "<u2",
    "U32": "<u4",
    "BOOL": "?",
}
_ALIGNMENT = 8


@dataclass(frozen=True)
class Weight:
    """One tensor: ``data`` are its bytes, little-endian and row-major."""

    dtype: str
    """As safetensors spells it: ``BF16``."""
    shape: tuple[int, ...]
    data: Array

    def floats(self) -> Array:
        """As float32. Raises ``BadInput`` for types that are no plain numbers."""
        if self.dtype == "BF16":
            wide = self.data.view("<u2").astype(np.uint32) << 16
            return wide.view(np.float32).reshape(self.shape)
        if self.dtype in ("F32", "F16", "F64"):
            return self.data.view(_NUMPY[self.dtype]).astype(np.float32).reshape(self.shape)
        raise BadInput(f"a tensor of type {self.dtype}: quantised drafts cannot be converted")

    def integers(self) -> Array:
        """As int64."""
        if self.dtype not in _NUMPY or self.dtype.startswith("F"):
            raise BadInput(f"a vocabulary map of type {self.dtype}, expected whole numbers")
        return self.data.view(_NUMPY[self.dtype]).astype(np.int64).reshape(self.shape)


def weight_of(array: Array) -> Weight:
    """A tensor of a type that numpy and safetensors share."""
    names = {np.dtype(code): name for name, code in _NUMPY.items()}
    contiguous = np.ascontiguousarray(array)
    return Weight(names[contiguous.dtype], contiguous.shape, contiguous.reshape(-1).view(np.uint8))


def read_weights(folder: Path) -> dict[str, Weight]:
    """All tensors of a folder's safetensors files, mapped, not copied. Raises ``BadInput``."""
    files = LocalFiles(folder)
    weights: dict[str, Weight] = {}
    for name in sorted(name for name in files.names() if name.endswith(".safetensors")):
        try:
            header = read_header(files, name)
        except Unreadable as error:
            raise BadInput(f"{folder / name}: {error}") from error
        if header.faults:
            raise BadInput(f"{folder}: {header.faults[0]}")
        content: Array = np.memmap(folder / name, dtype=np.uint8, mode="r")
        for key, info in header.tensors.items():
            begin = header.begins[key]
            weights[key] = Weight(info.dtype, info.shape, content[begin : begin + (info.num_bytes or 0)])
    return weights


def write_weights(path: Path, weights: Mapping[str, Weight]) -> None:
    """One safetensors file, flushed to the disk; the largest alignments first, as the format's own writer does."""
    ordered = sorted(weights.items(), key=lambda item: (-DTYPE_BITS[item[1].dtype], item[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, weight in ordered:
        size = math.prod(weight.shape) * DTYPE_BITS[weight.dtype] // 8
        header[name] = {
            "dtype": weight.dtype,
            "shape": list(weight.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, weight in ordered:
            file.write(np.ascontiguousarray(weight.data).data)
        file.flush()
        os.fsync(file.fileno())
