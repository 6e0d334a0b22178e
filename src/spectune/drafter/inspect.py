"""What a checkpoint is, from its files: method, states, shapes, vocabulary map, norms, size, finite values."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from spectune.checkpoints.config import trained_layers
from spectune.checkpoints.facts import CheckpointFacts
from spectune.checkpoints.finite import scan_weights
from spectune.checkpoints.read import read_checkpoint
from spectune.domain.record import Record
from spectune.drafter.engine_view import EngineView, views_of
from spectune.errors import BadInput
from spectune.preflight.draft.family import fc_tensor, identify, state_width

SCHEMA_VERSION = 1
_MAPS = ("d2t", "t2d")


class TensorShape(Record):
    name: str
    shape: tuple[int, ...]
    dtype: str


class AuxiliaryStates(Record):
    """The target's hidden states that the draft reads."""

    count: int | None
    """From the width of ``fc``."""
    width: int | None
    ids_as_written: tuple[int, ...] | None
    """At the top level where there are any, else under ``eagle_config``."""
    where: str | None
    """Every place with ids: engines read different ones."""
    layer_inputs: tuple[int, ...] | None
    """The same layers by the state that enters them; ``None``: neither written nor told by the target's depth."""
    note: str | None = None


class VocabularyMap(Record):
    target_size: int | None
    draft_size: int | None
    entries: int | None
    meaning: str | None
    """``offsets`` (target id minus draft id), ``ids``, or what is wrong with it."""
    coverage_frac: float | None
    """Draft tokens over target tokens."""


class Inspection(Record):
    schema_version: int = SCHEMA_VERSION
    path: str
    kind: str
    format: str
    method: str | None
    """``eagle3``, ``eagle``, ``mtp``, ``standalone``, ...; ``None``: the files do not say."""
    evidence: tuple[str, ...]
    architectures: tuple[str, ...]
    num_parameters: int | None
    """Without vocabulary maps."""
    size_bytes: int | None
    dtypes: dict[str, int]
    """Tensors by type."""
    hidden_size: int | None
    intermediate_size: int | None
    num_layers: int | None
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    max_positions: int | None
    rope_theta: float | None
    auxiliary_states: AuxiliaryStates
    vocabulary: VocabularyMap
    norm_options: dict[str, bool]
    own_embeddings: bool | None
    own_head: bool | None
    tensors: tuple[TensorShape, ...]
    not_finite: dict[str, int] | None
    """Tensors that hold NaN or infinity, and how many; ``None``: values were not read."""
    faults: tuple[str, ...]
    not_read: tuple[str, ...]
    engines: tuple[EngineView, ...]


def inspect_draft(
    path: str, *, target: str | None = None, versions: dict[str, str | None] | None = None
) -> Inspection:
    """Reads headers, vocabulary maps and, a few megabytes at a time, all weights of a draft on this machine.

    Raises ``BadInput`` for what is no checkpoint, or pickle alone.
    """
    draft = read_checkpoint(path)
    if draft.kind == "absent":
        raise BadInput(f"{_absent(draft)}; give a folder, a GGUF file or a hub id")
    pickles = [note for note in draft.not_read if "pickle" in note]
    if draft.tensors is None and pickles:
        raise BadInput(f"{path}: {pickles[0]}; convert the weights to safetensors first")
    against = None
    if target is not None:
        against = read_checkpoint(target)
        if against.kind == "absent":
            raise BadInput(f"--target {_absent(against)}; give a folder, a GGUF file or a hub id")
    if draft.kind == "folder" and draft.tensors is None and not draft.faults:
        draft = replace(draft, faults=("no weight files beside config.json",))
    scan = scan_weights(draft)
    draft = replace(
        draft,
        not_finite=None if scan.not_read or draft.tensors is None else scan.not_finite,
        not_read=(*draft.not_read, *scan.not_read),
    )
    return inspect_facts(draft, target=against, versions=versions or {})


def _absent(facts: CheckpointFacts) -> str:
    """Its name and why it was not found; a reason that begins with the name does not repeat it."""
    name = facts.source or "''"
    reasons = [note.removeprefix(f"{facts.source}: ") for note in facts.not_read]
    return f"{name}: {'; '.join(reasons) or 'not found'}"


def inspect_facts(
    draft: CheckpointFacts, *, target: CheckpointFacts | None, versions: dict[str, str | None]
) -> Inspection:
    """The same from facts that are at hand."""
    identity = identify(draft, target=target)
    tensors = draft.tensors or {}
    shapes = [
        TensorShape(name=name, shape=info.shape, dtype=info.dtype) for name, info in sorted(tensors.items())
    ]
    weights = [math.prod(item.shape) for item in shapes if item.name not in _MAPS]
    return Inspection(
        path=draft.source,
        kind=draft.kind,
        format=draft.format,
        method=identity.family,
        evidence=tuple(f"{where}: {what}" for where, what in identity.evidence),
        architectures=draft.architectures or ((draft.model_type,) if draft.model_type else ()),
        num_parameters=sum(weights) if draft.tensors_complete else None,
        size_bytes=draft.weight_bytes,
        dtypes=dict(Counter(item.dtype for item in shapes).most_common()),
        hidden_size=draft.hidden_size,
        intermediate_size=draft.intermediate_size,
        num_layers=draft.num_layers,
        num_heads=draft.num_heads,
        num_kv_heads=draft.num_kv_heads,
        head_dim=draft.effective_head_dim,
        max_positions=draft.max_positions,
        rope_theta=draft.rope.theta,
        auxiliary_states=_states(draft, target),
        vocabulary=_vocabulary(draft, target),
        norm_options=dict(draft.norm_options),
        own_embeddings=draft.has_tensor(
            "embed_tokens.weight", "model.embed_tokens.weight", "token_embd.weight"
        ),
        own_head=draft.has_tensor("lm_head.weight", "output.weight"),
        tensors=tuple(shapes),
        not_finite=None if draft.not_finite is None else dict(draft.not_finite),
        faults=draft.faults,
        not_read=draft.not_read,
        engines=views_of(draft, target=target, versions=versions),
    )


def layer_inputs(
    draft: CheckpointFacts, *, num_layers: int | None
) -> tuple[tuple[int, ...] | None, str | None]:
    """The target layers whose inputs the draft reads, and a note where that was not written plainly.

    Under ``eagle_config`` trainers write outputs, one less; a GGUF's and those
    at the top level of a configuration, which count where both are written, are
    inputs. Nothing written means the engines' default.
    """
    own = trained_layers(draft.config)
    if own:
        return own, None
    written = draft.top_aux_layers or draft.aux_layers
    if written is None:
        if num_layers is None:
            return None, "not written: engines take inputs of layers 2, L/2 and L-3 of the target"
        return (2, num_layers // 2, num_layers - 3), "not written: the engines' default"
    if written.where.startswith("eagle_config"):
        return tuple(layer + 1 for layer in written.ids), "written as outputs of layers"
    return written.ids, None


def _states(draft: CheckpointFacts, target: CheckpointFacts | None) -> AuxiliaryStates:
    fc, width = fc_tensor(draft), state_width(draft, target)
    whole = fc is not None and width and fc.shape[1] % width == 0
    inputs, note = layer_inputs(draft, num_layers=target.num_layers if target else None)
    if identify(draft, target=target).family != "eagle3":
        inputs = note = None
    written = [place for place in (draft.top_aux_layers, draft.aux_layers) if place is not None]
    return AuxiliaryStates(
        count=fc.shape[1] // width if fc is not None and width and whole else draft.num_aux_states,
        width=width if fc is not None else None,
        ids_as_written=written[0].ids if written else None,
        where=" and ".join(dict.fromkeys(place.where for place in written)) or None,
        layer_inputs=inputs,
        note=note,
    )


def _vocabulary(draft: CheckpointFacts, target: CheckpointFacts | None) -> VocabularyMap:
    vocab = (target.vocab_size if target else None) or draft.vocab_size
    size = draft.draft_vocab_size
    return VocabularyMap(
        target_size=vocab,
        draft_size=size,
        entries=draft.d2t.length if draft.d2t else None,
        meaning=map_meaning(draft),
        coverage_frac=size / vocab if size and vocab else None,
    )


def map_meaning(draft: CheckpointFacts) -> str | None:
    """``offsets`` or ``ids``; ``None`` without a map, or one whose values were not read."""
    entries, mask = draft.d2t, draft.t2d
    if entries is None or entries.lowest is None:
        return None
    if mask is not None and mask.true_ids_hash is not None:
        if mask.true_ids_hash == entries.target_ids_hash:
            return "offsets"
        if mask.true_ids_hash == entries.plain_ids_hash:
            return "ids"
        return "neither offsets nor ids agree with t2d"
    if draft.kind == "gguf":
        return "ids" if entries.num_distinct_as_ids == entries.length else "entries repeat: offsets?"
    return "offsets" if entries.num_distinct_as_offsets == entries.length else "entries lead to tokens twice"
