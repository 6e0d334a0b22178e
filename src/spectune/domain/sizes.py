"""Amounts of memory and disk in words, in the unit that shows them."""

from __future__ import annotations

_DECIMAL = ("bytes", "kB", "MB", "GB", "TB")
_BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB")


def in_bytes(amount: float, *, binary: bool = False) -> str:
    """``47.2 kB``, ``16.1 GB``; ``binary``: ``46.1 KiB``, as memory is counted. Bytes are whole."""
    base, units = (1024.0, _BINARY) if binary else (1000.0, _DECIMAL)
    value, unit = float(amount), 0
    while abs(value) >= base - 0.05 and unit < len(units) - 1:
        value, unit = value / base, unit + 1
    if unit == 0:
        return f"{value:.0f} byte" + ("s" if round(value) != 1 else "")
    return f"{value:.1f} {units[unit]}"
