"""What was observed: one record per request, and what follows from a set of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.record import Record, SafeText
from spectune.domain.workload import LoadPoint


def _packed(kind: str, values: Any) -> Sequence[Any]:
    """8 or 4 bytes a value, where a tuple of Python's numbers takes 32 and 36: most of a request's memory."""
    if not isinstance(values, list | tuple | array):
        raise ValueError("must be a list of numbers")
    if not values:
        return ()
    try:
        packed = array(kind, values)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"must be a list of numbers: {error}") from error
    if kind == "d" and not all(map(math.isfinite, packed)):
        raise ValueError("must be finite numbers")
    return packed


def _listed(values: Sequence[int] | None) -> list[int] | None:
    return None if values is None else list(values)


def packed_seconds(values: Any) -> Sequence[float]:
    return _packed("d", values)


def packed_ids(values: Any) -> Sequence[int] | None:
    return None if values is None else _packed("i", values)


Seconds = Annotated[Sequence[float], PlainValidator(packed_seconds), PlainSerializer(list)]
TokenIds = Annotated[Sequence[int] | None, PlainValidator(packed_ids), PlainSerializer(_listed)]


class RequestRecord(Record):
    """One request as the client saw it. Times are seconds on the client's monotonic clock.

    Token counts come from the server's ``usage`` alone. A chunk is one
    streamed event with tokens; under speculation it can carry several tokens.
    """

    prompt_id: str
    turn: int = 0
    category: str | None = None
    start_s: float
    """Since the start of the load point."""
    ttft_s: float | None = None
    """From sending to the first chunk that carries tokens."""
    latency_s: float | None = None
    """From sending to the last byte that mattered (the last chunk with tokens)."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens served from a prefix cache, where the engine says so."""
    chunk_gaps_s: Seconds = ()
    """Between consecutive chunks (the classical inter-token latency counts these)."""
    text: str = ""
    token_ids: TokenIds = None
    """The output text's token ids as the server's own tokenizer gives them."""
    finish_reason: str | None = None
    error: SafeText | None = None
    acceptance: AcceptanceCounts | None = None
    """This request's own counts, where the engine gives them or the load allows it."""
    server_timings: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def e2e_tok_per_s(self) -> float | None:
        """n / whole request: the figure quoted as "937 tokens in 12.4 s = 75.6 tok/s"."""
        if not self.ok or not self.output_tokens or not self.latency_s:
            return None
        return self.output_tokens / self.latency_s

    @property
    def decode_tok_per_s(self) -> float | None:
        """(n - 1) / (last chunk - first chunk); unknown when everything came in one chunk."""
        if not self.ok or self.ttft_s is None or self.latency_s is None or not self.output_tokens:
            return None
        span = self.latency_s - self.ttft_s
        if self.output_tokens < 2 or span <= 0:
            return None
        return (self.output_tokens - 1) / span

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first: meaningful however many tokens a chunk carries."""
        rate = self.decode_tok_per_s
        return 1 / rate if rate else None


class LoadTotals(Record):
    """What another tool, or the server itself, says of a whole load point, where single requests do not tell."""

    num_completed: int | None = None
    num_failed: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    output_tok_per_s: float | None = Field(default=None, gt=0)
    """All output tokens / duration."""
    stream_tok_per_s: float | None = Field(default=None, gt=0)
    """What one stream saw: the figure that stands for a request's end-to-end tok/s."""
    stream_tok_per_s_by_group: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """The same by benchmark, where the tool ran several: these are paired as prompts are."""
    median_ttft_s: float | None = None
    p99_ttft_s: float | None = None
    median_tpot_s: float | None = None
    p99_tpot_s: float | None = None
    median_itl_s: float | None = None
    p99_itl_s: float | None = None
    acceptance_length: float | None = Field(default=None, ge=1)
    """Where there are no counts."""


class ServerCounters(Record):
    """An engine's process-wide counters at one instant; a field it does not publish is ``None``."""

    generation_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None
    acceptance: AcceptanceCounts | None = None
    """``None`` when the engine publishes no speculation counters at all."""
    verify_calls: int | None = None
    """Verify steps of every request, where the engine counts these and not what was kept."""


AcceptanceSource = Literal["per-request", "counters", "server log", "server info"]


class SteadySpan(Record):
    """When a closed loop was in its steady state; seconds since the start of the load point."""

    start_s: float
    end_s: float
    frac: float
    """Of the load point's time; the rest is filling and emptying the server."""


class LoadResult(Record):
    """All requests of one load point, with the server's counters around them."""

    load: LoadPoint
    requests: tuple[RequestRecord, ...]
    duration_s: float
    """First request sent to last request ended."""
    acceptance: AcceptanceCounts | None = None
    """Pooled over our own requests."""
    acceptance_source: AcceptanceSource | None = None
    counters_before: ServerCounters | None = None
    counters_after: ServerCounters | None = None
    foreign_tokens: int | None = None
    """Tokens the server generated that were not ours; ``None`` if it cannot be told."""
    client_cpu_s: float | None = None
    max_loop_lag_s: float | None = None
    """The longest the client's event loop was late: large values mean the client was the limit."""
    peak_in_flight: int | None = None
    """By the client: requests sent and not yet answered."""
    peak_running: int | None = None
    """By the server's own gauge, read a few times meanwhile; ``None`` where it has none."""
    peak_waiting: int | None = None
    """Requests that the server held back, likewise."""
    totals: LoadTotals | None = None
    """What is known only of the whole: of an imported result, all of it where there are no single requests; of our own,
    an acceptance length that the server states."""
    steady: SteadySpan | None = None
    """At c > 1; ``None`` otherwise, and in older records, where ``domain.steady`` finds it from the requests."""
    cut_short: bool = False
    """Not all was asked: the server was lost, or the trial ended early. These are the requests that ended before."""

    @property
    def completed(self) -> tuple[RequestRecord, ...]:
        return tuple(r for r in self.requests if r.ok)

    @property
    def failed(self) -> tuple[RequestRecord, ...]:
        return tuple(r for r in self.requests if not r.ok)

    @property
    def output_tok_per_s(self) -> float | None:
        """All output tokens of the load point / its duration."""
        tokens = [r.output_tokens for r in self.completed]
        if not tokens or any(t is None for t in tokens) or self.duration_s <= 0:
            return None
        return sum(t for t in tokens if t is not None) / self.duration_s
