"""What the settings in effect mean for the numbers: asked and got, off, rewritten, simulated."""

from __future__ import annotations

from collections.abc import Iterator

from spectune.diagnose.facts import RunFacts
from spectune.diagnose.verdict import NotChecked, Rule, is_lookup, line_of, speculates
from spectune.domain.findings import Finding, FindingKind

MIN_WINDOWS = 2
MIN_GENERATED = 64
"""Generated tokens without a draft before "speculation is off" is said of llama.cpp."""
LITTLE_MEMORY_GB = 3.0
"""SGLang issue 38341: 1.15, 1.8 and 2.83 GB left after capture, and all three ran out of memory under load."""
LONG_DRAFT = 8

OFF = FindingKind(
    code="speculation-silently-off",
    severity="error",
    title="Speculation was asked for and does not happen",
    explanation="A server that cannot use its draft may log one line and serve without it. Everything measured on it "
    "is plain decoding.",
    effect="speed and acceptance of this run say nothing about speculation",
    remedy="read the lines around the draft's load; start with a draft that fits",
    holds_for="llama.cpp (package xllamacpp 2026.10, measured), SGLang and vLLM by their missing lines",
    sources=("measured", "https://github.com/ggml-org/llama.cpp/pull/18039"),
)
DRAFT_FAILS = FindingKind(
    code="draft-decode-fails",
    severity="error",
    title="The draft's own decoding fails while the server goes on",
    explanation="The draft's KV cache is out of step with the target's. Each failure is one request, or the rest of "
    "the run, served without speculation.",
    effect="the run mixes speculative and plain decoding",
    remedy="count the run as invalid; update the engine, or use another method",
    holds_for="llama.cpp",
    sources=("https://github.com/ggml-org/llama.cpp/pull/18039",),
)
VOCABULARY = FindingKind(
    code="draft-vocabulary-refused",
    severity="error",
    title="The engine refused the draft: its vocabulary is not the target's",
    explanation="A stand-alone draft proposes token ids. They mean the same only if both tokenizers are the same.",
    remedy="take a draft of the same model family and tokenizer",
    holds_for="llama.cpp",
    sources=("https://github.com/ggml-org/llama.cpp/pull/3812",),
)
REWRITTEN = FindingKind(
    code="draft-tokens-rewritten",
    severity="warning",
    title="The engine drafts another number of tokens than was asked for",
    explanation="With topk 1 SGLang drafts one token per step, so it sets num_draft_tokens to num_steps + 1.",
    effect="two arms that differ only in num_draft_tokens are the same arm",
    remedy="give --speculative-num-draft-tokens = --speculative-num-steps + 1, or a topk above 1",
    holds_for="SGLang, at least 0.4 to 0.5.23",
    sources=("https://github.com/sgl-project/SpecForge/issues/310", "measured"),
)
ADAPTIVE_OFF = FindingKind(
    code="adaptive-drafting-off",
    severity="warning",
    title="Adaptive drafting was asked for and is off",
    explanation="SGLang starts all the same and drafts a fixed number of tokens.",
    remedy="adaptive drafting needs EAGLE or EAGLE3 with topk 1",
    holds_for="SGLang 0.5.23",
    sources=("measured",),
)
CAP_SET = FindingKind(
    code="running-requests-reset",
    severity="note",
    title="The engine limited the running requests because of speculation",
    explanation="SGLang runs at most 48 requests at once when it speculates and nothing else is said; without "
    "speculation its limit is far higher.",
    effect="above 48 requests in flight, the baseline runs a larger batch than this server",
    remedy="set --max-running-requests to the same value in both arms",
    holds_for="SGLang 0.4 to 0.5.23",
    sources=("measured",),
)
CHANGED = FindingKind(
    code="settings-changed-by-engine",
    severity="note",
    title="The engine does otherwise than asked",
    explanation="Lines that say disabled, adjusted, reset, overridden, falling back. They are normal, and they are "
    "why two arms that were asked for alike may run differently.",
    remedy="compare these lines between the arms",
    holds_for="all engines",
    sources=("https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/server_args.py",),
)
SIMULATED = FindingKind(
    code="acceptance-is-simulated",
    severity="error",
    title="The acceptance is imposed, not measured",
    explanation="A variable or setting makes the engine accept drafts at a given rate. It is for finding out what "
    "speed a better draft would have; the text is wrong.",
    effect="acceptance and text of this run mean nothing; the step cost is real",
    remedy="remove it (SGLANG_SIMULATE_ACC_LEN, rejection_sample_method synthetic, --spec-synth-*, "
    "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS), or label the run as simulated",
    holds_for="SGLang, vLLM, llama.cpp, TensorRT-LLM",
    sources=("https://github.com/ROCm/ATOM/issues/555", "measured"),
)
LOSSY = FindingKind(
    code="lossy-acceptance-thresholds",
    severity="warning",
    title="Drafts are accepted that the target would not have written",
    explanation="An acceptance threshold below 1 trades the text for acceptance.",
    effect="acceptance is higher and the text is another; not comparable with lossless runs",
    remedy="leave --speculative-accept-threshold-single and -acc at 1.0",
    holds_for="SGLang",
    sources=("https://docs.sglang.io/",),
)
SKIPPED = FindingKind(
    code="weights-skipped",
    severity="warning",
    title="Tensors were left out at load",
    explanation="A tensor whose name the engine does not expect is dropped with one line, often printed once for "
    "many. For a draft or MTP layer that means weights that never arrive.",
    remedy="compare the names in the checkpoint with those the engine expects; with a quantised checkpoint look at "
    "its exclude list (fused names: qkv_proj, gate_up_proj)",
    holds_for="all engines",
    sources=(
        "https://github.com/sgl-project/sglang/issues/35797",
        "https://github.com/NVIDIA-NeMo/RL/pull/3699",
    ),
)
GRAPHS_OFF = FindingKind(
    code="decode-graphs-off",
    severity="warning",
    title="Decoding runs without CUDA graphs",
    explanation="Without graphs each step pays the launch of every kernel, and a speculative step has several times "
    "as many. Batches above the largest captured one run without.",
    effect="a large part of the speed-up is lost, most at small batches",
    remedy="capture the batches that occur (--cuda-graph-max-bs-decode, older: --cuda-graph-max-bs), and the same in "
    "both arms",
    holds_for="SGLang",
    sources=(
        "https://github.com/sgl-project/sglang/pull/36324",
        "https://github.com/sgl-project/sglang/issues/5502",
    ),
)
LITTLE_MEMORY = FindingKind(
    code="little-memory-left",
    severity="warning",
    title="Little device memory was left around graph capture",
    explanation="Verification of many drafted tokens needs workspace that is allocated under load. A server with "
    "less than 3 GB left passed capture and ran out of memory with traffic.",
    remedy="lower --mem-fraction-static, the largest captured batch, or the number of drafted tokens",
    holds_for="SGLang on GPUs, 8 or more drafted tokens",
    sources=(
        "https://github.com/sgl-project/sglang/issues/38341",
        "https://github.com/sgl-project/sglang/pull/3430",
    ),
)
PARAMETERS = FindingKind(
    code="sampling-parameters-ignored",
    severity="note",
    title="Some sampling parameters have no effect under speculation",
    explanation="The engine says that it ignores them: requests that use them get other text than without "
    "speculation.",
    remedy="keep penalties, min_p and logit_bias out of both arms",
    holds_for="vLLM",
    sources=("https://github.com/vllm-project/vllm/issues/18902", "measured"),
)
POSITIONS = FindingKind(
    code="context-longer-than-draft",
    severity="warning",
    title="The context served is longer than the draft was made for",
    explanation="Beyond the draft's max_position_embeddings its drafts are wrong, or the kernel fails.",
    effect="acceptance falls in long requests; without an override the server refuses to start",
    remedy="lower --context-length to the draft's, or use a draft made for this length",
    holds_for="SGLang (with SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1), vLLM",
    sources=(
        "https://github.com/sgl-project/sglang/issues/3574",
        "https://github.com/vllm-project/vllm/issues/23072",
    ),
)


def speculation_off(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    notice = run.notice("speculation-off")
    drafted = run.acceptance is not None and run.acceptance.windows > 0
    if notice is not None and not drafted and run.death is None:
        yield OFF.found(run.subject, "the draft could not be used", evidence=[line_of(notice)])
        return
    if (failed := run.notice("draft-failed")) is not None:
        yield DRAFT_FAILS.found(
            run.subject, f"{failed.count} lines say that drafting failed", evidence=[line_of(failed)]
        )
    if (differs := run.notice("vocab-mismatch")) is not None and run.death is None:
        yield VOCABULARY.found(
            run.subject, "draft and target do not share a vocabulary", evidence=[line_of(differs)]
        )
        return
    asked = run.asked.method if run.asked is not None else None
    if asked not in (None, "none") and run.knobs is not None and run.knobs.method == "none":
        yield OFF.found(
            run.subject,
            f"the command asks for {asked}, the server's own settings have no speculation",
            evidence=[("command", f"method {asked}"), ("settings", "no speculative algorithm")],
        )
        return
    if not speculates(run) or drafted or run.settings.get("speculative_adaptive"):
        return
    idle = run.acceptance.idle_windows if run.acceptance is not None else 0
    windows, generated = run.speed.windows, run.speed.generated_tokens or 0
    if run.engine == "sglang" and windows >= MIN_WINDOWS:
        seen = f"{windows} decode lines, none with an accept length"
    elif run.engine == "vllm" and windows >= MIN_WINDOWS + 1:
        seen = f"tokens were generated in {windows} intervals, and nothing was drafted in any of them ({idle} say so)"
    elif run.engine == "llamacpp" and generated >= MIN_GENERATED:
        seen = f"{generated} tokens generated, and no request with a draft"
    else:
        return
    severity = "note" if is_lookup(run.method) else "error"
    yield OFF.found(
        run.subject,
        f"speculation with {run.method} was asked for: {seen}",
        evidence=[("log", seen)],
        severity="note" if severity == "note" else "error",
        effect="the n-gram drafter never found a match" if severity == "note" else None,
    )


def rewritten(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    notice = run.notice("tokens-rewritten")
    asked, got = run.asked, run.knobs
    wanted = asked.num_draft_tokens if asked is not None else None
    effective = got.num_draft_tokens if got is not None else None
    if wanted is not None and effective is None and asked is not None and asked.topk == 1 and asked.num_steps:
        effective = asked.num_steps if run.engine == "sglang" else None
    evidence = [line_of(notice)] if notice is not None else []
    differs = wanted is not None and effective is not None and wanted != effective and run.engine == "sglang"
    if differs and wanted is not None and effective is not None:
        evidence.append(("command", f"--speculative-num-draft-tokens {wanted + 1}"))
        message = f"num_draft_tokens {wanted + 1} becomes {effective + 1}"
    elif effective is not None:
        message = f"num_draft_tokens was changed to {effective + 1}"
    else:
        message = "num_draft_tokens was changed to num_steps + 1"
    if notice is not None or differs:
        yield REWRITTEN.found(run.subject, message, evidence=evidence)


def notices(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    for name, kind, message in (
        ("adaptive-off", ADAPTIVE_OFF, "the draft length is fixed"),
        ("running-reset", CAP_SET, "the limit was set by the engine"),
        ("parameters-ignored", PARAMETERS, "the engine ignores some sampling parameters"),
    ):
        if (notice := run.notice(name)) is not None:
            yield kind.found(run.subject, message, evidence=[line_of(notice)])
    if (limit := run.notice("position-limit")) is not None and run.death is None:
        yield POSITIONS.found(
            run.subject, "the context is longer than the draft's positions", evidence=[line_of(limit)]
        )
    if run.changes:
        yield CHANGED.found(
            run.subject,
            f"{len(run.changes)} different lines say so",
            evidence=[line_of(change) for change in run.changes[:20]],
        )


def simulated(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    notice = run.notice("simulated")
    method = run.settings.get("speculative.rejection_sample_method")
    if notice is not None:
        yield SIMULATED.found(run.subject, "drafts are accepted by a set rate", evidence=[line_of(notice)])
    elif method == "synthetic":
        evidence = [("settings", f"rejection_sample_method {method}")]
        yield SIMULATED.found(run.subject, "drafts are accepted by a set rate", evidence=evidence)
    thresholds = [
        (name, value)
        for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
        if isinstance(value := run.settings.get(name), int | float) and value < 1
    ]
    if thresholds:
        listed = ", ".join(f"{name} {value}" for name, value in thresholds)
        yield LOSSY.found(run.subject, f"acceptance is relaxed: {listed}", evidence=[("settings", listed)])


def skipped_weights(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    notice = run.notice("weights-skipped")
    if (
        notice is not None and run.death is None and run.method != "none"
    ):  # unused MTP layers are left out rightly
        yield SKIPPED.found(run.subject, "tensors were left out at load", evidence=[line_of(notice)])


def graphs(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    speed = run.speed
    on, off = speed.graph_windows_on, speed.graph_windows_off
    asked_off = (
        run.settings.get("disable_cuda_graph") is True
        or run.settings.get("disable_decode_cuda_graph") is True
    )
    if speed.graph_label != "cuda" or off < MIN_WINDOWS or off < 0.1 * (on + off):
        return
    where = f"{off} of {on + off} decode lines say graph: False"
    if on:
        where += f", at {speed.graph_off_min_running} running requests and more"
    yield GRAPHS_OFF.found(
        run.subject,
        where + (", as asked" if asked_off else ""),
        evidence=[("decode lines", where)],
        severity="note" if asked_off else "warning",
    )


def memory(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    knobs = run.knobs or run.asked
    drafted = knobs.num_draft_tokens if knobs is not None else None
    left = run.min_memory_gb
    if left is None or "available_cpu_mem" in run.settings:
        return
    if left < LITTLE_MEMORY_GB and drafted is not None and drafted + 1 >= LONG_DRAFT:
        yield LITTLE_MEMORY.found(
            run.subject,
            f"{left:.2f} GB left, with {drafted} drafted tokens per request",
            evidence=[("capture lines", f"least available memory {left:.2f} GB")],
        )


RULES: tuple[Rule, ...] = (speculation_off, rewritten, simulated, skipped_weights, graphs, memory, notices)
KINDS: tuple[FindingKind, ...] = (
    OFF,
    DRAFT_FAILS,
    VOCABULARY,
    REWRITTEN,
    ADAPTIVE_OFF,
    CAP_SET,
    CHANGED,
    SIMULATED,
    LOSSY,
    SKIPPED,
    GRAPHS_OFF,
    LITTLE_MEMORY,
    PARAMETERS,
    POSITIONS,
)
