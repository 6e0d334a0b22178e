"""SGLang: the server around speculation: parallelism, batches, graphs, memory, environment."""

from __future__ import annotations

from spectune.domain.findings import Finding
from spectune.preflight.flags.every_engine import (
    SYNTHETIC_ACCEPTANCE,
    Flags,
    attention_dp,
    flag_evidence,
    found,
    version_words,
)
from spectune.preflight.flags.sglang import kinds
from spectune.preflight.flags.sglang.numbers import ALGORITHM, BLOCK, STEPS, TREE, Speculation, speculation_in
from spectune.preflight.rules import Judgement
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older

RUNNING_REQUESTS = 48
"""What SGLang sets when speculation is on and --max-running-requests is not given."""
_ADAPTERS = ("lora-paths", "enable-lora")


def parallelism_fits(situation: Situation) -> Judgement:
    """Attention data parallelism, pipeline parallelism, adapters and mixed chunks with speculation."""
    spec, flags = speculation_in(situation), Flags(situation)
    if spec is None:
        return Judgement()
    return found(
        _attention_dp(situation, spec),
        _pipeline(situation, spec),
        _lora(situation, spec),
        _mixed_chunk(situation, spec),
        _overlap(situation),
        kinds.TOKEN_MAP.found(
            situation.subject,
            "EAGLE3 brings its own reduced vocabulary: --speculative-token-map is ignored",
            evidence=flag_evidence(situation, ALGORITHM, "speculative-token-map"),
        )
        if spec.algorithm == "EAGLE3" and flags.given("speculative-token-map")
        else None,
    )


def _attention_dp(situation: Situation, spec: Speculation) -> Finding | None:
    if not attention_dp(situation):
        return None
    names = (ALGORITHM, "enable-dp-attention", "dp-size", "attn-dp-size")
    if spec.algorithm in ("STANDALONE", "NGRAM"):
        message, remedy = (
            f"{spec.algorithm} does not run with attention data parallelism",
            "leave attention DP out",
        )
    elif spec.algorithm in BLOCK and not Flags(situation).on("enable-dp-lm-head"):
        message = f"{spec.algorithm} with attention data parallelism needs --enable-dp-lm-head"
        remedy = "add --enable-dp-lm-head"
    else:
        return None
    return kinds.PARALLELISM.found(
        situation.subject, message, evidence=flag_evidence(situation, *names), remedy=remedy
    )


def _pipeline(situation: Situation, spec: Speculation) -> Finding | None:
    flags = Flags(situation)
    if (flags.integer("pp-size") or 1) <= 1:
        return None
    prefill = flags.text("disaggregation-mode") == "prefill"
    gated = situation.env.get("SGLANG_ENABLE_PP_SPEC", "0").lower() in ("1", "true", "yes", "on")
    if spec.algorithm == "EAGLE" and (prefill or gated):
        return None
    if spec.algorithm == "DSPARK" and prefill and not gated:
        return None
    return kinds.PARALLELISM.found(
        situation.subject,
        f"{spec.algorithm} with pipeline parallelism: only EAGLE/NEXTN, and only on prefill nodes "
        "(--disaggregation-mode prefill) or with SGLANG_ENABLE_PP_SPEC=1",
        evidence=flag_evidence(situation, ALGORITHM, "pp-size", "disaggregation-mode"),
        remedy="--pp-size 1; use tensor parallelism",
    )


def _lora(situation: Situation, spec: Speculation) -> Finding | None:
    flags = Flags(situation)
    if not any(flags.on(name) for name in _ADAPTERS):
        return None
    if spec.algorithm in ("STANDALONE", "UNO", "FROZEN_KV_MTP"):
        message = f"LoRA adapters do not work with {spec.algorithm}"
    elif flags.on("speculative-adaptive") and spec.algorithm in ("EAGLE", "EAGLE3"):
        message = "LoRA adapters do not work with --speculative-adaptive"
    elif is_older(situation.version.text, "0.5.23") and spec.algorithm in TREE:
        return kinds.LORA.found(
            situation.subject,
            f"LoRA with {spec.algorithm} was not supported in releases of 2025 (outputs differ); 0.5.23 has it",
            evidence=flag_evidence(situation, ALGORITHM, *_ADAPTERS),
            severity="warning",
        )
    else:
        return None
    return kinds.LORA.found(
        situation.subject,
        message,
        evidence=flag_evidence(situation, ALGORITHM, "speculative-adaptive", *_ADAPTERS),
    )


def _mixed_chunk(situation: Situation, spec: Speculation) -> Finding | None:
    if not Flags(situation).on("enable-mixed-chunk"):
        return None
    older = is_older(situation.version.text, "0.5.23") is True
    if spec.algorithm in ("EAGLE", "EAGLE3", *BLOCK) and not older:
        return None
    return kinds.SWITCHED_OFF.found(
        situation.subject,
        f"--enable-mixed-chunk is switched off by {spec.algorithm}" + (" in older releases" if older else ""),
        evidence=flag_evidence(situation, "enable-mixed-chunk", ALGORITHM),
        remedy="leave it out in both arms, so that they stay comparable",
    )


def _overlap(situation: Situation) -> Finding | None:
    older = is_older(situation.version.text, "0.5.23")
    if situation.env.get("SGLANG_ENABLE_SPEC_V2") is not None and older is not True:
        return kinds.OVERLAP.found(
            situation.subject,
            "SGLANG_ENABLE_SPEC_V2 has no effect: the overlapping worker is the only one there is",
            evidence=[("environment", "SGLANG_ENABLE_SPEC_V2")],
        )
    if Flags(situation).on("disable-overlap-schedule"):
        return kinds.OVERLAP.found(
            situation.subject,
            "drafting and verifying run one after the other (--disable-overlap-schedule)",
            evidence=flag_evidence(situation, "disable-overlap-schedule"),
        )
    return None


def running_requests_suffice(situation: Situation) -> Judgement:
    """The cap on requests that run at once, which speculation sets to 48."""
    spec, flags = speculation_in(situation), Flags(situation)
    name = "max-running-requests"
    if flags.unclear(name):
        return Judgement()
    limit, wanted = flags.integer(name), situation.max_concurrency
    if limit is None:
        if spec is None:
            return Judgement()
        too_few = wanted is not None and wanted > RUNNING_REQUESTS
        return found(
            kinds.RUNNING_REQUESTS.found(
                situation.subject,
                f"--{name} is not given and becomes {RUNNING_REQUESTS} because speculation is on"
                + (f"; the workload keeps {wanted} in flight" if too_few else ""),
                evidence=flag_evidence(situation, ALGORITHM),
                remedy=f"--{name} {wanted if too_few else RUNNING_REQUESTS} in every arm, the baseline too",
                severity="warning" if too_few else None,
            )
        )
    if wanted is not None and limit < wanted:
        return found(
            kinds.RUNNING_REQUESTS.found(
                situation.subject,
                f"--{name} {limit} is less than the {wanted} requests the workload keeps in flight: the rest wait",
                evidence=flag_evidence(situation, name),
                remedy=f"--{name} {wanted}",
                severity="warning",
            )
        )
    return Judgement()


def graphs_cover_batches(situation: Situation) -> Judgement:
    """CUDA graphs up to the batch sizes that will run."""
    flags = Flags(situation)
    sizes = [
        *flags.numbers("cuda-graph-bs-decode"),
        *flags.numbers("cuda-graph-bs"),
        *flags.numbers("cuda-graph-max-bs-decode"),
        *flags.numbers("cuda-graph-max-bs"),
    ]
    wanted = situation.max_concurrency
    if not sizes or wanted is None or max(sizes) >= wanted:
        return Judgement()
    return found(
        kinds.GRAPHS_TOO_SMALL.found(
            situation.subject,
            f"CUDA graphs are captured up to batch {max(sizes)}; the workload keeps {wanted} requests in flight",
            evidence=flag_evidence(
                situation,
                "cuda-graph-bs-decode",
                "cuda-graph-max-bs-decode",
                "cuda-graph-bs",
                "cuda-graph-max-bs",
            ),
            remedy=f"--cuda-graph-max-bs-decode {wanted}",
        )
    )


def memory_fraction_is_sane(situation: Situation) -> Judgement:
    """--mem-fraction-static within (0, 1), and what it meant before the draft was counted."""
    flags, spec = Flags(situation), speculation_in(situation)
    name = "mem-fraction-static"
    fraction = flags.number(name)
    if fraction is not None and not 0 < fraction < 1:
        return found(
            kinds.MEMORY_FRACTION.found(
                situation.subject,
                f"--{name} {fraction:g}: must be between 0 and 1",
                evidence=flag_evidence(situation, name),
            )
        )
    graphs_named = any(
        flags.given(flag)
        for flag in ("cuda-graph-max-bs", "cuda-graph-bs", "cuda-graph-max-bs-decode", "disable-cuda-graph")
    )
    if spec is not None and is_older(situation.version.text, "0.4.4") and not graphs_named:
        return found(
            kinds.GRAPHS_AFTER_CACHE.found(
                situation.subject,
                f"{version_words(situation)} captures graphs up to batch 160 after the KV cache has taken the memory",
                evidence=flag_evidence(situation, ALGORITHM),
                remedy="--cuda-graph-max-bs with the concurrency you need, and a lower --mem-fraction-static",
            )
        )
    return Judgement()


def known_bad_pairs_are_absent(situation: Situation) -> Judgement:
    """Flags that are each fine and kill the server together."""
    spec, flags = speculation_in(situation), Flags(situation)
    if spec is None or spec.algorithm != "EAGLE" or (spec.steps is not None and spec.steps < 2):
        return Judgement()
    name = "enable-expert-distribution-metrics"
    if not flags.on(name):
        return Judgement()
    return found(
        kinds.BAD_PAIR.found(
            situation.subject,
            f"--{name} with {spec.steps if spec.steps is not None else '2 or more'} draft steps: "
            "capturing the draft's CUDA graph fails",
            evidence=flag_evidence(situation, name, STEPS),
            remedy=f"leave --{name} out, or --{STEPS} 1",
        )
    )


def acceptance_is_real(situation: Situation) -> Judgement:
    """SGLANG_SIMULATE_ACC_LEN left in the environment."""
    text = situation.env.get("SGLANG_SIMULATE_ACC_LEN")
    if text is None:
        return Judgement()
    try:
        length = float(text)
    except ValueError:
        return found(not_checked=["SGLANG_SIMULATE_ACC_LEN: its value is not readable here"])
    if length <= 0:
        return Judgement()
    return found(
        SYNTHETIC_ACCEPTANCE.found(
            situation.subject,
            f"SGLANG_SIMULATE_ACC_LEN={text} imposes an acceptance length of {text}",
            evidence=[("environment", f"SGLANG_SIMULATE_ACC_LEN={text}")],
            remedy="unset SGLANG_SIMULATE_ACC_LEN",
        )
    )


def health_endpoint_generates(situation: Situation) -> Judgement:
    """/health made to answer without generating."""
    value = situation.env.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1").lower()
    if value not in ("0", "false", "no", "off"):
        return Judgement()
    return found(
        kinds.HEALTH.found(
            situation.subject,
            "/health answers 200 although the scheduler may be stuck",
            evidence=[("environment", f"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION={value}")],
        )
    )


RULES = (
    parallelism_fits,
    running_requests_suffice,
    graphs_cover_batches,
    memory_fraction_is_sane,
    known_bad_pairs_are_absent,
    acceptance_is_real,
    health_endpoint_generates,
)
