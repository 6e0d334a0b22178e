"""The launcher's flags: llama-server's names, and the package attribute that each one sets.

Names, value spellings and limits are those of llama-server in the build that
``xllamacpp`` ships; the table holds what speculation, caching and speed on
one model need, not all of llama-server.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Value = bool | int | float | str | list[str] | list[float]

DEFAULT_PORT = 9931
"""llama-server's own since it left 8080; the package's ``CommonParams`` says 0."""

AUTO_PARALLEL = -1
"""llama-server's own ``--parallel``: four slots sharing one KV cache; the package says 1."""

SPEC_TYPES = (
    "none",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
)
KV_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
ON = ("on", "enabled", "true", "1")
OFF = ("off", "disabled", "false", "0")
AUTO = ("auto", "-1")


@dataclass(frozen=True)
class Flag:
    """One option of llama-server.

    ``enum`` is the head of the names of the package's enumeration members,
    for values that are given as words: ``ggml_type.GGML_TYPE_`` + ``Q8_0``.
    """

    names: tuple[str, ...]
    """The first is the one used in messages."""
    target: str
    """Dotted attribute of ``CommonParams``."""
    help: str
    metavar: str | None = "N"
    """``None``: a switch without a value."""
    read: Callable[[str], Value] = int
    off_names: tuple[str, ...] = ()
    inverted: bool = False
    """The attribute is the switch's opposite."""
    accumulates: bool = False
    """Given twice, the lists are joined; every other flag keeps its last value."""
    enum: str | None = None

    @property
    def dest(self) -> str:
        return self.names[0].lstrip("-").replace("-", "_")


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Reader of a whole number within limits."""

    def read(text: str) -> int:
        value = int(text)
        if value < low or (high is not None and value > high):
            limits = f">= {low}" if high is None else f"{low}..{high}"
            raise ValueError(f"must be {limits}, got {value}")
        return value

    return read


def number(low: float, high: float = math.inf) -> Callable[[str], float]:
    """Reader of a number within limits."""

    def read(text: str) -> float:
        value = float(text)
        if not low <= value <= high or math.isinf(value):
            limits = f">= {low:g}" if math.isinf(high) else f"{low:g}..{high:g}"
            raise ValueError(f"must be {limits}, got {text}")
        return value

    return read


def words(*allowed: str) -> Callable[[str], str]:
    """Reader of one word out of ``allowed``."""

    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    return read


def on_off_auto(text: str) -> str:
    """``ENABLED``, ``DISABLED`` or ``AUTO``, from llama-server's spellings of them."""
    for spellings, name in ((ON, "ENABLED"), (OFF, "DISABLED"), (AUTO, "AUTO")):
        if text in spellings:
            return name
    raise ValueError(f"{text!r} is not one of on, off, auto")


def on_off(text: str) -> bool:
    """True for llama-server's spellings of on, false for those of off."""
    if text in ON:
        return True
    if text in OFF:
        return False
    raise ValueError(f"{text!r} is not one of on, off")


def threads(text: str) -> int:
    """A thread count; zero and below mean every CPU."""
    count = int(text)
    return count if count > 0 else os.cpu_count() or 1


def gpu_layers(text: str) -> int:
    """A number of layers, ``auto`` or ``all``."""
    return {"auto": -1, "all": -2}.get(text) or int(text)


def slots(text: str) -> int:
    """A number of slots, or -1 for automatic."""
    count = int(text)
    if count == 0:
        raise ValueError("must be >= 1, or -1 for automatic, got 0")
    return count


def seed(text: str) -> int:
    """A seed as the engine stores it: -1, a fresh one each time, is the largest unsigned value."""
    return int(text) & 0xFFFFFFFF


def items(text: str) -> list[str]:
    """Comma-separated, empty parts left out."""
    return [part for part in text.split(",") if part]


def spec_types(text: str) -> list[str]:
    """Comma-separated names out of ``SPEC_TYPES``."""
    names = items(text)
    for name in names:
        words(*SPEC_TYPES)(name)
    return names


def probabilities(text: str) -> list[float]:
    """Comma-separated numbers in [0, 1]."""
    values = [number(0, 1)(part) for part in items(text)]
    if not values:
        raise ValueError("must be numbers in 0..1 separated by commas")
    return values


def _switch(target: str, on: str, off: str, text: str, *, inverted: bool = False) -> Flag:
    return Flag((on,), target, text, metavar=None, off_names=(off,), inverted=inverted)


def _kv_type(names: tuple[str, ...], target: str, of: str) -> Flag:
    return Flag(
        names,
        target,
        f"data type of {of}: {', '.join(KV_CACHE_TYPES)} (default: f16)",
        metavar="TYPE",
        read=words(*KV_CACHE_TYPES),
        enum="ggml_type.GGML_TYPE_",
    )


def _ngram_map(method: str) -> tuple[Flag, ...]:
    target = f"speculative.{method.replace('-', '_')}"
    return (
        Flag(
            (f"--spec-{method}-size-n",),
            f"{target}.size_n",
            f"{method}: tokens that must match (default: 12)",
            read=integer(1, 1024),
        ),
        Flag(
            (f"--spec-{method}-size-m",),
            f"{target}.size_m",
            f"{method}: tokens proposed after a match (default: 48)",
            read=integer(1, 1024),
        ),
        Flag(
            (f"--spec-{method}-min-hits",),
            f"{target}.min_hits",
            f"{method}: matches needed (default: 1)",
            read=integer(1, 0xFFFF),
        ),
    )


FLAGS: tuple[Flag, ...] = (
    # the model
    Flag(("--model", "-m"), "model.path", "GGUF file of the model", metavar="FILE", read=str),
    Flag(
        ("--alias", "-a"),
        "model_alias",
        "names of the model in the API, comma-separated",
        metavar="NAMES",
        read=items,
        accumulates=True,
    ),
    Flag(
        ("--chat-template",),
        "chat_template",
        "Jinja template, or a built-in one's name (default: the model's)",
        metavar="TEMPLATE",
        read=str,
    ),
    _switch("use_jinja", "--jinja", "--no-jinja", "render chats with Jinja (default: on)"),
    # HTTP
    Flag(
        ("--host",),
        "hostnames",
        "address to listen on (default: 127.0.0.1)",
        metavar="HOST",
        read=items,
    ),
    Flag(
        ("--port",),
        "port",
        f"port; 0 takes a free one and prints it (default: {DEFAULT_PORT})",
        metavar="PORT",
        read=integer(0, 65535),
    ),
    Flag(
        ("--api-key",),
        "api_keys",
        "keys of which a request must carry one, comma-separated (default: none)",
        metavar="KEYS",
        read=items,
        accumulates=True,
    ),
    Flag(("--threads-http",), "n_threads_http", "threads that answer HTTP (default: -1, by slots and CPUs)"),
    Flag(("--metrics",), "endpoint_metrics", "answer GET /metrics (default: off)", metavar=None),
    Flag(("--props",), "endpoint_props", "allow POST /props (default: off)", metavar=None),
    _switch("endpoint_slots", "--slots", "--no-slots", "answer GET /slots (default: on)"),
    _switch("ui", "--ui", "--no-ui", "serve the web page (default: on)"),
    # CPU
    Flag(
        ("--threads", "-t"),
        "cpuparams.n_threads",
        "threads for generation; 0 or less is every CPU (default: the physical cores)",
        read=threads,
    ),
    Flag(
        ("--threads-batch", "-tb"),
        "cpuparams_batch.n_threads",
        "threads for prompts (default: as --threads)",
        read=threads,
    ),
    Flag(
        ("--poll",),
        "cpuparams.poll",
        "how long idle threads spin, 0..100 (default: 50)",
        read=integer(0, 100),
    ),
    _switch(
        "no_extra_bufts",
        "--repack",
        "--no-repack",
        "rearrange weights for the CPU (default: on)",
        inverted=True,
    ),
    # context and batches
    Flag(("--ctx-size", "-c"), "n_ctx", "context of all slots together; 0 is the model's own (default: 0)"),
    Flag(
        ("--parallel", "-np"),
        "n_parallel",
        "slots; -1 is four that share one KV cache (default: -1)",
        read=slots,
    ),
    Flag(("--predict", "-n", "--n-predict"), "n_predict", "most tokens per answer (default: -1, no limit)"),
    Flag(("--batch-size", "-b"), "n_batch", "logical batch size (default: 2048)", read=integer(1)),
    Flag(("--ubatch-size", "-ub"), "n_ubatch", "physical batch size (default: 512)", read=integer(1)),
    Flag(
        ("--cont-batching", "-cb"),
        "cont_batching",
        "let requests join a running batch (default: on)",
        metavar=None,
        off_names=("--no-cont-batching", "-nocb"),
    ),
    _switch("ctx_shift", "--context-shift", "--no-context-shift", "drop old tokens when full (default: off)"),
    _switch("warmup", "--warmup", "--no-warmup", "one empty run after loading (default: on)"),
    Flag(
        ("--flash-attn", "-fa"),
        "flash_attn_type",
        "on, off or auto (default: auto)",
        metavar="WHEN",
        read=on_off_auto,
        enum="llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_",
    ),
    Flag(
        ("--fit",),
        "fit_params",
        "on or off: shrink what was not set until it fits the memory (default: on)",
        metavar="WHEN",
        read=on_off,
    ),
    # caches
    _kv_type(("--cache-type-k", "-ctk"), "cache_type_k", "K in the KV cache"),
    _kv_type(("--cache-type-v", "-ctv"), "cache_type_v", "V in the KV cache"),
    Flag(
        ("--kv-unified", "-kvu"),
        "kv_unified",
        "one KV cache for all slots (default: only with automatic --parallel)",
        metavar=None,
        off_names=("--no-kv-unified", "-no-kvu"),
    ),
    Flag(
        ("--cache-ram", "-cram"),
        "cache_ram_mib",
        "MiB for old prompts; 0 is none, -1 no limit (default: 8192)",
        read=integer(-1),
    ),
    _switch("cache_prompt", "--cache-prompt", "--no-cache-prompt", "reuse equal prompt heads (default: on)"),
    _switch(
        "cache_idle_slots", "--cache-idle-slots", "--no-cache-idle-slots", "save idle slots (default: on)"
    ),
    Flag(("--cache-reuse",), "n_cache_reuse", "shortest chunk to reuse by shifting (default: 0)"),
    # GPU builds of the package
    Flag(
        ("--n-gpu-layers", "-ngl", "--gpu-layers"),
        "n_gpu_layers",
        "layers on the GPU: a number, auto or all (default: auto)",
        read=gpu_layers,
    ),
    # sampling defaults
    Flag(("--seed", "-s"), "sampling.seed", "seed; -1 is a fresh one per request (default: -1)", read=seed),
    Flag(("--temp", "--temperature"), "sampling.temp", "temperature (default: 0.8)", read=number(0)),
    # log
    Flag(
        ("--verbosity", "-lv", "--log-verbosity"),
        "verbosity",
        "0 least, 3 info, 5 debug (default: 3)",
    ),
    # speculation with a draft model
    Flag(
        ("--spec-type",),
        "speculative.types",
        f"comma-separated: {', '.join(SPEC_TYPES)} (default: none)",
        metavar="TYPES",
        read=spec_types,
        accumulates=True,
        enum="common_speculative_type.COMMON_SPECULATIVE_TYPE_",
    ),
    Flag(
        ("--spec-draft-model", "-md", "--model-draft"),
        "speculative.draft.mparams.path",
        "GGUF file of the draft",
        metavar="FILE",
        read=str,
    ),
    Flag(
        ("--spec-draft-n-max",),
        "speculative.draft.n_max",
        "tokens drafted per verify step (default: 3)",
        read=integer(1),
    ),
    Flag(
        ("--spec-draft-n-min",),
        "speculative.draft.n_min",
        "shorter drafts are dropped (default: 0)",
        read=integer(0),
    ),
    Flag(
        ("--spec-draft-p-min", "--draft-p-min"),
        "speculative.draft.p_min",
        "stop drafting below this probability (default: 0)",
        metavar="P",
        read=number(0, 1),
    ),
    Flag(
        ("--spec-draft-p-split", "--draft-p-split"),
        "speculative.draft.p_split",
        "split probability (default: 0.1)",
        metavar="P",
        read=number(0, 1),
    ),
    Flag(
        ("--spec-draft-ngl", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"),
        "speculative.draft.n_gpu_layers",
        "layers of the draft on the GPU: a number, auto or all (default: auto)",
        read=gpu_layers,
    ),
    Flag(
        ("--spec-draft-threads", "-td", "--threads-draft"),
        "speculative.draft.cpuparams.n_threads",
        "threads of the draft (default: as --threads)",
        read=threads,
    ),
    Flag(
        ("--spec-draft-threads-batch", "-tbd", "--threads-batch-draft"),
        "speculative.draft.cpuparams_batch.n_threads",
        "threads of the draft for prompts (default: as --threads-batch)",
        read=threads,
    ),
    _kv_type(
        ("--spec-draft-type-k", "-ctkd", "--cache-type-k-draft"),
        "speculative.draft.cache_type_k",
        "K in the draft's KV cache",
    ),
    _kv_type(
        ("--spec-draft-type-v", "-ctvd", "--cache-type-v-draft"),
        "speculative.draft.cache_type_v",
        "V in the draft's KV cache",
    ),
    _switch(
        "speculative.draft.backend_sampling",
        "--spec-draft-backend-sampling",
        "--no-spec-draft-backend-sampling",
        "sample the draft in the compute graph (default: on)",
    ),
    # speculation from the text itself
    *_ngram_map("ngram-simple"),
    *_ngram_map("ngram-map-k"),
    *_ngram_map("ngram-map-k4v"),
    Flag(
        ("--spec-ngram-mod-n-match",),
        "speculative.ngram_mod.n_match",
        "ngram-mod: tokens that must match (default: 24)",
        read=integer(1, 1024),
    ),
    Flag(
        ("--spec-ngram-mod-n-min",),
        "speculative.ngram_mod.n_min",
        "ngram-mod: fewest tokens proposed (default: 48)",
        read=integer(0, 1024),
    ),
    Flag(
        ("--spec-ngram-mod-n-max",),
        "speculative.ngram_mod.n_max",
        "ngram-mod: most tokens proposed (default: 64)",
        read=integer(0, 1024),
    ),
    # imposed acceptance
    Flag(
        ("--spec-synth-len",),
        "speculative.synth_len",
        "impose this mean acceptance length, the target's own token included (benchmarks only)",
        metavar="L",
        read=number(1),
    ),
    Flag(
        ("--spec-synth-rates",),
        "speculative.synth_rates",
        "impose these acceptance probabilities per position, comma-separated (benchmarks only)",
        metavar="P0,P1,...",
        read=probabilities,
    ),
)

_N_MAX = "use --spec-draft-n-max or --spec-ngram-mod-n-max"
_N_MIN = "use --spec-draft-n-min or --spec-ngram-mod-n-min"
REMOVED: dict[str, str] = {
    "--draft": _N_MAX,
    "--draft-n": _N_MAX,
    "--draft-max": _N_MAX,
    "--draft-min": _N_MIN,
    "--draft-n-min": _N_MIN,
    "--spec-ngram-size-n": "use the respective --spec-ngram-*-size-n or --spec-ngram-mod-n-match",
    "--spec-ngram-size-m": "use the respective --spec-ngram-*-size-m",
    "--spec-ngram-min-hits": "use the respective --spec-ngram-*-min-hits",
}
"""Flags of earlier builds, and what llama-server now says to use."""


class UnknownFlag(ValueError):
    """A flag that is not in the table; the text names it."""


def spell_out(arguments: Sequence[str], *, extra: Sequence[str] = ()) -> list[str]:
    """``arguments`` with each flag as ``--long`` or ``--long=value``, read the way llama-server reads them.

    A flag is matched whole, never by a prefix, ``_`` counts as ``-`` in long
    names, and the word behind a flag is its value even when it begins with a
    dash. ``extra`` are switches to pass through. Raises ``UnknownFlag``, and
    ``ValueError`` for a removed flag or a missing value.
    """
    by_name = {name: flag for flag in FLAGS for name in (*flag.names, *flag.off_names)}
    spelled: list[str] = []
    rest = list(arguments)
    while rest:
        given = rest.pop(0)
        name = given.replace("_", "-") if given.startswith("--") else given
        if name in extra:
            spelled.append(name)
            continue
        if name in REMOVED:
            raise ValueError(
                f'error while handling argument "{name}": the argument has been removed. {REMOVED[name]}'
            )
        flag = by_name.get(name)
        if flag is None:
            head, equals, _ = name.partition("=")
            hint = f" (write it as two words: {head} VALUE)" if equals and head in by_name else ""
            raise UnknownFlag(f"unrecognized argument: {given}{hint}")
        if flag.metavar is None:
            spelled.append(flag.off_names[0] if name in flag.off_names else flag.names[0])
        elif rest:
            spelled.append(f"{flag.names[0]}={rest.pop(0)}")
        else:
            raise ValueError(f'error while handling argument "{name}": expected value for argument')
    return spelled
