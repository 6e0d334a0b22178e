"""What a running study tells whoever watches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spectune.domain.arm import Arm
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.study import Study
from spectune.domain.trial import Trial


@dataclass(frozen=True)
class TrialStart:
    """The next launch: the ``position``-th of ``total``; in a search ``total`` is what such searches take."""

    number: int
    position: int
    total: int
    total_is_likely: bool
    arm: Arm
    repetition: int
    hypothesis: Hypothesis
    eta_s: float | None
    """Seconds until the study ends, if the remaining trials take as long as those before."""
    node: str | None = None
    """Of a cluster."""

    @property
    def place(self) -> str:
        """``3/10``, or ``3/~10`` where the total is an estimate."""
        return f"{self.position}/{'~' if self.total_is_likely else ''}{self.total}"


@dataclass(frozen=True)
class NodeRow:
    """What a node of a cluster is doing."""

    node: str
    arm: str
    phase: str
    done: int
    total: int


class Watcher(Protocol):
    """All methods are called from the event loop and must return quickly."""

    def on_fetch(self, what: str, done_bytes: int, total_bytes: int | None) -> None: ...

    def on_study(self, study: Study, *, done: int, total: int) -> None: ...

    def on_trial_start(self, start: TrialStart) -> None: ...

    def on_nodes(self, rows: Sequence[NodeRow]) -> None:
        """On a cluster, about once a second; the phases and requests of its trials are here and nowhere else."""
        ...

    def on_phase(self, phase: str) -> None: ...

    def on_progress(self, share: float) -> None: ...

    def on_request(self, done: int, total: int) -> None: ...

    def on_trial_end(self, trial: Trial, trials: list[Trial]) -> None: ...

    def on_message(self, text: str) -> None: ...
