"""The form each engine wants: configuration keys, tensor names, the meaning of layer ids and of ``d2t``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spectune.checkpoints.config import LAYERS_KEY
from spectune.checkpoints.facts import CheckpointFacts
from spectune.drafter.draft_source import DraftSource
from spectune.drafter.export.gguf import (
    FILE_TYPES,
    GgufTensor,
    RawValue,
    boolean,
    copied_metadata,
    encode_tensor,
    float32,
    int32_array,
    string,
    uint32,
)
from spectune.drafter.weights import Array, Weight, weight_of
from spectune.errors import BadInput
from spectune.preflight.draft.engine_names import SGLANG_AUX_AS_WRITTEN

ARCHITECTURE = "LlamaForCausalLMEagle3"
_GGUF_ARCHITECTURE = "eagle3"
_KEPT = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *(
        "hidden_act",
        "rms_norm_eps",
        "max_position_embeddings",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
    ),
    *("attention_bias", "mlp_bias", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("torch_dtype", "dtype", "target_hidden_size"),
)
_GGUF_NAMES = {
    "fc.weight": "fc.weight",
    "lm_head.weight": "output.weight",
    "norm.weight": "output_norm.weight",
    "midlayer.hidden_norm.weight": "blk.0.attn_norm_2.weight",
    "midlayer.input_layernorm.weight": "blk.0.attn_norm.weight",
    "midlayer.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "midlayer.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "midlayer.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "midlayer.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "midlayer.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "midlayer.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "midlayer.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "midlayer.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}
_GGUF_NORMS = frozenset({"norm_before_residual"})
_QUANTIZATION_VERSION = 2


def folder_form(draft: DraftSource, target: CheckpointFacts) -> tuple[dict[str, Any], dict[str, Weight]]:
    """One folder for SGLang and for both of vLLM's model runners: each reads a place of its own.

    SGLang reads ``eagle_config``, as outputs of layers, except for targets whose
    class takes inputs; vLLM the top level, as inputs.
    """
    config = _plain(draft)
    config["eagle_aux_hidden_state_layer_ids"] = list(draft.layers)
    config["eagle_config"] = {
        "eagle_aux_hidden_state_layer_ids": list(_sglang_ids(draft.layers, target)),
        "use_aux_hidden_state": True,
    }
    return config, {**draft.weights, **_maps(draft)}


def _sglang_ids(layers: tuple[int, ...], target: CheckpointFacts) -> tuple[int, ...]:
    outputs = tuple(layer - 1 for layer in layers)
    if set(target.architectures) & SGLANG_AUX_AS_WRITTEN and outputs[0] != 1 and layers[0] != 1:
        return layers
    return outputs


def speculators_form(
    draft: DraftSource, target: CheckpointFacts, *, verifier_name: str, num_draft_tokens: int
) -> tuple[dict[str, Any], dict[str, Weight]]:
    """The format of vLLM's ``speculators``: the layer's configuration nested, ``layers.0`` for ``midlayer``.

    ``norm_before_residual`` is always written, because its default differs
    from that of a plain folder.
    """
    layer = {key: draft.config[key] for key in _KEPT if draft.config.get(key) is not None}
    layer.pop("target_hidden_size", None)
    layer |= {"model_type": "llama", "num_hidden_layers": 1, "vocab_size": draft.vocab_size}
    layer |= {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}
    layer["num_aux_hidden_states"] = len(draft.layers)  # vLLM looks for it here, and takes 3 otherwise
    config: dict[str, Any] = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": _draft_vocab_size(draft),
        "norm_before_residual": draft.norm_options.get("norm_before_residual", False),
        "target_hidden_size": draft.config.get("target_hidden_size"),
        "eagle_aux_hidden_state_layer_ids": list(draft.layers),
        LAYERS_KEY: list(draft.layers),
        "num_aux_hidden_states": len(draft.layers),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": num_draft_tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"architectures": list(target.architectures), "name_or_path": verifier_name},
        },
        "tie_word_embeddings": False,
        "torch_dtype": draft.config.get("torch_dtype") or draft.config.get("dtype") or "bfloat16",
        "transformer_layer_config": layer,
    }
    config |= {key: True for key, on in draft.norm_options.items() if on and key != "norm_before_residual"}
    renamed = {name.replace("midlayer.", "layers.0.", 1): weight for name, weight in draft.weights.items()}
    return {key: value for key, value in config.items() if value is not None}, {**renamed, **_maps(draft)}


def _plain(draft: DraftSource) -> dict[str, Any]:
    config = {key: draft.config[key] for key in _KEPT if draft.config.get(key) is not None}
    config |= {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": draft.vocab_size,
        "draft_vocab_size": _draft_vocab_size(draft),
        "tie_word_embeddings": False,
        "num_aux_hidden_states": len(draft.layers),
        LAYERS_KEY: list(draft.layers),
    }
    return config | dict(draft.norm_options)


def _draft_vocab_size(draft: DraftSource) -> int:
    head = draft.weights.get("lm_head.weight")
    if head is None:
        raise BadInput(
            f"{draft.name}: no lm_head.weight: a draft that borrows the target's head is not exported"
        )
    return head.shape[0]


def _maps(draft: DraftSource) -> dict[str, Weight]:
    """``d2t`` as offsets, ``t2d`` as a mask over the target's vocabulary."""
    if draft.target_ids is None:
        return {}
    admitted = np.zeros(draft.vocab_size, dtype=bool)
    admitted[draft.target_ids] = True
    offsets = draft.target_ids - np.arange(len(draft.target_ids))
    return {"d2t": weight_of(offsets.astype(np.int64)), "t2d": weight_of(admitted)}


def gguf_form(
    draft: DraftSource, target_gguf: Path, *, tensor_type: str
) -> tuple[dict[str, RawValue], dict[str, GgufTensor]]:
    """llama.cpp's names, ids instead of offsets, rotary pairs side by side, and the target's tokenizer.

    Layer ids are inputs. Norms stay float32; matrices get ``tensor_type``.
    """
    unknown = sorted(set(draft.norm_options) - _GGUF_NORMS)
    if unknown:
        raise BadInput(
            f"{draft.name}: llama.cpp has no code for {', '.join(unknown)}: it can be served elsewhere only"
        )
    extra = sorted(set(draft.weights) - set(_GGUF_NAMES) - {"embed_tokens.weight"})
    missing = sorted(set(_GGUF_NAMES) - set(draft.weights))
    if extra or missing:
        problem = f"has no place for {', '.join(extra)}" if extra else f"needs {', '.join(missing)}"
        raise BadInput(f"{draft.name}: llama.cpp {problem}")
    heads = {
        "q_proj": int(draft.config["num_attention_heads"]),
        "k_proj": int(draft.config["num_key_value_heads"]),
    }
    tensors = {}
    for name, gguf_name in _GGUF_NAMES.items():
        array = draft.weights[name].floats()
        part = name.split(".")[-2]
        if part in heads:
            array = interleaved(array, num_heads=heads[part])
        tensors[gguf_name] = encode_tensor(array, "F32" if array.ndim == 1 else tensor_type)
    if draft.target_ids is not None:
        tensors["d2t"] = encode_tensor(draft.target_ids, "I64")
    tokenizer = copied_metadata(target_gguf, prefix="tokenizer.")
    if "tokenizer.ggml.tokens" not in tokenizer:
        raise BadInput(f"{target_gguf}: holds no tokenizer; give the target's own GGUF file")
    return {**_gguf_metadata(draft, tensor_type), **tokenizer}, tensors


def interleaved(weight: Array, *, num_heads: int) -> Array:
    """Rows of q or k as llama.cpp rotates them: pairs side by side, where transformers keeps halves of a head."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _gguf_metadata(draft: DraftSource, tensor_type: str) -> dict[str, RawValue]:
    config, arch = draft.config, _GGUF_ARCHITECTURE
    facts, head_dim = draft.facts, int(draft.config["head_dim"])
    scaling = config.get("rope_scaling") or (
        config.get("rope_parameters") if facts.rope.scaling_type else None
    )
    if scaling:
        raise BadInput(
            f"{draft.name}: rotary scaling {facts.rope.scaling_type!r} is not exported to GGUF yet"
        )
    width = config.get("target_hidden_size") or config["hidden_size"]
    values: dict[str, RawValue] = {
        "general.architecture": string(arch),
        "general.type": string("model"),
        "general.name": string(draft.name),
        "general.file_type": uint32(FILE_TYPES[tensor_type]),
        "general.quantization_version": uint32(_QUANTIZATION_VERSION),
        f"{arch}.target_layers": int32_array(draft.layers),
        f"{arch}.target_hidden_size": uint32(int(width)),
        f"{arch}.norm_before_residual": boolean(draft.norm_options.get("norm_before_residual", False)),
        f"{arch}.norm_before_fc": boolean(False),
        f"{arch}.block_count": uint32(1),
        f"{arch}.context_length": uint32(int(facts.max_positions or 2048)),
        f"{arch}.embedding_length": uint32(int(config["hidden_size"])),
        f"{arch}.feed_forward_length": uint32(int(config["intermediate_size"])),
        f"{arch}.attention.head_count": uint32(int(config["num_attention_heads"])),
        f"{arch}.attention.head_count_kv": uint32(int(config["num_key_value_heads"])),
        f"{arch}.attention.key_length": uint32(head_dim),
        f"{arch}.attention.value_length": uint32(head_dim),
        f"{arch}.attention.layer_norm_rms_epsilon": float32(float(config.get("rms_norm_eps") or 1e-6)),
        f"{arch}.rope.dimension_count": uint32(head_dim),
        f"{arch}.rope.freq_base": float32(float(facts.rope.theta or 10_000.0)),
        f"{arch}.vocab_size": uint32(draft.vocab_size),
    }
    return values


def names_in_gguf() -> Mapping[str, str]:
    """Plain tensor name -> llama.cpp's."""
    return _GGUF_NAMES
