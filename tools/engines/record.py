#!/usr/bin/env python3
"""Records what a real engine says: its log, metrics, replies and streams, for ``tests/recorded``.

One server per method is started, asked a fixed set of questions and stopped::

    python3 tools/engines/record.py vllm --python ENGINES/vllm/bin/python \\
        --target MODEL_DIR --draft DRAFT_DIR --random-draft DRAFT_DIR --out tests/recorded/vllm-0.32.0

Machine paths, host names and addresses are replaced before anything is written,
and a file that would still hold one stops the run. Only the standard library is
needed here; the engine runs in its own environment.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

SOURCES = Path(__file__).resolve().parents[2] / "src"
SERVED_NAME = "smol"
MAX_TOKENS = 48
READY_TIMEOUT_S = 600.0
DEATH_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 25.0
MAX_FILE_BYTES = 200_000
NOWHERE = "/nonexistent/draft"
QUESTIONS = (
    "Explain in a few sentences how rain forms.",
    "Repeat this line three times: one two three four five six seven eight.",
    "Write a short mail asking a colleague for the minutes of the last meeting.",
)
LONG_QUESTION = "Summarise this list: " + ", ".join(f"item {n} is number {n + 1}" for n in range(40)) + "."
"""Longer than two cache blocks of vLLM on a CPU (128 tokens each), so that asking twice hits the cache."""
TOKENIZED_TEXT = "Count to 12345:  3 naïve cafés.\n\n<|im_end|>"
COUNTER_POLLS = 15
COUNTER_POLL_EVERY_S = 0.2
LEFTOVER = re.compile(r"/(?:work|root|home|tmp|Users)/[^\s\"']*")


@dataclass(frozen=True)
class Paths:
    python: Path
    target: Path
    draft: Path
    random_draft: Path


@dataclass(frozen=True)
class Method:
    """One server: its flags beyond the common ones, and whether it is asked for the extras."""

    name: str
    flags: tuple[str, ...] = ()
    bare: bool = False
    """Without the flags and request fields that make an engine report more than it does by default."""
    port_taken: bool = False
    """For a death: something else listens on the port."""


@dataclass(frozen=True)
class Engine:
    """What recording one engine takes."""

    methods: Callable[[Paths], tuple[Method, ...]]
    deaths: Callable[[Paths], tuple[Method, ...]]
    """Servers that are meant to die while starting."""
    argv: Callable[[Paths, Method, int], list[str]]
    env: dict[str, str]
    ready_path: str
    get: dict[str, str]
    """File name -> path of a GET, read before the requests."""
    get_after: tuple[str, ...]
    """Names in ``get`` that change while serving: read again behind the requests, as ``NAME-after``."""
    request_fields: dict[str, Any]
    tokenize: dict[str, tuple[str, dict[str, Any]]]
    flush: dict[str, tuple[str, str]]
    """File name -> method and path of the call that empties the prefix cache."""
    counters: tuple[str, ...]
    """Counters whose lag behind the reply is recorded."""
    trim: Callable[[str, Any], Any] = field(default=lambda name, body: body)


# ---------------------------------------------------------------- the engines


def vllm_methods(paths: Paths) -> tuple[Method, ...]:
    def speculative(**config: Any) -> tuple[str, ...]:
        return ("--speculative-config", json.dumps(config), "--per-request-spec-decode-metrics", "detailed")

    return (
        Method("none"),
        Method("bare", bare=True),
        Method(
            "ngram",
            speculative(method="ngram", num_speculative_tokens=3, prompt_lookup_max=3, prompt_lookup_min=1),
        ),
        Method("eagle3", speculative(method="eagle3", model=str(paths.draft), num_speculative_tokens=3)),
        Method(
            "eagle3-random-draft",
            speculative(method="eagle3", model=str(paths.random_draft), num_speculative_tokens=3),
        ),
    )


def vllm_deaths(paths: Paths) -> tuple[Method, ...]:
    missing = {"method": "eagle3", "model": NOWHERE, "num_speculative_tokens": 3}
    return (
        Method("draft-missing", ("--speculative-config", json.dumps(missing))),
        Method("metrics-flag-without-speculation", ("--per-request-spec-decode-metrics", "detailed")),
        Method("memory", ("--gpu-memory-utilization", "0.999")),
        Method("unknown-flag", ("--num-speculative-tokens", "3")),
        Method("port-taken", port_taken=True),
    )


def vllm_argv(paths: Paths, method: Method, port: int) -> list[str]:
    return [
        *(str(paths.python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(paths.target), "--served-model-name", SERVED_NAME),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", "2048", "--gpu-memory-utilization", "0.5", "--enforce-eager"),
        *(() if method.bare else ("--enable-prompt-tokens-details",)),
        *method.flags,
    ]


def vllm_trim(name: str, body: Any) -> Any:
    if name.startswith("server_info"):  # system_env describes the machine, not the server
        return {key: value for key, value in body.items() if key != "system_env"}
    return body


VLLM = Engine(
    methods=vllm_methods,
    deaths=vllm_deaths,
    argv=vllm_argv,
    env={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"},
    ready_path="/health",
    get={
        "models.json": "/v1/models",
        "version.json": "/version",
        "server_info.json": "/server_info?config_format=json",
        "load.json": "/load",
    },
    get_after=(),
    request_fields={},
    tokenize={"tokenize.json": ("/tokenize", {"model": SERVED_NAME, "prompt": TOKENIZED_TEXT})},
    flush={"reset_prefix_cache.json": ("POST", "/reset_prefix_cache")},
    counters=(
        "vllm:generation_tokens_total",
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_accepted_tokens_total",
    ),
    trim=vllm_trim,
)


def sglang_methods(paths: Paths) -> tuple[Method, ...]:
    def eagle(draft: Path, *, algorithm: str = "EAGLE3") -> tuple[str, ...]:
        return (
            *("--speculative-algorithm", algorithm, "--speculative-draft-model-path", str(draft)),
            *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
            *("--speculative-num-draft-tokens", "4"),
        )

    ngram = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4")
    return (
        Method("none"),
        Method("bare", bare=True),
        Method("ngram", ngram),
        Method("eagle3", eagle(paths.draft)),
        Method("eagle3-random-draft", eagle(paths.random_draft)),
        Method("eagle3-draft-with-flag-eagle", eagle(paths.draft, algorithm="EAGLE")),
    )


def sglang_deaths(paths: Paths) -> tuple[Method, ...]:
    def eagle(*flags: str, draft: str | None = str(paths.draft)) -> tuple[str, ...]:
        with_draft = ("--speculative-draft-model-path", draft) if draft else ()
        return ("--speculative-algorithm", "EAGLE3", *with_draft, *flags)

    def shape(steps: int, topk: int, num_tokens: int) -> tuple[str, ...]:
        return (
            *("--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)),
            *("--speculative-num-draft-tokens", str(num_tokens)),
        )

    return (
        Method("draft-missing", eagle(*shape(3, 1, 4), draft=NOWHERE)),
        Method("no-draft-named", eagle(*shape(3, 1, 4), draft=None)),
        Method("only-steps-named", eagle("--speculative-num-steps", "3")),
        Method("tree-larger-than-its-candidates", eagle(*shape(2, 2, 20))),
        Method("unknown-flag", ("--cuda-graph-max-bs", "8")),
        Method("port-taken", port_taken=True),
    )


def sglang_argv(paths: Paths, method: Method, port: int) -> list[str]:
    extras = ("--enable-metrics", "--enable-cache-report", "--decode-log-interval", "5")
    return [
        *(str(paths.python), "-m", "sglang.launch_server"),
        *("--model-path", str(paths.target), "--served-model-name", SERVED_NAME),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--device", "cpu", "--attention-backend", "intel_amx", "--dtype", "float32"),
        *("--context-length", "2048", "--max-total-tokens", "8192", "--max-running-requests", "8"),
        *(("--enable-metrics",) if method.bare else extras),
        *method.flags,
    ]


SGLANG = Engine(
    methods=sglang_methods,
    deaths=sglang_deaths,
    argv=sglang_argv,
    env={"OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"},
    ready_path="/ready",
    get={
        "models.json": "/v1/models",
        "model_info.json": "/model_info",
        "version.json": "/version",
        "server_info.json": "/server_info",
    },
    get_after=("server_info.json",),
    request_fields={"return_spec_tokens_details": True},
    tokenize={
        "tokenize.json": ("/v1/tokenize", {"model": SERVED_NAME, "prompt": TOKENIZED_TEXT}),
        "tokenize-short-path.json": ("/tokenize", {"model": SERVED_NAME, "prompt": TOKENIZED_TEXT}),
    },
    flush={"flush_cache.json": ("POST", "/flush_cache?timeout=30")},
    counters=("sglang:generation_tokens_total", "sglang:spec_verify_calls_total"),
)


def llamacpp_methods(paths: Paths) -> tuple[Method, ...]:
    def eagle3(draft: Path) -> tuple[str, ...]:
        return ("--spec-type", "draft-eagle3", "--model-draft", str(draft), "--spec-draft-n-max", "3")

    ngram = (
        "--spec-type",
        "ngram-simple",
        "--spec-ngram-simple-size-n",
        "3",
        "--spec-ngram-simple-size-m",
        "3",
    )
    return (
        Method("none"),
        Method("ngram", ngram),
        Method("eagle3", eagle3(paths.draft)),
        Method("eagle3-random-draft", eagle3(paths.random_draft)),
    )


def llamacpp_deaths(paths: Paths) -> tuple[Method, ...]:
    def eagle3(draft: str) -> tuple[str, ...]:
        return ("--spec-type", "draft-eagle3", "--model-draft", draft)

    return (
        Method("draft-missing", eagle3(NOWHERE)),
        Method("draft-is-no-draft", eagle3(str(paths.target))),
        Method("port-taken", port_taken=True),
    )


def llamacpp_argv(paths: Paths, method: Method, port: int) -> list[str]:
    return [
        *(str(paths.python), "-m", "spectune.embedded.llama_server"),
        *("--model", str(paths.target), "--alias", SERVED_NAME),
        *("--host", "127.0.0.1", "--port", str(port), "--metrics", "--slots"),
        *("--ctx-size", "2048", "--parallel", "1", "--cache-ram", "0", "--threads", "1"),
        *method.flags,
    ]


LLAMACPP = Engine(
    methods=llamacpp_methods,
    deaths=llamacpp_deaths,
    argv=llamacpp_argv,
    env={"PYTHONPATH": str(SOURCES)},
    ready_path="/health",
    get={
        "models.json": "/v1/models",
        "props.json": "/props",
        "slots.json": "/slots",
        "health.json": "/health",
    },
    get_after=("slots.json",),
    request_fields={},
    tokenize={
        "tokenize.json": ("/tokenize", {"content": TOKENIZED_TEXT}),
        "tokenize-special.json": ("/tokenize", {"content": TOKENIZED_TEXT, "parse_special": True}),
    },
    flush={"erase_slot.json": ("POST", "/slots/0?action=erase")},
    counters=(
        "llamacpp:tokens_predicted_total",
        "llamacpp:spec_decode_num_drafts_total",
        "llamacpp:spec_decode_num_accepted_tokens_total",
    ),
)

ENGINES = {"vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMACPP}


# ---------------------------------------------------------------- one server


class Scrubber:
    """Replaces what belongs to this machine; refuses text that still holds a path of it."""

    def __init__(self, names: dict[str, Path | str]) -> None:
        self.host_name = re.compile(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w.-])")
        self.addresses = own_addresses()
        needles: dict[str, str] = {}
        for name, value in names.items():
            needles[str(value)] = name
            if isinstance(value, Path):
                needles[str(value.resolve())] = name
        self.needles = sorted(needles.items(), key=lambda pair: -len(pair[0]))

    def __call__(self, text: str, *, where: str) -> str:
        for needle, name in self.needles:
            text = text.replace(needle, name)
        text = self.host_name.sub("HOST_NAME", text)
        for address in self.addresses:
            text = text.replace(address, "HOST_ADDRESS")
        found = LEFTOVER.search(text)
        if found:
            raise SystemExit(f"{where}: a path of this machine is left: {found.group(0)!r}")
        return text


def own_addresses() -> set[str]:
    """This machine's addresses other than loopback; no packet is sent to find out."""
    found = set()
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address reserved for documentation
        found.add(str(probe.getsockname()[0]))
    with contextlib.suppress(OSError):
        found.update(socket.gethostbyname_ex(socket.gethostname())[2])
    return {address for address in found if not address.startswith(("127.", "0."))}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def session_members(session: int) -> list[int]:
    """Pids of the living processes of a session (Linux)."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            members.append(int(entry.name))
    return members


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the launcher, SIGKILL to what is left of its session, and proof that it is gone."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while members := session_members(process.pid):
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise SystemExit(f"still alive after SIGKILL: {members}")
        time.sleep(0.1)
    process.wait()


@dataclass
class Client:
    port: int

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read().decode("utf-8")
        finally:
            connection.close()

    def wire_bytes(self, path: str, body: Any) -> bytes:
        """Everything the server sends for one POST: status line, headers, framing, body."""
        sent = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(sent)}\r\nConnection: close\r\n\r\n"
        )
        received = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=300) as connection:
            connection.sendall(head.encode() + sent)
            while block := connection.recv(65536):
                received += block
        return received

    def ready(self, path: str) -> bool:
        try:
            return self.call("GET", path)[0] == 200
        except (OSError, http.client.HTTPException):
            return False


def body_of(wire: bytes) -> bytes:
    """The body behind the framing of a wire recording."""

    class Replay:
        def makefile(self, mode: str) -> Any:
            import io

            return io.BytesIO(wire)

    reply = http.client.HTTPResponse(Replay())  # type: ignore[arg-type]
    reply.begin()
    return reply.read()


def counter_sums(metrics: str, names: tuple[str, ...]) -> dict[str, float | None]:
    sums: dict[str, float | None] = dict.fromkeys(names)
    for line in metrics.splitlines():
        name = re.split(r"[{ ]", line, maxsplit=1)[0]
        if name in sums:
            sums[name] = (sums[name] or 0.0) + float(line.rpartition(" ")[2])
    return sums


class Recording:
    """The files of one method."""

    def __init__(self, folder: Path, scrub: Scrubber) -> None:
        self.folder = folder
        self.scrub = scrub
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()

    def text(self, name: str, text: str) -> None:
        clean = self.scrub(text, where=name).encode()
        if len(clean) > MAX_FILE_BYTES:
            raise SystemExit(f"{name}: {len(clean)} bytes, more than {MAX_FILE_BYTES}: trim it")
        (self.folder / name).write_bytes(clean)

    def json(self, name: str, body: Any) -> None:
        self.text(name, json.dumps(body, indent=1, ensure_ascii=False) + "\n")

    def reply(self, name: str, status: int, body: str, trim: Callable[[str, Any], Any]) -> None:
        """A JSON body as it is; anything else as ``{"status", "text"}``."""
        try:
            parsed = json.loads(body)
        except ValueError:
            parsed = None
        if status == 200 and isinstance(parsed, dict | list):
            self.json(name, trim(name, parsed))
        else:
            self.json(name, {"status": status, "text": body})

    def wire(self, name: str, wire: bytes) -> None:
        if self.scrub(wire.decode(), where=name) != wire.decode():
            raise SystemExit(f"{name}: holds something of this machine, and its framing cannot be edited")
        (self.folder / name).write_bytes(wire)


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


def start(engine: Engine, argv: list[str], sink: IO[bytes], cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdout=sink,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **engine.env},
        start_new_session=True,
        cwd=cwd,
    )


@contextlib.contextmanager
def server(engine: Engine, argv: list[str], log: Path, port: int, cwd: Path) -> Iterator[float]:
    """A running, ready server; yields the seconds it took."""
    started = time.monotonic()
    with log.open("wb") as sink:
        process = start(engine, argv, sink, cwd)
        try:
            client = Client(port)
            while not client.ready(engine.ready_path):
                if process.poll() is not None:
                    raise SystemExit(f"the server exited with {process.returncode}; its log: {log}")
                if time.monotonic() - started > READY_TIMEOUT_S:
                    raise SystemExit(f"not ready after {READY_TIMEOUT_S} s; its log: {log}")
                time.sleep(0.5)
            yield time.monotonic() - started
        finally:
            stop(process)


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


def record_death(engine: Engine, paths: Paths, method: Method, stem: Path) -> None:
    """``STEM.log`` and ``STEM.json``: what a server said that could not start, and how it ended."""
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
                    process.wait(DEATH_TIMEOUT_S)
                code, took_s = process.poll(), time.monotonic() - started
                left = [pid for pid in session_members(process.pid) if pid != process.pid]
            finally:
                stop(process)
        end = {
            "argv": argv,
            "exit_code": code,
            "took_s": round(took_s, 1),
            "watched_s": DEATH_TIMEOUT_S,
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
            "--deaths", action="store_true", help="record servers that die while starting, as OUT-NAME.log"
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
    methods = engine.deaths(paths) if options.deaths else engine.methods(paths)
    unknown = set(options.only or ()) - {method.name for method in methods}
    if unknown:
        parser.error(f"--only {sorted(unknown)}: valid are {[method.name for method in methods]}")
    for method in methods:
        if options.only and method.name not in options.only:
            continue
        if options.deaths:
            record_death(engine, paths, method, options.out.with_name(f"{options.out.name}-{method.name}"))
        else:
            record(engine, paths, method, options.out / method.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
