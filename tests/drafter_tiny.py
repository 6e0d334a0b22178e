"""A tiny EAGLE-3 draft and its target, with random weights, as files."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB, DRAFT_VOCAB, LAYERS = 64, 96, 4, 2, 16, 1000, 288, 12
TARGET_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
SHAPES = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
    "norm.weight": (HIDDEN,),
    "midlayer.hidden_norm.weight": (HIDDEN,),
    "midlayer.input_layernorm.weight": (HIDDEN,),
    "midlayer.post_attention_layernorm.weight": (HIDDEN,),
    "midlayer.self_attn.q_proj.weight": (HEADS * HEAD_DIM, 2 * HIDDEN),
    "midlayer.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
    "midlayer.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
    "midlayer.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
    "midlayer.mlp.gate_proj.weight": (INNER, HIDDEN),
    "midlayer.mlp.up_proj.weight": (INNER, HIDDEN),
    "midlayer.mlp.down_proj.weight": (HIDDEN, INNER),
}


def target_ids() -> np.ndarray:
    """Which target tokens the draft proposes."""
    return np.sort(np.random.default_rng(7).choice(VOCAB, DRAFT_VOCAB, replace=False)).astype(np.int64)


def bf16(array: np.ndarray) -> np.ndarray:
    """The upper half of each float32, as the bytes of bf16."""
    return (array.astype(np.float32).view(np.uint32) >> 16).astype("<u2")


def random_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """float32 values that bf16 holds exactly."""
    rng = np.random.default_rng(seed)
    made = {name: rng.normal(size=shape, scale=0.05).astype(np.float32) for name, shape in SHAPES.items()}
    return {name: (bf16(array).astype(np.uint32) << 16).view(np.float32) for name, array in made.items()}


def draft_config(**changes: Any) -> dict[str, Any]:
    own = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCAB,
        "tie_word_embeddings": False,
    }
    return {key: value for key, value in {**TARGET_CONFIG, **own, **changes}.items() if value is not None}


def save_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Written by hand, so that nothing of ours checks itself."""
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
    text = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in tensors.values())
    )


def write_draft(
    folder: Path, *, config: dict[str, Any] | None = None, ids_in_d2t: bool = False, **more: Any
) -> Path:
    """A draft's folder in the plain form; ``more`` are further float32 tensors by name."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or draft_config()))
    ids = target_ids()
    admitted = np.zeros(VOCAB, dtype=bool)
    admitted[ids] = True
    entries = ids if ids_in_d2t else ids - np.arange(DRAFT_VOCAB)
    weights = {**random_weights(), **more}
    tensors = {name: ("BF16", array.shape, bf16(array).tobytes()) for name, array in weights.items()}
    tensors["d2t"] = ("I64", entries.shape, entries.astype("<i8").tobytes())
    tensors["t2d"] = ("BOOL", admitted.shape, admitted.tobytes())
    save_safetensors(folder / "model.safetensors", tensors)
    return folder


def write_target(folder: Path, **changes: Any) -> Path:
    """A target's configuration alone: no rule about drafts needs its weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**TARGET_CONFIG, **changes}))
    return folder


def write_target_gguf(path: Path) -> Path:
    """Metadata and tokenizer of the target as GGUF, without tensors, by the package ``gguf``."""
    gguf = pytest.importorskip("gguf", reason="needs the extra drafter")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([f"token{number}" for number in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["a b", "c d"])
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
