"""SGLang's log lines, from 0.4.2 to 0.5.23.

Read in the sources of those versions and in public logs; recorded on 0.5.23.
"""

from __future__ import annotations

import re

from spectune.diagnose.log.fields import assignments, named_values, number, whole
from spectune.diagnose.log.records import DecodeWindow, Ended, PrefillWindow, Ready, Record, Settings

DEFAULT_DECODE_LOG_INTERVAL = 40
"""Decode steps per line unless ``--decode-log-interval`` says otherwise."""

KEPT_SETTINGS = frozenset(
    {
        "model_path",
        "attention_backend",
        "prefill_attention_backend",
        "decode_attention_backend",
        "speculative_draft_attention_backend",
        "sampling_backend",
        "chunked_prefill_size",
        "context_length",
        "cuda_graph_max_bs",
        "decode_log_interval",
        "disable_cuda_graph",
        "disable_decode_cuda_graph",
        "disable_overlap_schedule",
        "disable_radix_cache",
        "dtype",
        "enable_mixed_chunk",
        "ep_size",
        "dp_size",
        "kv_cache_dtype",
        "max_running_requests",
        "max_total_tokens",
        "mem_fraction_static",
        "page_size",
        "pp_size",
        "quantization",
        "random_seed",
        "speculative_accept_threshold_acc",
        "speculative_accept_threshold_single",
        "speculative_adaptive",
        "speculative_algorithm",
        "speculative_draft_model_path",
        "speculative_draft_model_quantization",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "speculative_num_steps",
        "tp_size",
        "version",
    }
)
_POOL = re.compile(
    r"\b(max_total_num_tokens|chunked_prefill_size|max_running_requests|context_len)=(\d+)"
    r"|\b(available_(?:gpu|cpu)_mem)=([\d.]+)"
)
_LOADED = re.compile(r"Load weight end\..*?\btype=(\w+)")
_MEMORY = re.compile(r"Capture .{0,60}(?:begin|end).{0,400}?avail(?:_| )mem=([\d.]+) ?GB", re.IGNORECASE)
_POOL_END = re.compile(r"Memory pool end\..{0,40}avail mem=([\d.]+)")
_NUMBER = rb"(\d{1,12}(?:\.\d{1,12})?)"
_FAST_DECODE = re.compile(
    rb"ecode batch[.,] #running-req: (\d{1,9}), #(?:full )?token: (\d{1,15}), "
    rb"(?:(?:full |swa )?token usage: [\d.]+, |#swa token: \d+, |mamba (?:num|usage): [\d.]+, ){1,5}"
    rb"(?:accept len: "
    + _NUMBER
    + rb", (?:accept rate: "
    + _NUMBER
    + rb", )?)?(?:(?:block )?(?:cap|accept) len: [\d.]+, ){0,2}"
    rb"(?:pre-allocated usage: [\d.]+, |#prealloc-req: \d+, |#transfer-req: \d+, ){0,3}(?:#retracted-req: (\d{1,9}), )?"
    rb"(?:([a-z]{1,9}) graph: (True|False), )?gen throughput \(token/s\): "
    + _NUMBER
    + rb", #queue-req: (\d{1,9})"
)
_FAST_PREFILL = re.compile(
    rb"refill batch[.,] #new-seq: (\d{1,9}), #new-token: (\d{1,15}), #cached-token: (\d{1,15}), "
    rb"(?:cache hit rate: [\d.]+%, )?(?:#token: \d+, )?token usage: [\d.]+, "
    rb"#running-req: (\d{1,9}), #queue-req: (\d{1,9})"
)
_ADAPTIVE = re.compile(r"Adaptive(?:SpeculativeParams initialized| spec params updated): ")


def parse(text: str) -> Record | None:
    """What one cleaned line says; ``None`` if it is none of SGLang's that matter."""
    if (at := text.find("ecode batch")) >= 0:
        return _decode(text[at + len("ecode batch") :])
    if (at := text.find("refill batch")) >= 0:
        return _prefill(text[at + len("refill batch") :])
    if "fired up and ready to roll" in text:
        return Ready()
    if (at := text.find("server_args=")) >= 0:
        return Settings(assignments(text[at + len("server_args=") :], KEPT_SETTINGS), starts="server_args")
    if "max_total_num_tokens=" in text:
        return _pool(text)
    if loaded := _LOADED.search(text):
        return Settings({"loaded_architecture": loaded[1]})
    if memory := _MEMORY.search(text) or _POOL_END.search(text):
        return Settings({"available_memory_gb": number(memory[1])})
    if _ADAPTIVE.search(text):
        return Settings({"speculative_adaptive": True})
    if "SIGTERM received" in text or "Gracefully exiting" in text or "Shutting down" in text:
        return Ended()
    return None


def fast(raw: bytes) -> DecodeWindow | PrefillWindow | None:
    """Today's decode and prefill lines, straight from their bytes; ``None``: use ``parse``."""
    if found := _FAST_DECODE.search(raw):
        running, tokens, length, rate, retracted, label, graph, speed, queued = found.groups()
        return DecodeWindow(
            running=int(running),
            context_tokens=int(tokens),
            accept_length=None if length is None else float(length),
            accept_rate=None if rate is None else float(rate),
            graph=None if graph is None else graph == b"True",
            graph_label=None if label is None else label.decode(),
            tok_per_s=float(speed),
            queued=int(queued),
            retracted=None if retracted is None else int(retracted),
        )
    if found := _FAST_PREFILL.search(raw):
        return PrefillWindow(*(int(group) for group in found.groups()))
    return None


def _decode(rest: str) -> DecodeWindow | None:
    values = named_values(rest)
    label = next((name for name in values if name.endswith(" graph")), None)
    tokens = values.get("token", values.get("full token"))
    lengths = [
        v
        for k, v in values.items()
        if k.replace("_", " ").endswith(("accept len", "accept length")) and "block" not in k
    ]
    rates = [v for k, v in values.items() if k.endswith("accept rate") and "block" not in k]
    window = DecodeWindow(
        running=whole(values.get("running-req")),
        context_tokens=whole(tokens),
        accept_length=number(lengths[0]) if lengths else None,
        accept_rate=number(rates[0]) if rates else None,
        graph=None if label is None else values[label] == "True",
        graph_label=None if label is None else label.removesuffix(" graph"),
        tok_per_s=number(next((v for k, v in values.items() if k.startswith("gen throughput")), None)),
        queued=whole(values.get("queue-req")),
        retracted=whole(values.get("retracted-req")),
    )
    if window.running is None and window.tok_per_s is None:
        return None  # cut off, or only words
    return window


def _prefill(rest: str) -> PrefillWindow | None:
    values = named_values(rest)
    window = PrefillWindow(
        new_requests=whole(values.get("new-seq")),
        new_tokens=whole(values.get("new-token")),
        cached_tokens=whole(values.get("cached-token")),
        running=whole(values.get("running-req")),
        queued=whole(values.get("queue-req")),
    )
    return None if window.new_tokens is None and window.cached_tokens is None else window


def _pool(text: str) -> Settings:
    values: dict[str, str | int | float | bool | None] = {}
    for match in _POOL.finditer(text):
        if match[1]:
            name = {"max_total_num_tokens": "kv_tokens", "context_len": "context_length"}.get(
                match[1], match[1]
            )
            values[name] = int(match[2][:15])
        else:
            values[match[3]] = number(match[4])
    return Settings(values)
