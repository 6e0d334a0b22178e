"""``CheckpointFacts`` of a model folder: on disk, or on the hub behind the same few calls."""

from __future__ import annotations

import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from spectune.checkpoints.config import read_config, read_quantization
from spectune.checkpoints.facts import CheckpointFacts, Kind, TensorInfo, VocabMap, VocabMask
from spectune.checkpoints.reading import (
    Damaged,
    ModelFiles,
    Unreachable,
    Unreadable,
    collector_paused,
    read_json,
)
from spectune.checkpoints.readme import read_bases
from spectune.checkpoints.safetensors import Header, read_header
from spectune.checkpoints.tokenizer import read_tokenizer
from spectune.checkpoints.vocab_maps import bytes_of, read_map, read_mask
from spectune.errors import BadInput

CONFIG = "config.json"
_MAX_CONFIG_BYTES = 8_000_000
_MAX_INDEX_BYTES = 24_000_000
_MAX_SHARDS = 2_000
_SHARD = re.compile(r"-(\d{5,6})-of-(\d{5,6})\.safetensors$")
_QUANTISER_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass
class _Weights:
    tensors: dict[str, TensorInfo] | None = None
    begins: dict[str, int] = field(default_factory=dict)
    complete: bool = False
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_folder(
    files: ModelFiles, *, source: str, kind: Kind, vocabulary: bool = True, partial: bool = False
) -> CheckpointFacts:
    """Raises ``BadInput`` if there is a ``config.json`` that is none, or no model at all; ``Unreachable`` if
    whoever holds the configuration does not hand it over.

    ``partial``: the folder is a cache, where an absent file is no fault.
    """
    # What matters most first: all of it shares one budget of bytes.
    names = files.names()
    fields, notes = _configuration(files, source)
    with collector_paused():
        weights = _read_weights(files, partial=partial)
        d2t, t2d = _vocab_maps(files, weights)
    if CONFIG not in names and weights.tensors is None:
        raise BadInput(f"{source}: no {CONFIG} and no safetensors in it: not a model folder")
    if CONFIG not in names and not partial:
        weights.faults.append(f"no {CONFIG} beside the weights: no engine loads them without")
    if fields.get("quantization") is None:
        fields["quantization"] = next(
            filter(None, (_quantiser_file(files, name) for name in _QUANTISER_FILES if name in names)), None
        )
    bases = (*fields.pop("base_models", ()), *read_bases(files))
    with collector_paused():
        tokenizer, tokenizer_notes = read_tokenizer(files, vocabulary=vocabulary)
    facts = CheckpointFacts(
        source=source,
        kind=kind,
        tensors=weights.tensors,
        tensors_complete=weights.complete,
        d2t=d2t,
        t2d=t2d,
        tokenizer=tokenizer,
        base_models=bases,
        faults=tuple(weights.faults),
        not_read=(*notes, *weights.notes, *tokenizer_notes),
        **fields,
    )
    return dataclasses.replace(facts, bytes_read=files.bytes_read)


def _configuration(files: ModelFiles, source: str) -> tuple[dict[str, Any], list[str]]:
    if CONFIG not in files.names():
        return {}, [f"{source}: no {CONFIG}: sizes and architecture are not known"]
    try:
        config = read_json(files, CONFIG, limit=_MAX_CONFIG_BYTES)
    except Unreachable:
        raise
    except Unreadable as error:
        raise BadInput(f"{source}: {CONFIG}: {error}") from error
    return read_config(config)


def _quantiser_file(files: ModelFiles, name: str) -> Any:
    try:
        return read_quantization(read_json(files, name, limit=_MAX_CONFIG_BYTES), name)
    except Unreadable:
        return None


def _read_weights(files: ModelFiles, *, partial: bool) -> _Weights:
    names = files.names()
    shards = sorted(name for name in names if name.endswith(".safetensors"))
    pickles = sorted(name for name in names if name.endswith(_PICKLES))
    weights = _Weights()
    if pickles:
        listed = ", ".join(pickles[:3]) + (", ..." if len(pickles) > 3 else "")
        weights.notes.append(f"{listed}: pickle files can run code when opened, so they are never read")
    if not shards:
        if not pickles:
            weights.notes.append("no weight files here")
        return weights
    expected = _expected_shards(files, shards, weights)
    if not partial:
        absent = sorted(expected - set(shards))
        if absent:
            weights.faults.append(_listed(absent, "named by the index or by its number, and absent"))
    elif expected - set(shards):
        weights.notes.append(_listed(sorted(expected - set(shards)), "not in the cache"))
    _read_headers(files, sorted(expected & set(shards) or set(shards))[:_MAX_SHARDS], weights)
    weights.complete = not weights.faults and not (expected - set(shards)) and weights.complete
    return weights


def _listed(names: list[str], what: str) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}: {what}"


def _expected_shards(files: ModelFiles, shards: list[str], weights: _Weights) -> set[str]:
    """From ``-00001-of-00060``, else from the index: a folder may hold other safetensors beside (adapters).

    Numbered shards need no index, which is as large as all their headers.
    """
    expected = _numbered(shards)
    if expected:
        return expected
    for name in sorted(name for name in files.names() if name.endswith(".safetensors.index.json")):
        try:
            placed = read_json(files, name, limit=_MAX_INDEX_BYTES).get("weight_map")
        except Unreadable as error:
            weights.notes.append(f"{name}: {error}")
            continue
        if isinstance(placed, dict):
            expected |= {file for file in placed.values() if isinstance(file, str) and "/" not in file}
    return expected or set(shards)


def _numbered(shards: list[str]) -> set[str]:
    expected: set[str] = set()
    for shard in shards:
        match = _SHARD.search(shard)
        if match is None or int(match[2]) > _MAX_SHARDS:
            continue
        stem, width, total = shard[: match.start()], len(match[1]), int(match[2])
        if f"{stem}-{1:0{width}d}-of-{match[2]}.safetensors" not in expected:
            expected |= {f"{stem}-{n:0{width}d}-of-{match[2]}.safetensors" for n in range(1, total + 1)}
    return expected


def _read_headers(files: ModelFiles, names: list[str], weights: _Weights) -> None:
    def one(name: str) -> Header | Unreadable:
        try:
            return read_header(files, name)
        except Unreadable as error:
            return error

    if files.parallel > 1 and len(names) > 1:
        with ThreadPoolExecutor(min(files.parallel, len(names))) as pool:
            results = list(pool.map(one, names))
    else:
        results = [one(name) for name in names]
    weights.complete = True
    for name, result in zip(names, results, strict=True):
        if isinstance(result, Header):
            weights.tensors = weights.tensors or {}
            weights.tensors.update(result.tensors)
            weights.begins.update(result.begins)
            weights.faults.extend(result.faults)
            continue
        weights.complete = False
        (weights.faults if isinstance(result, Damaged) else weights.notes).append(f"{name}: {result}")


def _vocab_maps(files: ModelFiles, weights: _Weights) -> tuple[VocabMap | None, VocabMask | None]:
    d2t: VocabMap | None = None
    t2d: VocabMask | None = None
    for name, info in (weights.tensors or {}).items():
        if not name.endswith(("d2t", "t2d")) or len(info.shape) != 1:
            continue
        key = name[-3:]
        content = _values(files, weights, name, info)
        if key == "d2t":
            d2t = read_map(content, info.dtype, length=info.shape[0])
        else:
            t2d = read_mask(content, info.dtype, length=info.shape[0])
    return d2t, t2d


def _values(files: ModelFiles, weights: _Weights, name: str, info: TensorInfo) -> bytes:
    wanted = bytes_of(info.shape[0], info.dtype)
    if wanted is None:
        weights.notes.append(f"{name}: type {info.dtype} and length {info.shape[0]} are not read")
        return b""
    try:
        return files.read(info.file, start=weights.begins[name], length=wanted)
    except Unreadable as error:
        weights.notes.append(f"{name}: {error}")
        return b""
