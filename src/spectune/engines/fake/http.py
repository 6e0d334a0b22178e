"""The HTTP side of the fake engine: OpenAI endpoints, health, metrics, tokenizer."""

from __future__ import annotations

import asyncio
import json
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpRequestParser

from spectune.engines.fake.generation import Generation, Question, read_most_drafted, read_question
from spectune.engines.fake.script import tokenize
from spectune.engines.fake.state import ServerState

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class FakeHttp(asyncio.Protocol):
    """One client connection; requests are answered one after another."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._transport: asyncio.Transport | None = None
        self._generation: Generation | None = None
        self._text: list[str] = []
        self._chunk_head = b""
        self._chunk_tail = b""
        self._stamps_chunks = False
        self._returns_ids = False
        self._start_request()

    def _start_request(self) -> None:
        self._parser = HttpRequestParser(self)
        self._url = b""
        self._authorization = b""
        self._body: list[bytes] = []

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._state.aborts.add(self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._state.aborts.discard(self.abort)
        if self._generation is not None:
            self._generation.cancel()
            self._end_generation()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self.abort()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"authorization":
            self._authorization = value

    def on_body(self, piece: bytes) -> None:
        self._body.append(piece)

    def on_message_complete(self) -> None:
        asyncio.get_running_loop().call_soon(self._answer, self._parser.get_method())

    def _answer(self, method: bytes) -> None:
        path = urlsplit(self._url.decode("latin-1")).path
        body = b"".join(self._body)
        authorization = self._authorization
        self._start_request()
        key = self._state.options.api_key
        if key is not None and authorization != f"Bearer {key}".encode():
            self._reply_error(401, f"invalid API key: {authorization.decode('latin-1')}")
        elif path in ("/v1/chat/completions", "/v1/completions") and method == b"POST":
            self._generate(body, is_chat=path == "/v1/chat/completions")
        else:
            self._answer_small(method, path, body)

    def _answer_small(self, method: bytes, path: str, body: bytes) -> None:
        state = self._state
        if path == "/health":
            healthy = state.is_ready and state.num_requests != state.options.fail_request
            self._reply(200 if healthy else 503, {"status": "ok" if healthy else "loading"})
        elif path == "/v1/models":
            entry = {"id": state.model, "object": "model", "owned_by": "fake"}
            self._reply(200, {"object": "list", "data": [entry]})
        elif path == "/server_info":
            self._reply(200, state.server_info())
        elif path == "/metrics":
            self._write_reply(200, "text/plain; version=0.0.4; charset=utf-8", state.metrics_text().encode())
        elif path == "/reset_prefix_cache" and method == b"POST" and not state.options.no_flush_route:
            state.prefix_cache.clear()
            self._reply(200, {})
        elif path == "/tokenize" and method == b"POST":
            request = _read_json(body)
            tokens = tokenize(str(request.get("prompt", "")))
            self._reply(200, {"count": len(tokens), "max_model_len": 1_000_000, "tokens": tokens})
        else:
            self._reply_error(404, f"no such endpoint: {path}")

    def _generate(self, raw: bytes, *, is_chat: bool) -> None:
        state = self._state
        state.num_requests += 1
        if not state.is_ready:
            self._reply_error(503, "the model is still loading")
            return
        if state.options.fail_generation or state.num_requests == state.options.fail_request:
            self._reply_error(500, "scripted failure")
            return
        if state.num_requests == state.options.fatal_line_at_request:
            state.stop_serving()
            return
        body = _read_json(raw)
        request_id = f"fake-{next(state.request_ids)}"
        try:
            prompt, num_tokens, finish_reason = read_question(
                body, is_chat=is_chat, stop_after=state.options.stop_after
            )
            most_drafted = read_most_drafted(body)
        except ValueError as error:
            self._reply_error(400, str(error))
            return
        prompt_tokens = tokenize(prompt)
        is_caching = not state.options.no_prefix_caching
        salted = [*tokenize(str(body.get("cache_salt", ""))), *prompt_tokens]
        question = Question(
            request_id=request_id,
            is_chat=is_chat,
            is_stream=body.get("stream") is True,
            prompt=prompt,
            num_prompt_tokens=len(prompt_tokens),
            num_cached_tokens=state.prefix_cache.look_up_and_add(salted) if is_caching else 0,
            num_tokens=num_tokens,
            finish_reason=finish_reason,
            most_drafted=most_drafted,
        )
        self._stamps_chunks = body.get("stamp_chunks") is True
        self._returns_ids = body.get("return_token_ids") is True
        self._play(question, dies=state.num_requests == state.options.die_at_request)

    def _play(self, question: Question, *, dies: bool) -> None:
        state = self._state
        state.counters.num_running += 1
        state.log_request("started")
        self._text = []
        self._prepare_chunks(question)

        def on_tokens(text: str, is_first: bool) -> bool:
            self._send_tokens(text, is_first=is_first)
            if dies:
                state.die()
            return self._transport is not None

        self._generation = state.generation(question, on_tokens=on_tokens, on_end=self._finish)
        if not state.options.hang_generation:
            self._generation.start()

    def _prepare_chunks(self, question: Question) -> None:
        """Everything of a chunk but its text and, with ``stamp_chunks`` asked for, its time of sending."""
        kind = "chat.completion.chunk" if question.is_chat else "text_completion"
        opening = '{"delta":{"content":"' if question.is_chat else '{"text":"'
        closing = '"},' if question.is_chat else '",'
        model = json.dumps(self._state.model)
        head = f'data: {{"id":"{question.request_id}","object":"{kind}","created":0,"model":{model},'
        self._chunk_head = f'{head}"choices":[{opening}'.encode()
        self._chunk_tail = f'{closing}"index":0,"logprobs":null,"finish_reason":null}}]'.encode()

    def _send_tokens(self, text: str, *, is_first: bool) -> None:
        question = self._generation.question if self._generation is not None else None
        if question is None or self._transport is None:
            return
        if not question.is_stream:
            self._text.append(text)
            return
        if is_first:
            self._transport.write(_STREAM_HEAD)
            if question.is_chat:
                self._send_event(self._chunk({"role": "assistant", "content": ""}))
        encoded = text.encode()  # words of the vocabulary: nothing to escape
        end = b',"sent_s":%.9f}\n\n' % perf_counter() if self._stamps_chunks else b"}\n\n"
        length = len(self._chunk_head) + len(encoded) + len(self._chunk_tail) + len(end)
        self._transport.write(
            b"%x\r\n%b%b%b%b\r\n" % (length, self._chunk_head, encoded, self._chunk_tail, end)
        )

    def _finish(self) -> None:
        generation = self._generation
        if generation is None:
            return
        question = generation.question
        last: dict[str, Any] = {**self._envelope(question), "usage": generation.usage()}
        acceptance = generation.acceptance()
        if acceptance is not None and not self._state.options.no_request_acceptance:
            last["metrics"] = {"speculative_decoding": acceptance}
        self._end_generation()
        if question.is_stream:
            ending: dict[str, Any] = {"delta": {}} if question.is_chat else {"text": ""}
            choice = {"index": 0, **ending, "finish_reason": question.finish_reason}
            self._send_event({**self._envelope(question), "choices": [choice]})
            self._send_event({**last, "choices": []})
            self._write_chunk(b"data: [DONE]\n\n")
            self._write(b"0\r\n\r\n")
            self._state.log_request("ended")
            return
        text = "".join(self._text)
        content = {"message": {"role": "assistant", "content": text}} if question.is_chat else {"text": text}
        last["choices"] = [{"index": 0, **content, "finish_reason": question.finish_reason}]
        if self._returns_ids:  # as vLLM names them
            last["prompt_token_ids"] = tokenize(question.prompt)
            last["choices"][0]["token_ids"] = list(generation.tokens)
        self._reply(200, last)
        self._state.log_request("ended")

    def _end_generation(self) -> None:
        self._generation = None
        self._state.counters.num_running -= 1

    def _envelope(self, question: Question) -> dict[str, Any]:
        kind = "chat.completion.chunk" if question.is_chat else "text_completion"
        if question.is_chat and not question.is_stream:
            kind = "chat.completion"
        return {"id": question.request_id, "object": kind, "created": 0, "model": self._state.model}

    def _chunk(self, delta: dict[str, Any]) -> dict[str, Any]:
        assert self._generation is not None
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        return {**self._envelope(self._generation.question), "choices": [choice]}

    def _send_event(self, event: dict[str, Any]) -> None:
        self._write_chunk(f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode())

    def _write_chunk(self, payload: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _reply_error(self, status: int, message: str) -> None:
        self._reply(status, {"error": {"message": message, "code": status}})

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        self._write_reply(status, "application/json", json.dumps(body).encode())

    def _write_reply(self, status: int, kind: str, body: bytes) -> None:
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
        self._write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def _read_json(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
