"""Cells of a CSV row, read with the place of every mistake."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from spectune.domain.interval import Interval
from spectune.errors import Problem

_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
    "": None,
}
_LEAST_TOK_PER_S, _MOST_TOK_PER_S = 0.001, 10_000_000.0
_RANGE = re.compile(r"^\s*([0-9.]+)\s*(?:-|–|to)\s*([0-9.]+)\s*$")


@dataclass(frozen=True)
class Cells:
    """One row; what cannot be read is added to ``problems``."""

    line: int
    values: dict[str, str]
    problems: list[Problem]

    def text(self, column: str) -> str:
        return self.values.get(column, "")

    def problem(self, column: str, message: str) -> None:
        self.problems.append(Problem(column, f"{message}, got {self.text(column)[:60]!r}", self.line))

    def whole(self, column: str, *, least: int, most: int) -> int | None:
        text = self.text(column)
        if not text:
            return None
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            self.problem(column, f"must be a whole number from {least} to {most}, or empty for unknown")
            return None
        return int(text)

    def speed(self, column: str) -> float | None:
        value = _number(self.text(column))
        if value is None or not _LEAST_TOK_PER_S <= value <= _MOST_TOK_PER_S:
            self.problem(
                column, f"must be tokens per second, from {_LEAST_TOK_PER_S:g} to {_MOST_TOK_PER_S:,.0f}"
            )
            return None
        return value

    def tpot_s(self, column: str, *, tok_per_s: float | None) -> float | None:
        """Per token after the first; at most what a token of the whole request takes."""
        text = self.text(column)
        if not text:
            return None
        value = _number(text)
        if value is None or not 1000 / _MOST_TOK_PER_S <= value <= 1000 / _LEAST_TOK_PER_S:
            self.problem(
                column, "must be milliseconds per output token after the first, or empty for unknown"
            )
            return None
        if tok_per_s is not None and value > 1.005 * 1000 / tok_per_s:
            most = 1000 / tok_per_s
            self.problem(column, f"is more than the {most:.4g} ms that a token of the whole request takes")
            return None
        return value / 1000

    def flag(self, column: str) -> bool | None:
        text = self.text(column).lower()
        if text not in _WORDS:
            self.problem(column, "must be true, false, or empty for unknown")
            return None
        return _WORDS[text]

    def length(self, column: str, *, most: int | None) -> Interval | None:
        text = self.text(column)
        if not text:
            return None
        match = _RANGE.match(text)
        bounds = [_number(part) for part in (match.groups() if match else (text, text))]
        if bounds[0] is None or bounds[1] is None or not 1 <= bounds[0] <= bounds[1]:
            self.problem(
                column, "must be a number of at least 1 (the bonus token counts), or a range like 2.1-2.5"
            )
            return None
        low, high = bounds[0], bounds[1]
        if most is not None and high > most:
            self.problem(column, f"is more than the {most} tokens a step of this arm can give")
            return None
        value = (low + high) / 2
        known = low < high
        return Interval(
            value=value, low=low if known else None, high=high if known else None, n=1, unit="tokens/step"
        )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
