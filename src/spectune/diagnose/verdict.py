"""What the rules share: how they are called, and words they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from spectune.diagnose.facts import NoticeFacts, RunFacts
from spectune.domain.findings import Finding

_LOOKUPS = ("ngram", "suffix", "prompt_lookup")


@dataclass
class NotChecked:
    """Gathers what could not be judged, each once."""

    items: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        if text not in self.items:
            self.items.append(text)


Rule = Callable[[RunFacts, NotChecked], Iterator[Finding]]


@dataclass(frozen=True)
class Verdict:
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...]


def is_lookup(method: str | None) -> bool:
    """Drafts by looking tokens up: it proposes seldom, and has no weights that could be wrong."""
    return method is not None and method.startswith(_LOOKUPS)


def speculates(run: RunFacts) -> bool:
    return run.method not in (None, "none")


def line_of(notice: NoticeFacts) -> tuple[str, str]:
    """Evidence: where it stands and what it says."""
    times = f" ({notice.count} times)" if notice.count > 1 else ""
    return f"line {notice.line}{times}", notice.text
