"""Do the draft's widths match its target's, and its tensors its own configuration?"""

from __future__ import annotations

from spectune.checkpoints.facts import CheckpointFacts
from spectune.domain.findings import Finding
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.eagle3_parts import wrong_shapes
from spectune.preflight.draft.family import (
    fc_evidence,
    fc_tensor,
    identify,
    is_own_draft,
)
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older

HIDDEN_DIFFERS = finding_kind("draft-hidden-size-differs")
TARGET_WIDTH_DIFFERS = finding_kind("draft-target-width-differs")
CONFIG_CONTRADICTS = finding_kind("draft-tensor-shape")


_HEADS = frozenset({"eagle", "eagle3", "dflash", "dspark", "mtp", "medusa"})
_EMBEDDINGS = ("embed_tokens.weight", "model.embed_tokens.weight", "token_embd.weight")


def _is_head(situation: Situation) -> bool:
    """The draft reads hidden states of its target, as all but stand-alone drafts do."""
    draft = situation.draft
    if draft is None or draft.kind == "absent" or is_own_draft(situation):
        return False
    if situation.knobs.method in ("none", "ngram", "draft_model"):
        return False
    return identify(draft, target=situation.target).family in _HEADS


def widths_match(situation: Situation) -> Judgement:
    """Hidden size against hidden size, with the one legal exception."""
    draft, target = situation.draft, situation.target
    if not _is_head(situation) or draft is None:
        return FINE
    if target is None or target.hidden_size is None or draft.hidden_size is None:
        return not_checked("the draft's hidden size against the target's: one of them is not known")
    evidence = [
        (f"{draft.source}: configuration", f"hidden_size: {draft.hidden_size}"),
        (f"{target.source}: configuration", f"hidden_size: {target.hidden_size}"),
    ]
    if draft.target_hidden_size is not None and draft.target_hidden_size != target.hidden_size:
        return found(
            _other_width(situation, draft.target_hidden_size, target.hidden_size, "target_hidden_size")
        )
    fc = fc_tensor(draft)
    family = identify(draft, target=target).family
    if family == "eagle3" and fc is not None and fc.shape[1] % target.hidden_size:
        return found(_other_width(situation, fc.shape[1], target.hidden_size, "the input of fc"))
    projects = family == "mtp" and draft.target_hidden_size == target.hidden_size
    if draft.hidden_size == target.hidden_size or projects:
        return FINE
    return _differing(situation, draft, target, evidence)


def _differing(
    situation: Situation, draft: CheckpointFacts, target: CheckpointFacts, evidence: list[tuple[str, str]]
) -> Judgement:
    sizes = f"the draft's hidden size is {draft.hidden_size}, the target's {target.hidden_size}"
    if situation.engine == "vllm" and is_older(situation.version.text, "0.9.1"):
        message = f"{sizes}, which vLLM {situation.version.text} cannot serve"
        return found(
            HIDDEN_DIFFERS.found(situation.subject, message, evidence=evidence, remedy="take a later vLLM")
        )
    lacks = []
    if draft.target_hidden_size is None and draft.kind != "gguf":
        lacks.append("target_hidden_size in its configuration")
    if draft.has_tensor(*_EMBEDDINGS) is False:
        lacks.append("embed_tokens.weight of its own")
    if lacks:
        message = f"{sizes}, and the draft lacks {' and '.join(lacks)}"
        remedy = "take a draft that was made for this target"
        return found(HIDDEN_DIFFERS.found(situation.subject, message, evidence=evidence, remedy=remedy))
    message = f"{sizes}; it says so and brings its own embeddings, which engines since mid 2025 can serve"
    return found(
        HIDDEN_DIFFERS.found(
            situation.subject,
            message,
            severity="note",
            evidence=evidence,
            effect="none if the engine is recent",
        )
    )


def _other_width(situation: Situation, expects: int, gets: int, where: str) -> Finding:
    draft, target = situation.draft, situation.target
    assert draft is not None and target is not None
    return TARGET_WIDTH_DIFFERS.found(
        situation.subject,
        f"{where} of the draft is {expects}, and the target's hidden states are {gets} wide",
        evidence=[
            (f"{draft.source}: configuration", f"target_hidden_size: {draft.target_hidden_size}"),
            *fc_evidence(draft),
            (f"{target.source}: configuration", f"hidden_size: {target.hidden_size}"),
        ],
        remedy="take the draft that was made for this target",
    )


def tensors_match_config(situation: Situation) -> Judgement:
    """Every matrix and norm of the layer, ``fc`` and embeddings have the shapes the configuration gives."""
    draft = situation.draft
    if draft is None or draft.tensors is None or draft.hidden_size is None or draft.kind == "gguf":
        return FINE
    if identify(draft, target=situation.target).family != "eagle3" or is_own_draft(situation):
        return FINE
    wrong = wrong_shapes(draft)
    if not wrong:
        return FINE
    described = "; ".join(
        f"{name} is {list(info.shape)}, expected {expected}" for name, info, expected in wrong[:4]
    )
    return found(
        CONFIG_CONTRADICTS.found(
            situation.subject,
            f"the draft's tensors contradict its configuration: {described}",
            evidence=[
                (f"{draft.source}/config.json", _sizes(draft)),
                *(
                    (f"{draft.source}: {info.file}", f"{name} {list(info.shape)}")
                    for name, info, _ in wrong[:4]
                ),
            ],
            remedy="correct the draft's config.json, usually head_dim, the number of heads or intermediate_size",
        )
    )


def _sizes(draft: CheckpointFacts) -> str:
    return (
        f"hidden_size: {draft.hidden_size}, intermediate_size: {draft.intermediate_size}, num_attention_heads: "
        f"{draft.num_heads}, num_key_value_heads: {draft.num_kv_heads}, head_dim: {draft.head_dim}"
    )


RULES: tuple[Rule, ...] = (widths_match, tensors_match_config)
