"""Drafts that propose a block at once: DFlash, DSpark and their like."""

from __future__ import annotations

from spectune.checkpoints.config_values import as_section
from spectune.checkpoints.facts import CheckpointFacts
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import identify
from spectune.preflight.rules import FINE, Judgement, Rule, found
from spectune.preflight.situation import Situation

BLOCK_SIZE = finding_kind("draft-block-size")
BLOCK_CUT = finding_kind("draft-block-cut")
BLOCK_TARGET = finding_kind("draft-block-target-differs")
BLOCK_KEYS = finding_kind("draft-block-keys-absent")


def _block_draft(situation: Situation) -> CheckpointFacts | None:
    draft = situation.draft
    if draft is None or situation.knobs.method not in ("dflash", "dspark"):
        return None
    return draft if identify(draft, target=situation.target).family in ("dflash", "dspark") else None


def block_is_used(situation: Situation) -> Judgement:
    """Drafted tokens against the block."""
    draft, tokens = _block_draft(situation), situation.knobs.num_draft_tokens
    if draft is None or draft.block_size is None or tokens is None:
        return FINE
    # A DSpark block, and a block sampled from its anchor, drafts at every position.
    most = draft.block_size if situation.knobs.method == "dspark" else draft.block_size - 1
    evidence = [
        (f"{draft.source}/config.json", f"block_size: {draft.block_size}"),
        ("flags", f"{tokens} drafted tokens"),
    ]
    if tokens > draft.block_size:
        message = f"{tokens} tokens are drafted and the draft's block holds {draft.block_size}"
        return found(BLOCK_SIZE.found(situation.subject, message, evidence=evidence, remedy=f"draft {most}"))
    if tokens < min(most, draft.block_size - 1):
        message = f"{tokens} tokens are drafted of a block of {draft.block_size}"
        remedy = f"compare with {most} drafted tokens"
        return found(BLOCK_CUT.found(situation.subject, message, evidence=evidence, remedy=remedy))
    return FINE


def block_target_fits(situation: Situation) -> Judgement:
    """The depth of the target the block draft was trained on."""
    draft, target = _block_draft(situation), situation.target
    if draft is None or target is None or None in (draft.num_target_layers, target.num_layers):
        return FINE
    if draft.num_target_layers == target.num_layers:
        return FINE
    return found(
        BLOCK_TARGET.found(
            situation.subject,
            f"the draft was made for a target of {draft.num_target_layers} layers, this one has {target.num_layers}",
            evidence=[
                (f"{draft.source}/config.json", f"num_target_layers: {draft.num_target_layers}"),
                (f"{target.source}: configuration", f"num_hidden_layers: {target.num_layers}"),
            ],
            remedy="take the draft that was made for this target",
        )
    )


def block_keys_written(situation: Situation) -> Judgement:
    """Layers and mask token are named, not guessed."""
    draft = _block_draft(situation)
    if draft is None or situation.knobs.method != "dflash" or draft.kind == "gguf":
        return FINE
    inner = as_section(draft.config.get("dflash_config"))
    absent = [
        key
        for key in ("target_layer_ids", "mask_token_id")
        if key not in inner and draft.config.get(key) is None
    ]
    if draft.aux_layers is not None:
        absent = [key for key in absent if key != "target_layer_ids"]
    if not absent:
        return FINE
    return found(
        BLOCK_KEYS.found(
            situation.subject,
            f"the draft's configuration has no {' and no '.join(absent)}: the engine guesses",
            evidence=[(f"{draft.source}/config.json", f"dflash_config: {sorted(inner) or 'absent'}")],
            remedy="write them as the draft was trained, under dflash_config",
        )
    )


RULES: tuple[Rule, ...] = (block_is_used, block_target_fits, block_keys_written)
