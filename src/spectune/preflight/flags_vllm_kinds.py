"""What the vLLM flag rules can find."""

from __future__ import annotations

from spectune.domain.findings import FindingKind

_HERE = "vLLM 0.32.0"
_MEASURED = "measured: vllm 0.32.0"
_CONFIG = "https://github.com/vllm-project/vllm/blob/main/vllm/config/speculative.py"

CONFIG_UNREADABLE = FindingKind(
    code="speculative-config-unreadable",
    severity="error",
    title="--speculative-config is not a JSON object",
    explanation="Mostly the quotes: the shell removes unquoted double quotes, and JSON knows no single ones.",
    effect="the server exits at once",
    remedy='--speculative-config \'{"method": "eagle3", "model": "...", "num_speculative_tokens": 3}\'',
    holds_for=_HERE,
    sources=(_MEASURED,),
)

KEY_UNKNOWN = FindingKind(
    code="speculative-config-key-unknown",
    severity="error",
    title="A key that --speculative-config does not know",
    explanation="The configuration is validated strictly; a misspelt key is an error, not a default.",
    effect="the server exits at once",
    holds_for=_HERE,
    sources=(_MEASURED, _CONFIG),
)

METHOD_UNKNOWN = FindingKind(
    code="speculative-method-unknown",
    severity="error",
    title="No such speculative method",
    explanation="vLLM takes one of a fixed list of methods.",
    effect="the server exits at once",
    holds_for=_HERE,
    sources=(_MEASURED, _CONFIG),
)

METHOD_UNSUPPORTED = FindingKind(
    code="speculative-method-unsupported",
    severity="error",
    title="Method mtp with a model that has no MTP layers",
    explanation="vLLM decides by the model_type whether a model has multi-token-prediction layers of its own.",
    effect="the server exits: NotImplementedError: Unsupported speculative method: 'mtp'",
    remedy="leave out model (the target's own layers), or write the method of this draft",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

METHOD_OMITTED = FindingKind(
    code="speculative-method-omitted",
    severity="warning",
    title="The method is guessed from the draft's name",
    explanation=(
        "Without method vLLM looks for 'eagle-', 'eagle3', 'dflash' or 'dspark' in the model's name and otherwise "
        "takes the draft for an independent language model. A renamed local folder, or an older release, guesses "
        "wrong."
    ),
    effect="the server exits, or drafts with the wrong method",
    holds_for="vLLM 0.8 to 0.32.0",
    sources=(_MEASURED, _CONFIG, "https://github.com/vllm-project/vllm/pull/21737"),
)

HEADS = FindingKind(
    code="heads-not-divisible",
    severity="error",
    title="Attention heads that cannot be shared by the ranks",
    explanation="Every rank of tensor parallelism takes the same number of attention heads.",
    effect="the server exits: Total number of attention heads must be divisible by tensor parallel size",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

TOKENS_MISSING = FindingKind(
    code="num-speculative-tokens-missing",
    severity="error",
    title="num_speculative_tokens is missing",
    explanation="It has a default only for drafts whose config names n_predict or a block size, and for suffix.",
    effect="the server exits: num_speculative_tokens must be provided ...",
    remedy='add "num_speculative_tokens": 3',
    holds_for=_HERE,
    sources=(_MEASURED, "https://github.com/vllm-project/vllm/pull/20375"),
)

TOKENS_REFUSED = FindingKind(
    code="num-speculative-tokens-refused",
    severity="error",
    title="A number of draft tokens that is refused",
    explanation="It must be 1 or more, and a multiple of the draft's n_predict where that is above 1.",
    effect="the server exits at once",
    holds_for=_HERE,
    sources=(_MEASURED, _CONFIG),
)

MODEL_MISSING = FindingKind(
    code="speculative-model-missing",
    severity="error",
    title="Speculation without a method and without a model",
    explanation="vLLM needs at least one of the two: a method that drafts by itself, or a model to guess it from.",
    effect="the server exits: num_speculative_tokens was provided but without speculative model",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

CONFIG_CONFLICT = FindingKind(
    code="speculative-config-conflict",
    severity="error",
    title="Settings of speculation that exclude each other",
    explanation="Each is right alone; vLLM refuses them together.",
    effect="the server exits while building its configuration",
    holds_for=_HERE,
    sources=(_MEASURED, _CONFIG),
)

LOOKUP_RANGE = FindingKind(
    code="prompt-lookup-range",
    severity="error",
    title="An n-gram range that is empty",
    explanation="prompt_lookup_min must be at least 1 and at most prompt_lookup_max.",
    effect="the server exits at once",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

LOOKUP_DEFAULT = FindingKind(
    code="prompt-lookup-default",
    severity="note",
    title="n-grams of exactly five tokens",
    explanation="With neither bound given vLLM looks up n-grams of length 5 only, which rarely match.",
    remedy='"prompt_lookup_min": 2, "prompt_lookup_max": 4',
    holds_for=_HERE,
    sources=(_MEASURED,),
)

DRAFT_TP = FindingKind(
    code="draft-tensor-parallel-size",
    severity="error",
    title="A tensor parallel size the draft cannot have",
    explanation="The draft runs on one GPU or on as many as the target, nothing between.",
    effect="the server exits while building its configuration",
    holds_for="vLLM 0.6 to 0.32.0",
    sources=(_MEASURED, "https://github.com/vllm-project/vllm/issues/11126"),
)

METRICS_WITHOUT = FindingKind(
    code="spec-metrics-without-speculation",
    severity="error",
    title="--per-request-spec-decode-metrics without speculation",
    explanation="The flag needs a speculative configuration; a baseline must not carry it.",
    effect="the server exits while building its configuration",
    remedy="leave it out of the arm without speculation",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

SYNTHETIC_REFUSED = FindingKind(
    code="synthetic-acceptance-refused",
    severity="error",
    title="Imposed acceptance that contradicts itself",
    explanation=(
        "rejection_sample_method synthetic needs exactly one of synthetic_acceptance_length (1 to K + 1) and "
        "synthetic_acceptance_rates (K rates, none above the one before), and both are refused without it."
    ),
    effect="the server exits while building its configuration",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

ASYNC_REFUSED = FindingKind(
    code="async-scheduling-refused",
    severity="error",
    title="--async-scheduling with a method that does not allow it",
    explanation="Asked for by name it is refused for ngram, suffix, medusa, mlp_speculator, and unpadded drafts.",
    effect="the server exits while building its configuration",
    remedy="leave --async-scheduling out, in both arms",
    holds_for=_HERE,
    sources=(_MEASURED, "https://github.com/vllm-project/vllm/pull/31998"),
)

ASYNC_OFF = FindingKind(
    code="async-scheduling-switched-off",
    severity="note",
    title="Speculation switches asynchronous scheduling off",
    explanation="It is on by default for a plain server, EAGLE, MTP and draft models, and off for this method.",
    effect="the arm and its baseline differ in more than speculation",
    remedy="--no-async-scheduling in both arms makes them comparable",
    holds_for="vLLM since January 2026",
    sources=(_MEASURED, "https://github.com/vllm-project/vllm/pull/31998"),
)

PIPELINE = FindingKind(
    code="speculation-with-pipeline-parallelism",
    severity="warning",
    title="Pipeline parallelism with speculation",
    explanation=(
        "Reported broken again and again: refused (NotImplementedError), dying in the worker, or serving with "
        "doubled words."
    ),
    effect="the server dies, or its text is corrupted",
    remedy="use tensor parallelism, or compare the text with the baseline's before anything else",
    holds_for="vLLM 0.7 to releases of 2026",
    sources=(
        "https://github.com/vllm-project/vllm/issues/14117",
        "https://github.com/vllm-project/vllm/issues/49355",
        "https://github.com/vllm-project/vllm/issues/52069",
        "https://github.com/vllm-project/vllm/issues/57755",
    ),
)

TOO_FEW_SLOTS = FindingKind(
    code="batched-tokens-below-draft",
    severity="error",
    title="No room for a verify step in a batch",
    explanation=(
        "Parallel drafts need extra slots per request: DFlash K, PARD K, DSpark and P-EAGLE K - 1, a draft model 1. "
        "With LoRA every request needs K + 1."
    ),
    effect="the server exits while building its configuration",
    holds_for=_HERE,
    sources=(_MEASURED,),
)

SCHEDULED_TOKENS = FindingKind(
    code="scheduled-tokens-low",
    severity="note",
    title="A small budget of tokens per step",
    explanation="vLLM warns below 8192 scheduled tokens per step: prompts are prefilled in more steps.",
    effect="time to first token rises",
    holds_for=_HERE,
    sources=(_MEASURED, "https://github.com/Blackwellboy/model-serving-minefield"),
)

SAMPLING_REFUSED = FindingKind(
    code="sampling-parameter-refused",
    severity="warning",
    title="A sampling default that speculation refuses",
    explanation=(
        "min_p and logit_bias are refused per request under speculation, so a server-wide default of them turns every "
        "request into an error. In the first V1 releases penalties were ignored without a word."
    ),
    effect="requests are answered with 400",
    holds_for=_HERE,
    sources=(_MEASURED, "https://github.com/vllm-project/vllm/issues/18902"),
)

PENALTIES_IGNORED = FindingKind(
    code="penalties-ignored",
    severity="warning",
    title="Penalties that early V1 releases ignore under speculation",
    explanation="frequency_penalty 2.0 and -2.0 gave the same text with EAGLE.",
    effect="the arms are not comparable",
    remedy="set penalties to 0 in both arms",
    holds_for="vLLM 0.8 and 0.9",
    sources=("https://github.com/vllm-project/vllm/issues/18902",),
)

READY_TIMEOUT = FindingKind(
    code="engine-ready-timeout-short",
    severity="warning",
    title="VLLM_ENGINE_READY_TIMEOUT_S is shorter than a first start",
    explanation=(
        "Compiling and kernel warm-up of a large model take 10 to 25 minutes the first time. When the limit passes, "
        "the API server exits, the launcher keeps waiting and workers keep the GPU memory."
    ),
    effect="a server that never answers and holds its GPUs",
    remedy="VLLM_ENGINE_READY_TIMEOUT_S=1800 or more",
    holds_for="vLLM of 2026",
    sources=("https://github.com/vllm-project/vllm/pull/44751",),
)

EAGLE_LIMIT = FindingKind(
    code="speculation-near-context-end",
    severity="warning",
    title="Requests reach the end of the context under data parallelism",
    explanation=(
        "Near max_model_len a rank stops drafting while the others wait for it in a collective. "
        "The cause is the reporter's guess."
    ),
    effect="the server hangs without an error",
    remedy="keep prompt + answer below max_model_len - num_speculative_tokens - 1",
    holds_for="vLLM of May 2026",
    sources=("https://github.com/vllm-project/vllm/issues/44185",),
)

KINDS: tuple[FindingKind, ...] = (
    CONFIG_UNREADABLE,
    KEY_UNKNOWN,
    METHOD_UNKNOWN,
    METHOD_UNSUPPORTED,
    METHOD_OMITTED,
    HEADS,
    TOKENS_MISSING,
    TOKENS_REFUSED,
    MODEL_MISSING,
    CONFIG_CONFLICT,
    LOOKUP_RANGE,
    LOOKUP_DEFAULT,
    DRAFT_TP,
    METRICS_WITHOUT,
    SYNTHETIC_REFUSED,
    ASYNC_REFUSED,
    ASYNC_OFF,
    PIPELINE,
    TOO_FEW_SLOTS,
    SCHEDULED_TOKENS,
    SAMPLING_REFUSED,
    PENALTIES_IGNORED,
    READY_TIMEOUT,
    EAGLE_LIMIT,
)
