"""Careful access to JSON that came from a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_dict(value: Any) -> Mapping[str, Any]:
    """``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def as_int(value: Any) -> int | None:
    """Of 64 bits at most: what is larger is no count, and overflows where it is divided."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return value if is_count else None


def as_counts(value: Any) -> list[int] | None:
    """A list of non-negative integers, or ``None``."""
    if isinstance(value, list) and value and all(as_int(v) is not None and v >= 0 for v in value):
        return value
    return None


def first_model_id(body: Any) -> str | None:
    """The id of the first entry of an OpenAI ``/v1/models`` reply."""
    data = as_dict(body).get("data")
    if isinstance(data, list) and data:
        return as_str(as_dict(data[0]).get("id"))
    return None


def token_list(body: Any) -> tuple[int, ...] | None:
    """``{"tokens": [1, 2]}`` of a tokenize reply."""
    tokens = as_dict(body).get("tokens")
    if isinstance(tokens, list) and all(as_int(t) is not None for t in tokens):
        return tuple(tokens)
    return None
