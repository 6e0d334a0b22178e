#!/usr/bin/env python3
"""An EAGLE-3 draft of the right shapes and random weights: a dead drafter, for tests.

Every engine loads it and none keeps what it proposes, so a server with it shows
what speculation costs when it never pays. Run with the Python of an engine
environment (needs safetensors and torch; gguf for ``--gguf``)::

    ENGINES/sglang/bin/python tools/engines/make_random_draft.py --out FOLDER [--gguf DRAFT.gguf]

Written are ``config.json`` and ``model.safetensors`` as SGLang and vLLM read them
and, if asked for, the same weights as a GGUF for llama.cpp.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
from spectune.embedded.models import TARGET, embedded_target_path
from spectune.home import data_home
from spectune.store.replacing import replace_folder

NUM_AUX_LAYERS = 3
"""Hidden states an EAGLE-3 draft reads: of a low, a middle and a high layer of the target."""
F16_FILE_TYPE = 1

GGUF_NAMES = {
    "fc": "fc",
    "lm_head": "output",
    "norm": "output_norm",
    "midlayer.hidden_norm": "blk.0.attn_norm_2",
    "midlayer.input_layernorm": "blk.0.attn_norm",
    "midlayer.post_attention_layernorm": "blk.0.ffn_norm",
    "midlayer.self_attn.q_proj": "blk.0.attn_q",
    "midlayer.self_attn.k_proj": "blk.0.attn_k",
    "midlayer.self_attn.v_proj": "blk.0.attn_v",
    "midlayer.self_attn.o_proj": "blk.0.attn_output",
    "midlayer.mlp.gate_proj": "blk.0.ffn_gate",
    "midlayer.mlp.up_proj": "blk.0.ffn_up",
    "midlayer.mlp.down_proj": "blk.0.ffn_down",
}


def rope_theta(target: dict[str, Any]) -> float:
    """The rotary base, wherever this version of transformers keeps it."""
    nested = target.get("rope_parameters") or {}
    return float(target.get("rope_theta") or nested.get("rope_theta") or 10000.0)


def draft_config(target: dict[str, Any], *, draft_vocab_size: int) -> dict[str, Any]:
    heads = target["num_attention_heads"]
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": target["hidden_size"],
        "intermediate_size": target["intermediate_size"],
        "num_attention_heads": heads,
        "num_key_value_heads": target["num_key_value_heads"],
        "head_dim": target.get("head_dim") or target["hidden_size"] // heads,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": target["rms_norm_eps"],
        "max_position_embeddings": target["max_position_embeddings"],
        "vocab_size": target["vocab_size"],
        "draft_vocab_size": draft_vocab_size,
        "rope_theta": rope_theta(target),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": target.get("bos_token_id"),
        "eos_token_id": target.get("eos_token_id"),
        "pad_token_id": target.get("pad_token_id"),
        "initializer_range": 0.02,
    }


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes ``[out, in]`` by tensor name; a one-dimensional one is a norm."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    return {
        "fc": (hidden, NUM_AUX_LAYERS * hidden),
        "lm_head": (config["draft_vocab_size"], hidden),
        "norm": (hidden,),
        "midlayer.hidden_norm": (hidden,),
        "midlayer.input_layernorm": (hidden,),
        "midlayer.post_attention_layernorm": (hidden,),
        "midlayer.self_attn.q_proj": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, queries),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
    }


def random_weights(config: dict[str, Any], *, seed: int, std: float) -> dict[str, Any]:
    """bf16 weights by name (without ``.weight``): norms are ones, the rest is N(0, std)."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes_of(config).items():
        weight = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * std
        weights[name] = weight.to(torch.bfloat16)
    return weights


def draft_vocabulary(config: dict[str, Any], *, seed: int) -> Any:
    """Target ids of the draft's vocabulary, ascending, drawn without replacement."""
    import torch

    generator = torch.Generator().manual_seed(seed + 1)
    drawn = torch.randperm(config["vocab_size"], generator=generator)[: config["draft_vocab_size"]]
    return drawn.sort().values


def write_folder(folder: Path, config: dict[str, Any], weights: dict[str, Any], target_ids: Any) -> None:
    import torch
    from safetensors.torch import save_file

    in_draft = torch.zeros(config["vocab_size"], dtype=torch.bool)
    in_draft[target_ids] = True
    tensors = {f"{name}.weight": weight for name, weight in weights.items()}
    tensors["d2t"] = target_ids - torch.arange(
        len(target_ids)
    )  # offsets: target id = draft id + d2t[draft id]
    tensors["t2d"] = in_draft
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(0o644)
    folder.chmod(0o755)


def interleave_rotary(weight: Any, *, num_heads: int) -> Any:
    """Rows of q or k as GGUF keeps them: rotary pairs together, where transformers has halves of a head."""
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def write_gguf(
    path: Path,
    config: dict[str, Any],
    weights: dict[str, Any],
    target_ids: Any,
    *,
    target_gguf: Path,
    aux_layers: tuple[int, ...],
) -> None:
    """The draft for llama.cpp: f16, with the tokenizer of ``target_gguf`` (the two must agree)."""
    import gguf
    import numpy as np

    arch = "eagle3"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("random draft")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_file_type(F16_FILE_TYPE)
    writer.add_block_count(1)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_array(f"{arch}.target_layers", list(aux_layers))
    writer.add_uint32(f"{arch}.target_hidden_size", config["hidden_size"])
    writer.add_bool(f"{arch}.norm_before_residual", False)
    writer.add_bool(f"{arch}.norm_before_fc", False)
    for key, entry in gguf.GGUFReader(target_gguf).fields.items():
        if key.startswith("tokenizer."):
            inner = entry.types[1] if len(entry.types) > 1 else None
            writer.add_key_value(key, entry.contents(), entry.types[0], sub_type=inner)

    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weight in weights.items():
        array = weight.float().numpy()
        part = name.rpartition(".")[2]
        if part in heads:
            array = interleave_rotary(array, num_heads=heads[part])
        array = array if array.ndim == 1 else array.astype(np.float16)
        writer.add_tensor(f"{GGUF_NAMES[name]}.weight", np.ascontiguousarray(array))
    writer.add_tensor("d2t", target_ids.numpy())  # target ids themselves, not the offsets of safetensors
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    home = data_home()
    models = home / "models"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--target",
        type=Path,
        default=models / f"{TARGET}-hf",
        help="folder whose config.json gives the shapes (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, default=models / f"{TARGET}-random-draft", help="(default: %(default)s)"
    )
    parser.add_argument("--gguf", type=Path, help="write the same draft as a GGUF here too")
    parser.add_argument(
        "--target-gguf",
        type=Path,
        default=embedded_target_path(home),
        help="the target as GGUF, for its tokenizer; with --gguf (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--std", type=float, default=0.02)
    parser.add_argument("--draft-vocab-size", type=int, default=8192)
    options = parser.parse_args()

    config_path = options.target / "config.json"
    if not config_path.is_file():
        print(f"no target model at {options.target}: run make_hf_model.py, or give --target", file=sys.stderr)
        return 2
    if options.gguf and not options.target_gguf.is_file():
        print(f"no target GGUF at {options.target_gguf}: give --target-gguf", file=sys.stderr)
        return 2
    target = json.loads(config_path.read_text(encoding="utf-8"))
    if not 1 <= options.draft_vocab_size <= target["vocab_size"]:
        print(f"--draft-vocab-size must be in 1..{target['vocab_size']}", file=sys.stderr)
        return 2

    config = draft_config(target, draft_vocab_size=options.draft_vocab_size)
    weights = random_weights(config, seed=options.seed, std=options.std)
    target_ids = draft_vocabulary(config, seed=options.seed)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{options.out.name}-", dir=options.out.parent))
    try:
        write_folder(making, config, weights, target_ids)
        replace_folder(making, options.out)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    print(f"wrote {options.out}")
    if options.gguf:
        layers = target["num_hidden_layers"]
        partial = options.gguf.with_name(f".{options.gguf.name}.partial")
        options.gguf.parent.mkdir(parents=True, exist_ok=True)
        write_gguf(
            partial,
            config,
            weights,
            target_ids,
            target_gguf=options.target_gguf,
            aux_layers=(2, layers // 2, layers - 3),
        )
        partial.replace(options.gguf)
        print(f"wrote {options.gguf}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
