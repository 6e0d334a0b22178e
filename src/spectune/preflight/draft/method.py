"""Does the method that the flags ask for suit the kind of draft that the files hold?"""

from __future__ import annotations

import json

from spectune.domain.findings import Finding, Severity
from spectune.engines.registry import title_of
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import (
    DraftIdentity,
    Family,
    fc_tensor,
    identify,
    is_own_draft,
    state_width,
)
from spectune.preflight.draft.method_names import asked_for, method_flag
from spectune.preflight.flags.speculative import speculation_of
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation

ALGORITHM_MISMATCH = finding_kind("draft-algorithm-mismatch")
DRAFT_MISSING = finding_kind("draft-missing")
METHOD_GUESSED = finding_kind("draft-method-guessed")

_FITS: dict[str, frozenset[Family]] = {
    "eagle": frozenset({"eagle", "mtp"}),
    "eagle3": frozenset({"eagle3"}),
    "mtp": frozenset({"mtp", "eagle"}),
    "draft_model": frozenset({"standalone"}),
    "dflash": frozenset({"dflash"}),
    "dspark": frozenset({"dspark", "dflash"}),
    "medusa": frozenset({"medusa"}),
}
_NEEDS_DRAFT = frozenset({"eagle", "eagle3", "draft_model", "dflash", "medusa", "mlp_speculator"})
_NAMED = {
    "eagle": "an EAGLE-1/2 head",
    "eagle3": "an EAGLE-3 head",
    "mtp": "multi-token-prediction layers",
    "dflash": "a DFlash draft",
    "dspark": "a DSpark draft",
    "medusa": "Medusa heads",
    "standalone": "a stand-alone model",
}


def algorithm_fits(situation: Situation) -> Judgement:
    """The story of the catalogue's first case: an EAGLE-3 draft under the flag EAGLE."""
    fits, draft = _FITS.get(situation.knobs.method), situation.draft
    if fits is None:
        return FINE
    if draft is None:
        if situation.knobs.drafter is None:
            return FINE
        return not_checked(f"whether {situation.knobs.drafter} suits the method: its files were not read")
    if is_own_draft(situation):
        return FINE
    identity = identify(draft, target=situation.target)
    only_name = draft.kind == "absent"
    if only_name and (identity.family != "eagle3" or "eagle3" in fits or situation.engine == "llamacpp"):
        return not_checked(f"whether {draft.source} suits the method: its files were not read")
    if identity.family is None:
        return not_checked(f"whether {draft.source} suits the method: its files do not say what kind it is")
    if identity.family in fits or _is_left_to_the_files(situation, identity.family):
        return FINE
    return found(_mismatch(situation, identity, identity.family))


def _is_left_to_the_files(situation: Situation, family: Family) -> bool:
    """vLLM without a method: the draft's model type decides, which makes MTP layers and Medusa heads what they are."""
    config = speculation_of(situation.flags) if family in ("mtp", "medusa") else None
    return config is not None and "method" not in config


def _mismatch(situation: Situation, identity: DraftIdentity, family: Family) -> Finding:
    engine, asked = situation.engine, situation.knobs.method
    right = method_flag(engine, family)
    own_word = asked_for(situation)
    message = f"the draft is {_NAMED[family]}, but it is served with {own_word}"
    inputs = _inputs(situation, family)
    if inputs:
        message += f": {inputs}"
    evidence = [*identity.evidence, ("flags", own_word)]
    target = situation.target
    if target is not None and target.hidden_size is not None:
        layers = f", num_hidden_layers: {target.num_layers}" if target.num_layers else ""
        evidence.append((f"{target.source}: configuration", f"hidden_size: {target.hidden_size}{layers}"))
    silent = engine == "sglang" and asked in ("eagle", "mtp") and family == "eagle3"
    by_name = situation.draft is not None and situation.draft.kind == "absent"
    if by_name:
        message += " (by its name only: its files were not read)"
    return ALGORITHM_MISMATCH.found(
        situation.subject,
        message,
        severity="warning" if by_name else None,
        evidence=evidence,
        effect=None if silent else "the server refuses to start, or every draft is rejected",
        remedy=f"use {right}" if right else f"{title_of(engine)} has no method for {_NAMED[family]}",
    )


def _inputs(situation: Situation, family: Family) -> str | None:
    """What the draft expects and what it will get, in numbers, for an EAGLE-3 head under EAGLE."""
    draft = situation.draft
    if draft is None or family != "eagle3" or situation.knobs.method not in ("eagle", "mtp"):
        return None
    fc, width = fc_tensor(draft), state_width(draft, situation.target)
    if fc is None or width is None:
        return "it expects several hidden states per token and gets one" + (
            f", of {width} values" if width else ""
        )
    count = (
        f"{fc.shape[1] // width} hidden states of {width}" if fc.shape[1] % width == 0 else "hidden states"
    )
    text = (
        f"its fc.weight {list(fc.shape)} expects {fc.shape[1]} values per token ({count}), "
        f"and it gets 1 state of {width}"
    )
    if situation.engine == "sglang":
        text += ", so fc is skipped without a word"
    return text


def draft_given(situation: Situation) -> Judgement:
    """A method that needs a draft has one, or a target that can draft for itself."""
    method, target = situation.knobs.method, situation.target
    if situation.knobs.drafter is not None or situation.draft is not None:
        return FINE
    if method not in _NEEDS_DRAFT and method != "mtp":
        return FINE
    own_layers = _has_own_draft_layers(situation)
    if own_layers and (method in ("mtp", "eagle") or (method == "eagle3" and situation.engine == "sglang")):
        return FINE
    if own_layers is None and method in ("mtp", "eagle"):
        return not_checked(f"whether the target can draft for itself ({method} without a draft): not read")
    evidence = [("flags", f"{asked_for(situation)}, no draft")]
    if target is not None and own_layers is False:
        evidence.append((target.source, "no multi-token-prediction layers"))
    return found(
        DRAFT_MISSING.found(
            situation.subject,
            f"{asked_for(situation)} without a draft: {_consequence(situation)}",
            evidence=evidence,
            remedy=_draft_flag(situation.engine),
        )
    )


def _has_own_draft_layers(situation: Situation) -> bool | None:
    target = situation.target
    if target is None or target.kind == "absent":
        return None
    if target.num_nextn_layers:
        return True
    if target.prediction_tensors:
        return True
    return False if target.num_layers is not None else None


def _consequence(situation: Situation) -> str:
    if situation.engine == "sglang":
        return "SGLang loads the target a second time as its own draft, then fails"
    if situation.engine == "vllm":
        return "vLLM refuses to start"
    return "the server has nothing to draft with"


def _draft_flag(engine: str) -> str:
    flags = {
        "sglang": "add --speculative-draft-model-path with the draft made for this target",
        "vllm": 'add "model" with the draft made for this target to --speculative-config',
        "llamacpp": "add -md with the draft's GGUF file",
    }
    return flags.get(engine, "name a draft")


def method_written(situation: Situation) -> Judgement:
    """vLLM guesses a method that is not written, from the draft's path: is it right for what the files hold?"""
    if situation.engine != "vllm" or situation.draft is None or situation.draft.kind == "absent":
        return FINE
    speculation = speculation_of(situation.flags)
    if not speculation or speculation.get("method") is not None or speculation.get("model") is None:
        return FINE
    family = identify(situation.draft, target=situation.target).family
    if family is not None and _is_left_to_the_files(situation, family):
        return FINE
    guess = situation.knobs.method
    fits = _FITS.get(guess, frozenset())
    if family is None or family in fits:
        message = f"no method is written; vLLM takes {guess!r} from the draft's name"
        severity: Severity = "note"
    else:
        # The mismatch itself is the finding of ``algorithm_fits``; this one says where it came from.
        message = f"no method is written, and vLLM guesses {guess!r} for {_NAMED[family]}"
        severity = "warning"
    return found(
        METHOD_GUESSED.found(
            situation.subject,
            message,
            severity=severity,
            evidence=[("flags", f"--speculative-config {json.dumps(speculation)}")],
            remedy=f"write {method_flag('vllm', family)}"
            if family
            else 'write "method" in --speculative-config',
        )
    )


RULES: tuple[Rule, ...] = (algorithm_fits, draft_given, method_written)
