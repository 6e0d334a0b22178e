"""Drafts that propose a block at once: DFlash, DSpark and their like."""

from __future__ import annotations

from spectune.checkpoints.config_values import as_section
from spectune.checkpoints.facts import CheckpointFacts
from spectune.domain.findings import FindingKind
from spectune.preflight.draft_fit_family import identify
from spectune.preflight.draft_fit_tables import SGLANG_READ, VLLM_READ
from spectune.preflight.rules import FINE, Judgement, Rule, found
from spectune.preflight.situation import Situation

BLOCK_SIZE = FindingKind(
    code="draft-block-size",
    severity="warning",
    title="More tokens are drafted than the block the draft was trained for",
    explanation=(
        "A block draft fills a block of `block_size` positions, of which the first holds the last token of the "
        "target. Drafting more than the rest asks for positions it never saw."
    ),
    effect="positions past the block are wrong nearly always",
    holds_for=f"{SGLANG_READ}, {VLLM_READ}",
    sources=("https://github.com/Blackwellboy/model-serving-minefield",),
)
BLOCK_CUT = FindingKind(
    code="draft-block-cut",
    severity="note",
    title="Fewer tokens are drafted than the block the draft was trained for",
    explanation=(
        "The draft computes its whole block in any case, so drafting fewer tokens saves little. One combination "
        "(DFlash 2, an NVFP4 target, 2 tokens) did not start at all."
    ),
    effect="part of the block is computed and thrown away",
    holds_for="SGLang, vLLM",
    sources=("https://github.com/Blackwellboy/model-serving-minefield",),
)
BLOCK_TARGET = FindingKind(
    code="draft-block-target-differs",
    severity="warning",
    title="The block draft was made for a target with another number of layers",
    explanation=(
        "`num_target_layers` is the depth of the target it was trained on. SGLang warns and chooses the layers by "
        "the depth of the target it runs."
    ),
    effect="the draft reads other layers than it was trained on",
    holds_for=SGLANG_READ,
    sources=("read in SGLang 0.5.23: spec_aux_hidden_state.py",),
)
BLOCK_KEYS = FindingKind(
    code="draft-block-keys-absent",
    severity="note",
    title="The block draft's configuration does not name its layers or its mask token",
    explanation=(
        "Without `target_layer_ids` the engine spreads the layers evenly, without `mask_token_id` it takes a default. "
        "A draft that trained well and keeps hardly any token when served was saved without them."
    ),
    effect="acceptance near 1.00 if the trainer used other layers",
    holds_for=SGLANG_READ,
    sources=(
        "https://github.com/sgl-project/SpecForge/issues/455",
        "read in SGLang 0.5.23: speculative/dflash_utils.py",
    ),
)

KINDS = (BLOCK_SIZE, BLOCK_CUT, BLOCK_TARGET, BLOCK_KEYS)


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
