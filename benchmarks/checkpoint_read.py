"""Bytes and time that reading and judging a 1T-parameter checkpoint takes: 60 sparse shards, headers only.

Prints a table and writes JSON with ``--json``. The checkpoint has the layout
of Kimi-K2: 61 layers, 384 experts, block-quantised weights with scales, one
index, a tokenizer of 160,000 tokens; its apparent size is about 1 TB, on disk
it takes some 30 MB.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from spectune.checkpoints.facts import CheckpointFacts
from spectune.checkpoints.read import read_checkpoint
from spectune.domain.arm import Knobs
from spectune.preflight.draft.rules import RULES
from spectune.preflight.memory.fit import rules
from spectune.preflight.rules import judge
from spectune.preflight.situation import EngineVersion, Situation

LIMIT_BYTES = 50_000_000
LIMIT_S = 2.0
HIDDEN, LAYERS, EXPERTS, EXPERT_INTER, VOCAB = 7168, 61, 384, 2048, 163_840
WIDTH = {"BF16": 2, "F32": 4, "F8_E4M3": 1}


def tensors() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names and shapes of the model; every matrix has its block scales beside it."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("BF16", (VOCAB, HIDDEN)),
        "lm_head.weight": ("BF16", (VOCAB, HIDDEN)),
        "model.norm.weight": ("BF16", (HIDDEN,)),
    }

    def matrix(name: str, rows: int, columns: int) -> None:
        found[f"{name}.weight"] = ("F8_E4M3", (rows, columns))
        found[f"{name}.weight_scale_inv"] = ("F32", (math.ceil(rows / 128), math.ceil(columns / 128)))

    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}.{norm}.weight"] = ("BF16", (HIDDEN,))
        matrix(f"{at}.self_attn.q_a_proj", 1536, HIDDEN)
        matrix(f"{at}.self_attn.q_b_proj", 64 * 192, 1536)
        matrix(f"{at}.self_attn.kv_a_proj_with_mqa", 576, HIDDEN)
        matrix(f"{at}.self_attn.kv_b_proj", 64 * 256, 512)
        matrix(f"{at}.self_attn.o_proj", HIDDEN, 64 * 128)
        for expert in range(EXPERTS if layer else 1):
            name = f"{at}.mlp.experts.{expert}" if layer else f"{at}.mlp"
            matrix(f"{name}.gate_proj", EXPERT_INTER, HIDDEN)
            matrix(f"{name}.up_proj", EXPERT_INTER, HIDDEN)
            matrix(f"{name}.down_proj", HIDDEN, EXPERT_INTER)
    return found


def make(folder: Path, shards: int) -> int:
    """Writes the checkpoint; returns its apparent size in bytes."""
    everything = list(tensors().items())
    per_shard = math.ceil(len(everything) / shards)
    placed: dict[str, str] = {}
    total = 0
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        header: dict[str, Any] = {}
        at = 0
        for name, (dtype, shape) in everything[shard * per_shard : (shard + 1) * per_shard]:
            size = math.prod(shape) * WIDTH[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
            placed[name] = file
            at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        with (folder / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + at)
        total += at
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 64,
        "vocab_size": VOCAB,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {f"token-{number}": number for number in range(VOCAB)}
    merges = [[f"to{number}", "ken"] for number in range(VOCAB)]
    tokenizer = {"added_tokens": [], "model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return total


def _launch(facts: CheckpointFacts) -> Situation:
    return Situation(
        subject="benchmark",
        engine="sglang",
        version=EngineVersion(None, "none"),
        flags={"tp-size": "16"},
        knobs=Knobs(),
        target=facts,
    )


def measure(folder: Path, repeats: int) -> dict[str, Any]:
    wall, cpu = [], []
    for _ in range(repeats):
        started, started_cpu = time.perf_counter(), time.process_time()
        facts = read_checkpoint(str(folder))
        judgement = judge(_launch(facts), (*RULES, *rules((80 * 2**30,) * 16)))
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - started_cpu)
    assert not [f for f in judgement.findings if f.severity == "error"], judgement.findings
    assert facts.tensors_complete and not facts.faults and not facts.not_read, facts.not_read or facts.faults
    return {
        "tensors": len(facts.tensors or {}),
        "weight_bytes": facts.weight_bytes,
        "read_bytes": facts.bytes_read,
        "wall_s": [round(value, 3) for value in wall],
        "cpu_s": [round(value, 3) for value in cpu],
        "max_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to make it (default: a temporary folder)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        apparent = make(folder, args.shards)
        result = {"shards": args.shards, "apparent_bytes": apparent, **measure(folder, args.repeats)}
    finally:
        shutil.rmtree(folder)
    met = result["read_bytes"] < LIMIT_BYTES and statistics.median(result["wall_s"]) < LIMIT_S
    result["met"] = met
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{args.shards} shards, {result['tensors']} tensors, {apparent / 1e12:.2f} TB of weights")
        print(f"read: {result['read_bytes'] / 1e6:.1f} MB (limit {LIMIT_BYTES / 1e6:.0f})")
        print(f"wall: {result['wall_s']} s (limit {LIMIT_S:g}); CPU: {result['cpu_s']} s")
        print(f"load average {os.getloadavg()[0]:.1f}; met: {'yes' if met else 'no'} (bytes, median wall)")
        print(f"largest memory: {result['max_rss_mib']} MiB (making the files included)")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
