"""A server with vLLM's answers, over real sockets, for tests of data generation: deterministic, scriptable."""

import asyncio
import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fake_server_fixture import plain, scripted_server

END = 2


def rendered(messages: list[dict[str, str]]) -> list[int]:
    """Token ids of a prompt: two role marks, then a number for each word."""
    ids = []
    for message in messages:
        ids += [3 if message["role"] == "user" else 4, *map(word_id, message["content"].split()), END]
    return [*ids, 4]


def word_id(word: str) -> int:
    return 10 + int.from_bytes(hashlib.sha256(word.encode()).digest()[:2], "big") % 20_000


def answer_of(messages: list[dict[str, str]], seed: int) -> str:
    digest = hashlib.sha256(json.dumps([messages, seed]).encode()).hexdigest()
    return " ".join(digest[i : i + 4] for i in range(0, 24, 4))


@dataclass
class Script:
    """What goes wrong, by text that a prompt contains."""

    empty: str | None = None
    fail_once: str | None = None
    fail_always: str | None = None
    drop: str | None = None
    no_ids: bool = False
    shape: str = "vllm"
    """Whose names the token ids have: as recorded from vLLM 0.32.0, SGLang 0.5.23 and xllamacpp 2026.10."""
    delay_s: float = 0.0
    prompt_tokens_off_by: int = 0
    reasoning: bool = False
    render: Callable[[list[dict[str, str]]], list[int]] = rendered
    """Token ids of a prompt."""
    answer: Callable[[list[dict[str, str]], int], str] = answer_of
    encode: Callable[[str], list[int]] = lambda text: list(map(word_id, text.split()))
    end: int = END
    finish: str = "stop"
    asked: Counter[str] = field(default_factory=Counter)
    """Requests answered in full, by last user message."""
    in_flight: int = 0
    peak: int = 0
    url: str = ""
    gone: bool = False
    answered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    num_refused: int = 0
    """Requests while it was gone."""

    def wait_until_asked(self, count: int, *, timeout_s: float) -> bool:
        """Waits for so many answers to be on their way."""
        return all(self.answered.acquire(timeout=timeout_s) for _ in range(count))


@contextlib.contextmanager
def vllm_like(script: Script) -> Iterator[Script]:
    """Serves in a thread of its own until the block ends."""
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with scripted_server(lambda request, writer: _answer(script, request, writer)) as server:
            script.url = server.url
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield script
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


async def _answer(script: Script, request: bytes, writer: asyncio.StreamWriter) -> bool:
    head, _, raw = request.partition(b"\r\n\r\n")
    path = head.split(b" ")[1].decode()
    if script.gone:
        script.num_refused += 1
        return False
    if path != "/v1/chat/completions":
        bodies = {"/v1/models": {"data": [{"id": "tiny"}]}, "/version": {"version": "0.32.0"}}
        body = bodies.get(path)
        if path == "/tokenize":  # as llama.cpp: the text of a rendered prompt
            body = {"tokens": list(map(int, json.loads(raw)["content"].split()))}
        writer.write(plain(json.dumps(body).encode(), status="200 OK" if body else "404 Not Found"))
        return True
    script.in_flight += 1
    script.peak = max(script.peak, script.in_flight)
    try:
        if script.delay_s:
            await asyncio.sleep(script.delay_s)
        return _complete(script, json.loads(raw), writer)
    finally:
        script.in_flight -= 1


def _complete(script: Script, body: dict, writer: asyncio.StreamWriter) -> bool:
    messages = body["messages"]
    question = messages[-1]["content"]
    script.asked[question] += 1
    if script.drop is not None and script.drop in question:
        return False
    once = script.fail_once is not None and script.fail_once in question and script.asked[question] == 1
    if once or (script.fail_always is not None and script.fail_always in question):
        writer.write(plain(b'{"error": "scripted"}', status="500 Internal Server Error"))
        return True
    is_empty = script.empty is not None and script.empty in question
    text = "" if is_empty else script.answer(messages, body["seed"])
    prompt_ids = script.render(messages)
    answer_ids = [*script.encode(text), *([script.end] if script.finish == "stop" else [])]
    message = {"role": "assistant", "content": text}
    if script.reasoning:
        message["reasoning_content"] = "hm"
    reply = {
        "choices": [{"index": 0, "message": message, "finish_reason": script.finish}],
        "usage": {
            "prompt_tokens": len(prompt_ids) + script.prompt_tokens_off_by,
            "completion_tokens": len(answer_ids),
        },
    }
    if not script.no_ids:
        _add_ids(script, reply, prompt_ids, answer_ids)
    writer.write(plain(json.dumps(reply).encode()))
    script.answered.release()
    return True


def _add_ids(script: Script, reply: dict, prompt_ids: list[int], answer_ids: list[int]) -> None:
    choice = reply["choices"][0]
    if script.shape == "vllm":
        reply["prompt_token_ids"] = prompt_ids
        choice["token_ids"] = answer_ids
    elif script.shape == "sglang":
        choice["prompt_token_ids"] = prompt_ids
        choice["response_token_ids"] = answer_ids
    else:
        reply["__verbose"] = {"prompt": " ".join(map(str, prompt_ids)), "tokens": answer_ids}
