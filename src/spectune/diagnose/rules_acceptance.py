"""What the acceptance of a run says about the draft and its wiring."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spectune.diagnose.facts import AcceptanceFacts, RunFacts, Slice
from spectune.diagnose.golden import published_for
from spectune.diagnose.verdict import NotChecked, Rule, is_lookup, line_of, speculates
from spectune.domain.findings import Finding, FindingKind

MIN_STEPS = 30
"""Verify steps below which nothing is said: at 20 % per step, 30 in a row keep nothing once in 800 times."""
LOAD_FAULT_DRAFTED = 1000
"""Nothing kept of more than so many: even a random head keeps some (NeMo-RL PR 3699)."""
WIRING_LENGTH = 1.05
"""SpecForge issues 310 (1.037) and 455 (1.02), SGLang PR 21272 (1.00): none of them a matter of training."""
FEATURE_FAULT_FIRST = 0.15
"""Position 0 near 10 %: the signature of a feature, layer or position fault (xserv's EAGLE-3 bug hunt)."""
HEALTHY_FIRST = 0.55
"""Position 0 of good heads; between 20 and 50 %: a sibling model, quantisation, missing data, little training."""
MIN_SLICE_STEPS = 100
FALL = 0.5
"""A fall of the kept tokens per step to less than this share counts."""
WASTED_RATE = 0.10
PUBLISHED_SHARE = 0.6
"""Other prompts explain less than this; published values of one pair spread by 30 % over data sets."""

_EAGLE3 = re.compile(r"eagle-?_?3", re.IGNORECASE)

EAGLE3_UNDER_EAGLE = FindingKind(
    code="eagle3-draft-under-eagle",
    severity="error",
    title="An EAGLE-3 draft is served with another algorithm, such as EAGLE",
    explanation="An EAGLE-3 draft expects three hidden states of the target side by side (fc.weight is hidden by "
    "3 x hidden). Under EAGLE the target hands over one. Its width equals the embedding's, so the engine skips the "
    "fusion layer without a word, the vocabulary map is not applied, and every draft is rejected.",
    effect="acceptance length 1.00: each step pays for drafting and verifying and yields one token",
    remedy='--speculative-algorithm EAGLE3 (vLLM: "method": "eagle3")',
    holds_for="SGLang up to 0.5.23, measured there; vLLM by its method name",
    sources=("https://github.com/sgl-project/sglang/pull/21272", "measured"),
)
NOTHING_KEPT = FindingKind(
    code="no-draft-ever-accepted",
    severity="error",
    title="Of more than a thousand drafted tokens none was accepted",
    explanation="Exactly zero is not a weak draft: a head with random weights is right now and then. The draft's "
    "weights did not arrive, arrive in the wrong tensors, or are read with the wrong quantisation.",
    effect="slower than no speculation; the text is unchanged, so nothing else shows it",
    remedy="look for skipped tensors at load; try the same pair with the unquantised target and draft, eager, and "
    "without asynchronous scheduling",
    holds_for="all engines",
    sources=(
        "https://github.com/NVIDIA-NeMo/RL/pull/3699",
        "https://github.com/vllm-project/vllm-ascend/issues/6187",
        "https://github.com/sgl-project/sglang/issues/35797",
    ),
)
NEAR_ONE = FindingKind(
    code="draft-contributes-nothing",
    severity="error",
    title="Practically every draft is rejected",
    explanation="An acceptance length up to 1.05 is below what any trained draft reaches on any text. It is wired "
    "wrongly: the wrong algorithm, the wrong hidden states, the wrong vocabulary map, or another model's draft.",
    effect="slower than no speculation by the cost of drafting and verifying",
    remedy="go through the likely causes in their order; `spectune check` reads the draft's files for each of them",
    holds_for="all engines; not n-gram drafting",
    sources=(
        "https://github.com/sgl-project/SpecForge/issues/310",
        "https://github.com/sgl-project/SpecForge/issues/455",
        "https://github.com/vllm-project/vllm/issues/41789",
    ),
)
FEATURE_FAULT = FindingKind(
    code="first-position-near-ten-percent",
    severity="warning",
    title="The first drafted token is kept only about one time in ten",
    explanation="An untrained head is near 0 and a good one above 55 %. About 10 % is what a trained head does on "
    "inputs that are nearly right: auxiliary layers shifted by one, states taken after the norm instead of before, "
    "positions off by one, a draft KV cache that is not cut back.",
    effect="the draft costs about what it saves",
    remedy="compare the auxiliary layer ids in the draft's config.json with the engine's convention (ids of layer "
    "outputs or of layer inputs), and its norm options with what this version reads",
    holds_for="EAGLE-3 and its like, all engines",
    sources=("https://gitea.gahow.org/gahow/xserv", "https://github.com/vllm-project/vllm/pull/38111"),
)
LOW = FindingKind(
    code="first-position-below-healthy",
    severity="note",
    title="The first drafted token is kept less often than with a good draft",
    explanation="20 to 50 % with everything wired rightly is a draft made for a sibling of the target (shapes "
    "cannot tell), a quantised target or draft layer, prompts unlike the training data, or little training.",
    remedy="compare the draft's declared base model with the target; measure per category: one low category is "
    "missing data, all of them low is the pair",
    holds_for="all engines",
    sources=(
        "https://github.com/SafeAILab/EAGLE/issues/98",
        "https://huggingface.co/lightseekorg/kimi-k2.5-eagle3",
        "https://github.com/sgl-project/SpecForge/issues/128",
    ),
)
FALLS_WITH_CONTEXT = FindingKind(
    code="acceptance-falls-with-context",
    severity="warning",
    title="Acceptance is good in short contexts and gone in long ones",
    explanation="A draft that is right at first and wrong after a boundary reads a KV cache that does not hold what "
    "it thinks: page sizes of scheduler and kernel differ, or its positions end (max_position_embeddings).",
    effect="long requests are slower than without speculation",
    remedy="compare the draft's max_position_embeddings with the context served; try --page-size 1; "
    "where it falls at a multiple of the page size, it is paging",
    holds_for="all engines",
    sources=(
        "https://github.com/lightseekorg/tokenspeed/pull/913",
        "https://github.com/sgl-project/sglang/issues/3574",
        "https://github.com/vllm-project/vllm/issues/23072",
    ),
)
FALLS_WITH_LOAD = FindingKind(
    code="acceptance-falls-with-concurrency",
    severity="warning",
    title="Acceptance depends on how many requests run",
    explanation="Whether a drafted token is right does not depend on its neighbours. If acceptance falls with the "
    "batch, rows are mixed up (graphs padded to a larger batch, KV slots), or other prompts ran at other times.",
    remedy="send the same prompts at concurrency 1 and at the larger one; if it stays, try without graphs",
    holds_for="all engines",
    sources=("derived from https://github.com/vllm-project/vllm/issues/23072",),
)
COLLAPSED = FindingKind(
    code="acceptance-collapsed",
    severity="warning",
    title="Acceptance was there and is gone",
    explanation="Drafting worked and then stopped being right for good: new weights reached the target but not the "
    "draft, or the draft's state is out of step and the server goes on without it.",
    effect="from then on slower than without speculation",
    remedy="look at what happened at that line; restart; update draft weights together with the target's",
    holds_for="all engines",
    sources=(
        "https://github.com/ggml-org/llama.cpp/pull/18039",
        "https://github.com/NVIDIA-NeMo/RL/pull/3699",
    ),
)
WASTED = FindingKind(
    code="drafts-mostly-wasted",
    severity="note",
    title="Fewer than one drafted token in ten is kept",
    explanation="The chain is far longer than what is usually kept: positions behind the first rejection are "
    "computed in vain. llama.cpp builds differ in their default of --spec-draft-p-min, 0 drafts to the end.",
    remedy="draft fewer tokens; with llama.cpp give --spec-draft-n-max and --spec-draft-p-min explicitly",
    holds_for="chains, all engines",
    sources=("https://github.com/ggml-org/llama.cpp/issues/25908",),
)
RARELY = FindingKind(
    code="drafts-rarely-made",
    severity="note",
    title="High acceptance, but hardly anything is drafted",
    explanation="A drafter that proposes only when it is nearly sure has an acceptance near 100 % and no effect.",
    effect="the acceptance rate says nothing about speed here",
    remedy="look at drafted tokens per generated token; lower the drafting threshold (p_min), or the minimum length",
    holds_for="llama.cpp",
    sources=(
        "https://github.com/ggml-org/llama.cpp/issues/3919",
        "https://github.com/ggml-org/llama.cpp/issues/12968",
    ),
)
BELOW_PUBLISHED = FindingKind(
    code="acceptance-below-published",
    severity="warning",
    title="Far below the published acceptance of this pair",
    explanation="For this target, draft and length a value is published. Other prompts move it, but not that far.",
    remedy="measure on the published data set; if it stays low, suspect the engine version or the wiring",
    holds_for="the pairs in the table of published values",
    sources=(
        "https://github.com/vllm-project/vllm/pull/31976",
        "https://github.com/vllm-project/vllm/issues/26191",
    ),
)
IMPOSSIBLE = FindingKind(
    code="acceptance-above-possible",
    severity="warning",
    title="More tokens per step than the settings allow",
    explanation="A step keeps at most the drafted tokens and adds one. More than that means that the settings in "
    "this log are not the ones in effect, or that lines of several servers are mixed.",
    remedy="read the effective settings from the server (/server_info)",
    holds_for="all engines",
)


def _kept_text(acceptance: AcceptanceFacts) -> str:
    parts = [f"acceptance length {acceptance.length:.3f}"] if acceptance.length is not None else []
    if acceptance.accepted is not None and acceptance.drafted:
        parts.append(f"{acceptance.accepted} of {acceptance.drafted} drafted tokens kept")
    if acceptance.windows > 1:
        parts.append(f"nothing kept in {acceptance.windows_at_one} of {acceptance.windows} windows")
    if acceptance.steps is not None:
        about = "about " if acceptance.steps_estimated else ""
        parts.append(f"{about}{acceptance.steps} verify steps")
    return ", ".join(parts)


def _enough(acceptance: AcceptanceFacts) -> bool:
    if acceptance.steps is not None:
        return acceptance.steps >= MIN_STEPS
    if acceptance.drafted is not None:
        return acceptance.drafted >= 5 * MIN_STEPS
    return acceptance.source in ("gauge", "a client's result")


def _is_dead(acceptance: AcceptanceFacts) -> bool:
    if acceptance.length is not None:
        return acceptance.length <= WIRING_LENGTH
    return acceptance.rate is not None and acceptance.rate <= 0.02


def draft_name(run: RunFacts) -> str | None:
    known = run.knobs or run.asked
    return known.drafter if known is not None else None


def eagle3_evidence(run: RunFacts) -> list[tuple[str, str]]:
    """Signs that the draft is an EAGLE-3 one."""
    found = [("log", f"draft loaded as {name}") for name in run.architectures if _EAGLE3.search(name)]
    name = draft_name(run)
    if name is not None and _EAGLE3.search(name):
        found.append(("settings", f"draft {name}"))
    return found


def is_eagle3_under_eagle(run: RunFacts) -> bool:
    return run.method in ("eagle", "draft_model") and bool(eagle3_evidence(run))


def _algorithm_words(run: RunFacts) -> tuple[str, str]:
    """(what was served with, the flag to change)."""
    if run.engine == "vllm":
        return f'"method": "{run.method}"', '--speculative-config: "method": "eagle3"'
    if run.engine == "llamacpp":
        return "--spec-type draft-simple", "--spec-type draft-eagle3"
    served = "EAGLE" if run.method == "eagle" else "STANDALONE"
    return f"--speculative-algorithm {served}", "--speculative-algorithm EAGLE3"


def likely_causes(run: RunFacts) -> tuple[list[str], str | None]:
    """(causes, the likeliest first; the remedy of the first where it is certain)."""
    causes: list[str] = []
    remedy = None
    if is_eagle3_under_eagle(run):
        served, change = _algorithm_words(run)
        causes.append(
            f"an EAGLE-3 draft served with {served}: it expects three hidden states of the target and gets one, "
            "and its fusion layer is skipped"
        )
        remedy = change
    skipped = run.notice("weights-skipped")
    if skipped is not None:
        causes.append(f"tensors were skipped at load (line {skipped.line})")
    maybe_eagle = run.method in ("eagle", None) and run.engine in ("sglang", "vllm", None)
    if maybe_eagle and not is_eagle3_under_eagle(run):
        causes.append(
            "an EAGLE-3 draft served with the EAGLE algorithm (look at `architectures` in its config.json)"
        )
    quantised = run.settings.get("quantization") or run.settings.get("speculative_draft_model_quantization")
    if quantised:
        causes.append(
            f"quantisation ({quantised}) of target or draft: the draft's layers are misread, or it was made "
            "for the unquantised target; run one control with both unquantised"
        )
    if run.method == "mtp":
        causes.append("MTP tensors missing, quantised below 8 bit, or in an exclude list under another name")
    causes.append("auxiliary layer ids shifted by one, or the vocabulary map (d2t) not applied")
    causes.append("a draft made for another model, or with untrained weights")
    return causes, remedy


def dead_draft(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    acceptance = run.acceptance
    if acceptance is None or not acceptance.windows:
        if is_eagle3_under_eagle(run):
            yield EAGLE3_UNDER_EAGLE.found(
                run.subject,
                f"an EAGLE-3 draft is served with {_algorithm_words(run)[0]}",
                evidence=[*eagle3_evidence(run), ("settings", f"method in effect: {run.method}")],
                remedy=_algorithm_words(run)[1],
                severity="error" if any(_EAGLE3.search(name) for name in run.architectures) else "warning",
            )
        elif run.method != "none":
            skipped.add(f"{run.subject}: acceptance (no line gives it)")
        return
    if is_lookup(run.method) or not _is_dead(acceptance):
        return
    if not _enough(acceptance):
        skipped.add(f"{run.subject}: acceptance (only {_kept_text(acceptance)})")
        return
    causes, remedy = likely_causes(run)
    listed = "; ".join(f"{i}. {cause}" for i, cause in enumerate(causes, 1))
    evidence = [(acceptance.source, _kept_text(acceptance))]
    if is_eagle3_under_eagle(run):
        evidence += [*eagle3_evidence(run), ("settings", f"{_algorithm_words(run)[0]} in effect")]
    if (weights := run.notice("weights-skipped")) is not None:
        evidence.append(line_of(weights))
    certain = acceptance.accepted == 0 and (acceptance.drafted or 0) > LOAD_FAULT_DRAFTED
    kind = EAGLE3_UNDER_EAGLE if is_eagle3_under_eagle(run) else NOTHING_KEPT if certain else NEAR_ONE
    yield kind.found(
        run.subject,
        f"{_kept_text(acceptance)}: the draft contributes nothing. Likely causes: {listed}",
        evidence=evidence,
        remedy=remedy,
    )


def weak_draft(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    acceptance = run.acceptance
    if acceptance is None or is_lookup(run.method) or _is_dead(acceptance) or not _enough(acceptance):
        return
    if (acceptance.steps or 0) < MIN_SLICE_STEPS and acceptance.source not in ("gauge", "a client's result"):
        return
    first = acceptance.per_position[0] if acceptance.per_position else None
    at_most = None if acceptance.length is None else acceptance.length - 1
    low = first if first is not None else at_most
    if low is None or (first is None and (at_most is None or at_most > FEATURE_FAULT_FIRST)):
        if at_most is None or at_most < HEALTHY_FIRST:
            skipped.add(f"{run.subject}: acceptance of the first position (the log does not give it)")
        return
    share = f"{first:.0%}" if first is not None else f"at most {at_most:.0%}"
    evidence = [(acceptance.source, _kept_text(acceptance))]
    if first is not None and acceptance.per_position is not None:
        evidence.append(("per position", ", ".join(f"{rate:.3f}" for rate in acceptance.per_position[:16])))
    if low <= FEATURE_FAULT_FIRST:
        yield FEATURE_FAULT.found(
            run.subject, f"the first drafted token is kept in {share} of steps", evidence=evidence
        )
    elif low < HEALTHY_FIRST:
        yield LOW.found(
            run.subject, f"the first drafted token is kept in {share} of steps", evidence=evidence
        )


def _fall(slices: tuple[Slice, ...]) -> tuple[Slice, Slice] | None:
    """(the best earlier slice, the first later one that keeps less than half of it and never recovers)."""
    used = [s for s in slices if s.steps >= MIN_SLICE_STEPS]
    for i in range(1, len(used)):
        best = max(used[:i], key=lambda s: s.length)
        if best.length - 1 >= 0.3 and all(s.length - 1 < FALL * (best.length - 1) for s in used[i:]):
            return best, used[i]
    return None


def falls(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    acceptance = run.acceptance
    if acceptance is None or is_lookup(run.method) or run.settings.get("speculative_adaptive"):
        return  # an adaptive draft depth moves the acceptance length by itself
    for kind, slices, unit in (
        (FALLS_WITH_CONTEXT, acceptance.by_context, "tokens of context"),
        (FALLS_WITH_LOAD, acceptance.by_concurrency, "requests running"),
    ):
        if (fall := _fall(slices)) is not None:
            good, bad = fall
            yield kind.found(
                run.subject,
                f"acceptance length {good.length:.2f} at {good.label} {unit}, {bad.length:.2f} from {bad.label} on",
                evidence=[
                    (f"{s.label} {unit}", f"acceptance length {s.length:.2f} in {s.steps} verify steps")
                    for s in slices[:12]
                ],
            )
    used = [s for s in acceptance.by_time if s.steps >= 1]
    third = len(used) // 3
    if third >= 2 and sum(s.steps for s in used[-third:]) >= MIN_SLICE_STEPS:
        early, late = _pooled(used[:third]), _pooled(used[-third:])
        if early >= 1.3 and late <= WIRING_LENGTH:
            yield COLLAPSED.found(
                run.subject,
                f"acceptance length {early:.2f} in the first third of the run, {late:.2f} in the last",
                evidence=[(acceptance.source, ", ".join(f"{s.length:.2f}" for s in used))],
            )


def _pooled(slices: list[Slice]) -> float:
    steps = sum(s.steps for s in slices)
    return sum(s.length * s.steps for s in slices) / steps if steps else 1.0


def wasted(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    acceptance, known = run.acceptance, run.knobs or run.asked
    if acceptance is None or acceptance.rate is None or _is_dead(acceptance) or not _enough(acceptance):
        return
    is_tree = known is not None and (known.topk or 1) > 1
    if acceptance.rate < WASTED_RATE and not is_tree and run.engine in ("llamacpp", "vllm"):
        yield WASTED.found(
            run.subject, _kept_text(acceptance), evidence=[(acceptance.source, _kept_text(acceptance))]
        )
    generated = run.speed.generated_tokens
    if (
        acceptance.source == "request lines"
        and generated
        and acceptance.drafted is not None
        and acceptance.rate >= 0.9
        and acceptance.drafted < 0.25 * generated
        and generated >= MIN_SLICE_STEPS
        and not is_lookup(run.method)
    ):
        yield RARELY.found(
            run.subject,
            f"{acceptance.rate:.0%} of drafted tokens are kept, but only {acceptance.drafted} were drafted for "
            f"{generated} generated ones",
            evidence=[(acceptance.source, _kept_text(acceptance))],
        )


def against_published(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    acceptance, known = run.acceptance, run.knobs or run.asked
    if acceptance is None or acceptance.length is None or known is None or not speculates(run):
        return
    if is_lookup(run.method):
        return
    golden = published_for(target=run.model, draft=known.drafter, num_draft_tokens=known.num_draft_tokens)
    if golden is None:
        skipped.add(f"{run.subject}: a published acceptance length (none is held for this pair)")
    elif not _is_dead(acceptance) and acceptance.length - 1 < PUBLISHED_SHARE * (golden.lowest - 1):
        yield BELOW_PUBLISHED.found(
            run.subject,
            f"acceptance length {acceptance.length:.2f}; published for this pair and length: {golden.what}",
            evidence=[(acceptance.source, _kept_text(acceptance)), (golden.source, golden.what)],
        )


def impossible(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    acceptance, knobs = run.acceptance, run.knobs
    adaptive = bool(run.settings.get("speculative_adaptive"))
    if acceptance is None or acceptance.length is None or knobs is None or adaptive or is_lookup(run.method):
        return
    deepest = knobs.num_steps or knobs.num_draft_tokens
    if deepest is not None and acceptance.length > deepest + 1.02:
        yield IMPOSSIBLE.found(
            run.subject,
            f"acceptance length {acceptance.length:.2f}, but at most {deepest} tokens are drafted in a row",
            evidence=[(acceptance.source, _kept_text(acceptance)), ("settings", f"draft depth {deepest}")],
        )


RULES: tuple[Rule, ...] = (dead_draft, weak_draft, falls, wasted, against_published, impossible)
KINDS: tuple[FindingKind, ...] = (
    EAGLE3_UNDER_EAGLE,
    NOTHING_KEPT,
    NEAR_ONE,
    FEATURE_FAULT,
    LOW,
    FALLS_WITH_CONTEXT,
    FALLS_WITH_LOAD,
    COLLAPSED,
    WASTED,
    RARELY,
    BELOW_PUBLISHED,
    IMPOSSIBLE,
)
