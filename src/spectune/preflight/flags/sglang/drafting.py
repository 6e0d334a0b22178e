"""SGLang: what drafts and verifies: backends, pages, block sizes, n-grams, windows."""

from __future__ import annotations

from spectune.domain.findings import Finding
from spectune.preflight.flags.every_engine import Flags, flag_evidence, found
from spectune.preflight.flags.sglang import kinds
from spectune.preflight.flags.sglang.numbers import (
    ALGORITHM,
    BLOCK,
    STEPS,
    TOKENS,
    TOPK,
    TREE,
    no_draft,
    speculation_in,
)
from spectune.preflight.rules import Judgement
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older

NGRAM_BREADTH = 10
NGRAM_TOKENS = 12
_PAGED_TREE_BACKENDS = ("flashinfer", "fa3", "triton")
_DRAFT_BACKENDS = frozenset(
    {
        *("flashinfer", "triton", "intel_amx", "intel_xpu", "aiter", "fa3", "hybrid_linear_attn", "flashmla"),
        *("trtllm_mha", "trtllm_mla", "cutedsl_mla", "dsa", "nsa", "ascend", "fa4", "dsv4"),
    }
)
_FORCED_PAGE = {"flashmla": 64, "trtllm_mla": 64, "cutedsl_mla": 64, "trtllm_mha": 64, "hpc_ops": 64}
_DEVICES = {
    "NGRAM": ("cuda", "cpu", "xpu"),
    "DFLASH": ("cuda", "npu", "xpu"),
    "DSPARK": ("cuda", "npu", "xpu"),
    "UNO": ("cuda",),
}


def backends_take_trees(situation: Situation) -> Judgement:
    """Attention backends and page sizes against topk > 1."""
    spec, flags = speculation_in(situation), Flags(situation)
    if spec is None:
        return Judgement()
    if spec.algorithm == "NGRAM":
        return _ngram_pages(situation)
    if spec.algorithm not in TREE or spec.topk is None or spec.topk <= 1:
        return Judgement()
    main = flags.text("attention-backend") or _own_choice(flags)
    in_use = {main, flags.text("decode-attention-backend"), flags.text("prefill-attention-backend")}
    if "trtllm_mha" in in_use:
        return found(
            kinds.BACKEND_NO_TREE.found(
                situation.subject,
                f"trtllm_mha verifies chains only; topk is {spec.topk}",
                evidence=flag_evidence(
                    situation,
                    TOPK,
                    "attention-backend",
                    "decode-attention-backend",
                    "prefill-attention-backend",
                ),
                remedy=f"--{TOPK} 1, or --attention-backend flashinfer",
            )
        )
    pages = [_FORCED_PAGE[backend] for backend in in_use if backend in _FORCED_PAGE]
    page = pages[0] if pages else flags.integer("page-size")
    if page is None or page <= 1:
        unclear = flags.unclear("page-size", "attention-backend")
        return found(not_checked=["page size and attention backend against topk > 1"] if unclear else [])
    if main is None:
        return found(
            not_checked=[f"page size {page} with topk {spec.topk}: the attention backend is SGLang's choice"]
        )
    older = is_older(situation.version.text, "0.5.23") is True
    if main in _PAGED_TREE_BACKENDS and not (older and main == "triton"):
        return Judgement()
    return found(
        kinds.PAGED_TREE.found(
            situation.subject,
            f"topk {spec.topk} with pages of {page} tokens works on {', '.join(_PAGED_TREE_BACKENDS)} only, "
            f"not on {main}" + (" before 0.5.23" if main == "triton" else ""),
            evidence=flag_evidence(
                situation, TOPK, "page-size", "attention-backend", "decode-attention-backend"
            ),
            remedy=f"--page-size 1, --{TOPK} 1, or --attention-backend flashinfer",
            severity="warning" if main == "triton" else None,
        )
    )


def _own_choice(flags: Flags) -> str | None:
    """The attention backend SGLang takes by itself, where the device leaves no doubt."""
    return "intel_amx" if flags.text("device") == "cpu" else None


def _ngram_pages(situation: Situation) -> Judgement:
    flags = Flags(situation)
    breadth = flags.integer("speculative-ngram-max-bfs-breadth")
    breadth = NGRAM_BREADTH if breadth is None else breadth
    page, main = flags.integer("page-size"), flags.text("attention-backend") or _own_choice(flags)
    if page is None or page <= 1 or breadth <= 1 or main == "flashinfer":
        return Judgement()
    if main is None:
        return found(not_checked=[f"page size {page} with NGRAM: the attention backend is SGLang's choice"])
    return found(
        kinds.PAGED_TREE.found(
            situation.subject,
            f"NGRAM with breadth {breadth} and pages of {page} tokens works on flashinfer only, not on {main}",
            evidence=flag_evidence(
                situation, "page-size", "attention-backend", "speculative-ngram-max-bfs-breadth"
            ),
            remedy="--page-size 1, or --attention-backend flashinfer",
        )
    )


def draft_backend_exists(situation: Situation) -> Judgement:
    """The draft's decode backend is one that can draft."""
    spec, flags = speculation_in(situation), Flags(situation)
    if spec is None or spec.algorithm not in TREE or (spec.steps is not None and spec.steps <= 1):
        return Judgement()
    names = ("speculative-draft-attention-backend", "decode-attention-backend", "attention-backend")
    backend = next((flags.text(name) for name in names if flags.given(name)), None)
    if backend is None or backend in _DRAFT_BACKENDS:
        return Judgement()
    return found(
        kinds.DRAFT_BACKEND.found(
            situation.subject,
            f"no multi-step drafting in attention backend {backend}",
            evidence=flag_evidence(situation, *names),
            remedy="--speculative-draft-attention-backend flashinfer (or triton, fa3)",
        )
    )


def extend_keeps_its_graph(situation: Situation) -> Judgement:
    """A chain on fa3, against which a tree on another backend is no fair comparison."""
    spec, flags = speculation_in(situation), Flags(situation)
    if spec is None or spec.algorithm not in TREE or spec.topk not in (None, 1):
        return Judgement()
    names = ("speculative-draft-attention-backend", "decode-attention-backend", "attention-backend")
    backend = next((flags.text(name) for name in names if flags.given(name)), None)
    if backend != "fa3":
        return Judgement()
    return found(
        kinds.EXTEND_WITHOUT_GRAPH.found(
            situation.subject,
            "a chain drafts on fa3: its extend step may run without a CUDA graph",
            evidence=flag_evidence(situation, TOPK, *names),
        )
    )


def device_can_draft(situation: Situation) -> Judgement:
    """The algorithm against --device, where that is given."""
    spec, flags = speculation_in(situation), Flags(situation)
    device = (flags.text("device") or "").split(":")[0]
    if spec is None or not device:
        return Judgement()
    needed = _DEVICES.get(spec.algorithm)
    message = None
    if needed is not None and device not in needed:
        message = f"{spec.algorithm} runs on {', '.join(needed)} only, not on {device}"
    elif flags.on("speculative-use-block-verification") and device != "cuda":
        message = f"block verification runs on CUDA and ROCm only, not on {device}"
    if message is None:
        return Judgement()
    names = (ALGORITHM, "device", "speculative-use-block-verification")
    return found(kinds.DEVICE.found(situation.subject, message, evidence=flag_evidence(situation, *names)))


def verification_options_fit(situation: Situation) -> Judgement:
    """Rejection sampling, block verification, lossy thresholds."""
    spec, flags = speculation_in(situation), Flags(situation)
    if spec is None:
        return Judgement()
    findings: list[Finding | None] = []
    rejection, block = "speculative-use-rejection-sampling", "speculative-use-block-verification"
    lossy = [
        name
        for name in ("speculative-accept-threshold-single", "speculative-accept-threshold-acc")
        if flags.number(name) not in (None, 1.0)
    ]
    if flags.on(block) and spec.algorithm not in ("EAGLE", "EAGLE3", "DFLASH", "DSPARK"):
        message = f"--{block} works with EAGLE, EAGLE3, NEXTN, DFLASH and DSPARK only, not {spec.algorithm}"
        findings.append(_verification(situation, message, block))
    chain_only = flags.on(rejection) or (flags.on(block) and spec.algorithm in ("EAGLE", "EAGLE3"))
    if chain_only and spec.algorithm in ("STANDALONE", "FROZEN_KV_MTP"):
        message = f"--{rejection} works with EAGLE, EAGLE3 and NEXTN only, not {spec.algorithm}"
        findings.append(_verification(situation, message, rejection))
    elif chain_only and spec.algorithm in TREE:
        if spec.topk is not None and spec.topk != 1:
            message = f"rejection sampling needs --{TOPK} 1, got {spec.topk}"
            findings.append(_verification(situation, message, rejection, TOPK))
        if lossy:
            message = f"rejection sampling ignores --{lossy[0]}, and SGLang refuses the two together"
            findings.append(_verification(situation, message, rejection, *lossy))
    if lossy and not chain_only:
        findings.append(
            kinds.LOSSY.found(
                situation.subject,
                f"--{lossy[0]} is not 1: tokens the target would not have chosen are accepted",
                evidence=flag_evidence(situation, *lossy),
            )
        )
    return found(*findings)


def _verification(situation: Situation, message: str, *names: str) -> Finding:
    return kinds.VERIFICATION.found(
        situation.subject, message, evidence=flag_evidence(situation, ALGORITHM, *names)
    )


def block_sizes_fit(situation: Situation) -> Judgement:
    """DFLASH and DSPARK: one draft pass proposes a block; its size has three names."""
    spec = speculation_in(situation)
    if spec is None or spec.algorithm not in BLOCK or spec.unclear:
        return Judgement()
    flags = Flags(situation)
    name = "speculative-dflash-block-size" if spec.algorithm == "DFLASH" else "speculative-dspark-block-size"
    block = flags.integer(name)
    root = 0 if spec.algorithm == "DFLASH" else 1
    findings: list[Finding | None] = []
    if block is not None and block <= 0:
        findings.append(_block(situation, f"--{name} must be positive, got {block}", name))
    elif block is not None and spec.tokens is not None and spec.tokens != block + root:
        findings.append(
            _block(
                situation,
                f"--{TOKENS} {spec.tokens} contradicts --{name} {block}: it must be {block + root}",
                name,
                TOKENS,
            )
        )
    elif spec.algorithm == "DSPARK" and spec.tokens is not None and spec.tokens < 2:
        findings.append(_block(situation, f"--{TOKENS} {spec.tokens}: DSPARK needs 2 or more", TOKENS))
    width = block + root if block is not None else spec.tokens
    window = flags.integer("speculative-draft-window-size")
    if spec.algorithm == "DFLASH" and window is not None and width is not None and 0 < window < width:
        findings.append(
            _block(
                situation,
                f"--speculative-draft-window-size {window} is smaller than the block of {width}",
                "speculative-draft-window-size",
                name,
                TOKENS,
            )
        )
    for flag, value in ((STEPS, spec.steps), (TOPK, spec.topk)):
        if value is not None and value != 1:
            findings.append(
                kinds.TOKENS_REWRITTEN.found(
                    situation.subject,
                    f"--{flag} {value} becomes 1: {spec.algorithm} drafts a block in one pass",
                    evidence=flag_evidence(situation, flag, ALGORITHM),
                    remedy=f"leave --{flag} out; --{TOKENS} sets the length",
                )
            )
    return found(*findings)


def _block(situation: Situation, message: str, *names: str) -> Finding:
    return kinds.BLOCK_SIZE.found(
        situation.subject, message, evidence=flag_evidence(situation, ALGORITHM, *names)
    )


def ngram_options_fit(situation: Situation) -> Judgement:
    """NGRAM: what it overwrites, and its external corpus."""
    spec, flags = speculation_in(situation), Flags(situation)
    if spec is None or spec.algorithm != "NGRAM" or spec.unclear:
        return Judgement()
    findings: list[Finding | None] = []
    breadth = flags.integer("speculative-ngram-max-bfs-breadth")
    breadth = NGRAM_BREADTH if breadth is None else breadth
    if spec.topk is not None and spec.topk != breadth:
        findings.append(
            kinds.TOKENS_REWRITTEN.found(
                situation.subject,
                f"--{TOPK} {spec.topk} becomes {breadth}: NGRAM takes --speculative-ngram-max-bfs-breadth for it",
                evidence=flag_evidence(situation, TOPK, "speculative-ngram-max-bfs-breadth"),
                remedy="set --speculative-ngram-max-bfs-breadth instead",
            )
        )
    tokens = NGRAM_TOKENS if spec.tokens is None else spec.tokens
    if flags.given("speculative-ngram-external-corpus-path"):
        budget = flags.integer("speculative-ngram-external-sam-budget") or 0
        if budget <= 0:
            message = "an external corpus needs --speculative-ngram-external-sam-budget above 0"
            findings.append(_corpus(situation, message))
        elif budget > tokens - 1:
            message = f"the corpus budget {budget} is more than the {tokens - 1} drafted tokens"
            findings.append(_corpus(situation, message))
        most = flags.integer("speculative-ngram-external-corpus-max-tokens")
        if most is not None and most <= 0:
            message = "--speculative-ngram-external-corpus-max-tokens must be above 0"
            findings.append(_corpus(situation, message))
    if breadth == 0 and spec.steps is None:
        findings.append(_corpus(situation, "--speculative-ngram-max-bfs-breadth 0: SGLang divides by it"))
    if tokens < 2:
        findings.append(no_draft(situation, [TOKENS], f"{tokens} tokens, the root included"))
    return found(*findings)


def _corpus(situation: Situation, message: str) -> Finding:
    names = ("speculative-ngram-external-corpus-path", "speculative-ngram-external-sam-budget", TOKENS)
    return kinds.NGRAM_CORPUS.found(situation.subject, message, evidence=flag_evidence(situation, *names))


def uno_options_fit(situation: Situation) -> Judgement:
    """UNO: an adapter of the target drafts."""
    spec, flags = speculation_in(situation), Flags(situation)
    if spec is None or spec.algorithm != "UNO":
        return Judgement()
    message = None
    if not flags.given("uno-lora-path"):
        message = "UNO needs --uno-lora-path"
    elif spec.tokens is None or spec.tokens < 1:
        message = f"UNO needs --{TOKENS}"
    elif (spec.topk or 1) > 1 and (spec.steps is None or spec.steps < 1):
        message = f"UNO with topk {spec.topk} needs --{STEPS}"
    elif flags.on("enable-deterministic-inference"):
        message = "UNO does not run with --enable-deterministic-inference"
    if message is None or spec.unclear:
        return Judgement()
    return found(
        kinds.UNO.found(situation.subject, message, evidence=flag_evidence(situation, ALGORITHM, TOKENS))
    )


def draft_window_fits(situation: Situation) -> Judgement:
    """The attention window of the draft."""
    flags, spec = Flags(situation), speculation_in(situation)
    window, sink = (
        flags.integer("speculative-draft-window-size"),
        flags.integer("speculative-draft-sink-size"),
    )
    message = None
    if window is not None and window <= 0:
        message = f"--speculative-draft-window-size must be positive, got {window}"
    elif sink is not None and sink < 0:
        message = f"--speculative-draft-sink-size must not be negative, got {sink}"
    elif flags.given("speculative-draft-sink-size") and not flags.given("speculative-draft-window-size"):
        message = "--speculative-draft-sink-size needs --speculative-draft-window-size"
    evidence = flag_evidence(situation, "speculative-draft-window-size", "speculative-draft-sink-size")
    if message is not None:
        return found(kinds.DRAFT_WINDOW.found(situation.subject, message, evidence=evidence))
    if window is not None and spec is not None and spec.algorithm not in ("EAGLE", "EAGLE3", "DFLASH"):
        message = f"--speculative-draft-window-size has no effect with {spec.algorithm}"
        return found(
            kinds.DRAFT_WINDOW.found(situation.subject, message, evidence=evidence, severity="warning")
        )
    return Judgement()


RULES = (
    backends_take_trees,
    draft_backend_exists,
    extend_keeps_its_graph,
    device_can_draft,
    verification_options_fit,
    block_sizes_fit,
    ngram_options_fit,
    uno_options_fit,
    draft_window_fits,
)
