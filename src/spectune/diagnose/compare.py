"""Are two runs comparable? What differs that should not."""

from __future__ import annotations

from collections.abc import Iterator

from spectune.diagnose.facts import RunFacts
from spectune.diagnose.log.records import Value
from spectune.diagnose.verdict import NotChecked
from spectune.domain.findings import Finding
from spectune.findings.catalogue import finding_kind

SHARE_TOLERANCE = 0.10
CONCURRENCY_RATIO = 1.5

_LIKE = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "sampling_backend",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "page_size",
    "block_size",
    "mem_fraction_static",
    "gpu_memory_utilization",
    "max_total_tokens",
    "max_running_requests",
    "max_num_seqs",
    "max_model_len",
    "context_length",
    "chunked_prefill_size",
    "max_num_batched_tokens",
    "disable_radix_cache",
    "enable_prefix_caching",
    "disable_overlap_schedule",
    "async_scheduling",
    "enforce_eager",
    "disable_cuda_graph",
    "cuda_graph_max_bs",
    "tp_size",
    "dp_size",
    "ep_size",
    "pp_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "parallel",
)
"""Settings that two arms of one question have in common. What speculation itself needs is not among them."""

SETTINGS = finding_kind("runs-differ-in-settings")
KV = finding_kind("runs-differ-in-kv-cache")
GRAPHS = finding_kind("runs-differ-in-graphs")
CACHE = finding_kind("runs-differ-in-cache-share")
LOAD = finding_kind("runs-differ-in-concurrency")
VERSION = finding_kind("runs-differ-in-version")
MODEL = finding_kind("runs-differ-in-model")


def compare(first: RunFacts, second: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    """Findings about the pair; what only one of them tells is "not checked"."""
    subject = f"{first.subject} and {second.subject}"

    def pair(a: object, b: object) -> list[tuple[str, str]]:
        return [(first.subject, str(a)), (second.subject, str(b))]

    if first.engine != second.engine:
        if first.engine is not None and second.engine is not None:
            yield MODEL.found(subject, "different engines", evidence=pair(first.engine, second.engine))
        return
    if _both(first.version, second.version, "version", subject, skipped) and first.version != second.version:
        yield VERSION.found(subject, "different versions", evidence=pair(first.version, second.version))
    if first.model is not None and second.model is not None and first.model != second.model:
        yield MODEL.found(subject, "different targets", evidence=pair(first.model, second.model))
    differing = [
        (name, a, b)
        for name in _LIKE
        if name in first.settings
        and name in second.settings
        and (a := first.settings[name]) != (b := second.settings[name])
    ]
    if differing:
        yield SETTINGS.found(
            subject,
            f"{len(differing)} settings differ: " + ", ".join(name for name, _, _ in differing),
            evidence=[(name, f"{_shown(a)} / {_shown(b)}") for name, a, b in differing],
        )
    if not first.settings or not second.settings:
        skipped.add(f"{subject}: settings (one of the logs does not list them)")
    kv = first.settings.get("kv_tokens"), second.settings.get("kv_tokens")
    if _both(*kv, "KV cache size", subject, skipped) and kv[0] != kv[1]:
        yield KV.found(subject, f"{kv[0]} and {kv[1]} tokens", evidence=pair(*kv))
    on = _graphs(first), _graphs(second)
    if _both(*on, "CUDA graphs", subject, skipped) and on[0] != on[1]:
        words = {True: "with graphs", False: "without graphs"}
        yield GRAPHS.found(
            subject, "only one decodes with graphs", evidence=pair(words[bool(on[0])], words[bool(on[1])])
        )
    hits = first.cache.hit_frac, second.cache.hit_frac
    a, b = hits
    known = _both(*hits, "share of cached prompt tokens", subject, skipped)
    if known and a is not None and b is not None and abs(a - b) > SHARE_TOLERANCE:
        yield CACHE.found(
            subject, f"{a:.0%} and {b:.0%} of prompt tokens", evidence=pair(f"{a:.0%}", f"{b:.0%}")
        )
    running = first.speed.max_running, second.speed.max_running
    if _both(*running, "concurrency", subject, skipped):
        low, high = sorted((running[0] or 0, running[1] or 0))
        if high > CONCURRENCY_RATIO * max(low, 1):
            yield LOAD.found(
                subject, f"at most {running[0]} and {running[1]} at once", evidence=pair(*running)
            )


def _both(a: object, b: object, what: str, subject: str, skipped: NotChecked) -> bool:
    if a is None or b is None:
        skipped.add(f"{subject}: {what} (not known of both)")
        return False
    return True


def _graphs(run: RunFacts) -> bool | None:
    on, off = run.speed.graph_windows_on, run.speed.graph_windows_off
    if on + off:
        return on >= off
    eager = run.settings.get("enforce_eager")
    return None if not isinstance(eager, bool) else not eager


def _shown(value: Value) -> str:
    return "unset" if value is None else str(value)
