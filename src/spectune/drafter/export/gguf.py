"""GGUF written with numpy alone: version 3, little-endian, and the four types a draft is stored in.

The package ``gguf`` does this too, and serves as an independent reader in the
tests; a draft needs so little of it that export works with the core alone.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spectune.checkpoints.gguf_types import TYPES
from spectune.drafter.weights import Array
from spectune.errors import BadInput

ALIGNMENT = 32
TYPE_NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}
FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}
"""``general.file_type``."""
_BLOCK = 32
_VERSION = 3
_STRING, _ARRAY = 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MAX_STRING = 16_000_000


@dataclass(frozen=True)
class RawValue:
    """A metadata value as bytes: its type number, then its content."""

    content: bytes


def uint32(value: int) -> RawValue:
    return RawValue(struct.pack("<II", 4, value))


def float32(value: float) -> RawValue:
    return RawValue(struct.pack("<If", 6, value))


def boolean(value: bool) -> RawValue:
    return RawValue(struct.pack("<I?", 7, value))


def string(value: str) -> RawValue:
    return RawValue(struct.pack("<I", _STRING) + _text(value))


def int32_array(values: Sequence[int]) -> RawValue:
    return RawValue(struct.pack(f"<IIQ{len(values)}i", _ARRAY, 5, len(values), *values))


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


@dataclass(frozen=True)
class GgufTensor:
    type_name: str
    shape: tuple[int, ...]
    """Row-major."""
    data: bytes


def encode_tensor(array: Array, type_name: str) -> GgufTensor:
    """``array`` (float32 or int64) in one of the types; rows must be whole blocks for ``Q8_0``."""
    shape = tuple(int(size) for size in array.shape)
    if type_name == "I64":
        return GgufTensor(type_name, shape, np.ascontiguousarray(array, dtype="<i8").tobytes())
    floats = np.ascontiguousarray(array, dtype=np.float32)
    if type_name == "F32":
        data = floats.astype("<f4").tobytes()
    elif type_name == "F16":
        data = floats.astype("<f2").tobytes()
    elif type_name == "BF16":
        data = _bfloat16(floats).tobytes()
    else:
        data = _q8_0(floats).tobytes()
    return GgufTensor(type_name, shape, data)


def _bfloat16(floats: Array) -> Array:
    """Rounded to nearest, ties to even."""
    bits = floats.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _q8_0(floats: Array) -> Array:
    """Blocks of 32: one half-precision scale, then 32 signed bytes; ties are rounded away from zero, as in ggml."""
    if floats.shape[-1] % _BLOCK:
        raise BadInput(
            f"rows of {floats.shape[-1]} values are no whole blocks of {_BLOCK}: take another --gguf-type"
        )
    blocks = floats.reshape(-1, _BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    scaled = blocks * inverse
    rounded = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int8)
    return np.concatenate([scale.astype("<f2").view(np.uint8), rounded.view(np.uint8)], axis=1)


def decode_q8_0(data: bytes, shape: tuple[int, ...]) -> Array:
    """Back to float32."""
    blocks = np.frombuffer(data, dtype=np.uint8).reshape(-1, 2 + _BLOCK)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return (blocks[:, 2:].copy().view(np.int8).astype(np.float32) * scale).reshape(shape)


def write_gguf(path: Path, metadata: Mapping[str, RawValue], tensors: Mapping[str, GgufTensor]) -> None:
    """The whole file, flushed to the disk."""
    head = [struct.pack("<4sIQQ", b"GGUF", _VERSION, len(tensors), len(metadata))]
    head += [_text(key) + value.content for key, value in metadata.items()]
    offset = 0
    for name, tensor in tensors.items():
        rank = len(tensor.shape)
        head.append(_text(name) + struct.pack(f"<I{rank}Q", rank, *reversed(tensor.shape)))
        head.append(struct.pack("<IQ", TYPE_NUMBERS[tensor.type_name], offset))
        offset += len(tensor.data) + -len(tensor.data) % ALIGNMENT
    content = b"".join(head)
    with path.open("wb") as file:
        file.write(content + b"\0" * (-len(content) % ALIGNMENT))
        for tensor in tensors.values():
            file.write(tensor.data + b"\0" * (-len(tensor.data) % ALIGNMENT))
        file.flush()
        os.fsync(file.fileno())


def copied_metadata(path: Path, *, prefix: str) -> dict[str, RawValue]:
    """The values of a GGUF file whose keys begin with ``prefix``, byte by byte. Raises ``BadInput``."""
    try:
        with path.open("rb") as file:
            content: Any = np.memmap(file, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from error
    walk = _Walk(memoryview(content), path)
    if bytes(walk.take(4)) != b"GGUF" or walk.number("I") not in (2, 3):
        raise BadInput(f"{path}: not a GGUF file of version 2 or 3")
    walk.number("Q")
    found: dict[str, RawValue] = {}
    for _ in range(walk.number("Q")):
        key = bytes(walk.take(walk.number("Q"))).decode("utf-8", "replace")
        begin = walk.position
        walk.skip_value(walk.number("I"))
        if key.startswith(prefix):
            found[key] = RawValue(bytes(walk.content[begin : walk.position]))
    return found


@dataclass
class _Walk:
    content: memoryview
    path: Path
    position: int = 0

    def take(self, length: int) -> memoryview:
        if length > _MAX_STRING * 64 or self.position + length > len(self.content):
            raise BadInput(f"{self.path}: cut short or damaged at byte {self.position}")
        piece = self.content[self.position : self.position + length]
        self.position += length
        return piece

    def number(self, code: str) -> int:
        return int(struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0])

    def skip_value(self, kind: int) -> None:
        if kind in _SCALAR_BYTES:
            self.take(_SCALAR_BYTES[kind])
        elif kind == _STRING:
            self.take(self.number("Q"))
        elif kind == _ARRAY:
            item, count = self.number("I"), self.number("Q")
            if item in _SCALAR_BYTES:
                self.take(count * _SCALAR_BYTES[item])
            elif item == _STRING:
                for _ in range(count):
                    self.take(self.number("Q"))
            else:
                raise BadInput(f"{self.path}: an array of type {item} at byte {self.position}")
        else:
            raise BadInput(f"{self.path}: metadata of type {kind} at byte {self.position}")
