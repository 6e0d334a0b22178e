"""Was the draft trained for this very target? Shapes cannot tell siblings apart; names and templates sometimes can."""

from __future__ import annotations

import re

from spectune.checkpoints.facts import CheckpointFacts, DeclaredBase
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import is_own_draft
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation

OTHER_BASE = finding_kind("draft-of-another-model")
TEMPLATE_DIFFERS = finding_kind("draft-chat-template-differs")


_VARIANT = re.compile(
    r"(fp8|fp4|nvfp4|mxfp4|int8|int4|w\d+a\d+|awq|gptq|bnb|gguf|quantized|dynamic|block|bf16|fp16|f16|f32|[48]bit|"
    r"kv|mlx|autoround|marlin|hf|q\d(_[0-9a-z]+)*|unsloth|sharded|channel|tensor|\d+g|g\d+)+"
)
_STRONG = ("speculators_config.verifier", "base_model", "target_model")


def base_is_target(situation: Situation) -> Judgement:
    """The model the draft was made for, as it declares, against the target's own names."""
    draft, target = situation.draft, situation.target
    if draft is None or draft.kind == "absent" or is_own_draft(situation) or target is None:
        return FINE
    if situation.knobs.method in ("none", "ngram", "draft_model"):
        return FINE
    declared = [base for base in draft.base_models if any(word in base.where for word in _STRONG)]
    names = target_names(target)
    if not declared or not names:
        return not_checked(
            "whether the draft was made for this target: "
            + ("it declares no base model" if not declared else "the target's own name is not known")
            + ", and shapes cannot show it (measured acceptance can)"
        )
    if any(_same_model(base.name, name) for base in declared for name in names):
        return FINE
    base = declared[0]
    return found(
        OTHER_BASE.found(
            situation.subject,
            f"the draft was made for {base.name}, and the target is {names[0]}",
            evidence=[(f"{draft.source}/{base.where}", base.name), ("target", ", ".join(names[:3]))],
        )
    )


def target_names(target: CheckpointFacts) -> list[str]:
    """Names the target is surely known by: a hub id, or what its files call it and its quantised parent."""
    names = []
    if target.kind == "hub" or (target.kind == "absent" and re.fullmatch(r"[\w.-]+/[\w.-]+", target.source)):
        names.append(target.source)
    for base in target.base_models:
        if "_name_or_path" in base.where and "/" in base.name and not base.name.startswith(("/", ".")):
            names.append(base.name)
    names.extend(base.name for base in target.base_models if _is_quantised_parent(target, base))
    return names


def _is_quantised_parent(target: CheckpointFacts, base: DeclaredBase) -> bool:
    """A model card's base is the same model only if this one is a quantisation of it."""
    if "(quantized)" in base.where:
        return True
    return target.quantization is not None and _same_model(base.name, target.source)


def _same_model(name: str, other: str) -> bool:
    """The same after owner, case and words for precision are taken away."""
    return _core(name) == _core(other)


def _core(name: str) -> str:
    last = name.rstrip("/").rpartition("/")[2].lower()
    words = [word for word in re.split(r"[-_]+", last) if word]
    while len(words) > 1 and _VARIANT.fullmatch(words[-1]):
        words.pop()
    return "".join(words).removeprefix("meta")


def templates_agree(situation: Situation) -> Judgement:
    """Chat templates, where the draft's folder has one."""
    draft, target = situation.draft, situation.target
    if draft is None or target is None or draft.tokenizer is None or target.tokenizer is None:
        return FINE
    if situation.knobs.method == "draft_model" or is_own_draft(situation):
        return FINE
    ours, theirs = draft.tokenizer.chat_template_hash, target.tokenizer.chat_template_hash
    if ours is None or theirs is None or ours == theirs:
        return FINE
    message = "the chat templates in the draft's and the target's folder differ"
    evidence = [(draft.source, f"chat template {ours}"), (target.source, f"chat template {theirs}")]
    return found(TEMPLATE_DIFFERS.found(situation.subject, message, evidence=evidence))


RULES: tuple[Rule, ...] = (base_is_target, templates_agree)
