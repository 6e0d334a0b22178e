#!/usr/bin/env python3
"""Records what a real engine says: its log, metrics, replies and streams, for ``tests/recorded``.

One server per method is started, asked a fixed set of questions and stopped::

    python3 tools/engines/record.py vllm --python ENGINES/vllm/bin/python \\
        --target MODEL_DIR --draft DRAFT_DIR --random-draft DRAFT_DIR --out tests/recorded/vllm-0.32.0

With ``--bad-starts`` and ``--out tests/recorded/bad-starts/vllm-0.32.0``: what it
says when it is started wrongly.

Machine paths, host names and addresses are replaced before anything is written,
and a file that would still hold one stops the run. Only the standard library is
needed here; the engine runs in its own environment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from proof import counter_sums
from recording_engines import ENGINES, SERVED_NAME, SOURCES, Engine, Method, Paths
from recording_files import Recording, Scrubber
from recording_server import Client, body_of, free_port, server, session_members, start, stop

MAX_TOKENS = 48
BAD_START_TIMEOUT_S = 240.0
QUESTIONS = (
    "Explain in a few sentences how rain forms.",
    "Repeat this line three times: one two three four five six seven eight.",
    "Write a short mail asking a colleague for the minutes of the last meeting.",
)
LONG_QUESTION = "Summarise this list: " + ", ".join(f"item {n} is number {n + 1}" for n in range(40)) + "."
"""Longer than two cache blocks of vLLM on a CPU (128 tokens each), so that asking twice hits the cache."""
COUNTER_POLLS = 15
COUNTER_POLL_EVERY_S = 0.2


def chat_body(question: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": SERVED_NAME,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


def counters_after_reply(client: Client, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    """Counters before a request and at intervals after its last byte: how far they lag behind."""
    before = counter_sums(client.call("GET", "/metrics")[1], engine.counters)
    client.wire_bytes("/v1/chat/completions", body)
    ended = time.monotonic()
    seen: list[dict[str, Any]] = []
    for _ in range(COUNTER_POLLS):
        at = time.monotonic() - ended
        now = counter_sums(client.call("GET", "/metrics")[1], engine.counters)
        if not seen or now != seen[-1]["counters"]:
            seen.append({"after_reply_s": round(at, 3), "counters": now})
        time.sleep(COUNTER_POLL_EVERY_S)
    return {"before": before, "changes": seen, "watched_s": round(time.monotonic() - ended, 1)}


def ask(client: Client, engine: Engine, method: Method, recording: Recording) -> None:
    fields = {} if method.bare else engine.request_fields
    trim = engine.trim
    recording.text("metrics-before.txt", client.call("GET", "/metrics")[1])
    for name, path in engine.get.items():
        recording.reply(name, *client.call("GET", path), trim)
    for name, (path, body) in engine.tokenize.items():
        recording.reply(name, *client.call("POST", path, body), trim)
    for i, question in enumerate(QUESTIONS, start=1):
        wire = client.wire_bytes("/v1/chat/completions", chat_body(question, fields))
        recording.text(f"chat-{i}.sse", body_of(wire).decode())
        if i == 1:
            recording.wire("chat-1.http", wire)
    time.sleep(2.0)  # counters may follow the last byte; how far is recorded below
    recording.text("metrics-after.txt", client.call("GET", "/metrics")[1])
    for name in engine.get_after:
        recording.reply(name.replace(".", "-after."), *client.call("GET", engine.get[name]), trim)

    again = chat_body(QUESTIONS[0], fields)
    recording.json("counters-after-reply.json", counters_after_reply(client, engine, again))
    long_one = {**chat_body(LONG_QUESTION, fields), "max_tokens": 8}
    for name in ("chat-long.sse", "chat-long-again.sse"):
        recording.text(name, body_of(client.wire_bytes("/v1/chat/completions", long_one)).decode())
    for name, (verb, path) in engine.flush.items():
        recording.reply(name, *client.call(verb, path), trim)
    whole = {**again, "stream": False}
    del whole["stream_options"]
    recording.reply("chat-1-whole.json", *client.call("POST", "/v1/chat/completions", whole), trim)
    completion = {**again, "prompt": "The rain in Spain", "max_tokens": 24}
    del completion["messages"]
    recording.text("completion.sse", body_of(client.wire_bytes("/v1/completions", completion)).decode())
    unknown = {**whole, "model": "no-such-model"}
    recording.reply("unknown-model.json", *client.call("POST", "/v1/chat/completions", unknown), trim)


def scrubber(paths: Paths, scratch: Path) -> Scrubber:
    query = [str(paths.python), "-c", "import sys; print(sys.base_prefix)"]
    prefix = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
    return Scrubber(
        {
            "MODEL_DIR": paths.target,
            "DRAFT_DIR": paths.draft,
            "RANDOM_DRAFT_DIR": paths.random_draft,
            "VENV": paths.python.parent.parent,
            "PYTHON_PREFIX": prefix,
            "REPOSITORY": SOURCES.parent,
            "SCRATCH": scratch,
            "TMP": "/tmp",
            "HOME": Path.home(),
        }
    )


def record(engine: Engine, paths: Paths, method: Method, folder: Path) -> None:
    port = free_port()
    argv = engine.argv(paths, method, port)
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        log = scratch / "server.log"
        recording = Recording(folder, scrubber(paths, scratch))
        try:
            with server(engine, argv, log, port, scratch) as ready_after_s:
                print(f"{method.name}: ready after {ready_after_s:.1f} s", flush=True)
                ask(Client(port), engine, method, recording)
        except BaseException:
            print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
        recording.text("server.log", log.read_text(encoding="utf-8", errors="replace"))
        recording.json("command.json", {"argv": argv, "env": engine.env})
    print(f"{method.name}: {len(list(folder.iterdir()))} files in {folder}", flush=True)


def record_bad_start(engine: Engine, paths: Paths, method: Method, stem: Path) -> None:
    """``STEM.log`` and ``STEM.json``: what a server said to a wrong start, and whether and how it ended."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch_name, contextlib.ExitStack() as held:
        scratch = Path(scratch_name)
        taken = held.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
        if method.port_taken:
            taken.listen()
        else:
            taken.close()
        argv = engine.argv(paths, method, port)
        log, scrub = scratch / "server.log", scrubber(paths, scratch)
        started = time.monotonic()
        with log.open("wb") as sink:
            process = start(engine, argv, sink, scratch)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(BAD_START_TIMEOUT_S)
                code, took_s = process.poll(), time.monotonic() - started
                left = [pid for pid in session_members(process.pid) if pid != process.pid]
            finally:
                stop(process)
        end = {
            "argv": argv,
            "exit_code": code,
            "took_s": round(took_s, 1),
            "watched_s": BAD_START_TIMEOUT_S,
            "processes_left_by_the_launcher": len(left),
        }
        text = scrub(log.read_text(encoding="utf-8", errors="replace"), where=method.name)
        stem.with_name(f"{stem.name}.log").write_text(text, encoding="utf-8")
        told = scrub(json.dumps(end, indent=1), where=method.name)
        stem.with_name(f"{stem.name}.json").write_text(told + "\n", encoding="utf-8")
    print(f"{method.name}: exit code {code} after {took_s:.1f} s, {len(left)} processes left", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    commands = parser.add_subparsers(dest="engine", required=True)
    for name in ENGINES:
        command = commands.add_parser(name, allow_abbrev=False)
        command.add_argument("--python", type=Path, required=True, help="Python of the engine's environment")
        command.add_argument("--target", type=Path, required=True, help="target model: a folder, or a GGUF")
        command.add_argument("--draft", type=Path, required=True, help="a trained EAGLE-3 draft")
        command.add_argument("--random-draft", type=Path, required=True, help="see make_random_draft.py")
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--only", action="append", help="record this method only (may be repeated)")
        command.add_argument(
            "--bad-starts",
            action="store_true",
            help="record what servers say to a wrong start, as OUT-NAME.log",
        )
    options = parser.parse_args()
    engine = ENGINES[options.engine]
    paths = Paths(
        python=options.python.absolute(),
        target=options.target.absolute(),
        draft=options.draft.absolute(),
        random_draft=options.random_draft.absolute(),
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the server is stopped too
    methods = engine.bad_starts(paths) if options.bad_starts else engine.methods(paths)
    unknown = set(options.only or ()) - {method.name for method in methods}
    if unknown:
        parser.error(f"--only {sorted(unknown)}: valid are {[method.name for method in methods]}")
    for method in methods:
        if options.only and method.name not in options.only:
            continue
        if options.bad_starts:
            record_bad_start(
                engine, paths, method, options.out.with_name(f"{options.out.name}-{method.name}")
            )
        else:
            record(engine, paths, method, options.out / method.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
