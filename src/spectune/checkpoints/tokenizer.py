"""Facts of a tokenizer: a hash of its vocabulary, its added tokens, its chat template."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

from spectune.checkpoints.facts import TokenizerFacts
from spectune.checkpoints.reading import ModelFiles, Unreadable, read_json, read_whole

MAX_TOKENIZER_BYTES = 40_000_000
_MAX_SMALL_BYTES = 4_000_000
_VOCAB = re.compile(rb'"vocab"\s*:\s*(?=[{\[])')
_ADDED = re.compile(rb'"added_tokens"\s*:\s*(?=\[)')
_BINARY_FILES = ("tiktoken.model", "tokenizer.model", "tekken.json", "vocab.json")


def read_tokenizer(files: ModelFiles, *, vocabulary: bool = True) -> tuple[TokenizerFacts | None, list[str]]:
    """``None`` if there are no tokenizer files at all; with reasons for what was not read.

    Without ``vocabulary`` the large files are left alone.
    """
    names = files.names()
    notes: list[str] = []
    config: dict[str, Any] = {}
    if "tokenizer_config.json" in names:
        try:
            config = read_json(files, "tokenizer_config.json", limit=_MAX_SMALL_BYTES)
        except Unreadable as error:
            notes.append(f"tokenizer_config.json: {error}")
    template = _template_hash(files, config, names, notes)
    fields: dict[str, Any] = {}
    source = next((name for name in ("tokenizer.json", *_BINARY_FILES) if name in names), None)
    if source is not None and not vocabulary:
        notes.append(f"{source}: not read (over the network only headers and small files are)")
    elif source is not None:
        try:
            fields = _vocabulary(files, source)
        except Unreadable as error:
            notes.append(f"{source}: {error}")
    if not config and not fields and template is None:
        return None, notes
    return (
        TokenizerFacts(
            **fields,
            bos=_token_text(config.get("bos_token")),
            eos=_token_text(config.get("eos_token")),
            chat_template_hash=template,
        ),
        notes,
    )


def _vocabulary(files: ModelFiles, name: str) -> dict[str, Any]:
    content = read_whole(files, name, limit=MAX_TOKENIZER_BYTES)
    if name != "tokenizer.json":
        return {"vocab_hash": hashlib.sha256(content).hexdigest()[:16], "hash_of": name}
    tokens = _token_ids(_decode_at(content, _VOCAB))
    listed = _decode_at(content, _ADDED)
    added = tuple(
        (entry["id"], entry["content"])
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict) and type(entry.get("id")) is int and isinstance(entry.get("content"), str)
    )
    if tokens is None:
        raise Unreadable("no vocabulary found in it")
    tokens.update((token, number) for number, token in added)
    return {
        "vocab_hash": hash_tokens(sorted((number, token) for token, number in tokens.items())),
        "hash_of": name,
        "num_tokens": len(tokens),
        "added_tokens": tuple(sorted(added)),
    }


def _decode_at(content: bytes, pattern: re.Pattern[bytes]) -> Any:
    """The one JSON value behind a key, so that merges (most of the file) are never built in memory."""
    place = pattern.search(content)
    if place is None:
        return None
    try:
        text = content[place.end() :].decode("utf-8")
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {str(error)[:120]}") from error


def _token_ids(vocabulary: Any) -> dict[str, int] | None:
    """BPE and WordPiece map token to id; Unigram lists (token, score) in order."""
    if isinstance(vocabulary, dict):
        return {token: number for token, number in vocabulary.items() if type(number) is int}
    if isinstance(vocabulary, list):
        return {
            entry[0]: index
            for index, entry in enumerate(vocabulary)
            if isinstance(entry, list) and entry and isinstance(entry[0], str)
        }
    return None


def hash_tokens(tokens: Iterable[tuple[int, str]]) -> str:
    """Of ids and texts in order of ids."""
    text = "\0".join([f"{number}\0{token}" for number, token in tokens])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template_hash(
    files: ModelFiles, config: dict[str, Any], names: frozenset[str], notes: list[str]
) -> str | None:
    """A separate file wins over ``tokenizer_config.json``, as in transformers."""
    if "chat_template.jinja" in names:
        try:
            content = read_whole(files, "chat_template.jinja", limit=_MAX_SMALL_BYTES)
        except Unreadable as error:
            notes.append(f"chat_template.jinja: {error}")
            return None
        return hash_text(content.decode("utf-8", "replace"))
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next(
            (e.get("template") for e in template if isinstance(e, dict) and e.get("name") == "default"), None
        )
    return hash_text(template) if isinstance(template, str) else None


def hash_text(text: str) -> str:
    return hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest()[:16]
