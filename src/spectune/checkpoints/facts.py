"""What the files of one model say, without its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

Kind = Literal["folder", "gguf", "hub", "absent"]
"""``absent``: the name is no file or folder of this machine and could not be fetched; nothing is known."""


class TensorInfo(NamedTuple):
    """One tensor's header entry."""

    shape: tuple[int, ...]
    """Row-major, also for GGUF: a projection is ``[out, in]``."""
    dtype: str
    """As the file spells it: ``BF16``, ``F8_E4M3``, ``U8``; GGUF: ``Q4_1``, ``F16``."""
    file: str
    num_bytes: int | None = None


@dataclass(frozen=True)
class Quantization:
    """How the weights are stored, as declared; ``raw`` is the whole section of the configuration."""

    method: str | None
    """``fp8``, ``awq``, ``compressed-tensors``, ``modelopt``, ``quark``; a GGUF's: ``gguf``."""
    format: str | None = None
    """``pack-quantized``, ``nvfp4-pack-quantized``; a GGUF's most frequent type."""
    exclude: tuple[str, ...] = ()
    """Names that stay unquantised: ``ignore``, ``exclude``, ``modules_to_not_convert`` and their like."""
    where: str = "config.json"
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AuxLayers:
    """Target layers whose hidden states the draft reads, as written."""

    ids: tuple[int, ...]
    where: str
    """Key path: ``eagle_config.eagle_aux_hidden_state_layer_ids``."""


@dataclass(frozen=True)
class VocabMap:
    """The values of ``d2t`` (draft id -> target id), read whole because only they can be judged."""

    length: int
    dtype: str
    lowest: int | None = None
    highest: int | None = None
    num_distinct_as_offsets: int | None = None
    """Different target ids when an entry means "target id minus draft id"."""
    num_distinct_as_ids: int | None = None
    highest_as_offsets: int | None = None
    lowest_as_offsets: int | None = None
    rises_as_offsets: bool | None = None
    """Target ids increase with the draft id, as every trainer writes them."""
    rises_as_ids: bool | None = None
    target_ids_hash: str | None = None
    """Of the mapped target ids (entries read as offsets), to compare with ``t2d``."""
    plain_ids_hash: str | None = None
    """Of the entries themselves, read as target ids."""


@dataclass(frozen=True)
class VocabMask:
    """``t2d``: which target tokens the draft can propose."""

    length: int
    dtype: str
    num_true: int | None = None
    true_ids_hash: str | None = None


@dataclass(frozen=True)
class TokenizerFacts:
    """``None`` fields: that file is absent or was not read."""

    vocab_hash: str | None = None
    """Of (token, id) pairs with added tokens; comparable only with the same ``hash_of``."""
    hash_of: str | None = None
    """``tokenizer.json``, ``tiktoken.model``, ``tokenizer.model``, ``gguf tokens``."""
    num_tokens: int | None = None
    model: str | None = None
    """``BPE``, ``gpt2``, ``llama``."""
    pre: str | None = None
    added_tokens: tuple[tuple[int, str], ...] | None = None
    bos: str | int | None = None
    eos: str | int | None = None
    chat_template_hash: str | None = None


@dataclass(frozen=True)
class DeclaredBase:
    """A model this one says it was made from or for."""

    name: str
    where: str


@dataclass(frozen=True)
class Rope:
    theta: float | None = None
    scaling_type: str | None = None
    factor: float | None = None
    original_max_positions: int | None = None


@dataclass(frozen=True)
class CheckpointFacts:
    """One model's files. ``None``: not written there, or not read (then ``not_read`` says so)."""

    source: str
    """As the user gave it: a path or a hub id."""
    kind: Kind
    config: Mapping[str, Any] = field(default_factory=dict)
    """The whole of ``config.json``; of a GGUF its metadata, long arrays left out."""
    tensors: Mapping[str, TensorInfo] | None = None
    """By name; ``None``: no header was read. Complete only if ``tensors_complete``."""
    tensors_complete: bool = False
    format: Literal["plain", "speculators", "gguf"] = "plain"
    speculators_algorithm: str | None = None
    """``speculators_model_type`` of a speculators folder: ``eagle``, ``eagle3``, ``dflash``."""
    architectures: tuple[str, ...] = ()
    model_type: str | None = None
    """Of a GGUF: ``general.architecture``."""
    quantization: Quantization | None = None
    dtype: str | None = None
    hidden_size: int | None = None
    target_hidden_size: int | None = None
    """Of a draft: the width of the states it expects from its target, where written."""
    intermediate_size: int | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    """As written; ``None`` if absent, although engines then take hidden / heads."""
    layer_types: tuple[str, ...] | None = None
    """Of a hybrid model, by layer: ``full_attention``, ``linear_attention``."""
    num_nextn_layers: int | None = None
    """Multi-token-prediction layers inside the model."""
    rope: Rope = Rope()
    max_positions: int | None = None
    vocab_size: int | None = None
    draft_vocab_size: int | None = None
    tie_word_embeddings: bool | None = None
    d2t: VocabMap | None = None
    t2d: VocabMask | None = None
    aux_layers: AuxLayers | None = None
    """As written in the place that most readers look at first: under ``eagle_config`` where there are ids."""
    top_aux_layers: AuxLayers | None = None
    """As written at the top level, where vLLM looks first and SGLang does not; inputs of layers."""
    num_aux_states: int | None = None
    """``num_aux_hidden_states`` as written."""
    block_size: int | None = None
    """Of block drafts (DFlash and its like)."""
    num_target_layers: int | None = None
    norm_options: Mapping[str, bool] = field(default_factory=dict)
    """``norm_before_residual``, ``norm_before_fc``, ``fc_norm``, ``norm_output``, ... as written."""
    tokenizer: TokenizerFacts | None = None
    base_models: tuple[DeclaredBase, ...] = ()
    faults: tuple[str, ...] = ()
    """Files that contradict themselves or each other: a shard cut short, one the index names and is absent."""
    not_read: tuple[str, ...] = ()
    """What could not be read, each with its reason."""
    not_finite: Mapping[str, int] | None = None
    """Tensors that hold NaN or infinity, and how many of them; ``None``: values were not read, as is usual."""
    bytes_read: int = 0
    fetched: bool = False
    """Some of it came over the network."""

    def tensor(self, *names: str) -> TensorInfo | None:
        """The first of these names that exists."""
        for name in names:
            found = (self.tensors or {}).get(name)
            if found is not None:
                return found
        return None

    def has_tensor(self, *names: str) -> bool | None:
        """Whether one of the names exists; ``None``: the headers were not all read."""
        if self.tensor(*names) is not None:
            return True
        return False if self.tensors_complete else None

    @property
    def effective_head_dim(self) -> int | None:
        """As written, else hidden / heads, as engines compute it."""
        if self.head_dim is not None:
            return self.head_dim
        if self.hidden_size is None or not self.num_heads:
            return None
        return self.hidden_size // self.num_heads

    @cached_property
    def weight_bytes(self) -> int | None:
        """Sum over all tensors; ``None`` unless every header was read."""
        sizes = self.bytes_by_dtype
        return sum(sizes.values()) if sizes is not None else None

    @cached_property
    def bytes_by_dtype(self) -> Mapping[str, int] | None:
        """Bytes of all tensors by type; ``None`` unless every header was read and every type is known."""
        if not self.tensors_complete or self.tensors is None:
            return None
        sums: dict[str, int] = {}
        for info in self.tensors.values():
            if info.num_bytes is None:
                return None
            sums[info.dtype] = sums.get(info.dtype, 0) + info.num_bytes
        return sums

    @cached_property
    def prediction_tensors(self) -> frozenset[str]:
        """Tensors of multi-token-prediction layers: by their names, or by their place behind the last layer."""
        behind: list[str] = []
        if self.num_layers and self.num_nextn_layers:
            last = self.num_layers + min(self.num_nextn_layers, 64)
            behind = [f"layers.{layer}." for layer in range(self.num_layers, last)]
        marks = ("mtp", "nextn", ".eh_proj.", ".enorm.", ".hnorm.", *behind)
        # Substrings first: a model of 1T parameters has 100,000 names.
        names = [name for name in self.tensors or () if any(mark in name for mark in marks)]
        exact = re.compile(
            r"(?:^|[._])mtp[._]|nextn|\.(?:eh_proj|enorm|hnorm)\.|"
            + "|".join(map(re.escape, behind or ["nextn"]))
        )
        return frozenset(name for name in names if exact.search(name))
