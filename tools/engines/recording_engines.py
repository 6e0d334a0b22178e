"""What recording each engine takes: its commands, the questions it is asked, what counts as an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[2] / "src"
SERVED_NAME = "smol"
NOWHERE = "/nonexistent/draft"
TOKENIZED_TEXT = "Count to 12345:  3 naïve cafés.\n\n<|im_end|>"


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
    """Something else listens on the port."""


@dataclass(frozen=True)
class Engine:
    """What recording one engine takes."""

    methods: Callable[[Paths], tuple[Method, ...]]
    bad_starts: Callable[[Paths], tuple[Method, ...]]
    """Servers started wrongly; most die."""
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


def vllm_bad_starts(paths: Paths) -> tuple[Method, ...]:
    missing = {"method": "eagle3", "model": NOWHERE, "num_speculative_tokens": 3}
    return (
        Method("draft-missing", ("--speculative-config", json.dumps(missing))),
        Method("metrics-flag-without-speculation", ("--per-request-spec-decode-metrics", "detailed")),
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
    bad_starts=vllm_bad_starts,
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


def sglang_bad_starts(paths: Paths) -> tuple[Method, ...]:
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
    bad_starts=sglang_bad_starts,
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


def llamacpp_bad_starts(paths: Paths) -> tuple[Method, ...]:
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
    bad_starts=llamacpp_bad_starts,
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
