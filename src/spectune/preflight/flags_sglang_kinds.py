"""What the SGLang flag rules can find."""

from __future__ import annotations

from spectune.domain.findings import FindingKind

_HERE = "SGLang 0.5.23"
_MEASURED = "measured: sglang 0.5.23"
_HOOK = "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/arg_groups/speculative_hook.py"

ALGORITHM_UNKNOWN = FindingKind(
    code="speculative-algorithm-unknown",
    severity="error",
    title="No such speculative algorithm",
    explanation="The name is not checked by the parser but a little later: ValueError, unless a plugin registers it.",
    effect="the server exits while reading its arguments",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

TRIPLE_INCOMPLETE = FindingKind(
    code="speculative-numbers-incomplete",
    severity="error",
    title="Only some of steps, topk and draft tokens are given",
    explanation=(
        "SGLang chooses all three numbers or takes all three. With a part of them it stops with an AssertionError "
        "without a text (steps missing), a TypeError while reading arguments (topk missing), or a TypeError after "
        "start-up has begun (draft tokens missing while topk is above 1). Some model cards print such commands."
    ),
    effect="the server does not come up",
    holds_for="SGLang 0.4.5 to 0.5.23",
    sources=(
        _MEASURED,
        "https://github.com/sgl-project/sglang/issues/5673",
        "https://huggingface.co/thoughtworks/Llama-3.1-8B-Instruct-Eagle3",
        _HOOK,
    ),
)

TRIPLE_COMPLETED = FindingKind(
    code="speculative-numbers-completed",
    severity="note",
    title="SGLang fills in steps, topk or draft tokens",
    explanation=(
        "With none of the three given SGLang chooses by architecture: Llama and Grok get a tree of 5 steps, topk 4 "
        "and 8 tokens, everything else and STANDALONE a chain of 3 steps. With topk 1, missing draft tokens become "
        "steps + 1."
    ),
    holds_for=_HERE,
    sources=(_MEASURED, _HOOK),
)

TOKENS_REWRITTEN = FindingKind(
    code="speculative-number-rewritten",
    severity="warning",
    title="A number is silently replaced",
    explanation=(
        "A chain (topk 1) drafts one token per step, so SGLang sets the number of draft tokens to steps + 1 and only "
        "logs 'speculative_num_draft_tokens is adjusted'. NGRAM replaces topk by its breadth, DFLASH and DSPARK "
        "replace steps and topk by 1."
    ),
    effect="another configuration runs than the one asked for; two arms of a sweep can be the same one",
    holds_for=_HERE,
    sources=(_MEASURED, _HOOK, "https://github.com/sgl-project/SpecForge/issues/310"),
)

TREE_TOO_LARGE = FindingKind(
    code="draft-tree-too-large",
    severity="error",
    title="More draft tokens than the tree has candidates",
    explanation=(
        "A tree of s steps and topk k has k + (s - 1) * k^2 candidates. SGLang does not check that the draft tokens "
        "beside the root are no more than that."
    ),
    effect="the server loads completely and dies at the first draft: RuntimeError: selected index k out of range",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

NOTHING_DRAFTED = FindingKind(
    code="nothing-drafted",
    severity="error",
    title="The numbers leave nothing to draft",
    explanation="Zero steps, or one draft token (the root alone), pass the parser; there is then nothing to verify.",
    effect="speculation costs and cannot gain",
    holds_for=_HERE,
    sources=("measured: sglang 0.5.23 accepts such arguments",),
)

ADAPTIVE_OFF = FindingKind(
    code="adaptive-speculation-off",
    severity="warning",
    title="Adaptive speculation is switched off",
    explanation="SGLang logs 'speculative_adaptive disabled' and serves with fixed numbers.",
    effect="steps never change; the arm is a static one",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

ADAPTIVE_STEPS = FindingKind(
    code="adaptive-steps-not-a-candidate",
    severity="error",
    title="The steps are not among the adaptive candidates",
    explanation="Adaptive speculation starts from --speculative-num-steps, which must be one of its candidates.",
    effect="the server exits while reading its arguments",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

DRAFT_UNUSED = FindingKind(
    code="draft-path-unused",
    severity="warning",
    title="A draft model for an algorithm that has none",
    explanation="NGRAM proposes from the text and ignores the path; UNO reuses the target and refuses it.",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

BACKEND_NO_TREE = FindingKind(
    code="attention-backend-chains-only",
    severity="error",
    title="The attention backend verifies chains only",
    explanation="trtllm_mha has no tree mask: SGLang refuses it with topk above 1.",
    effect="the server exits: ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding.",
    holds_for=_HERE,
    sources=(_MEASURED, _HOOK),
)

PAGED_TREE = FindingKind(
    code="page-size-with-tree",
    severity="error",
    title="Draft trees with paged attention on a backend that cannot",
    explanation=(
        "Branches of a draft tree share the tail of a page. Only some backends handle that: flashinfer, fa3 and "
        "triton in 0.5.23; flashinfer, later also fa3, before; in early 2025 nothing was checked and the text was "
        "garbage. Some backends force pages of 64 tokens (flashmla, trtllm_mla, cutedsl_mla)."
    ),
    effect="the server exits with a ValueError; old versions served garbage",
    holds_for=_HERE,
    sources=(_MEASURED, _HOOK, "https://github.com/sgl-project/sglang/pull/5168"),
)

DRAFT_BACKEND = FindingKind(
    code="draft-attention-backend-unsupported",
    severity="error",
    title="The attention backend cannot draft several steps",
    explanation="The draft uses the target's decode backend unless told otherwise; not every backend can draft.",
    effect="the server dies after loading: ValueError: EAGLE is not supported in decode attention backend ...",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

DEVICE = FindingKind(
    code="speculation-device",
    severity="error",
    title="An algorithm that this device does not have",
    explanation="Block drafts need CUDA, NPU or XPU; NGRAM also takes a CPU; block verification needs CUDA or ROCm.",
    effect="the server exits while reading its arguments",
    holds_for=_HERE,
    sources=(_MEASURED, _HOOK),
)

EXTEND_WITHOUT_GRAPH = FindingKind(
    code="draft-extend-without-graph",
    severity="note",
    title="fa3 runs the draft's extend step without a CUDA graph in a chain",
    explanation=(
        "With topk 1 on Hopper SGLang takes fa3, whose draft-extend step ran eager in 2026; with a tree it takes "
        "flashinfer or triton and keeps the graph. Two such rows of one table differ in more than the tree."
    ),
    remedy="name the same --attention-backend in every arm, and compare what /server_info reports",
    holds_for="SGLang of August and September 2026",
    sources=(
        "https://github.com/sgl-project/sglang/pull/36324",
        "https://github.com/sgl-project/sglang/pull/40762",
    ),
)

VERIFICATION = FindingKind(
    code="verification-option-refused",
    severity="error",
    title="A way of verifying that does not go with the rest",
    explanation=(
        "Rejection sampling works with EAGLE, EAGLE3 and NEXTN chains (topk 1) and without accept thresholds; block "
        "verification also with DFLASH and DSPARK, on CUDA and ROCm."
    ),
    effect="the server exits while reading its arguments",
    holds_for=_HERE,
    sources=(_MEASURED, _HOOK),
)

LOSSY = FindingKind(
    code="acceptance-threshold-lossy",
    severity="warning",
    title="Tokens are accepted that the target did not choose",
    explanation="Accept thresholds below 1 trade the target's distribution for a higher acceptance.",
    effect="acceptance and speed are not comparable with lossless speculation, and neither is the text",
    remedy="leave the thresholds at 1",
    holds_for=_HERE,
    sources=(_HOOK,),
)

PARALLELISM = FindingKind(
    code="speculation-with-parallelism",
    severity="error",
    title="Speculation that this kind of parallelism does not allow",
    explanation=(
        "STANDALONE and NGRAM do not run with attention data parallelism, DFLASH and DSPARK only with "
        "--enable-dp-lm-head; pipeline parallelism takes EAGLE only, on prefill nodes."
    ),
    effect="the server exits while reading its arguments",
    holds_for=_HERE,
    sources=(_MEASURED, _HOOK),
)

LORA = FindingKind(
    code="speculation-with-lora",
    severity="error",
    title="LoRA adapters with speculation",
    explanation="Adapters apply to the target only, and only some algorithms run with them.",
    effect="the server exits; in 2025 releases it served, and the text differed",
    holds_for="SGLang 0.5.23; releases of 2025 for the warning",
    sources=(_HOOK, "https://github.com/sgl-project/sglang/issues/9756"),
)

SWITCHED_OFF = FindingKind(
    code="option-switched-off-by-speculation",
    severity="warning",
    title="Speculation switches another option off",
    explanation="NGRAM and STANDALONE (in older releases all) disable mixed chunked prefill, with a log line.",
    effect="the speculating arm and its baseline differ in more than speculation",
    holds_for="SGLang 0.4 to 0.5.23",
    sources=(_MEASURED, _HOOK),
)

OVERLAP = FindingKind(
    code="speculation-overlap",
    severity="note",
    title="Overlap of drafting and scheduling",
    explanation=(
        "Since 0.5.23 there is one worker for both modes and SGLANG_ENABLE_SPEC_V2 is gone; "
        "--disable-overlap-schedule runs the same worker without overlap."
    ),
    holds_for=_HERE,
    sources=(_MEASURED,),
)

TOKEN_MAP = FindingKind(
    code="token-map-ignored",
    severity="warning",
    title="The token map is ignored",
    explanation="EAGLE-3 drafts carry their own d2t table; a token map beside it is dropped with a warning.",
    holds_for=_HERE,
    sources=(_HOOK,),
)

RUNNING_REQUESTS = FindingKind(
    code="running-requests-capped",
    severity="note",
    title="Speculation caps the requests that run at once",
    explanation=(
        "When --max-running-requests is not given, SGLang sets it to 48 as soon as speculation is on, while a plain "
        "server runs far more: a baseline at high concurrency is then not comparable."
    ),
    effect="requests beyond the cap wait in the queue",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

GRAPHS_TOO_SMALL = FindingKind(
    code="cuda-graphs-below-concurrency",
    severity="warning",
    title="Batches larger than any captured CUDA graph",
    explanation="A batch beyond the largest captured size runs without a graph ('cuda graph: False' in the log).",
    effect="launch overhead on every step of large batches; drafting suffers most",
    holds_for="SGLang 0.4 to 0.5.23",
    sources=(_MEASURED, "https://github.com/sgl-project/sglang/pull/3430"),
)

MEMORY_FRACTION = FindingKind(
    code="memory-fraction",
    severity="error",
    title="--mem-fraction-static is no fraction",
    explanation="It is the share of the GPU's memory for weights and KV cache, above 0 and below 1.",
    effect="the server dies when it allocates",
    holds_for="every SGLang",
    sources=(_MEASURED, "https://github.com/sgl-project/sglang/issues/4330"),
)

GRAPHS_AFTER_CACHE = FindingKind(
    code="cuda-graphs-without-memory",
    severity="warning",
    title="CUDA graphs are captured after the KV cache has taken the memory",
    explanation="Releases of early 2025 captured the draft's graphs up to batch 160 out of what was left.",
    effect="CUDA out of memory during graph capture",
    holds_for="SGLang before 0.4.4",
    sources=("https://github.com/sgl-project/sglang/pull/3430",),
)

BLOCK_SIZE = FindingKind(
    code="draft-block-size-contradiction",
    severity="error",
    title="Block sizes that contradict each other",
    explanation=(
        "DFLASH verifies as many tokens as its block has, DSPARK one more (the root). The draft window must hold a "
        "whole block."
    ),
    effect="the server exits while reading its arguments",
    holds_for=_HERE,
    sources=(_HOOK,),
)

TRAINED_DEPTH = FindingKind(
    code="draft-beyond-trained-depth",
    severity="note",
    title="A longer chain than drafts are trained for",
    explanation="A draft predicts well as far as it was unrolled in training; a longer chain gains nothing and costs.",
    effect="acceptance collapses behind the trained depth",
    holds_for="EAGLE heads on every engine",
    sources=("https://github.com/Blackwellboy/model-serving-minefield",),
)

NGRAM_CORPUS = FindingKind(
    code="ngram-settings-refused",
    severity="error",
    title="NGRAM settings that contradict each other",
    explanation="An external corpus needs a budget between 1 and the number of drafted tokens.",
    effect="the server exits while reading its arguments",
    holds_for=_HERE,
    sources=(_HOOK,),
)

UNO = FindingKind(
    code="uno-settings-refused",
    severity="error",
    title="UNO without what it needs",
    explanation="UNO drafts with an adapter of the target and needs its path and a verify width.",
    effect="the server exits while reading its arguments",
    holds_for=_HERE,
    sources=(_HOOK,),
)

DRAFT_WINDOW = FindingKind(
    code="draft-window",
    severity="error",
    title="The draft's attention window",
    explanation="A window must be positive, a sink needs a window; only EAGLE, EAGLE3 and DFLASH have either.",
    effect="the server exits, or the flag has no effect",
    holds_for=_HERE,
    sources=(_HOOK,),
)

BAD_PAIR = FindingKind(
    code="known-bad-flag-pair",
    severity="warning",
    title="Two flags reported to kill the server together",
    explanation="With two draft steps or more, expert metrics make a CUDA call during graph capture.",
    effect="'Capture cuda graph failed'; a supervisor restarts it for ever",
    holds_for="SGLang main of July 2026; not known to be fixed",
    sources=("https://github.com/sgl-project/sglang/issues/32105",),
)

HEALTH = FindingKind(
    code="health-endpoint-does-not-generate",
    severity="note",
    title="/health says nothing about generating",
    explanation="With SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0 it is a plain 200 as soon as HTTP is up.",
    remedy="probe /ready, or a completion of one token",
    holds_for=_HERE,
    sources=(_MEASURED, "https://github.com/sgl-project/sglang/pull/8444"),
)

KINDS: tuple[FindingKind, ...] = (
    ALGORITHM_UNKNOWN,
    TRIPLE_INCOMPLETE,
    TRIPLE_COMPLETED,
    TOKENS_REWRITTEN,
    TREE_TOO_LARGE,
    NOTHING_DRAFTED,
    ADAPTIVE_OFF,
    ADAPTIVE_STEPS,
    DRAFT_UNUSED,
    BACKEND_NO_TREE,
    PAGED_TREE,
    DRAFT_BACKEND,
    DEVICE,
    EXTEND_WITHOUT_GRAPH,
    VERIFICATION,
    LOSSY,
    PARALLELISM,
    LORA,
    SWITCHED_OFF,
    OVERLAP,
    TOKEN_MAP,
    RUNNING_REQUESTS,
    GRAPHS_TOO_SMALL,
    MEMORY_FRACTION,
    GRAPHS_AFTER_CACHE,
    BLOCK_SIZE,
    TRAINED_DEPTH,
    NGRAM_CORPUS,
    UNO,
    DRAFT_WINDOW,
    BAD_PAIR,
    HEALTH,
)
