"""Known reasons for a server's death beyond the adapters' own, with what to do.

Sources: the public issues named beside each pattern.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from spectune.engines.adapter import Cause
from spectune.engines.registry import ENGINE_NAMES, adapter_for

_SGLANG, _VLLM = "github.com/sgl-project/sglang", "github.com/vllm-project/vllm"
_LLAMA = "github.com/ggml-org/llama.cpp"

KNOWN: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), remedy, source)
    for pattern, remedy, source in (
        (
            r"Cannot find the config file for \w+",
            "the draft inherited the target's quantisation: add --speculative-draft-model-quantization unquant",
            f"{_SGLANG}/pull/28196",
        ),
        (
            r"KeyError: ['\"](?:model\.)?embed_tokens\.weight|hidden_states\.shape\[-1\] == input_embeds\.shape\[-1\]",
            "the draft's hidden size is not the target's, and this version shares the target's embedding: "
            "use a draft of the target's hidden size, or a version that reads target_hidden_size",
            f"{_VLLM}/issues/18906",
        ),
        (
            r"size mismatch for \S+|shape mismatch|The size of tensor a .* must match the size of tensor b",
            "a tensor of the draft does not have the shape the engine made for it: compare draft_vocab_size, "
            "hidden_size and the input width of fc.weight with the target's config.json",
            "github.com/SafeAILab/EAGLE/issues/249",
        ),
        (
            r"Downcasting not allowed|Failed to load weights.*dtype",
            "a quantised target and an unquantised draft layer (or the reverse): the exclude list of the "
            "quantisation must name the MTP layer as the engine names it",
            f"{_SGLANG}/pull/30379",
        ),
        (
            r"draft model vocab\w*(?: type)? must match.*",
            "the draft's tokenizer is not the target's: take a draft of the same vocabulary",
            f"{_LLAMA}/pull/3812",
        ),
        (
            r"t_layer_inp\[il\] != nullptr.*|layer input tensor is null",
            "this build has no EAGLE-3 hooks for the target's architecture: use a newer build, or another method",
            f"{_LLAMA}/issues/24541",
        ),
        (
            r"(?:does not implement|has no attribute) '?set_eagle3_layers_to_capture.*|does not support EAGLE-?3.*"
            r"|set_eagle3_layers_to_capture",
            "the target's class has no EAGLE-3 hooks in this version: use a newer engine, or a method it has",
            "huggingface.co/thoughtworks/Qwen2.5-7B-Instruct-Eagle3",
        ),
        (
            r"assert speculative_eagle_topk is None and speculative_num_draft_tokens is None",
            "give all three of --speculative-num-steps, --speculative-eagle-topk and "
            "--speculative-num-draft-tokens, or none of them",
            f"{_SGLANG}/issues/5673",
        ),
        (
            r"speculative_eagle_topk > 1 with page_size > 1 .*",
            "use --page-size 1, --speculative-eagle-topk 1, or an attention backend that the message names",
            f"{_SGLANG}/pull/5168",
        ),
        (
            r"trtllm_mha backend only supports topk = 1.*",
            "set --speculative-eagle-topk 1, or another --attention-backend",
            f"{_SGLANG}/blob/main/python/sglang/srt/arg_groups/speculative_hook.py",
        ),
        (
            r"trtllm_mla backend can only be used with MLA models.*",
            "the draft inherited the target's backend: add --speculative-draft-attention-backend flashinfer",
            f"{_SGLANG}/blob/main/python/sglang/srt/server_args.py",
        ),
        (
            r"num_speculative_tokens must be provided.*",
            'add "num_speculative_tokens" to --speculative-config',
            f"{_VLLM}/pull/20375",
        ),
        (
            r"Pipeline parallelism is not supported.*|PP\+async expects sampled_token_ids.*",
            "this version does not speculate with pipeline parallelism: use tensor parallelism only",
            f"{_VLLM}/issues/14117",
        ),
        (
            r"self must be contiguous",
            "this draft block size does not work with the attention backend: use the size the draft was "
            "trained with (dspark_block_size, block_size in its config.json)",
            "github.com/Blackwellboy/model-serving-minefield",
        ),
        (
            r"Not enough memory\. Please try to increase --mem-fraction-static.*",
            "target, draft and the smallest KV cache do not fit together: no value of the fraction helps "
            "if a higher one runs out of memory; use more devices, a shorter context or a smaller model",
            f"{_SGLANG}/issues/4330",
        ),
        (
            r"operation not permitted when stream is capturing",
            "graph capture of the draft fails with these flags on every start: drop the flag that adds work "
            "to the step (--enable-expert-distribution-metrics), or draft one step",
            f"{_SGLANG}/issues/32105",
        ),
        (
            r"no kernel image is available.*",
            "the attention backend was not built for this GPU (FA3 is for Hopper only): choose another "
            "--attention-backend",
            f"{_SGLANG}/pull/19125",
        ),
        (
            r"memory leak detected.*",
            "the KV pool's books do not balance, an engine fault under speculation: update the engine; until "
            "then restart, or serve without speculation",
            "github.com/sgl-project/sglang-jax/issues/1147",
        ),
        (
            r"(?:Decode|Prefill|Verify) out of memory.*|alloc_token_slots",
            "the KV cache is too small for this load: lower --max-running-requests or the context; "
            "this says nothing about the draft",
            f"{_SGLANG}/issues/14942",
        ),
    )
)

VAGUE: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), remedy, source)
    for pattern, remedy, source in (
        (
            r"exit(?:ed with)? code -?9\b|an exit code 9\b|^\s*Killed\s*$|oom-kill",
            "killed from outside: look for the out-of-memory killer (dmesg), or a container's memory limit",
            f"{_SGLANG}/issues/1238",
        ),
        (
            r"TimeoutError.*|Timed out waiting for engine.*|Watchdog .*timeout.*",
            "a part took longer to start than the others wait: raise VLLM_ENGINE_READY_TIMEOUT_S "
            "(SGLang: --watchdog-timeout), and keep the compile caches between starts",
            f"{_VLLM}/pull/44751",
        ),
    )
)
"""Asked only when nothing better is found."""


def cause_of(tail: Sequence[str], *, engine: str | None) -> Cause | None:
    """The first reason in the log's last lines that is known, else the last exception."""
    if certain := _first(KNOWN, tail):
        return certain
    engines = (engine,) if engine in ENGINE_NAMES else ENGINE_NAMES
    found_cause = next((cause for e in engines if (cause := adapter_for(e).cause_of_death(tail))), None)
    if found_cause is not None and found_cause.remedy is not None:
        return found_cause
    return _first(VAGUE, tail) or found_cause


def _first(known: Sequence[tuple[re.Pattern[str], str, str]], tail: Sequence[str]) -> Cause | None:
    for pattern, remedy, _ in known:
        for line in tail:
            if found := pattern.search(line):
                whole = line.strip()
                return Cause(message=(whole if len(whole) <= 300 else found[0])[:300], remedy=remedy)
    return None
