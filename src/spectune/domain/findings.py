"""A named doubt, fault or limit, in a form that a person and a script can act on."""

from __future__ import annotations

from typing import Literal

from spectune.domain.record import Record

Severity = Literal["error", "warning", "note"]


class Evidence(Record):
    source: str
    detail: str


class Finding(Record):
    code: str
    severity: Severity
    subject: str
    """What it is about: an arm's name, a file, the study."""
    message: str
    evidence: tuple[Evidence, ...] = ()
    effect: str | None = None
    remedy: str | None = None
