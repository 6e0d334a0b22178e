"""Does a launch fit into the memory of the GPUs?

A launch is said not to fit only where what is counted in ``memory_estimate``
is alone too much, with every doubt in the launch's favour.
"""

from __future__ import annotations

from functools import partial

from spectune.engines.registry import traits_for
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import is_own_draft
from spectune.preflight.draft.positions import served_context
from spectune.preflight.flags.every_engine import Flags
from spectune.preflight.memory.estimate import (
    bytes_of,
    estimate,
    in_words,
)
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older

DOES_NOT_FIT = finding_kind("memory-does-not-fit")
DRAFT_NOT_COUNTED = finding_kind("draft-memory-not-counted")
TOO_FEW_GPUS = finding_kind("too-few-gpus")

_LARGE_DRAFT_BYTES = 2**30
_OFFLOAD = ("cpu-offload-gb", "offload-mode", "offload-group-size", "offload-backend", "cpu-offload-params")
_ELSEWHERE = ("nnodes", "node-rank", "distributed-executor-backend", "ray-address", "dist-init-addr")


def memory_fits(situation: Situation, *, gpu_memory_bytes: tuple[int, ...] | None = None) -> Judgement:
    """Says "does not fit" only where the least that is needed is more than the most there is."""
    flags = Flags(situation)
    division = traits_for(situation.engine).division(situation.flags)
    if division is None:
        return FINE  # llama.cpp keeps on the CPU what does not fit
    if gpu_memory_bytes is None:
        return not_checked("whether the weights fit: the GPUs' memory is not known")
    if not gpu_memory_bytes or flags.text("device") == "cpu":
        return FINE
    tp, pp, devices = division.tensor, division.pipeline, division.devices
    elsewhere = any(flags.given(name) for name in _ELSEWHERE)
    nodes = flags.integer("nnodes") if flags.given("nnodes") else None
    here = len(gpu_memory_bytes)
    if tp * pp > here * (nodes or 1) and (nodes is not None or not elsewhere):
        there = (
            f"{here} GPUs here" if nodes is None else f"{here} GPUs of each of {nodes} nodes like this one"
        )
        message = f"tensor parallel {tp} times pipeline parallel {pp} exceed the {there}"
        return found(
            TOO_FEW_GPUS.found(situation.subject, message, evidence=[("flags", f"tp {tp}, pp {pp}")])
        )
    if any(flags.given(name) for name in _OFFLOAD):
        return not_checked("whether the weights fit: some are moved to the CPU")
    least = _least_bytes(situation, spread=devices if flags.on("enable-expert-parallel") else tp * pp)
    if least is None:
        return not_checked("whether the weights fit: not all tensor headers were read")
    return _compare(situation, least, gpu_memory_bytes)


def _compare(situation: Situation, least: tuple[int, int], gpu_memory_bytes: tuple[int, ...]) -> Judgement:
    weights, cache = least
    most = max(gpu_memory_bytes)
    name = "mem-fraction-static" if situation.engine == "sglang" else "gpu-memory-utilization"
    fraction = Flags(situation).number(name)
    allowed = int(most * fraction) if fraction is not None and 0 < fraction <= 1 else most
    if weights + cache <= allowed:
        return FINE
    share = f" ({fraction:g} of {in_words(most)})" if fraction is not None else ""
    if weights + cache <= most:
        remedy = f"raise --{name} above {(weights + cache) / most:.2f}"
    else:
        remedy = "divide the model over more GPUs, or take a quantised or smaller one"
    return found(
        DOES_NOT_FIT.found(
            situation.subject,
            f"at least {in_words(weights + cache)} are needed on each GPU, "
            f"and {in_words(allowed)}{share} are there",
            evidence=[("tensor headers and flags", estimate(situation).described())],
            remedy=remedy,
        )
    )


def _least_bytes(situation: Situation, *, spread: int) -> tuple[int, int] | None:
    """The least weights and KV cache on one device, every doubt in the launch's favour."""
    known = estimate(situation)
    target = situation.target
    total, _ = bytes_of(target)
    if target is None or total is None:
        return None
    # Engines hold 32-bit checkpoints in 16 bits.
    weights = total - (target.bytes_by_dtype or {}).get("F32", 0) // 2
    method = Flags(situation).text("quantization")
    if method is not None and target.quantization is None:
        weights //= 2 if "8" in method else 4
    cache = (known.target_kv_bytes_per_token or 0) + (known.draft_kv_bytes_per_token or 0)
    draft = known.draft_weights_bytes or 0
    if method is not None:
        draft //= 4
    return weights // spread + draft, int(cache * _least_tokens(situation))


def _least_tokens(situation: Situation) -> int:
    """One request; vLLM insists on room for one of full length, if it is told a length."""
    if situation.engine == "vllm" and isinstance(situation.flags.get("max-model-len"), str):
        return max(0, served_context(situation) or 0)
    return situation.max_prompt_tokens or 0


def draft_is_counted(situation: Situation) -> Judgement:
    """SGLang versions that measured free memory before the draft was loaded."""
    if situation.engine != "sglang" or situation.draft is None or is_own_draft(situation):
        return FINE
    if not is_older(situation.version.text, "0.5.11"):
        return FINE
    known = estimate(situation)
    size = known.draft_weights_bytes
    large = size is None or size >= _LARGE_DRAFT_BYTES
    per_token = in_words(known.draft_kv_bytes_per_token)
    return found(
        DRAFT_NOT_COUNTED.found(
            situation.subject,
            f"the draft's weights ({in_words(size)} per GPU) and its KV cache ({per_token} per token) come on top",
            severity="warning" if large else "note",
            evidence=[("engine", f"SGLang {situation.version.text}"), ("estimate", known.described())],
            remedy="lower --mem-fraction-static by the draft's share of the GPU",
        )
    )


def rules(gpu_memory_bytes: tuple[int, ...] | None = None) -> tuple[Rule, ...]:
    """The rules of this module, with the memory of each GPU of the machine where it is known."""
    return partial(memory_fits, gpu_memory_bytes=gpu_memory_bytes), draft_is_counted
