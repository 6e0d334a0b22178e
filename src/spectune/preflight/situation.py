"""What the rules look at: one server command with everything known about its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spectune.domain.arm import Knobs
from spectune.domain.machine import Machine

if TYPE_CHECKING:
    from spectune.checkpoints.facts import CheckpointFacts


@dataclass(frozen=True)
class EngineVersion:
    """A version and how it is known; ``text`` ``None``: the rules for the current one are used, and said so."""

    text: str | None
    source: str


@dataclass(frozen=True)
class Situation:
    """One launch to be judged. ``None`` means not known: a rule that needs it says "not checked"."""

    subject: str
    """The arm's name, or the program's."""
    engine: str
    version: EngineVersion
    flags: Mapping[str, str | bool | None]
    """Canonical names without dashes, abbreviations resolved; JSON stays text.

    ``True``: a bare flag. ``False``: its ``--no-`` form. ``None``: given, but only a shell knows its value.
    """
    knobs: Knobs
    """The same in neutral words."""
    env: Mapping[str, str] = field(default_factory=dict)
    target: CheckpointFacts | None = None
    draft: CheckpointFacts | None = None
    machine: Machine | None = None
    max_concurrency: int | None = None
    """Requests the workload keeps in flight, where a study says so."""
    max_prompt_tokens: int | None = None
    max_tokens: int | None = None
