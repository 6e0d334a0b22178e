"""How a rule speaks: a function of a ``Situation`` that returns a ``Judgement``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spectune.domain.findings import Finding
from spectune.preflight.situation import Situation


@dataclass(frozen=True)
class Judgement:
    """What a rule found, and what it would have needed to know. Both empty: looked, and found nothing."""

    findings: tuple[Finding, ...] = ()
    not_checked: tuple[str, ...] = ()

    def __add__(self, other: Judgement) -> Judgement:
        return Judgement(self.findings + other.findings, self.not_checked + other.not_checked)


Rule = Callable[[Situation], Judgement]

FINE = Judgement()


def found(*findings: Finding | None) -> Judgement:
    """A judgement of the findings that are not ``None``."""
    return Judgement(findings=tuple(finding for finding in findings if finding is not None))


def not_checked(*reasons: str) -> Judgement:
    """A judgement of rules that could not be applied; each reason says which and why."""
    return Judgement(not_checked=reasons)


def judge(situation: Situation, rules: Iterable[Rule]) -> Judgement:
    """All findings in the order of the rules, and every reason once."""
    findings: list[Finding] = []
    reasons: dict[str, None] = {}
    for rule in rules:
        judgement = rule(situation)
        findings.extend(judgement.findings)
        reasons.update(dict.fromkeys(judgement.not_checked))
    return Judgement(tuple(findings), tuple(reasons))
