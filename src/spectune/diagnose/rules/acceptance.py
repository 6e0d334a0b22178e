"""What the acceptance of a run says about the draft and its wiring."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spectune.diagnose.facts import AcceptanceFacts, RunFacts, Slice
from spectune.diagnose.published_acceptance import published_for
from spectune.diagnose.verdict import NotChecked, Rule, is_lookup, line_of, speculates
from spectune.domain.findings import Finding
from spectune.findings.catalogue import finding_kind

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

EAGLE3_UNDER_EAGLE = finding_kind("eagle3-draft-under-eagle")
NOTHING_KEPT = finding_kind("no-draft-ever-accepted")
NEAR_ONE = finding_kind("draft-contributes-nothing")
FEATURE_FAULT = finding_kind("first-position-near-ten-percent")
LOW = finding_kind("first-position-below-healthy")
FALLS_WITH_CONTEXT = finding_kind("acceptance-falls-with-context")
FALLS_WITH_LOAD = finding_kind("acceptance-falls-with-concurrency")
COLLAPSED = finding_kind("acceptance-collapsed")
WASTED = finding_kind("drafts-mostly-wasted")
RARELY = finding_kind("drafts-rarely-made")
BELOW_PUBLISHED = finding_kind("acceptance-below-published")
IMPOSSIBLE = finding_kind("acceptance-above-possible")


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
