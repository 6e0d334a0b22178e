"""One scripted generation of the fake engine: which tokens it sends, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spectune.engines.fake.options import Speculation
from spectune.engines.fake.script import AcceptanceTally, accepted_per_step, answer_tokens, detokenize


@dataclass(frozen=True)
class Speed:
    """The simulated cost of forward passes."""

    pass_s: float
    draft_cost: float
    stream_cost: float
    ttft_s: float
    prefill_tokens_per_s: float | None

    def prefill_s(self, num_tokens: int) -> float:
        return self.ttft_s + (num_tokens / self.prefill_tokens_per_s if self.prefill_tokens_per_s else 0.0)

    def step_s(self, *, num_drafted: int, num_running: int) -> float:
        return self.pass_s * (1 + self.draft_cost * num_drafted + self.stream_cost * (num_running - 1))


@dataclass
class Counters:
    """Process-wide counts, as ``/metrics`` publishes them."""

    generation_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    num_running: int = 0
    acceptance: AcceptanceTally = field(default_factory=AcceptanceTally)


@dataclass(frozen=True)
class Question:
    """One request for text."""

    request_id: str
    is_chat: bool
    is_stream: bool
    prompt: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_tokens: int
    finish_reason: str
    most_drafted: int | None = None
    """What ``speculative.n_max`` of its body allows per step."""


class Generation:
    """Plays one answer: ``on_tokens(text, is_first)`` at each step, then ``on_end()``.

    ``publish`` takes what changes the process-wide counters; it may apply it late.
    """

    def __init__(
        self,
        question: Question,
        *,
        speculation: Speculation,
        speed: Speed,
        seed: int,
        diverge_after: int | None,
        num_running: Callable[[], int],
        publish: Callable[[Callable[[Counters], None]], None],
        on_tokens: Callable[[str, bool], bool],
        on_end: Callable[[], None],
    ) -> None:
        self.question = question
        self.tally = AcceptanceTally()
        self._speculation = speculation
        self._speed = speed
        self._num_running = num_running
        self._publish = publish
        self._on_tokens = on_tokens
        self._on_end = on_end
        self.tokens = answer_tokens(
            question.prompt, question.num_tokens, seed=seed, diverge_after=diverge_after
        )
        self._steps: Iterator[int] = (
            accepted_per_step(question.prompt, question.num_tokens, speculation, seed=seed)
            if speculation.is_on
            else iter([0] * (question.num_tokens - 1))
        )
        self._sent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        uncached = self.question.num_prompt_tokens - self.question.num_cached_tokens
        self._due_s = loop.time() + self._speed.prefill_s(uncached)
        self._timer = loop.call_at(self._due_s, self._first)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _first(self) -> None:
        question = self.question

        def count(counters: Counters) -> None:
            counters.prompt_tokens += question.num_prompt_tokens
            counters.cached_tokens += question.num_cached_tokens

        self._publish(count)
        self._emit(1)

    def _step(self) -> None:
        accepted = next(self._steps)
        drafted = self._speculation.num_draft_tokens
        if self._speculation.is_on:
            self.tally.add(drafted=drafted, accepted=accepted)
            self._publish(lambda counters: counters.acceptance.add(drafted=drafted, accepted=accepted))
        self._emit(1 + accepted)

    def _emit(self, num_tokens: int) -> None:
        text = detokenize(self.tokens[self._sent : self._sent + num_tokens])
        is_first = self._sent == 0
        self._sent += num_tokens

        def count(counters: Counters) -> None:
            counters.generation_tokens += num_tokens

        self._publish(count)
        if not self._on_tokens(text, is_first):
            return
        if self._sent >= self.question.num_tokens:
            self._on_end()
            return
        drafted = self._speculation.num_draft_tokens if self._speculation.is_on else 0
        self._due_s += self._speed.step_s(num_drafted=drafted, num_running=self._num_running())
        self._timer = asyncio.get_running_loop().call_at(self._due_s, self._step)

    def usage(self) -> dict[str, Any]:
        question = self.question
        return {
            "prompt_tokens": question.num_prompt_tokens,
            "completion_tokens": question.num_tokens,
            "total_tokens": question.num_prompt_tokens + question.num_tokens,
            "prompt_tokens_details": {"cached_tokens": question.num_cached_tokens},
        }

    def acceptance(self) -> dict[str, Any] | None:
        """The request's own counts in vLLM's form, if it speculated."""
        if not self._speculation.is_on:
            return None
        return {
            "acceptance_histogram": self.tally.histogram or [0] * (self._speculation.num_draft_tokens + 1),
            "num_spec_steps": self.tally.num_drafts,
            "num_accepted_draft_tokens": self.tally.num_accepted_tokens,
            "num_draft_tokens": self.tally.num_draft_tokens,
            "num_spec_tokens": self._speculation.num_draft_tokens,
        }


def read_question(body: dict[str, Any], *, is_chat: bool, stop_after: int | None) -> tuple[str, int, str]:
    """Prompt text, number of tokens to send and finish reason; raises ``ValueError`` for a bad body."""
    if is_chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages must be a list that is not empty")
        prompt = "\n".join(_content(message) for message in messages)
    else:
        raw_prompt = body.get("prompt")
        if not isinstance(raw_prompt, str):
            raise ValueError("prompt must be a string")
        prompt = raw_prompt
    given = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    limit = given[0] if given else 16
    if not isinstance(limit, int) or not 1 <= limit <= 1_000_000:
        raise ValueError(f"max_tokens must be a whole number >= 1, got {json.dumps(limit)}")
    if stop_after is not None and stop_after < limit and not body.get("ignore_eos"):
        return prompt, max(1, stop_after), "stop"
    return prompt, limit, "length"


def read_most_drafted(body: dict[str, Any]) -> int | None:
    """``speculative.n_max`` as some builds of llama.cpp heed it; raises ``ValueError`` for anything but a length."""
    value = body.get("speculative.n_max")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"speculative.n_max must be a whole number >= 1, got {json.dumps(value)}")
    return value


def _content(message: object) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise ValueError("every message needs a content")
    return content
