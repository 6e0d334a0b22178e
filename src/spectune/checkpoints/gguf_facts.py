"""``CheckpointFacts`` of a GGUF file, and of the other parts if it is split."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from spectune.checkpoints.config_values import ConfigValues
from spectune.checkpoints.facts import (
    AuxLayers,
    CheckpointFacts,
    DeclaredBase,
    Quantization,
    Rope,
    TokenizerFacts,
    VocabMap,
)
from spectune.checkpoints.gguf import GgufHeader, LongArray, read_gguf
from spectune.checkpoints.reading import MAX_CHECKPOINT_BYTES, Damaged, Unreadable
from spectune.checkpoints.tokenizer import hash_text, hash_tokens
from spectune.checkpoints.vocab_maps import bytes_of, read_map
from spectune.errors import BadInput

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_NORM_KEYS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def read_gguf_facts(path: Path, *, source: str) -> CheckpointFacts:
    """Raises ``BadInput`` if the file is no readable GGUF."""
    try:
        header = read_gguf(path)
    except Unreadable as error:
        raise BadInput(f"{path}: {error}") from error
    notes: list[str] = []
    complete = _add_parts(path, header, notes)
    fields, type_notes = _fields(header)
    d2t = _map(path, header, notes)
    return CheckpointFacts(
        source=source,
        kind="gguf",
        format="gguf",
        config={k: v for k, v in header.metadata.items() if not isinstance(v, LongArray)},
        tensors=header.tensors,
        tensors_complete=complete,
        d2t=d2t,
        faults=tuple(header.faults),
        not_read=(*notes, *type_notes),
        bytes_read=header.bytes_read,
        **fields,
    )


def _add_parts(path: Path, header: GgufHeader, notes: list[str]) -> bool:
    """Adds the tensors of the other parts; false if one of them was not read."""
    match = _PART.search(path.name)
    if match is None:
        return True
    complete = True
    for number in range(1, int(match[2]) + 1):
        part = path.with_name(f"{path.name[: match.start()]}-{number:05d}-of-{match[2]}.gguf")
        if part == path:
            continue
        if header.bytes_read > MAX_CHECKPOINT_BYTES:
            notes.append(f"{part.name} and later: not read, {MAX_CHECKPOINT_BYTES // 1_000_000} MB were")
            return False
        try:
            other = read_gguf(part)
        except Damaged as error:
            header.faults.append(f"{part.name}: {error}")
            complete = False
        except Unreadable as error:
            header.faults.append(f"{part.name}: {error}")
            return False
        else:
            header.tensors.update(other.tensors)
            header.faults.extend(other.faults)
            header.bytes_read += other.bytes_read
    return complete


def _fields(header: GgufHeader) -> tuple[dict[str, Any], list[str]]:
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    prefix = f"{architecture}." if isinstance(architecture, str) else ""
    own = {
        key.removeprefix(prefix): value
        for key, value in metadata.items()
        if prefix and key.startswith(prefix)
    }
    heads, kv_heads = _largest(own, "attention.head_count"), _largest(own, "attention.head_count_kv")
    values = ConfigValues([own], file="GGUF metadata")
    aux = values.ids("target_layers")
    tokenizer = _tokenizer(metadata)
    embedding = header.tensors.get("token_embd.weight")
    output = header.tensors.get("output.weight")
    vocab_size = values.integer("vocab_size") or (tokenizer.num_tokens if tokenizer else None)
    if vocab_size is None and embedding is not None and embedding.shape:
        vocab_size = embedding.shape[0]
    has_map = "d2t" in header.tensors
    fields: dict[str, Any] = {
        "model_type": architecture if isinstance(architecture, str) else None,
        "quantization": _quantization(header),
        "hidden_size": values.integer("embedding_length"),
        "target_hidden_size": values.integer("target_hidden_size"),
        "intermediate_size": _largest(own, "feed_forward_length"),
        "num_layers": values.integer("block_count"),
        "num_heads": heads,
        "num_kv_heads": kv_heads or heads,
        "head_dim": values.integer("attention.key_length"),
        "num_nextn_layers": values.integer("nextn_predict_layers", least=0),
        "rope": Rope(
            theta=values.number("rope.freq_base"),
            scaling_type=values.text("rope.scaling.type"),
            factor=values.number("rope.scaling.factor"),
            original_max_positions=values.integer("rope.scaling.original_context_length"),
        ),
        "max_positions": values.integer("context_length"),
        "vocab_size": vocab_size,
        "draft_vocab_size": output.shape[0] if has_map and output is not None and output.shape else None,
        "aux_layers": AuxLayers(aux, f"{prefix}target_layers") if aux else None,
        "block_size": values.integer("block_size"),
        "norm_options": {key: own[key] for key in _NORM_KEYS if isinstance(own.get(key), bool)},
        "tokenizer": tokenizer,
        "base_models": _bases(metadata),
    }
    return fields, values.notes


def _largest(own: dict[str, Any], key: str) -> int | None:
    """Some architectures write one number per layer."""
    value = own.get(key)
    numbers = [n for n in (value if isinstance(value, list) else [value]) if type(n) is int and n > 0]
    return max(numbers, default=None)


def _quantization(header: GgufHeader) -> Quantization | None:
    matrices = Counter(info.dtype for info in header.tensors.values() if len(info.shape) > 1)
    if not matrices:
        return None
    usual = matrices.most_common(1)[0][0]
    if usual in ("F16", "BF16", "F32"):
        return None
    return Quantization(method="gguf", format=usual, where="GGUF tensor types")


def _tokenizer(metadata: dict[str, Any]) -> TokenizerFacts | None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    model = metadata.get("tokenizer.ggml.model")
    if tokens is None and model is None:
        return None
    digest = length = None
    if isinstance(tokens, LongArray):
        digest, length = tokens.digest, tokens.length
    elif isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
        digest, length = hash_tokens(enumerate(tokens)), len(tokens)
    template = metadata.get("tokenizer.chat_template")
    pre = metadata.get("tokenizer.ggml.pre")
    bos, eos = metadata.get("tokenizer.ggml.bos_token_id"), metadata.get("tokenizer.ggml.eos_token_id")
    return TokenizerFacts(
        vocab_hash=digest,
        hash_of="gguf tokens",
        num_tokens=length,
        model=model if isinstance(model, str) else None,
        pre=pre if isinstance(pre, str) else None,
        bos=bos if isinstance(bos, int) else None,
        eos=eos if isinstance(eos, int) else None,
        chat_template_hash=hash_text(template) if isinstance(template, str) else None,
    )


def _bases(metadata: dict[str, Any]) -> tuple[DeclaredBase, ...]:
    found = []
    for index in range(4):
        for field in ("repo_url", "name"):
            key = f"general.base_model.{index}.{field}"
            value = metadata.get(key)
            if isinstance(value, str) and value:
                found.append(DeclaredBase(value.removeprefix("https://huggingface.co/"), key))
                break
    return tuple(found)


def _map(path: Path, header: GgufHeader, notes: list[str]) -> VocabMap | None:
    info = header.tensors.get("d2t")
    if info is None or not info.shape:
        return None
    length = info.shape[0]
    wanted = bytes_of(length, info.dtype)
    if wanted is None:
        notes.append(f"{path.name}: d2t of type {info.dtype} and length {length} was not read")
        return VocabMap(length=length, dtype=info.dtype)
    try:
        with path.open("rb") as file:
            file.seek(header.begins["d2t"])
            content = file.read(wanted)
    except (OSError, ValueError, OverflowError) as error:
        notes.append(f"{path.name}: d2t: {error}")
        return VocabMap(length=length, dtype=info.dtype)
    header.bytes_read += len(content)
    return read_map(content, info.dtype, length=length)
