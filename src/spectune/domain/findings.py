"""A named doubt, fault or limit, in a form that a person and a script can act on."""

from __future__ import annotations

from typing import Literal

from spectune.domain.record import Record, SafeText

Severity = Literal["error", "warning", "note"]


class Evidence(Record):
    source: str
    detail: SafeText


class Finding(Record):
    """A named doubt, fault or limit, with what it rests on and what to do; ``code`` has a page in the docs."""

    code: str
    severity: Severity
    subject: str
    """What it is about: an arm's name, a file, the study."""
    message: SafeText
    evidence: tuple[Evidence, ...] = ()
    effect: SafeText | None = None
    remedy: SafeText | None = None
