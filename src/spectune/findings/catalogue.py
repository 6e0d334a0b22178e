"""The kinds of findings. Each one is a page of the folder ``pages``, and a rule names it by the name of its file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import get_args

from spectune.domain.findings import Evidence, Finding, Severity
from spectune.domain.record import Record
from spectune.errors import BadInput

GROUPS = {
    "Draft and target": "check",
    "Flags": "check",
    "Memory": "check",
    "Logs and running servers": "diagnose",
    "The host, before a launch": "run",
    "Measurements": "run",
}
"""The groups in which the docs list the findings, each with the command that makes them."""

PAGES = Path(__file__).parent / "pages"

_VALID = {"group": tuple(GROUPS), "severity": get_args(Severity), "slows": ("yes",), "absent": ("yes",)}
_NEEDED = ("group", "severity", "title", "holds for")
_SWITCHES = ("slows", "absent")
_KEYS = (*_NEEDED, *_SWITCHES, "effect", "remedy", "source")


class PageError(ValueError):
    """A page is missing, or is not written as a page is."""


class FindingKind(Record):
    """What a rule can find, once, in general words: one page."""

    code: str
    """The name of the page: lower case with dashes, ``draft-algorithm-mismatch``."""
    group: str
    severity: Severity
    title: str
    """One line, no full stop."""
    explanation: str
    """What happens and why, for an engineer who has never seen it."""
    effect: str | None = None
    remedy: str | None = None
    holds_for: str
    """Engines and versions the rule was read in or measured on."""
    sources: tuple[str, ...] = ()
    """Where that was read: addresses, or ``measured``."""
    slows: bool = False
    """Speculation as it stands is then slower than none: no arm of which this is found is expected to be faster."""
    absent: bool = False
    """A flag that is not there is what was found: not said of a command with words that only a shell could fill in."""

    def found(
        self,
        subject: str,
        message: str,
        *,
        evidence: Iterable[tuple[str, str]] = (),
        effect: str | None = None,
        remedy: str | None = None,
        severity: Severity | None = None,
    ) -> Finding:
        """One occurrence; what is not given is taken from the kind."""
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            subject=subject,
            message=message,
            evidence=tuple(Evidence(source=source, detail=detail) for source, detail in evidence),
            effect=effect if effect is not None else self.effect,
            remedy=remedy if remedy is not None else self.remedy,
        )


@cache
def finding_kind(code: str) -> FindingKind:
    """The kind whose page is ``code``.md; raises ``PageError`` where there is none, or one with a mistake."""
    try:
        text = (PAGES / f"{code}.md").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PageError(f"the finding {code} has no page: there is no {PAGES / f'{code}.md'}") from None
    return read_page(code, text)


@cache
def all_kinds() -> tuple[FindingKind, ...]:
    """The kinds of all pages, by code."""
    return tuple(finding_kind(code) for code in sorted(page.stem for page in PAGES.iterdir()))


def kinds_made_by(command: str) -> tuple[FindingKind, ...]:
    """The kinds that ``check``, ``diagnose`` or ``run`` makes."""
    return tuple(kind for kind in all_kinds() if GROUPS[kind.group] == command)


def check_codes(codes: Iterable[str]) -> None:
    """Raises ``BadInput`` for a code that ``check`` never gives."""
    known = [kind.code for kind in kinds_made_by("check")]
    for code in codes:
        if code not in known:
            near = difflib.get_close_matches(code, known, n=3) or known[:3]
            raise BadInput(
                f"--allow {code}: check has no such finding; near: {', '.join(near)} (all: docs/findings)"
            )


def read_page(code: str, text: str) -> FindingKind:
    """The kind that a page describes: lines ``key: value`` between two lines ``---``, then the explanation.

    A value is taken as it stands, to the end of its line. ``source`` may be given several times.
    """
    lines = text.split("\n")
    if lines[0] != "---" or "---" not in lines[1:]:
        raise PageError(f"{code}.md:1: a page begins with its keys, between two lines ---")
    end = lines.index("---", 1)
    given: dict[str, list[str]] = {}
    for number, line in enumerate(lines[1:end], start=2):
        key, _, value = line.partition(": ")
        given.setdefault(key, []).append(value)
        if problem := _problem(key, value, times=len(given[key])):
            raise PageError(f"{code}.md:{number}: {problem}")
    explanation = "\n".join(lines[end + 1 :]).strip()
    missing = [key for key in _NEEDED if key not in given] or ["explanation"] * (not explanation)
    if missing:
        raise PageError(f"{code}.md:{end + 1}: {' and '.join(missing)} missing")
    others = {"sources": tuple(given.pop("source", ())), **{key: key in given for key in _SWITCHES}}
    texts = {key.replace(" ", "_"): values[0] for key, values in given.items() if key not in _SWITCHES}
    return FindingKind.model_validate({"code": code, "explanation": explanation, **texts, **others})


def _problem(key: str, value: str, *, times: int) -> str | None:
    """What is wrong with one line of a page's head."""
    if key not in _KEYS:
        return f"no key {key!r}; valid: {', '.join(_KEYS)}"
    if not value or value != value.strip():
        return f"{key} has no value, or blanks around it"
    if value not in _VALID.get(key, (value,)):
        return f"{key} is {value!r}; valid: {', '.join(_VALID[key])}"
    return f"{key} is given twice" if times > 1 and key != "source" else None
