"""Findings in a terminal: the same words for check, run and diagnose, with nothing in them that it would obey."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from spectune.domain.findings import Finding, Severity

_SHOWN_EVIDENCE = 8
_COLOURS: dict[Severity, str] = {"error": "red", "warning": "yellow", "note": "cyan"}


def printable(text: str) -> str:
    """``text`` without anything a terminal would obey."""
    return "".join(c if c.isprintable() else " " if c in "\t\n" else f"\\x{ord(c):02x}" for c in text)


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Each finding with its evidence, effect and remedy."""
    for finding in findings:
        console.print()
        head = Text(finding.severity, style=_COLOURS[finding.severity])
        head.append(
            f" {finding.code}: {printable(finding.subject)}: {printable(finding.message)}", style="default"
        )
        console.print(head)
        for item in finding.evidence[:_SHOWN_EVIDENCE]:
            console.print(Text(f"  {printable(item.source)}: {printable(item.detail)}"))
        if len(finding.evidence) > _SHOWN_EVIDENCE:
            console.print(Text(f"  and {len(finding.evidence) - _SHOWN_EVIDENCE} more"))
        if finding.effect:
            console.print(Text(f"  effect: {printable(finding.effect)}"))
        if finding.remedy:
            console.print(Text(f"  remedy: {printable(finding.remedy)}"))


def print_not_checked(console: Console, not_checked: Sequence[str]) -> None:
    """What could not be judged, if anything."""
    if not_checked:
        console.print(Text("\nnot checked:"))
        for what in not_checked:
            console.print(Text(f"  {printable(what)}"))


def counts_of(findings: Sequence[Finding]) -> str:
    """``1 error, 0 warnings, 2 notes``."""
    counts = {name: sum(f.severity == name for f in findings) for name in ("error", "warning", "note")}
    return ", ".join(f"{n} {name}{'' if n == 1 else 's'}" for name, n in counts.items())
