"""Model folders and GGUF files made of headers alone: the right names, shapes and sizes, and no weights."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from spectune.checkpoints.facts import CheckpointFacts
from spectune.checkpoints.read import read_checkpoint
from spectune.domain.arm import Knobs
from spectune.domain.machine import Machine
from spectune.preflight.draft.rules import RULES
from spectune.preflight.rules import Judgement, judge
from spectune.preflight.situation import EngineVersion, Situation

Tensors = dict[str, tuple[str, tuple[int, ...]]]
BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "I32": 4, "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1}


def write_safetensors(path: Path, tensors: Tensors, values: dict[str, bytes] | None = None) -> None:
    """A sparse file: header and the given values are written, the rest is a hole."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
        for name, content in (values or {}).items():
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(content)


def make_model(
    folder: Path,
    config: dict[str, Any] | None,
    tensors: Tensors | None = None,
    *,
    values: dict[str, bytes] | None = None,
    readme: str | None = None,
) -> str:
    """A folder with one safetensors file, or with a configuration only."""
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        write_safetensors(folder / "model.safetensors", tensors, values)
    if readme is not None:
        (folder / "README.md").write_text(readme)
    return str(folder)


def picked_ids(draft_vocab: int, vocab: int) -> list[int]:
    """Half of them neighbours, as bytes and punctuation are, the rest spread out."""
    near = draft_vocab // 2
    far = draft_vocab - near
    return list(range(near)) + [near + (index + 1) * (vocab - near) // far - 1 for index in range(far)]


def maps(draft_vocab: int, vocab: int, *, as_ids: bool = False) -> dict[str, bytes]:
    """``d2t`` and ``t2d`` of one selection."""
    ids = picked_ids(draft_vocab, vocab)
    entries = ids if as_ids else [token - index for index, token in enumerate(ids)]
    admitted = set(ids)
    return {
        "d2t": struct.pack(f"<{draft_vocab}q", *entries),
        "t2d": bytes(token in admitted for token in range(vocab)),
    }


def eagle3_tensors(
    config: dict[str, Any],
    *,
    target_hidden: int | None = None,
    states: int = 3,
    layer: str = "midlayer",
    embeddings: bool = False,
    with_maps: bool = True,
) -> Tensors:
    """What a Llama-like EAGLE-3 head holds."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    keys = config["num_key_value_heads"] * head_dim
    inter, vocab = config["intermediate_size"], config["vocab_size"]
    draft_vocab = config.get("draft_vocab_size") or vocab
    tensors: Tensors = {
        "fc.weight": ("BF16", (hidden, states * (target_hidden or hidden))),
        f"{layer}.self_attn.q_proj.weight": ("BF16", (heads * head_dim, 2 * hidden)),
        f"{layer}.self_attn.k_proj.weight": ("BF16", (keys, 2 * hidden)),
        f"{layer}.self_attn.v_proj.weight": ("BF16", (keys, 2 * hidden)),
        f"{layer}.self_attn.o_proj.weight": ("BF16", (hidden, heads * head_dim)),
        f"{layer}.mlp.gate_proj.weight": ("BF16", (inter, hidden)),
        f"{layer}.mlp.up_proj.weight": ("BF16", (inter, hidden)),
        f"{layer}.mlp.down_proj.weight": ("BF16", (hidden, inter)),
        f"{layer}.hidden_norm.weight": ("BF16", (hidden,)),
        f"{layer}.input_layernorm.weight": ("BF16", (hidden,)),
        f"{layer}.post_attention_layernorm.weight": ("BF16", (hidden,)),
        "norm.weight": ("BF16", (hidden,)),
        "lm_head.weight": ("BF16", (draft_vocab, hidden)),
    }
    if with_maps and draft_vocab != vocab:
        tensors["d2t"] = ("I64", (draft_vocab,))
        tensors["t2d"] = ("BOOL", (vocab,))
    if embeddings:
        tensors["embed_tokens.weight"] = ("BF16", (vocab, hidden))
    return tensors


def eagle3_head(folder: Path, config: dict[str, Any], **options: Any) -> str:
    """A whole EAGLE-3 draft folder; ``as_ids``, ``readme``, ``drop`` and ``add`` spoil or dress it."""
    readme, as_ids = options.pop("readme", None), options.pop("as_ids", False)
    drop, add = options.pop("drop", ()), options.pop("add", {})
    tensors = eagle3_tensors(config, **options)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in drop} | add
    values: dict[str, bytes] = {}
    if "d2t" in tensors and tensors["d2t"][1] == (config["draft_vocab_size"],):
        values = maps(config["draft_vocab_size"], config["vocab_size"], as_ids=as_ids)
        values = {name: content for name, content in values.items() if name in tensors}
    return make_model(folder, config, tensors, values=values, readme=readme)


def write_gguf(
    path: Path,
    metadata: dict[str, Any],
    tensors: dict[str, tuple[int, tuple[int, ...]]] | None = None,
    *,
    data_bytes: int = 0,
    data: bytes = b"",
) -> str:
    """Version 3, little-endian; shapes row-major; all data at offset 0 of the data part."""
    out = [b"GGUF", struct.pack("<IQQ", 3, len(tensors or {}), len(metadata))]
    for key, value in metadata.items():
        out += [_text(key), _typed(value)]
    for name, (kind, shape) in (tensors or {}).items():
        sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        out += [_text(name), struct.pack("<I", len(shape)), sizes, struct.pack("<IQ", kind, 0)]
    content = b"".join(out)
    begin = -(-len(content) // 32) * 32
    with path.open("wb") as file:
        file.write(content)
        file.truncate(begin + data_bytes)
        file.seek(begin)
        file.write(data)
    return str(path)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _typed(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if value and isinstance(value[0], int):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(item) for item in value)


def situation(
    engine: str,
    method: str,
    target: str | CheckpointFacts | None,
    draft: str | CheckpointFacts | None,
    *,
    version: str | None = None,
    flags: dict[str, str | bool | None] | None = None,
    env: dict[str, str] | None = None,
    num_draft_tokens: int | None = None,
    max_prompt_tokens: int | None = None,
    machine: Machine | None = None,
) -> Situation:
    """What check would know of such a launch; names are read as files."""
    return Situation(
        subject="arm",
        engine=engine,
        version=EngineVersion(version, "test"),
        flags=flags or {},
        knobs=Knobs(
            method=method,
            drafter=draft if isinstance(draft, str) else draft.source if draft is not None else None,
            num_draft_tokens=num_draft_tokens,
        ),
        env=env or {},
        target=read_checkpoint(target, network=False) if isinstance(target, str) else target,
        draft=read_checkpoint(draft, network=False) if isinstance(draft, str) else draft,
        max_prompt_tokens=max_prompt_tokens,
        machine=machine,
    )


def judged(*args: Any, **kwargs: Any) -> Judgement:
    return judge(situation(*args, **kwargs), RULES)


def alarms(judgement: Judgement) -> list[str]:
    """Codes of errors and warnings."""
    return [f"{f.severity}: {f.code}: {f.message}" for f in judgement.findings if f.severity != "note"]


def codes(judgement: Judgement, *severities: str) -> set[str]:
    return {f.code for f in judgement.findings if not severities or f.severity in severities}
