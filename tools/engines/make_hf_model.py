#!/usr/bin/env python3
"""The Hugging Face form of a Llama model that is at hand as GGUF: bf16 safetensors, config, tokenizer.

llama.cpp serves the embedded model from its GGUF; vLLM and SGLang want a folder.
Run with the Python of an engine environment (needs gguf, safetensors, tokenizers,
torch, transformers; see ``install.py``)::

    ENGINES/sglang/bin/python tools/engines/make_hf_model.py

The weights are those of the quantised file, dequantised, so the result is the
same model as the GGUF up to bf16 rounding, not the one originally published.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
from spectune.embedded.models import TARGET, data_home, embedded_target_path

PER_MODEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
PER_LAYER = {
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
CONTROL_TOKEN = 3
"""``tokenizer.ggml.token_type`` of tokens such as ``<|im_end|>``."""


def say(started: float, text: str) -> None:
    print(f"[{time.monotonic() - started:6.1f} s] {text}", flush=True)


class Metadata:
    """The key-value part of a GGUF file, read on demand (token lists are long)."""

    def __init__(self, reader: Any) -> None:
        self.fields = reader.fields

    def __getitem__(self, key: str) -> Any:
        if key not in self.fields:
            raise SystemExit(f"the GGUF has no field {key}: not a Llama model this script understands")
        return self.fields[key].contents()

    def get(self, key: str, default: Any) -> Any:
        return self.fields[key].contents() if key in self.fields else default


def config_of(meta: Metadata, *, tied: bool) -> dict[str, Any]:
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


def undo_rotary_interleave(weight: Any, *, num_heads: int) -> Any:
    """Rows of q or k in transformers' order: halves of a head, where GGUF keeps rotary pairs together."""
    rows, columns = weight.shape
    paired = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return paired.swapaxes(1, 2).reshape(rows, columns)


def hf_name(name: str) -> str:
    if name in PER_MODEL:
        return PER_MODEL[name]
    prefix, layer, rest = [*name.split(".", 2), "", ""][:3]
    if prefix == "blk" and rest in PER_LAYER:
        return f"model.layers.{layer}.{PER_LAYER[rest]}"
    raise SystemExit(f"the GGUF has a tensor {name} that a plain Llama model does not have")


def tensors_of(reader: Any, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and bf16 tensors as transformers' ``LlamaForCausalLM`` wants them."""
    import torch
    from gguf import dequantize

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        for part, num_heads in heads.items():
            if f".{part}." in tensor.name:
                weight = undo_rotary_interleave(weight, num_heads=num_heads)
        yield hf_name(tensor.name), torch.from_numpy(weight.copy()).to(torch.bfloat16)


def tokenizer_of(meta: Metadata) -> Any:
    """A byte-level BPE tokenizer with the chat template.

    ``pre = smollm`` splits off every digit before byte-level BPE. transformers'
    own GGUF reader drops that step, so that two spaces before a number come out as
    other tokens than llama.cpp's.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise SystemExit("only byte-level BPE with pre-tokenizer 'smollm' is understood here")
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    types = meta["tokenizer.ggml.token_type"]
    bpe.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    named = {
        f"{role}_token": tokens[meta[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=meta["llama.context_length"],
        clean_up_tokenization_spaces=False,
        **named,
    )
    tokenizer.chat_template = meta["tokenizer.chat_template"]
    return tokenizer


def write_model(gguf_path: Path, folder: Path, *, started: float) -> None:
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(gguf_path)
    meta = Metadata(reader)
    if meta["general.architecture"] != "llama":
        raise SystemExit(f"{gguf_path}: architecture {meta['general.architecture']!r}, expected 'llama'")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = config_of(meta, tied=tied)
    say(started, f"dequantising {len(reader.tensors)} tensors")
    save_file(dict(tensors_of(reader, config)), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer_of(meta).save_pretrained(folder)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (("config.json", config), ("generation_config.json", ids)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def continuation(folder: Path, question: str, *, num_tokens: int = 24) -> str:
    """The model's greedy answer, loaded the ordinary way: proof that the folder is whole."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True)
    wrong = {kind: names for kind, names in info.items() if names and kind != "error_msgs"}
    if wrong:
        raise SystemExit(f"transformers loads the folder with wrong tensors: {wrong}")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        ids = model.generate(**prompt, max_new_tokens=num_tokens, do_sample=False)
    return str(tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


def main() -> int:
    home = data_home()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--gguf", type=Path, default=embedded_target_path(home), help="(default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=home / "models" / f"{TARGET}-hf", help="(default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="make it again if it is there")
    parser.add_argument(
        "--expect",
        default="Paris",
        help="text the greedy answer must contain; '' checks that it is not empty",
    )
    parser.add_argument("--ask", default="What is the capital of France?", help="question of the check")
    options = parser.parse_args()
    started = time.monotonic()

    if (options.out / "config.json").is_file() and not options.force:
        say(started, f"{options.out} is there already (--force makes it again)")
        return 0
    if not options.gguf.is_file():
        print(f"no GGUF at {options.gguf}: give one with --gguf", file=sys.stderr)
        return 2
    options.out.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{options.out.name}-", dir=options.out.parent))
    try:
        write_model(options.gguf, making, started=started)
        say(started, "loading the result and asking it a question")
        answer = continuation(making, options.ask)
        if not answer.strip() or options.expect.lower() not in answer.lower():
            print(f"the converted model answers {options.ask!r} with {answer!r}", file=sys.stderr)
            return 1
        say(started, f"answer: {answer!r}")
        making.chmod(0o755)
        for path in making.iterdir():
            path.chmod(0o644)
        if options.out.exists():
            shutil.rmtree(options.out)
        making.rename(options.out)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    size_mb = sum(path.stat().st_size for path in options.out.iterdir()) / 1e6
    say(started, f"wrote {options.out} ({size_mb:.0f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
