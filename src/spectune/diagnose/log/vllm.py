"""vLLM's log lines, from 0.5.3 (V0 engine) to 0.32.

The speculation line changed five times; what its counts mean changed with it:

============  =========================================================  ==============
version       reads                                                      counts
============  =========================================================  ==============
0.5 - 0.7     ``Speculative metrics: Draft acceptance rate: 0.642, ...``  since the start
0.8           ``Speculative metrics: ...``, without system efficiency    of the interval
0.8.3         ``SpecDecoding metrics: Draft acceptance rate: 100.0%``    of the interval
0.9           the same with mean length and rate per position            of the interval
later         mean length first, throughputs, perhaps a depth            of the interval
============  =========================================================  ==============
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from spectune.diagnose.log.fields import assignments, number, numbers_in, whole
from spectune.diagnose.log.records import Ended, EngineWindow, Ready, Record, Settings, SpecWindow, Value

KEPT_SETTINGS = frozenset(
    {
        "attention_backend",
        "async_scheduling",
        "block_size",
        "data_parallel_size",
        "dtype",
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_seq_len",
        "model",
        "pipeline_parallel_size",
        "quantization",
        "seed",
        "tensor_parallel_size",
    }
)
_SPEC_SETTINGS = frozenset(
    {
        "method",
        "model",
        "num_speculative_tokens",
        "num_spec_tokens",
        "rejection_sample_method",
        "synthetic_acceptance_length",
        "draft_tensor_parallel_size",
        "quantization",
    }
)
_OLD_SPEC_SETTINGS = frozenset({"speculative_model", "num_speculative_tokens"})
_COUNT = re.compile(
    r"\b(Accepted|Drafted|Number of accepted tokens|Number of draft tokens|Number of emitted tokens"
    r"|Number of speculative tokens)(?: tokens)?: ?(\d{1,15})\b"
)
_LENGTH = re.compile(r"[Mm]ean acceptance length: ?([\d.]+)")
_PER_POSITION = re.compile(r"Per-position acceptance rate: ?([\d., ]+)")
_DEPTH = re.compile(r"[Cc]urrent speculative depth: ?(\d{1,6})")
_ENGINE = re.compile(
    r"(?:Avg prompt throughput: ?([\d.]+) tokens/s, )?Avg generation throughput: ?([\d.]+) tokens/s"
)
_RUNNING = re.compile(r"\bRunning: ?(\d+) reqs")
_WAITING = re.compile(r"\b(?:Waiting|Pending): ?(\d+) reqs")
_HITS = re.compile(r"[Pp]refix cache hit rate: ?(?:GPU: )?([\d.]+)%")
_NUMBER = rb"(\d{1,12}(?:\.\d{1,12})?)"
_FAST_SPEC = re.compile(
    rb"Mean acceptance length: " + _NUMBER + rb", (?:Current speculative depth: (\d{1,6}), )?"
    rb"(?:Accepted throughput: [\d.]+ tokens/s, Drafted throughput: [\d.]+ tokens/s, )?"
    rb"Accepted: (\d{1,15}) tokens, Drafted: ([1-9]\d{0,14}) tokens, "
    rb"Per-position acceptance rate: (\d\.\d{1,6}(?:, \d\.\d{1,6}){0,63}), Avg"
)
_FAST_ENGINE = re.compile(
    rb"Avg prompt throughput: "
    + _NUMBER
    + rb" tokens/s, Avg generation throughput: "
    + _NUMBER
    + rb" tokens/s, "
    rb"Running: (\d{1,9}) reqs, Waiting: (\d{1,9}) reqs, \w+ KV cache usage: [\d.]+%, "
    rb"Prefix cache hit rate: " + _NUMBER + rb"%"
)
_VERSION = re.compile(
    r"LLM engine \(v?([\w.+-]+)\)|API server version v?([\w.+-]+)|█  version ([\w.+-]+)|vLLM version:? v?(\d[\w.+-]*)"
)
_SPEC_CONFIG = re.compile(
    r"speculative_config['\"]?[=:] ?(?P<config>SpeculativeConfig\([^)]{0,2000}\)|['\"]?\{[^}]{0,4000}\})"
)
_KV = re.compile(r"KV cache size: ([\d,]+) tokens")
_ARCHITECTURE = re.compile(r"Resolved architecture: (\w+)|Loading drafter model|Resolved `?--?model")
_BACKEND = re.compile(
    r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend|Using ([\w ]{1,40}) backend on V1"
)


def parse(text: str) -> Record | None:
    """What one cleaned line says; ``None`` if it is none of vLLM's that matter."""
    if "SpecDecoding metrics:" in text or "Speculative metrics:" in text:
        return _spec(text)
    if match := _ENGINE.search(text):
        return _engine(text, match)
    if "Application startup complete" in text:
        return Ready()
    if "[shutdown]" in text or "Shutting down" in text or "received signal=SIG" in text:
        return Ended()
    is_config = "non-default args" in text or " with config: " in text or "args: Namespace(" in text
    if is_config or "API server version" in text:
        return _config(text)
    if match := _VERSION.search(text):
        return Settings({"version": next(group for group in match.groups() if group)})
    if match := _KV.search(text):
        return Settings({"kv_tokens": int(match[1].replace(",", "")[:15] or 0)})
    if "rchitecture: " in text and (match := _ARCHITECTURE.search(text)) and match[1]:
        return Settings({"loaded_architecture": match[1]})
    if "backend" in text and (match := _BACKEND.search(text)):
        return Settings({"attention_backend": (match[1] or match[2]).strip()})
    if "synchronous scheduling is" in text:
        return Settings({"async_scheduling": "enabled" in text})
    return None


def fast(raw: bytes) -> SpecWindow | EngineWindow | None:
    """Today's two figures lines, straight from their bytes; ``None``: use ``parse``."""
    if found := _FAST_SPEC.search(raw):
        length, depth, accepted, drafted, rates = found.groups()
        positions = tuple(float(rate) for rate in rates.split(b", "))
        return SpecWindow(
            accepted=int(accepted),
            drafted=int(drafted),
            length=float(length),
            per_position=positions if max(positions) <= 1 else None,
            depth=None if depth is None else int(depth),
        )
    if found := _FAST_ENGINE.search(raw):
        prompt, speed, running, waiting, hits = found.groups()
        return EngineWindow(float(speed), float(prompt), int(running), int(waiting), float(hits) / 100)
    return None


def _spec(text: str) -> SpecWindow | None:
    counts = {match[1]: int(match[2]) for match in _COUNT.finditer(text)}
    accepted = counts.get("Accepted", counts.get("Number of accepted tokens"))
    drafted = counts.get("Drafted", counts.get("Number of draft tokens"))
    if accepted is None or drafted is None:
        return None
    length = _LENGTH.search(text)
    positions = _PER_POSITION.search(text)
    depth = _DEPTH.search(text)
    return SpecWindow(
        accepted=accepted,
        drafted=drafted,
        length=number(length[1]) if length else None,
        per_position=_rates(positions[1]) if positions else None,
        emitted=counts.get("Number of emitted tokens"),
        drafted_per_step=counts.get("Number of speculative tokens"),
        depth=whole(depth[1]) if depth else None,
        cumulative="Number of emitted tokens" in text,
    )


def _before_speculative_config(found: Mapping[str, Value]) -> dict[str, Value]:
    """Flags of the V0 engine, in the words of ``--speculative-config``; its method was told by the model."""
    model = found.get("speculative_model")
    if not isinstance(model, str):
        return {}
    lower = model.lower()
    method = "ngram" if "[ngram]" in lower else "eagle" if "eagle" in lower else "draft_model"
    length = found.get("num_speculative_tokens")
    return {
        "speculative.method": method,
        "speculative.model": model,
        "speculative.num_speculative_tokens": length,
    }


def _rates(text: str) -> tuple[float, ...] | None:
    rates = numbers_in(text)
    return rates if rates and all(0 <= rate <= 1 for rate in rates) else None


def _engine(text: str, match: re.Match[str]) -> EngineWindow | None:
    generated = number(match[2])
    if generated is None:
        return None
    running, waiting, hits = _RUNNING.search(text), _WAITING.search(text), _HITS.search(text)
    rate = number(hits[1]) if hits else None
    return EngineWindow(
        generation_tok_per_s=generated,
        prompt_tok_per_s=number(match[1]),
        running=whole(running[1]) if running else None,
        waiting=whole(waiting[1]) if waiting else None,
        cache_hit_frac=None if rate is None else rate / 100,
    )


def _config(text: str) -> Settings:
    values: dict[str, Value] = {}
    spec = _SPEC_CONFIG.search(text)
    rest = text
    if spec is not None:
        rest = text[: spec.start()] + text[spec.end() :]
        found = assignments(spec["config"], _SPEC_SETTINGS)
        length = found.pop("num_spec_tokens", None)
        found.setdefault("num_speculative_tokens", length)
        values.update({f"speculative.{key}": value for key, value in found.items() if value is not None})
    plain = assignments(rest, KEPT_SETTINGS)
    values.update(_before_speculative_config(assignments(rest, _OLD_SPEC_SETTINGS)))
    if isinstance(plain.get("dtype"), str):
        plain["dtype"] = str(plain["dtype"]).removeprefix("torch.")
    values.update(plain)
    if match := _VERSION.search(text):
        values["version"] = next(group for group in match.groups() if group)
    if "API server version" in text:
        return Settings(values, starts="version")
    return Settings(values, starts="" if " with config: " in text else "args")
