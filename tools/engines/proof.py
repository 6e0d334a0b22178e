"""Proves that an installed engine speculates: it serves the shipped EAGLE-3 draft and keeps some of its tokens."""

from __future__ import annotations

import json
import re
import tempfile
import time
from pathlib import Path

from recording_engines import ENGINES, SERVED_NAME, SOURCES, Paths
from recording_server import Client, free_port, server

DRAFT = SOURCES / "spectune" / "embedded" / "drafts" / "smollm2-135m-eagle3"
METHOD = "eagle3"
QUESTION = "Explain in a few sentences how rain forms."
TOKENS = 48
LEAST_PER_STEP = 1.15
"""Tokens per verify step, the bonus token included. Without a working draft it is 1; with this one about 1.5."""
COUNTERS_WITHIN_S = 20.0


class NoProof(Exception):
    """The engine does not speculate here; the message says what it did instead."""


def counter_sums(metrics: str, names: tuple[str, ...]) -> dict[str, float | None]:
    """Counters of a Prometheus text by name, summed over their labels; ``None`` for one that is not there."""
    sums: dict[str, float | None] = dict.fromkeys(names)
    for line in metrics.splitlines():
        name = re.split(r"[{ ]", line, maxsplit=1)[0]
        if name in sums:
            sums[name] = (sums[name] or 0.0) + float(line.rpartition(" ")[2])
    return sums


def prove(name: str, *, python: Path, target: Path) -> str:
    """What was seen, in words; raises ``NoProof``."""
    engine = ENGINES[name]
    paths = Paths(python=python, target=target, draft=DRAFT, random_draft=DRAFT)
    (method,) = (m for m in engine.methods(paths) if m.name == METHOD)
    with tempfile.TemporaryDirectory(prefix=f"spectune-{name}-proof-") as folder:
        log, port = Path(folder) / "server.log", free_port()
        try:
            with server(engine, engine.argv(paths, method, port), log, port, Path(folder)) as ready_after_s:
                tokens, steps = ask(Client(port), engine.counters)
        except SystemExit as error:
            raise NoProof(f"{error}\n{last_words(log)}") from error
        per_step = (tokens - 1) / steps if steps else 1.0  # the first token comes of the prompt
        seen = f"{tokens:.0f} tokens in {steps:.0f} verify steps"
        if per_step < LEAST_PER_STEP:
            raise NoProof(f"the draft is served and hardly anything of it is kept: {seen}\n{last_words(log)}")
    return f"{seen}, ready after {ready_after_s:.0f} s"


def ask(client: Client, counters: tuple[str, ...]) -> tuple[float, float]:
    """Tokens generated for one question and verify steps made, as the server counts them."""
    generated, verified, *_ = counters
    before = counter_sums(client.call("GET", "/metrics")[1], counters)
    body = {
        "model": SERVED_NAME,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": TOKENS,
        "temperature": 0,
    }
    status, reply = client.call("POST", "/v1/chat/completions", body)
    if status != 200:
        raise NoProof(f"the question was answered with status {status}: {reply[:500]}")
    tokens = float(json.loads(reply)["usage"]["completion_tokens"])
    deadline = time.monotonic() + COUNTERS_WITHIN_S
    while True:  # counters may follow the last byte
        now = counter_sums(client.call("GET", "/metrics")[1], counters)
        counted, steps = ((now[name] or 0.0) - (before[name] or 0.0) for name in (generated, verified))
        if (counted >= tokens and steps) or time.monotonic() > deadline:
            return tokens, steps
        time.sleep(0.2)


def last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join(line[:300] for line in lines[-25:])
