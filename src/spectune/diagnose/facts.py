"""What is known about one run of a server, in neutral words: from its log, or asked of it while it runs."""

from __future__ import annotations

from pydantic import Field

from spectune.diagnose.log.records import Value
from spectune.domain.arm import Knobs
from spectune.domain.record import Record


class Slice(Record):
    """Acceptance of a part of the run."""

    label: str
    steps: int
    length: float


class AcceptanceFacts(Record):
    """Pooled over windows by verify steps; windows in which nothing was drafted are left out."""

    source: str
    """Which lines it comes from."""
    windows: int
    windows_at_one: int = 0
    """Windows in which nothing was kept."""
    idle_windows: int = 0
    """Windows without a draft; their NaN or stale rates are not used."""
    steps: int | None = None
    steps_estimated: bool = False
    """From the default log interval, as the log does not name it."""
    drafted: int | None = None
    accepted: int | None = None
    length: float | None = None
    """Mean tokens per verify step, bonus included."""
    rate: float | None = None
    """Accepted of drafted tokens."""
    per_position: tuple[float, ...] | None = None
    """Share of verify steps in which each position was kept."""
    cumulative: bool = False
    by_concurrency: tuple[Slice, ...] = ()
    by_context: tuple[Slice, ...] = ()
    by_time: tuple[Slice, ...] = ()
    printed_rate: float | None = None
    """Mean of the accept rates the engine printed."""
    rate_formula: str | None = None
    """Which definition the printed rate follows: ``length / n`` or ``(length - 1) / (n - 1)``."""


class SpeedFacts(Record):
    """The engine's own throughput lines, those right after an idle time left out."""

    median_tok_per_s: float | None = None
    windows: int = 0
    windows_after_idle: int = 0
    max_running: int | None = None
    max_queued: int | None = None
    windows_at_cap: int = 0
    """Requests waited although no more than the cap were running."""
    retracted_requests: int = 0
    prefill_windows: int = 0
    graph_windows_on: int = 0
    graph_windows_off: int = 0
    graph_off_min_running: int | None = None
    graph_label: str | None = None
    generated_tokens: int | None = None


class CacheFacts(Record):
    prompts: int = 0
    prompts_cached_whole: int = 0
    """Prompts of which at most two tokens were computed."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    hit_frac: float | None = None


class DeathFacts(Record):
    message: str
    remedy: str | None
    line: int
    text: str
    after_ready: bool
    time: str | None = None


class NoticeFacts(Record):
    kind: str
    text: str
    line: int
    """Where it stood first."""
    count: int
    after_ready: int = 0
    longest_series: int = 0
    """Repetitions with no sign of progress in between."""


class RunFacts(Record):
    """One run. ``None`` is unknown."""

    subject: str
    kind: str = "log"
    """``log`` or ``server``."""
    engine: str | None = None
    version: str | None = None
    model: str | None = None
    architectures: tuple[str, ...] = ()
    """Of the models it loaded, in their order."""
    knobs: Knobs | None = None
    """In effect."""
    asked: Knobs | None = None
    """Of the command line, where the log shows it."""
    settings: dict[str, Value] = Field(default_factory=dict)
    acceptance: AcceptanceFacts | None = None
    totals: AcceptanceFacts | None = None
    """Of the whole process, from lines that must not be mixed with single requests'."""
    speed: SpeedFacts = SpeedFacts()
    cache: CacheFacts = CacheFacts()
    ready: bool = False
    stopped: bool = False
    """It was told to stop."""
    death: DeathFacts | None = None
    notices: tuple[NoticeFacts, ...] = ()
    changes: tuple[NoticeFacts, ...] = ()
    """Lines in which the engine says it does otherwise than asked."""
    first_line: int = 1
    last_line: int = 0
    first_time: str | None = None
    last_time: str | None = None
    min_memory_gb: float | None = None
    """The least free device memory named around graph capture."""

    def notice(self, kind: str) -> NoticeFacts | None:
        return next((notice for notice in self.notices if notice.kind == kind), None)

    @property
    def method(self) -> str | None:
        """The speculation in effect, else the one asked for; ``none``: known to be off."""
        known = self.knobs or self.asked
        return None if known is None else known.method
