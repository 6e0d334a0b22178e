"""llama.cpp's rules between its speculation flags. Read in, and measured on, xllamacpp 2026.10.11549."""

from __future__ import annotations

from collections.abc import Mapping

from spectune.domain.findings import Finding
from spectune.embedded.flags import SPEC_TYPES
from spectune.findings.catalogue import finding_kind
from spectune.preflight.flags.every_engine import (
    FLAGS_WITHOUT_METHOD,
    SYNTHETIC_ACCEPTANCE,
    Flags,
    flag_evidence,
    found,
    version_words,
)
from spectune.preflight.flags.table import table_for
from spectune.preflight.rules import Judgement
from spectune.preflight.situation import Situation

TYPE, DRAFT, DRAFT_HUB = "spec-type", "spec-draft-model", "spec-draft-hf"
N_MAX, N_MIN, P_MIN = "spec-draft-n-max", "spec-draft-n-min", "spec-draft-p-min"
DRAFT_LENGTH = 3
"""llama-server's own --spec-draft-n-max."""

_OLD_TYPES: Mapping[str, str] = {
    "mtp": "draft-mtp",
    "eagle3": "draft-eagle3",
    "draft": "draft-simple",
    "dflash": "draft-dflash",
    "simple": "draft-simple",
    "ngram": "ngram-simple",
}

TYPE_UNKNOWN = finding_kind("spec-type-unknown")
TYPE_MISMATCH = finding_kind("spec-type-for-another-draft")
NGRAM_TOO_SHORT = finding_kind("ngram-draft-shorter-than-key")
BOUNDS = finding_kind("draft-length-bounds")
P_MIN_DEFAULT = finding_kind("draft-p-min-default")
SHARED_CONTEXT = finding_kind("context-shared-by-slots")
DRAFT_ON_CPU = finding_kind("draft-on-cpu")
SYNTHETIC_REFUSED = finding_kind("spec-synth-refused")
OLD_TYPE = finding_kind("draft-model-without-type")


def types_in(situation: Situation) -> tuple[str, ...]:
    """The speculation types asked for, without ``none``."""
    text = Flags(situation).text(TYPE) or ""
    return tuple(name for name in text.split(",") if name and name != "none")


def types_exist(situation: Situation) -> Judgement:
    """Each of the comma-separated types is known."""
    findings: list[Finding | None] = []
    not_checked = []
    for name in types_in(situation):
        if name in SPEC_TYPES:
            continue
        if situation.version.text not in (None, table_for("llamacpp").version) and name not in _OLD_TYPES:
            not_checked.append(f"--{TYPE} {name}: not a type of {table_for('llamacpp').version}")
            continue
        new = _OLD_TYPES.get(name)
        older = situation.version.text not in (None, table_for("llamacpp").version)
        if older:
            not_checked.append(
                f"--{TYPE} {name}: became {new} in 2026; whether this build has it is not known"
            )
            continue
        findings.append(
            TYPE_UNKNOWN.found(
                situation.subject,
                f"{version_words(situation)} has no type {name!r}" + (f"; it is {new} now" if new else ""),
                evidence=flag_evidence(situation, TYPE),
                remedy=f"--{TYPE} {new}" if new else f"valid, comma-separated: {', '.join(SPEC_TYPES)}",
            )
        )
    return found(*findings, not_checked=not_checked)


def draft_and_type_fit(situation: Situation) -> Judgement:
    """A draft where the type needs one, and a type that fits the draft."""
    flags, types = Flags(situation), types_in(situation)
    named = flags.given(DRAFT) or flags.given(DRAFT_HUB)
    if flags.unclear(TYPE):
        return found(not_checked=[f"--{TYPE}: a value only a shell knows"])
    if not types:
        return _no_type(situation, named=named)
    if not named:
        return Judgement()
    return _draft_kind(situation, types)


def _no_type(situation: Situation, *, named: bool) -> Judgement:
    """No type is written: builds of 2026 read one from the draft's GGUF (MTP, DFlash, DSpark), others draft at once."""
    flags = Flags(situation)
    if flags.on("spec-default"):
        return Judgement()
    kind = situation.draft.model_type if situation.draft is not None else None
    if named and kind == "eagle3":
        return found(
            FLAGS_WITHOUT_METHOD.found(
                situation.subject,
                f"an EAGLE-3 draft is given and no --{TYPE}: llama-server does not infer this one",
                evidence=flag_evidence(situation, DRAFT, DRAFT_HUB),
                remedy=f"--{TYPE} draft-eagle3",
            )
        )
    if named:
        message = f"a draft model and no --{TYPE}: what becomes of it depends on the build"
        note = OLD_TYPE.found(situation.subject, message, evidence=flag_evidence(situation, DRAFT, DRAFT_HUB))
        return found(note, not_checked=[f"--{TYPE} is not given: whether this build drafts with -md alone"])
    ngram = [name for name in flags.flags if name.startswith("spec-ngram-")]
    if ngram:
        return found(
            FLAGS_WITHOUT_METHOD.found(
                situation.subject,
                f"--{ngram[0]} is given and no --{TYPE}: llama-server's default is none",
                evidence=flag_evidence(situation, *ngram),
                remedy=f"--{TYPE} {'ngram-mod' if 'mod' in ngram[0] else 'ngram-simple'}",
            )
        )
    if any(name.startswith("spec-draft-") for name in flags.flags):
        return found(
            not_checked=[f"--{TYPE} is not given: whether the target brings draft layers of its own"]
        )
    return Judgement()


def _draft_kind(situation: Situation, types: tuple[str, ...]) -> Judgement:
    """By the draft's name alone, while its file is not known: the draft rules judge the file."""
    if situation.draft is not None and situation.draft.kind != "absent":
        return Judgement()
    flags = Flags(situation)
    name = flags.text(DRAFT) or flags.text(DRAFT_HUB) or ""
    is_eagle3 = "eagle3" in name.lower().replace("-", "").replace("_", "")
    if not is_eagle3 or "draft-simple" not in types or "draft-eagle3" in types:
        return Judgement()
    return found(
        TYPE_MISMATCH.found(
            situation.subject,
            f"--{TYPE} {','.join(types)} with {name}: an EAGLE-3 head by its name",
            evidence=flag_evidence(situation, TYPE, DRAFT, DRAFT_HUB),
            remedy=f"--{TYPE} draft-eagle3",
        )
    )


def ngram_sizes_fit(situation: Situation) -> Judgement:
    """n-gram keys and drafts."""
    flags, findings = Flags(situation), []
    for name in types_in(situation):
        if name in ("ngram-simple", "ngram-map-k", "ngram-map-k4v"):
            key, draft = f"spec-{name}-size-n", f"spec-{name}-size-m"
            n = flags.integer(key) if flags.given(key) else 12
            m = flags.integer(draft) if flags.given(draft) else 48
            if n is not None and m is not None and m < n:
                findings.append(
                    NGRAM_TOO_SHORT.found(
                        situation.subject,
                        f"{name}: drafts of {m} tokens behind keys of {n}",
                        evidence=flag_evidence(situation, TYPE, key, draft)
                        or [("default", f"size-n {n}, size-m {m}")],
                        remedy=f"--{key} {min(n, m, 3)}, or --{draft} {n} or more",
                    )
                )
        if name == "ngram-mod":
            low, high = flags.integer("spec-ngram-mod-n-min"), flags.integer("spec-ngram-mod-n-max")
            low, high = 48 if low is None else low, 64 if high is None else high
            if low > high:
                findings.append(
                    BOUNDS.found(
                        situation.subject,
                        f"ngram-mod: n-min {low} is above n-max {high}",
                        evidence=flag_evidence(situation, "spec-ngram-mod-n-min", "spec-ngram-mod-n-max"),
                        remedy=f"--spec-ngram-mod-n-min {high} or less",
                    )
                )
    return found(*findings)


def draft_lengths_fit(situation: Situation) -> Judgement:
    """n-min, n-max and p-min."""
    flags = Flags(situation)
    high = flags.integer(N_MAX)
    low = flags.integer(N_MIN)
    findings: list[Finding | None] = []
    if high is not None and high < 1:
        findings.append(_bounds(situation, f"--{N_MAX} must be 1 or more, got {high}", N_MAX))
    elif low is not None and low > (DRAFT_LENGTH if high is None else high) and not flags.unclear(N_MAX):
        most = DRAFT_LENGTH if high is None else high
        findings.append(_bounds(situation, f"--{N_MIN} {low} is above --{N_MAX} {most}", N_MIN, N_MAX))
    for name in (P_MIN, "spec-draft-p-split"):
        probability = flags.number(name)
        if probability is not None and not 0 <= probability <= 1:
            findings.append(_bounds(situation, f"--{name} must be in 0..1, got {probability:g}", name))
    drafting = "draft-simple" in types_in(situation)
    if drafting and not flags.given(P_MIN) and (high or DRAFT_LENGTH) > DRAFT_LENGTH:
        findings.append(
            P_MIN_DEFAULT.found(
                situation.subject,
                f"drafts always have {high} tokens: --{P_MIN} is not given and is 0",
                evidence=flag_evidence(situation, TYPE, N_MAX),
            )
        )
    return found(*findings)


def _bounds(situation: Situation, message: str, *names: str) -> Finding:
    return BOUNDS.found(situation.subject, message, evidence=flag_evidence(situation, *names))


def slots_have_room(situation: Situation) -> Judgement:
    """The context of one slot against the longest request."""
    flags = Flags(situation)
    total, slots = flags.integer("ctx-size"), flags.integer("parallel")
    unified = flags.on("kv-unified") or (slots is None and not flags.given("no-kv-unified"))
    if total is None or total <= 0 or flags.unclear("parallel"):
        return Judgement()
    per_slot = total if unified or slots is None or slots <= 0 else total // slots
    limit = flags.integer("kv-unified-per-slot")
    per_slot = min(per_slot, limit) if limit else per_slot
    prompt, answer = situation.max_prompt_tokens, situation.max_tokens
    if prompt is None or answer is None or prompt + answer <= per_slot:
        return Judgement()
    return found(
        SHARED_CONTEXT.found(
            situation.subject,
            f"each slot has {per_slot} tokens of context; the longest request needs {prompt + answer} "
            f"(prompt {prompt} + answer {answer})",
            evidence=flag_evidence(situation, "ctx-size", "parallel", "kv-unified"),
            remedy=f"--ctx-size {(prompt + answer) * (slots or 1)}",
        )
    )


def draft_is_on_the_gpu(situation: Situation) -> Judgement:
    """The draft's layers beside the target's."""
    flags = Flags(situation)
    target, draft = flags.text("gpu-layers"), flags.text("spec-draft-ngl")
    on_gpu = target in ("all", "auto") or (flags.integer("gpu-layers") or 0) > 0
    on_cpu = draft == "0" or flags.text("spec-draft-device") == "none"
    if not on_gpu or not on_cpu or not types_in(situation):
        return Judgement()
    return found(
        DRAFT_ON_CPU.found(
            situation.subject,
            "the draft model is kept off the GPU",
            evidence=flag_evidence(situation, "gpu-layers", "spec-draft-ngl", "spec-draft-device"),
        )
    )


def acceptance_is_real(situation: Situation) -> Judgement:
    """--spec-synth-len and --spec-synth-rates."""
    flags = Flags(situation)
    length, rates = flags.text("spec-synth-len"), flags.text("spec-synth-rates")
    if length is None and rates is None:
        return Judgement()
    evidence = flag_evidence(situation, "spec-synth-len", "spec-synth-rates")
    number = flags.number("spec-synth-len")
    problem = None
    if length is not None and (number is None or number < 1):
        problem = f"--spec-synth-len must be 1 or more, got {length}"
    elif rates is not None and not all(_is_rate(part) for part in rates.split(",")):
        problem = f"--spec-synth-rates must be numbers in 0..1 separated by commas, got {rates}"
    if problem:
        return found(SYNTHETIC_REFUSED.found(situation.subject, problem, evidence=evidence))
    return found(
        SYNTHETIC_ACCEPTANCE.found(
            situation.subject,
            f"acceptance is imposed: {length if length is not None else rates}",
            evidence=evidence,
            remedy="remove --spec-synth-len and --spec-synth-rates",
        )
    )


def _is_rate(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


RULES = (
    types_exist,
    draft_and_type_fit,
    ngram_sizes_fit,
    draft_lengths_fit,
    slots_have_room,
    draft_is_on_the_gpu,
    acceptance_is_real,
)
