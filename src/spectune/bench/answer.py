"""One streamed answer while it arrives, and the record made of it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from spectune.bench.chunk_shape import ChunkShape, learn_shape
from spectune.bench.delta import read_delta
from spectune.domain.measurement import RequestRecord
from spectune.domain.workload import Prompt
from spectune.engines.adapter import FinalFields

MAX_TEXT_CHARS = 10_000_000

_KEPT_PAYLOADS = 64
_MOST_MISSES = 4
_BROKEN_FINISHES = ("abort", "error")
_decode = json.JSONDecoder(parse_constant=lambda _: None).raw_decode  # NaN is no JSON, and no number either


class Answer:
    """Takes the events of one stream. ``fault`` says what is wrong with them, if anything."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self.payloads: deque[Mapping[str, Any]] = deque(maxlen=_KEPT_PAYLOADS)
        """Parsed events without text, the last ones."""
        self._arrivals_s: list[float] = []
        self._text: list[str] = []
        self._text_chars = 0
        self._content: list[str] = []
        self._shape: ChunkShape | None = None
        self._shape_is_content = True
        self._misses = 0
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] = {}

    @property
    def content(self) -> str:
        """The answer without the reasoning before it: what a next turn shows the model."""
        return well_formed("".join(self._content or self._text))

    def take(self, payload: bytes, arrived_s: float) -> bool:
        """Takes one event; true if the rest of the stream is of no use."""
        if self._shape is not None:
            text = self._shape.text_of(payload)
            if text is not None:
                self._misses = 0
                return self._add_text(text, arrived_s, content=text if self._shape_is_content else "")
        try:
            event = _parse(payload)
        except (ValueError, RecursionError) as error:
            return self._fail(f"malformed JSON in the stream: {error}: {_shown(payload)}")
        if not isinstance(event, dict):
            return self._fail(f"an event of the stream is no JSON object: {_shown(payload)}")
        if event.get("error"):
            return self._fail(
                f"the server reported an error inside the stream: {_error_text(event['error'])}"
            )
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            self.payloads.append(event)
            return False
        finish_reason = choice.get("finish_reason")
        if isinstance(finish_reason, str):
            self._finish_reason = well_formed(finish_reason)
        if usage is None and finish_reason is None and self._misses < _MOST_MISSES:
            self._learn(payload)
        return self._take_choice(event, choice, arrived_s)

    def _learn(self, payload: bytes) -> None:
        """Looks for the shape that later chunks will share; gives up where every chunk has its own."""
        shape = learn_shape(payload)
        if shape is not None:
            self._misses += 1
            self._shape = shape
            self._shape_is_content = shape.key in ("content", "text")

    def _take_choice(self, event: Mapping[str, Any], choice: Mapping[str, Any], arrived_s: float) -> bool:
        said = read_delta(choice)
        if not said.text:
            self.payloads.append(event)
        if said.has_tokens:  # one chunk, one arrival
            return self._add_text(said.text, arrived_s, content=said.content)
        return False

    def _add_text(self, text: str, arrived_s: float, *, content: str) -> bool:
        self._arrivals_s.append(arrived_s)
        self._text.append(text)
        if content:
            self._content.append(content)
        self._text_chars += len(text)
        if self._text_chars > MAX_TEXT_CHARS:
            return self._fail(f"the answer is longer than {MAX_TEXT_CHARS} characters")
        return False

    def record(
        self,
        prompt: Prompt,
        turn: int,
        *,
        sent_s: float,
        origin: float,
        error: str | None,
        final: FinalFields,
    ) -> RequestRecord:
        """The record; an answer without tokens or without an end is an error too."""
        error = error or self._shortcoming()
        arrivals = self._arrivals_s
        cached_tokens = _count(_details(self._usage).get("cached_tokens"))
        return RequestRecord(
            prompt_id=prompt.prompt_id,
            turn=turn,
            category=prompt.category,
            start_s=sent_s - origin,
            ttft_s=arrivals[0] - sent_s if arrivals else None,
            latency_s=arrivals[-1] - sent_s if arrivals else None,
            prompt_tokens=_count(self._usage.get("prompt_tokens")),
            output_tokens=_count(self._usage.get("completion_tokens")),
            cached_tokens=final.cached_tokens if cached_tokens is None else cached_tokens,
            chunk_gaps_s=tuple(later - earlier for earlier, later in pairwise(arrivals)),
            text=well_formed("".join(self._text)),
            finish_reason=self._finish_reason,
            error=error,
            acceptance=final.acceptance,
            server_timings=final.server_timings,
        )

    def _shortcoming(self) -> str | None:
        if self._finish_reason in _BROKEN_FINISHES:
            return f"the server ended the answer with finish_reason {self._finish_reason!r}"
        if not self._arrivals_s or self._usage.get("completion_tokens") == 0:
            return "the answer holds no text"
        if self._finish_reason is None:
            return "the stream ended without a finish_reason"
        return None

    def _fail(self, fault: str) -> bool:
        self.fault = fault
        return True


def _parse(payload: bytes) -> Any:
    text = payload.decode().strip()
    event, end = _decode(text)
    if end != len(text):
        raise ValueError(f"extra data at character {end}")
    return event


def _details(usage: Mapping[str, Any]) -> Mapping[str, Any]:
    details = usage.get("prompt_tokens_details")
    return details if isinstance(details, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _error_text(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message if message else error)


def _shown(payload: bytes) -> str:
    return payload.decode("utf-8", "replace")


def well_formed(text: str) -> str:
    """``text`` as UTF-8 can hold it: halves of a surrogate pair are joined, lone ones replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
