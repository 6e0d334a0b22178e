"""vLLM: the server around speculation: scheduling, budgets, sampling defaults, limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spectune.domain.findings import Finding
from spectune.engines.registry import traits_for
from spectune.preflight.flags.every_engine import Flags, flag_evidence, found, version_words
from spectune.preflight.flags.speculative import parsed_config, speculation_of
from spectune.preflight.flags.vllm import kinds
from spectune.preflight.flags.vllm.config import CONFIG, method_of
from spectune.preflight.rules import Judgement
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older

_ASYNC = frozenset(
    {"eagle", "eagle3", "mtp", "extract_hidden_states", "ngram_gpu", "draft_model", "dspark", "dflash"}
)
_LOW_BUDGET = 8192
_MOST_LORA_WIDTH = 16
"""max-num-batched-tokens / max-num-seqs of vLLM's defaults: 8 on most GPUs, 16 on the largest and on CPUs."""
_FIRST_START_S = 600


def scheduling_fits(situation: Situation) -> Judgement:
    """Asynchronous scheduling, pipeline parallelism and token budgets."""
    config, flags = speculation_of(situation.flags), Flags(situation)
    if config is None:
        return _metrics_alone(situation)
    method = method_of(config)
    if method not in traits_for(situation.engine).methods and method not in _ASYNC:
        method = None  # a method that is not known here has no rule
    unpadded = config.get("disable_padded_drafter_batch") is True
    allows = method in _ASYNC and not unpadded
    findings: list[Finding | None] = []
    if flags.on("async-scheduling") and method is not None and not allows:
        why = "an unpadded draft batch" if method in _ASYNC else f"method {method}"
        findings.append(
            kinds.ASYNC_REFUSED.found(
                situation.subject,
                f"--async-scheduling is refused with {why}",
                evidence=flag_evidence(situation, "async-scheduling", CONFIG),
            )
        )
    elif not flags.given("async-scheduling") and method is not None and not allows:
        findings.append(
            kinds.ASYNC_OFF.found(
                situation.subject,
                f"asynchronous scheduling is off with method {method}, on in a plain server",
                evidence=flag_evidence(situation, CONFIG),
            )
        )
    if (flags.integer("pipeline-parallel-size") or 1) > 1:
        findings.append(
            kinds.PIPELINE.found(
                situation.subject,
                f"--pipeline-parallel-size {flags.text('pipeline-parallel-size')} with speculation",
                evidence=flag_evidence(situation, "pipeline-parallel-size", CONFIG),
            )
        )
    findings += _budgets(situation, config, method)
    return found(*findings)


def _metrics_alone(situation: Situation) -> Judgement:
    name, flags = "per-request-spec-decode-metrics", Flags(situation)
    if flags.text(name) in (None, "none") or flags.given(CONFIG):
        return Judgement()
    return found(
        kinds.METRICS_WITHOUT.found(
            situation.subject,
            f"--{name} {flags.text(name)} without --{CONFIG}",
            evidence=flag_evidence(situation, name),
        )
    )


def _budgets(situation: Situation, config: Mapping[str, Any], method: str | None) -> list[Finding | None]:
    flags, tokens = Flags(situation), config.get("num_speculative_tokens")
    batched = flags.integer("max-num-batched-tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        return []
    parallel = config.get("parallel_drafting") is True
    if method == "dflash" or (method == "draft_model" and parallel):
        extra = tokens
    elif method == "dspark" or parallel:
        extra = tokens - 1
    else:
        extra = 1 if method == "draft_model" else 0
    findings: list[Finding | None] = []
    if batched is not None and batched <= extra:
        findings.append(
            kinds.TOO_FEW_SLOTS.found(
                situation.subject,
                f"--max-num-batched-tokens {batched} leaves no slot beside the {extra} extra ones of {method}",
                evidence=flag_evidence(situation, "max-num-batched-tokens", CONFIG),
                remedy=f"more than {extra}",
            )
        )
    sequences = flags.integer("max-num-seqs")
    width = (sequences or 1) * (tokens + 1)
    if flags.on("enable-lora") and batched is not None and batched < width:
        findings.append(
            kinds.TOO_FEW_SLOTS.found(
                situation.subject,
                f"with LoRA --max-num-batched-tokens must be at least max-num-seqs x (K + 1) = "
                f"{width if sequences else f'{width} for one sequence'}, got {batched}",
                evidence=flag_evidence(situation, "max-num-batched-tokens", "max-num-seqs", "enable-lora"),
                remedy=f"--max-num-batched-tokens {width} or more",
            )
        )
    elif flags.on("enable-lora") and batched is None and sequences is None and tokens + 1 > _MOST_LORA_WIDTH:
        findings.append(
            kinds.TOO_FEW_SLOTS.found(
                situation.subject,
                f"with LoRA a batch must hold max-num-seqs x (K + 1) tokens; K is {tokens}, and vLLM's defaults hold "
                f"{_MOST_LORA_WIDTH} per sequence at most",
                evidence=flag_evidence(situation, "enable-lora", CONFIG),
                remedy=f"a smaller --max-num-seqs, or --max-num-batched-tokens of max-num-seqs x {tokens + 1}",
            )
        )
    scheduled = flags.integer("max-num-scheduled-tokens")
    budget = scheduled if scheduled is not None else batched
    if budget is not None and budget < _LOW_BUDGET and not findings:
        findings.append(
            kinds.SCHEDULED_TOKENS.found(
                situation.subject,
                f"{budget} tokens per step at most",
                evidence=flag_evidence(situation, "max-num-scheduled-tokens", "max-num-batched-tokens"),
                remedy="a larger --max-num-batched-tokens in both arms, if prompts are long",
            )
        )
    return findings


def sampling_is_possible(situation: Situation) -> Judgement:
    """Server-wide sampling defaults against speculation."""
    if speculation_of(situation.flags) is None:
        return Judgement()
    name = "override-generation-config"
    defaults = parsed_config(situation.flags.get(name)) or {}
    refused = [key for key in ("min_p", "logit_bias") if defaults.get(key)]
    findings: list[Finding | None] = []
    if refused:
        findings.append(
            kinds.SAMPLING_REFUSED.found(
                situation.subject,
                f"--{name} sets {', '.join(refused)}, which speculation refuses",
                evidence=flag_evidence(situation, name),
                remedy=f"leave {', '.join(refused)} out",
            )
        )
    penalties = [
        key for key in ("frequency_penalty", "presence_penalty", "repetition_penalty") if key in defaults
    ]
    neutral = {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1}
    if is_older(situation.version.text, "0.10.0") and any(defaults[key] != neutral[key] for key in penalties):
        findings.append(
            kinds.PENALTIES_IGNORED.found(
                situation.subject,
                f"{', '.join(penalties)} are ignored under speculation in {version_words(situation)}",
                evidence=flag_evidence(situation, name),
            )
        )
    return found(*findings)


def heads_divide(situation: Situation) -> Judgement:
    """Attention heads of target and draft over the ranks of tensor parallelism."""
    ranks = Flags(situation).integer("tensor-parallel-size") or 1
    if ranks <= 1:
        return Judgement()
    if situation.target is None or situation.target.num_heads is None:
        return found(
            not_checked=[f"attention heads over {ranks} ranks: the target's configuration is not known"]
        )
    heads = situation.target.num_heads
    if heads % ranks == 0:
        return Judgement()
    return found(
        kinds.HEADS.found(
            situation.subject,
            f"{heads} attention heads cannot be shared by {ranks} ranks",
            evidence=[
                *flag_evidence(situation, "tensor-parallel-size"),
                (f"{situation.target.source}: config.json", f"num_attention_heads: {heads}"),
            ],
            remedy=f"a tensor parallel size that divides {heads}",
        )
    )


def limits_suffice(situation: Situation) -> Judgement:
    """The start-up limit, and requests that reach the end of the context."""
    config, flags = speculation_of(situation.flags), Flags(situation)
    findings: list[Finding | None] = []
    limit = situation.env.get("VLLM_ENGINE_READY_TIMEOUT_S", "")
    if limit.isdecimal() and int(limit) < _FIRST_START_S:
        findings.append(
            kinds.READY_TIMEOUT.found(
                situation.subject,
                f"VLLM_ENGINE_READY_TIMEOUT_S={limit}",
                evidence=[("environment", f"VLLM_ENGINE_READY_TIMEOUT_S={limit}")],
            )
        )
    replicas, length = flags.integer("data-parallel-size") or 1, flags.integer("max-model-len")
    tokens = config.get("num_speculative_tokens") if config else None
    prompt, answer = situation.max_prompt_tokens, situation.max_tokens
    known = prompt is not None and answer is not None and length is not None and isinstance(tokens, int)
    if replicas > 1 and known and (prompt or 0) + (answer or 0) > (length or 0) - int(tokens or 0) - 1:
        findings.append(
            kinds.EAGLE_LIMIT.found(
                situation.subject,
                f"prompts of {prompt} + answers of {answer} tokens come within {tokens} + 1 of max-model-len {length}",
                evidence=flag_evidence(situation, "data-parallel-size", "max-model-len"),
            )
        )
    return found(*findings)


RULES = (scheduling_fits, sampling_is_possible, heads_divide, limits_suffice)
