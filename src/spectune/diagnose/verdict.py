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


def kept_words(accepted: int | None, drafted: int | None, length: float | None) -> str:
    """What is known of the kept drafts, and nothing of what is not."""
    if accepted is not None and drafted is not None:
        return f"{accepted} of {drafted} drafted tokens kept"
    if accepted is not None:
        return f"{accepted} drafted tokens kept"
    return "drafts kept: not counted" if length is None else f"acceptance length {length:.2f}"
