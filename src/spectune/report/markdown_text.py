"""Pieces of Markdown that foreign text cannot break out of."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spectune.analysis.words import one_line, visible

_SPECIAL = re.compile(r"([\\`*|#~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:]))")
_OPENING = re.compile(r"^(\d+(?=[.)](?:\s|$))|(?=[-+]\s|--|==))")
_MENTION = re.compile(r"@(?=[A-Za-z0-9])")


def escape(text: str, *, limit: int = 400) -> str:
    """One line of foreign text that Markdown shows as it is, inside a table too.

    Underscores within a word and brackets that open no link are left alone, so
    that the source stays readable. ``@name`` is cut so that nobody is notified.
    """
    line = one_line(text, limit=limit)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _OPENING.sub(r"\1\\", _SPECIAL.sub(r"\\\1", line))
    return _MENTION.sub("@<!-- -->", line)


def code(text: str) -> str:
    """An inline code span that survives backticks in ``text``; not for tables."""
    line = one_line(text)
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def block(text: str) -> str:
    """A fenced block; the fence is longer than any run of backticks inside."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}text\n{visible(text).rstrip()}\n{fence}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Cells must be escaped already."""
    rule = ["---:" if i in right else "---" for i in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
