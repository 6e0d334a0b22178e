"""``d2t`` and ``t2d``: the only tensors of a draft whose values are read, because a shape cannot judge them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from itertools import pairwise

from spectune.checkpoints.facts import VocabMap, VocabMask

MAX_ENTRIES = 2_000_000
_INTEGERS = {"I64": "q", "I32": "i", "U32": "I", "I16": "h", "U16": "H", "U64": "Q", "BOOL": "B", "U8": "B"}


def bytes_of(length: int, dtype: str) -> int | None:
    """How many bytes to read; ``None``: a type or length that is not read."""
    code = _INTEGERS.get(dtype)
    if code is None or length > MAX_ENTRIES:
        return None
    return length * struct.calcsize(code)


def _values(content: bytes, dtype: str) -> tuple[int, ...]:
    code = _INTEGERS.get(dtype)
    if code is None:
        return ()
    count = len(content) // struct.calcsize(code)
    return struct.unpack(f"<{count}{code}", content[: count * struct.calcsize(code)])


def read_map(content: bytes, dtype: str, *, length: int) -> VocabMap:
    """What the entries would mean as offsets and as ids."""
    values = _values(content, dtype)
    if not values or len(values) < length:
        return VocabMap(length=length, dtype=dtype)
    targets = [index + value for index, value in enumerate(values)]
    return VocabMap(
        length=length,
        dtype=dtype,
        lowest=min(values),
        highest=max(values),
        num_distinct_as_offsets=len(set(targets)),
        num_distinct_as_ids=len(set(values)),
        highest_as_offsets=max(targets),
        lowest_as_offsets=min(targets),
        rises_as_offsets=_rises(targets),
        rises_as_ids=_rises(values),
        target_ids_hash=_hash_of_ids(targets),
        plain_ids_hash=_hash_of_ids(values),
    )


def read_mask(content: bytes, dtype: str, *, length: int) -> VocabMask:
    """How many target tokens the mask admits, and which."""
    values = _values(content, dtype)
    if not values or len(values) < length:
        return VocabMask(length=length, dtype=dtype)
    admitted = [index for index, value in enumerate(values) if value]
    return VocabMask(length, dtype, len(admitted), _hash_of_ids(admitted))


def _rises(values: Sequence[int]) -> bool:
    return all(later > earlier for earlier, later in pairwise(values))


def _hash_of_ids(ids: Sequence[int]) -> str:
    text = ",".join(map(str, sorted(ids)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
