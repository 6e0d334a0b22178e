"""What single log lines say, in neutral words. ``None``: the line does not say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Value = str | int | float | bool | None


class DecodeWindow(NamedTuple):
    """SGLang's decode line: the verify steps since the line before."""

    running: int | None
    context_tokens: int | None
    accept_length: float | None
    """Bonus token included; absent without speculation."""
    accept_rate: float | None
    """As printed: its divisor depends on the version."""
    graph: bool | None
    graph_label: str | None
    """``cuda`` or ``cpu``."""
    tok_per_s: float | None
    queued: int | None
    retracted: int | None


class PrefillWindow(NamedTuple):
    new_requests: int | None
    new_tokens: int | None
    cached_tokens: int | None
    running: int | None
    queued: int | None


class SpecWindow(NamedTuple):
    """vLLM's speculation line. ``cumulative``: counts since the start, not of an interval."""

    accepted: int
    drafted: int
    length: float | None = None
    per_position: tuple[float, ...] | None = None
    emitted: int | None = None
    drafted_per_step: int | None = None
    depth: int | None = None
    """The draft depth of the moment, where the engine varies it."""
    cumulative: bool = False


class EngineWindow(NamedTuple):
    """vLLM's throughput line."""

    generation_tok_per_s: float
    prompt_tok_per_s: float | None
    running: int | None
    waiting: int | None
    cache_hit_frac: float | None


class RequestDraft(NamedTuple):
    """llama.cpp's acceptance of one request."""

    accepted: int
    drafted: int
    length: float | None
    slot: str | None = None
    per_position: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class DraftPositions:
    """llama.cpp's trace line: acceptance per position of the request whose line came before."""

    per_position: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DraftTotals:
    """llama.cpp's statistics of one drafting method: totals of the process, never to be mixed with requests."""

    method: str
    drafts: int | None
    drafted: int
    accepted: int
    length: float | None
    per_position: tuple[float, ...] | None


class RequestTimings(NamedTuple):
    """One request's own figures; ``drafted`` ``None``: nothing was drafted, or not said."""

    generated: int | None = None
    prompt: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    context_tokens: int | None = None
    tok_per_s: float | None = None
    slot: str | None = None


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """A benchmark client's own result, printed into the log."""

    length: float | None = None
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings the server names."""

    values: dict[str, Value] = field(default_factory=dict)
    starts: str = ""
    """A name for lines of this kind if one is printed per start: a second one is a second start."""


@dataclass(frozen=True, slots=True)
class Ready:
    pass


@dataclass(frozen=True, slots=True)
class Ended:
    """The server was told to stop."""


Record = (
    DecodeWindow
    | PrefillWindow
    | SpecWindow
    | EngineWindow
    | RequestDraft
    | DraftPositions
    | DraftTotals
    | RequestTimings
    | ClientSummary
    | Settings
    | Ready
    | Ended
)
