"""Does this engine, at this version, have code for this draft and this target?"""

from __future__ import annotations

from spectune.checkpoints.facts import CheckpointFacts
from spectune.domain.findings import Finding, Severity
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.engine_names import (
    MLA_EAGLE3_DRAFTS,
    SGLANG_EAGLE3_DRAFTS,
    SGLANG_EAGLE3_HOOKS,
    SGLANG_NO_EAGLE3_HOOKS,
    SGLANG_READ,
    VLLM_EAGLE3_DRAFTS,
    VLLM_NO_EAGLE3,
    VLLM_READ,
)
from spectune.preflight.draft.family import identify
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older

DRAFT_UNSUPPORTED = finding_kind("draft-architecture-unsupported")
TARGET_UNHOOKED = finding_kind("target-without-eagle3-hooks")


_UNHOOKED_IN_LLAMACPP = frozenset({"minimax-m2", "qwen35", "qwen35moe", "qwen36", "qwen3next"})
_SPECULATORS_LAYERS = ("llama", "qwen3")
_LLAMACPP_HOOKS_ADDED = "b9900"
_SGLANG_HOOK_REPORTED = {
    "Qwen2ForCausalLM": "0.5.23",
    "Qwen3_5ForCausalLM": "0.5.13",
    "Qwen3_5ForConditionalGeneration": "0.5.13",
}
"""Classes that a draft's model card says were patched by hand, and a version that surely or likely has the hook."""


def draft_class_known(situation: Situation) -> Judgement:
    """The engine has a class for a head of this architecture."""
    draft, method = situation.draft, situation.knobs.method
    if draft is None or method not in ("eagle", "eagle3") or situation.engine == "llamacpp":
        return FINE
    if draft.kind == "absent" or identify(draft, target=situation.target).family != method:
        return FINE
    plain = set(draft.architectures) & (SGLANG_EAGLE3_HOOKS | SGLANG_NO_EAGLE3_HOOKS)
    if plain and situation.engine == "sglang":
        name = "LlamaForCausalLMEagle3" if method == "eagle3" else "LlamaForCausalLMEagle"
        why = f"SGLang would load it as a whole model of that class, not as a head (such as {name})"
        return found(_unsupported(situation, why))
    if method == "eagle":
        return FINE
    if draft.speculators_algorithm:
        if situation.engine == "sglang":
            return found(
                _unsupported(situation, "it is in the speculators format, which SGLang does not read")
            )
        if draft.speculators_algorithm == "eagle3" and draft.model_type not in (None, *_SPECULATORS_LAYERS):
            why = f"vLLM reads such heads with layers of {' or '.join(_SPECULATORS_LAYERS)}, not {draft.model_type}"
            return found(_unsupported(situation, why))
        return FINE
    names = set(draft.architectures)
    if situation.engine == "sglang":
        return _in_sglang(situation, names)
    return _in_vllm(situation, names)


def _in_sglang(situation: Situation, names: set[str]) -> Judgement:
    mla = names & MLA_EAGLE3_DRAFTS
    if mla:
        if situation.version.text is None:
            what = "its latent attention (MLA) is known from SGLang 0.5.23 on; earlier releases have no class for it"
            return found(_unsupported(situation, what, severity="note"))
        if is_older(situation.version.text, "0.5.23"):
            return found(
                _unsupported(situation, "its latent attention (MLA) has a class in SGLang 0.5.23, not here")
            )
    if names & SGLANG_EAGLE3_DRAFTS:
        return FINE
    if names & VLLM_EAGLE3_DRAFTS:
        return found(_unsupported(situation, "only vLLM has a class of that name"))
    return not_checked(f"whether SGLang has a class for the draft's architecture {sorted(names)}")


def _in_vllm(situation: Situation, names: set[str]) -> Judgement:
    if names & MLA_EAGLE3_DRAFTS and is_older(situation.version.text, "0.18"):
        return found(_unsupported(situation, "its latent attention (MLA) needs vLLM 0.18 or later"))
    # Other names get the prefix Eagle3, as vLLM's EAGLEConfig gives it.
    if {
        name if "Eagle3" in name else f"Eagle3{name}" for name in names
    } & VLLM_EAGLE3_DRAFTS or "PEagleDraftModel" in names:
        return FINE
    return not_checked(f"whether vLLM has a class for the draft's architecture {sorted(names)}")


def _unsupported(situation: Situation, why: str, *, severity: Severity | None = None) -> Finding:
    draft = situation.draft
    assert draft is not None
    listed = draft.speculators_algorithm or list(draft.architectures)
    remedies = {
        "sglang": "take a draft made for SGLang or a newer SGLang, or serve it with vLLM",
        "vllm": "take a later vLLM, or a draft that it has a class for",
    }
    return DRAFT_UNSUPPORTED.found(
        situation.subject,
        f"the draft's architecture {listed}: {why}",
        severity=severity,
        evidence=[(f"{draft.source}/config.json", f"architectures: {list(draft.architectures)}")],
        remedy=remedies.get(situation.engine),
    )


def target_class_hooked(situation: Situation) -> Judgement:
    """The target's class can collect hidden states for EAGLE-3."""
    target = situation.target
    if situation.knobs.method != "eagle3" or target is None or target.kind == "absent":
        return FINE
    if situation.engine == "llamacpp":
        return _hooked_in_llamacpp(situation, target)
    if not target.architectures:
        return not_checked(
            "whether the target's class can hand out hidden states: no architecture is written"
        )
    name = target.architectures[0]
    if situation.engine == "sglang":
        if name in SGLANG_NO_EAGLE3_HOOKS:
            return found(_unhooked(situation, name, f"no set_eagle3_layers_to_capture in {SGLANG_READ}"))
        since = _SGLANG_HOOK_REPORTED.get(name)
        if since is not None and is_older(situation.version.text, since):
            why = f"reported without it in earlier versions, and with it in {SGLANG_READ}"
            return found(_unhooked(situation, name, why, severity="warning"))
        known = name in SGLANG_EAGLE3_HOOKS
    else:
        if name in VLLM_NO_EAGLE3:
            return found(_unhooked(situation, name, f"no SupportsEagle3 in {VLLM_READ}"))
        known = True
    return FINE if known else not_checked(f"whether {name} can hand out hidden states for EAGLE-3")


def _hooked_in_llamacpp(situation: Situation, target: CheckpointFacts) -> Judgement:
    name = (target.model_type or "").lower()
    if name not in _UNHOOKED_IN_LLAMACPP:
        return FINE
    older = is_older(situation.version.text, _LLAMACPP_HOOKS_ADDED)
    if older:
        return found(
            _unhooked(situation, name, "GGML_ASSERT(t_layer_inp[il] != nullptr) in builds before July 2026")
        )
    if older is None and situation.version.text is None:
        return not_checked(
            f"whether this build hands out hidden states of {name} (builds before July 2026 do not)"
        )
    return FINE


def _unhooked(situation: Situation, name: str, why: str, *, severity: Severity | None = None) -> Finding:
    target = situation.target
    assert target is not None
    where = target.source if target.kind == "gguf" else f"{target.source}/config.json"
    return TARGET_UNHOOKED.found(
        situation.subject,
        f"the target's class {name} cannot hand out the hidden states EAGLE-3 needs: {why}",
        severity=severity,
        evidence=[
            (where, f"architecture: {name}"),
            ("engine", situation.version.text or "version not known"),
        ],
        remedy="take a version of the engine that has the hook, or another method",
    )


RULES: tuple[Rule, ...] = (draft_class_known, target_class_hooked)
