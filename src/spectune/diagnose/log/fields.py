"""``name: value`` lists and numbers in log lines."""

from __future__ import annotations

import math
import re

from spectune.diagnose.log.records import Value

_NUMBERS = re.compile(r"\d+(?:\.\d+)?")


def named_values(text: str) -> dict[str, str]:
    """``. #running-req: 1, accept len: 2.21, `` -> ``{"running-req": "1", "accept len": "2.21"}``."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, colon, value = part.partition(":")
        if colon:
            found[name[name.rfind("#") + 1 :].strip(" .[]")] = value.strip()
    return found


def number(text: str | None) -> float | None:
    """A finite number with an optional unit behind it; NaN and everything else is ``None``."""
    if not text:
        return None
    try:
        value = float(text.split()[0].rstrip("%"))
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) and abs(value) < 1e15 else None


def whole(text: str | None) -> int | None:
    """A number of at least zero as a count."""
    value = number(text)
    return None if value is None or value < 0 else round(value)


def numbers_in(text: str) -> tuple[float, ...]:
    return tuple(float(found) for found in _NUMBERS.findall(text[:2000])[:64])


def literal(text: str) -> Value:
    """A value in Python or JSON spelling: ``'a'``, ``None``, ``True``, ``0.7``, a bare word."""
    text = text.strip()
    if text[:1] in "'\"" and len(text) >= 2:
        return text[1:-1]
    if text in ("None", "null"):
        return None
    if text in ("True", "true"):
        return True
    if text in ("False", "false"):
        return False
    value = number(text) if re.fullmatch(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?", text) else None
    if value is None:
        return text
    return int(value) if value.is_integer() and "." not in text and "e" not in text.lower() else value


def assignments(text: str, names: frozenset[str]) -> dict[str, Value]:
    """``name=value`` and ``'name': value`` of ``names``; the first of each counts."""
    found: dict[str, Value] = {}
    for match in _ASSIGNMENT.finditer(text):
        if match[1] in names and match[1] not in found:
            found[match[1]] = literal(match[2])
    return found


_ASSIGNMENT = re.compile(
    r"['\"]?\b([A-Za-z_]\w{1,60})['\"]?\s?[=:]\s?"
    r"('[^'\n]{0,4096}'|\"[^\"\n]{0,4096}\"|[-+\w./]{1,4096})"
)
