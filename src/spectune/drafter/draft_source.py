"""A trained EAGLE-3 draft as read from its folder, in one form whatever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spectune.checkpoints.config import NORM_KEYS
from spectune.checkpoints.facts import CheckpointFacts
from spectune.checkpoints.read import read_checkpoint
from spectune.drafter.config import unsaid
from spectune.drafter.draft_check import check_draft
from spectune.drafter.inspect import layer_inputs, map_meaning
from spectune.drafter.weights import Array, Weight, read_weights
from spectune.errors import BadInput
from spectune.preflight.draft.eagle3_parts import plain_name
from spectune.preflight.draft.family import identify

MAPS = ("d2t", "t2d")
_SIZES = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
}


@dataclass(frozen=True)
class DraftSource:
    """Weights by their plain names (``fc.weight``, ``midlayer...``), without the vocabulary maps."""

    name: str
    facts: CheckpointFacts
    config: Mapping[str, Any]
    """The keys of a plain ``config.json``; of a speculators folder those of its layer."""
    weights: Mapping[str, Weight]
    target_ids: Array | None
    """``[draft id] -> target id``; ``None``: the draft proposes the whole vocabulary."""
    vocab_size: int
    layers: tuple[int, ...]
    """Target layers whose inputs it reads."""
    norm_options: Mapping[str, bool]
    notes: tuple[str, ...]


def read_draft(folder: str, *, target: CheckpointFacts, layers: tuple[int, ...] | None = None) -> DraftSource:
    """Raises ``BadInput`` for whatever is no whole EAGLE-3 draft in safetensors."""
    facts = read_checkpoint(folder, network=False)
    _check(facts, folder, target)
    weights = {plain_name(name): weight for name, weight in read_weights(Path(folder)).items()}
    _check_weights(weights, folder)
    written, note = layer_inputs(facts, num_layers=target.num_layers)
    inputs = layers or written
    if inputs is None:
        raise BadInput(f"{folder}: does not say which layers of the target it reads; give --layers")
    vocab = target.vocab_size or facts.vocab_size
    if vocab is None:
        raise BadInput(f"{target.source}: its vocabulary size is not known; give the target's folder")
    return DraftSource(
        name=Path(folder).resolve().name,
        facts=facts,
        config=_plain_config(facts, folder),
        weights={name: weight for name, weight in weights.items() if name not in MAPS},
        target_ids=_target_ids(facts, weights, vocab, folder),
        vocab_size=vocab,
        layers=inputs,
        norm_options={key: True for key in NORM_KEYS if facts.norm_options.get(key)},
        notes=_notes(inputs, written, note, given=layers is not None),
    )


def _notes(
    inputs: tuple[int, ...], written: tuple[int, ...] | None, note: str | None, *, given: bool
) -> tuple[str, ...]:
    """Of its layers: where they are from, or that they are not those it says itself."""
    if not given:
        return () if note is None else (f"layers {list(inputs)}: {note}",)
    says_none = written is None or (note or "").startswith("not written")
    if says_none or inputs == written:
        return ()
    return (f"layers {list(inputs)}: as given; the draft itself says {list(written or ())}",)


def _check(facts: CheckpointFacts, folder: str, target: CheckpointFacts) -> None:
    if facts.kind != "folder":
        raise BadInput(f"{folder}: give a draft's folder on this machine, with config.json and safetensors")
    pickles = [note for note in facts.not_read if "pickle" in note]
    if facts.tensors is None and facts.faults:
        raise BadInput(f"{folder}: {facts.faults[0]}")
    if facts.tensors is None:
        reason = pickles[0] if pickles else "no safetensors in it"
        raise BadInput(f"{folder}: {reason}; convert the weights to safetensors first")
    if facts.faults:
        raise BadInput(f"{folder}: {facts.faults[0]}")
    family = identify(facts, target=target).family
    if family != "eagle3":
        raise BadInput(f"{folder}: {family or 'an unknown kind of'} draft; only EAGLE-3 drafts are exported")
    if facts.hidden_size and target.hidden_size and facts.target_hidden_size is None:
        fc = facts.tensor("fc.weight")
        if fc is not None and fc.shape[-1] % target.hidden_size:
            raise BadInput(
                f"{folder}: fc.weight {list(fc.shape)} takes no whole number of states of {target.hidden_size} "
                f"({target.source}): the draft was made for another target"
            )
    check_draft(facts, target=target)


def _check_weights(weights: Mapping[str, Weight], folder: str) -> None:
    """Weights as finite numbers."""
    for name, weight in weights.items():
        if name in MAPS:
            continue
        try:
            finite = bool(np.isfinite(weight.floats()).all())
        except BadInput as error:
            raise BadInput(f"{folder}: {name}: {error}") from error
        if not finite:
            raise BadInput(f"{folder}: {name} holds numbers that are not finite: the training has diverged")


def _plain_config(facts: CheckpointFacts, folder: str) -> dict[str, Any]:
    """What an engine needs to build the layer; sizes come from what was understood."""
    raw = facts.config.get("transformer_layer_config")
    config: dict[str, Any] = dict(raw if isinstance(raw, dict) else facts.config)
    for key, field in _SIZES.items():
        value = getattr(facts, field)
        if value is None:
            raise unsaid(facts, key)
        config[key] = value
    config["head_dim"] = facts.effective_head_dim
    return config


def _target_ids(
    facts: CheckpointFacts, weights: Mapping[str, Weight], vocab: int, folder: str
) -> Array | None:
    map_ = weights.get("d2t")
    if map_ is None:
        return None
    meaning = map_meaning(facts)
    values = map_.integers()
    if meaning == "offsets":
        values = values + np.arange(len(values))
    elif meaning != "ids":
        raise BadInput(f"{folder}: d2t: {meaning}; the draft's tokens cannot be told")
    if values.min() < 0 or values.max() >= vocab:
        raise BadInput(f"{folder}: d2t leads to token {int(values.max())} of a vocabulary of {vocab}")
    return values
