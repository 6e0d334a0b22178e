"""The measuring client: one conversation over a streaming OpenAI endpoint, as request records.

A failed request is a record with an ``error``, never an exception. Token counts
are the server's ``usage``; chunks are only timed, never counted as tokens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Literal

from spectune.bench.answer import Answer, well_formed
from spectune.domain.measurement import RequestRecord
from spectune.domain.workload import Prompt, Sampling
from spectune.engines.adapter import EngineAdapter, FinalFields
from spectune.errors import TransportError
from spectune.transport import HttpClient

AfterTurn = Callable[[RequestRecord], Awaitable[RequestRecord]]
"""Awaited between a turn's end and the next turn; returns the record to keep."""

_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_MAX_ERROR_CHARS = 1000
_NOT_SENT = "not sent, because an earlier turn failed"


class StreamingClient:
    """Runs prompts against one server. Holds no state of a request, so any number may run at once."""

    def __init__(
        self,
        http: HttpClient,
        *,
        adapter: EngineAdapter,
        model: str,
        api: Literal["chat", "completions"] = "chat",
        request_timeout_s: float = 600.0,
    ) -> None:
        self._http = http
        self.adapter = adapter
        self._model = model
        self._api = api
        self._request_timeout_s = request_timeout_s

    async def run(
        self, prompt: Prompt, sampling: Sampling, *, origin: float, after_turn: AfterTurn | None = None
    ) -> list[RequestRecord]:
        """One record per turn. ``origin`` is the start of the load point on ``time.perf_counter``."""
        records: list[RequestRecord] = []
        answers: list[str] = []
        for turn in range(len(prompt.turns)):
            answer = Answer()
            if records and not records[-1].ok:
                record = _skipped(prompt, turn, records[-1], origin=origin)
            else:
                record = await self._run_turn(prompt, turn, answers, answer, sampling, origin=origin)
            records.append(await after_turn(record) if after_turn is not None else record)
            answers.append(answer.content)
        return records

    async def _run_turn(
        self,
        prompt: Prompt,
        turn: int,
        answers: list[str],
        answer: Answer,
        sampling: Sampling,
        *,
        origin: float,
    ) -> RequestRecord:
        sent_s = perf_counter()
        error: str | None = None
        try:
            body = self._body(prompt, turn, answers, sampling)
            end = await self._http.stream(
                _PATHS[self._api], body, answer.take, timeout_s=self._request_timeout_s
            )
        except TransportError as failure:
            error = str(failure)
        else:
            sent_s = end.sent_s
        final = FinalFields()
        try:
            final = self.adapter.read_final(tuple(answer.payloads))
        except ValueError as failure:
            error = f"the engine's own fields of the answer make no sense: {failure}"
        return answer.record(
            prompt,
            turn,
            sent_s=sent_s,
            origin=origin,
            error=self._shown(answer.fault or error),
            final=final,
        )

    def _shown(self, error: str | None) -> str | None:
        """What a server said, fit for a record: without the API key, and not without end."""
        return None if error is None else well_formed(self._http.redact(error))[:_MAX_ERROR_CHARS]

    def _body(self, prompt: Prompt, turn: int, answers: list[str], sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model}
        if self._api == "chat":
            body["messages"] = _messages(prompt, turn, answers)
        else:
            body["prompt"] = _plain_prompt(prompt, turn, answers)
        body["max_tokens"] = prompt.output_tokens or sampling.max_tokens
        body["temperature"] = sampling.temperature
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        body.update(self.adapter.request_fields(sampling))
        body.update(sampling.extra_body)
        return body


def _messages(prompt: Prompt, turn: int, answers: list[str]) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
    for question, reply in zip(prompt.turns[:turn], answers, strict=True):
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    return [*messages, {"role": "user", "content": prompt.turns[turn]}]


def _plain_prompt(prompt: Prompt, turn: int, answers: list[str]) -> str:
    """Without a chat template there is no right way to join turns: blank lines, and nothing for one turn."""
    parts = [prompt.system] if prompt.system is not None else []
    for question, reply in zip(prompt.turns[:turn], answers, strict=True):
        parts += [question, reply]
    return "\n\n".join([*parts, prompt.turns[turn]])


def _skipped(prompt: Prompt, turn: int, before: RequestRecord, *, origin: float) -> RequestRecord:
    reason = before.error or ""
    return RequestRecord(
        prompt_id=prompt.prompt_id,
        turn=turn,
        category=prompt.category,
        start_s=perf_counter() - origin,
        error=reason if reason.startswith(_NOT_SENT) else f"{_NOT_SENT}: {reason}",
    )
