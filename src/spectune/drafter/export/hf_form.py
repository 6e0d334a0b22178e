"""The Hugging Face form of a Llama model that is at hand as GGUF: bf16 safetensors, config, tokenizer.

llama.cpp serves a model from its GGUF; training, vLLM and SGLang want a folder.
The weights are those of the quantised file, dequantised: the same model as the
GGUF up to bf16 rounding, not the one originally published.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spectune.drafter.extra import needed
from spectune.errors import BadInput, EnvironmentFailed
from spectune.store.replacing import replace_folder

_PER_MODEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PER_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_CONTROL_TOKEN = 3
"""``tokenizer.ggml.token_type`` of tokens such as ``<|im_end|>``."""


class _Metadata:
    """The key-value part of a GGUF file, read on demand (token lists are long)."""

    def __init__(self, reader: Any) -> None:
        self.fields = reader.fields

    def __getitem__(self, key: str) -> Any:
        if key not in self.fields:
            raise BadInput(f"the GGUF has no field {key}: not a Llama model that is understood here")
        return self.fields[key].contents()

    def get(self, key: str, default: Any) -> Any:
        return self.fields[key].contents() if key in self.fields else default


def _config_of(meta: _Metadata, *, tied: bool) -> dict[str, Any]:
    """``config.json`` in the spelling both transformers 4 and 5 read."""
    heads = meta["llama.attention.head_count"]
    hidden = meta["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "head_dim": meta.get("llama.attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": round(meta["llama.attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": meta.get("llama.rope.freq_base", 10000.0),
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": tied,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id", None),
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def _undo_rotary_interleave(weight: Any, *, num_heads: int) -> Any:
    """Rows of q or k in transformers' order: halves of a head, where GGUF keeps rotary pairs together."""
    rows, columns = weight.shape
    paired = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return paired.swapaxes(1, 2).reshape(rows, columns)


def _hf_name(name: str) -> str:
    if name in _PER_MODEL:
        return _PER_MODEL[name]
    prefix, layer, rest = [*name.split(".", 2), "", ""][:3]
    if prefix == "blk" and rest in _PER_LAYER:
        return f"model.layers.{layer}.{_PER_LAYER[rest]}"
    raise BadInput(f"the GGUF has a tensor {name} that a plain Llama model does not have")


def _tensors_of(reader: Any, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and bf16 tensors as transformers' ``LlamaForCausalLM`` wants them."""
    torch, gguf = needed("torch"), needed("gguf")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        for part, num_heads in heads.items():
            if f".{part}." in tensor.name:
                weight = _undo_rotary_interleave(weight, num_heads=num_heads)
        yield _hf_name(tensor.name), torch.from_numpy(weight.copy()).to(torch.bfloat16)


def _tokenizer_of(meta: _Metadata) -> Any:
    """A byte-level BPE tokenizer with the chat template.

    ``pre = smollm`` splits off every digit before byte-level BPE. transformers'
    own GGUF reader drops that step, so that two spaces before a number come out as
    other tokens than llama.cpp's.
    """
    if (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise BadInput("only byte-level BPE with pre-tokenizer 'smollm' is understood here")
    tokenizers, transformers = needed("tokenizers"), needed("transformers")
    decoders, pre_tokenizers = needed("tokenizers.decoders"), needed("tokenizers.pre_tokenizers")
    models = needed("tokenizers.models")
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    bpe = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    types = meta["tokenizer.ggml.token_type"]
    bpe.add_special_tokens(
        [
            tokenizers.AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    named = {
        f"{role}_token": tokens[meta[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=meta["llama.context_length"],
        clean_up_tokenization_spaces=False,
        **named,
    )
    tokenizer.chat_template = meta["tokenizer.chat_template"]
    return tokenizer


def write_hf_form(gguf_path: Path, folder: Path) -> Path:
    """``folder``, which appears whole or not at all; it replaces one that holds nothing else. Raises ``BadInput``."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _write(gguf_path, making)
            making.chmod(0o755)
            for path in making.iterdir():
                path.chmod(0o644)
            replace_folder(making, folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        raise EnvironmentFailed(f"{folder}: {error.strerror or error}") from error
    return folder


def _write(gguf_path: Path, folder: Path) -> None:
    gguf, safetensors = needed("gguf"), needed("safetensors.torch")
    try:
        reader = gguf.GGUFReader(gguf_path)
    except (OSError, ValueError) as error:
        raise BadInput(f"{gguf_path}: not a GGUF file that can be read: {error}") from error
    meta = _Metadata(reader)
    if meta["general.architecture"] != "llama":
        raise BadInput(f"{gguf_path}: architecture {meta['general.architecture']!r}, expected 'llama'")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = _config_of(meta, tied=tied)
    tensors = dict(_tensors_of(reader, config))
    safetensors.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer_of(meta).save_pretrained(folder)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (("config.json", config), ("generation_config.json", ids)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
