"""The tensors of a Llama-like EAGLE-3 head by their plain names: which it cannot do without, and their shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spectune.checkpoints.config_values import ConfigValues
from spectune.checkpoints.facts import CheckpointFacts, TensorInfo
from spectune.preflight.draft.engine_names import LLAMA_EAGLE3_DRAFTS

NORMS = (
    "norm.weight",
    "midlayer.hidden_norm.weight",
    "midlayer.input_layernorm.weight",
    "midlayer.post_attention_layernorm.weight",
)
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
MATRICES = (
    "fc.weight",
    *(f"midlayer.self_attn.{part}.weight" for part in ATTENTION),
    *(f"midlayer.mlp.{part}.weight" for part in MLP),
)
_IN_GGUF = {
    "norm.weight": "output_norm.weight",
    "midlayer.hidden_norm.weight": "blk.0.attn_norm_2.weight",
    "midlayer.input_layernorm.weight": "blk.0.attn_norm.weight",
    "midlayer.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
}
_FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"} | {
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
_ANNOUNCED_BY = {"self_attn": "attention_bias", "mlp": "mlp_bias"}


def plain_name(name: str) -> str:
    """``model.layers.0.self_attn...`` is ``midlayer.self_attn...``; every form of a draft has one name."""
    plain = name.removeprefix("model.")
    if plain.startswith("layers.0."):
        return "midlayer." + plain.removeprefix("layers.0.")
    return "d2t" if plain == "draft_id_to_target_id" else plain


def is_llama_head(draft: CheckpointFacts) -> bool:
    """Whether the classes that load it build a Llama layer; the names of other layers are not known here."""
    return bool(draft.speculators_algorithm or set(draft.architectures) & LLAMA_EAGLE3_DRAFTS)


def missing_parts(draft: CheckpointFacts) -> list[str]:
    """Norms and matrices of the first layer, announced biases and further layers; packed and fused count as there.

    ``lm_head`` and ``embed_tokens`` may be the target's and are not among them.
    Empty unless all headers were read.
    """
    if draft.tensors is None or not draft.tensors_complete:
        return []
    if draft.kind == "gguf":
        return [name for name in _IN_GGUF.values() if name not in draft.tensors]
    stems = {plain_name(name).rpartition(".")[0] for name in draft.tensors if not name.endswith(".bias")}
    absent = [name for name in (*MATRICES, *NORMS) if not _is_there(name.removesuffix(".weight"), stems)]
    layers = num_decoder_layers(draft)
    absent += [f"layers.{number}.*" for number in range(max(1, layers), min(draft.num_layers or 1, 100))]
    return absent + [name for name in _announced_biases(draft) if name not in _plain_tensors(draft)]


def num_decoder_layers(draft: CheckpointFacts) -> int:
    """Those that the names of tensors count."""
    numbered = (re.match(r"(?:midlayer|layers\.(\d+))\.", plain_name(name)) for name in draft.tensors or ())
    return len({match[1] for match in numbered if match})


def unannounced_biases(draft: CheckpointFacts) -> dict[str, tuple[str, ...]]:
    """By key of the configuration, which is not true: the biases that engines do not load without it."""
    found = {}
    for section, key in _ANNOUNCED_BY.items():
        begin = f"midlayer.{section}."
        names = sorted(n for n in _plain_tensors(draft) if n.startswith(begin) and n.endswith("_proj.bias"))
        if names and not _is_on(draft, key):
            found[key] = tuple(names)
    return found


def wrong_shapes(draft: CheckpointFacts) -> list[tuple[str, TensorInfo, str]]:
    """Tensors with the shape that the configuration gives them instead. ``lm_head`` and the vocabulary's maps,
    whose sizes contradict each other in more ways, are not among them."""
    return [
        (written, info, f"[{', '.join('...' if size is None else str(size) for size in wanted)}]")
        for name, wanted in _shapes(draft)
        for written, info in _written_as(draft, name)
        if _plain(info) and not _fits(info.shape, wanted)
    ]


def _written_as(draft: CheckpointFacts, plain: str) -> Iterator[tuple[str, TensorInfo]]:
    return ((name, info) for name, info in (draft.tensors or {}).items() if plain_name(name) == plain)


def _plain_tensors(draft: CheckpointFacts) -> dict[str, TensorInfo]:
    return {plain_name(name): info for name, info in (draft.tensors or {}).items()}


def _is_there(stem: str, stems: set[str]) -> bool:
    place, _, part = stem.rpartition(".")
    fused = f"{place}.{_FUSED[part]}" if part in _FUSED else None
    return stem in stems or fused in stems


def _announced_biases(draft: CheckpointFacts) -> list[str]:
    """Of queries, keys and values: o_proj's is not built by every engine."""
    names = []
    if _is_on(draft, "attention_bias"):
        names += [f"midlayer.self_attn.{part}.bias" for part in ATTENTION[:3]]
    if _is_on(draft, "mlp_bias"):
        names += [f"midlayer.mlp.{part}.bias" for part in MLP]
    return names


def _is_on(draft: CheckpointFacts, key: str) -> bool:
    layer = draft.config.get("transformer_layer_config")
    sections = (layer, draft.config) if isinstance(layer, dict) else (draft.config,)
    return any(section.get(key) is True for section in sections)


def _shapes(draft: CheckpointFacts) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    hidden, inner, head_dim = draft.hidden_size, draft.intermediate_size, draft.effective_head_dim
    if hidden is None:
        return
    yield "fc.weight", (hidden, None)
    for name in NORMS:
        yield name, (hidden,)
    if inner is not None:
        yield "midlayer.mlp.gate_proj.weight", (inner, hidden)
        yield "midlayer.mlp.up_proj.weight", (inner, hidden)
        yield "midlayer.mlp.down_proj.weight", (hidden, inner)
    if draft.vocab_size is not None:
        yield "embed_tokens.weight", (draft.vocab_size, hidden)
    value_dim = ConfigValues([draft.config], file="config.json").integer("v_head_dim")
    if draft.num_heads is not None and value_dim is not None:
        yield "midlayer.self_attn.o_proj.weight", (hidden, draft.num_heads * value_dim)
    if head_dim is None or draft.num_heads is None or draft.num_kv_heads is None or value_dim is not None:
        return  # latent attention has tensors of its own for queries, keys and values
    queries, keys = draft.num_heads * head_dim, draft.num_kv_heads * head_dim
    for part, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"midlayer.self_attn.{part}.weight", (rows, 2 * hidden)
    yield "midlayer.self_attn.o_proj.weight", (hidden, queries)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    if len(shape) != len(wanted):
        return False
    return all(want is None or size == want for size, want in zip(shape, wanted, strict=True))


def _plain(info: TensorInfo) -> bool:
    """Stored as numbers of one each: packed quantised weights have other shapes."""
    return info.dtype in ("BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2")
