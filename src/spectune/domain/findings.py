"""A named doubt, fault or limit, in a form that a person and a script can act on."""

from __future__ import annotations

from collections.abc import Iterable
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


class FindingKind(Record):
    """What a rule can find, once, in general words: the source of its page in the docs."""

    code: str
    """Lower case with dashes: ``draft-algorithm-mismatch``."""
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
