"""Typed values from a configuration that anybody may have written: a wrong type is a note, never a crash."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

MAX_INT = 2**53


class ConfigValues:
    """Reads keys from several sections of one configuration, first section that has the key wins."""

    def __init__(self, sections: Iterable[Mapping[str, Any]], *, file: str) -> None:
        self._sections = tuple(sections)
        self._file = file
        self.notes: list[str] = []

    def raw(self, *keys: str) -> Any:
        """The first of the keys that is present and not null, section by section."""
        return self._find(keys)[1]

    def _find(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        for section in self._sections:
            for key in keys:
                value = section.get(key)
                if value is not None:
                    return key, value
        return "", None

    def _refuse(self, key: str, value: Any, expected: str) -> None:
        self.notes.append(f"{self._file}: {key} is {repr(value)[:60]}, expected {expected}; not used")

    def integer(self, *keys: str, least: int = 1) -> int | None:
        key, value = self._find(keys)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value <= MAX_INT:
            self._refuse(key, value, f"an integer of at least {least}")
            return None
        return value

    def number(self, *keys: str) -> float | None:
        key, value = self._find(keys)
        if value is None:
            return None
        if not is_number(value):
            self._refuse(key, value, "a number")
            return None
        return float(value)

    def text(self, *keys: str) -> str | None:
        key, value = self._find(keys)
        if value is None or isinstance(value, str):
            return value
        self._refuse(key, value, "text")
        return None

    def boolean(self, *keys: str) -> bool | None:
        key, value = self._find(keys)
        if value is None or isinstance(value, bool):
            return value
        self._refuse(key, value, "true or false")
        return None

    def section(self, *keys: str) -> Mapping[str, Any]:
        key, value = self._find(keys)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        self._refuse(key, value, "an object")
        return {}

    def texts(self, *keys: str) -> tuple[str, ...] | None:
        key, value = self._find(keys)
        if value is None:
            return None
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        self._refuse(key, value, "a list of texts")
        return None

    def ids(self, *keys: str) -> tuple[int, ...] | None:
        key, value = self._find(keys)
        if value is None:
            return None
        if (
            isinstance(value, list)
            and value
            and all(type(item) is int and abs(item) < MAX_INT for item in value)
        ):
            return tuple(value)
        if value != []:
            self._refuse(key, value, "a list of layer numbers")
        return None


def is_number(value: Any) -> bool:
    """A finite number that a float can hold; ``true`` and ``false`` are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def as_section(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
