"""vLLM's ``--speculative-config`` as one mapping, and the method vLLM would take where none is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_PARTS = (("spec-method", "method"), ("spec-model", "model"), ("spec-tokens", "num_speculative_tokens"))


def speculation_of(flags: Mapping[str, str | bool | None]) -> dict[str, Any] | None:
    """``--speculative-config`` with ``--spec-method``, ``--spec-model`` and ``--spec-tokens`` put in.

    ``None``: no speculation, or a value that cannot be read (then the flag is
    in ``flags`` all the same).
    """
    config: dict[str, Any] = {}
    if "speculative-config" in flags:
        parsed = parsed_config(flags["speculative-config"])
        if parsed is None:
            return None
        config = {str(key).replace("-", "_"): value for key, value in parsed.items()}
    for name, key in _PARTS:
        value = flags.get(name)
        if isinstance(value, str):
            is_number = key == "num_speculative_tokens" and value.lstrip("-").isdecimal()
            config[key] = int(value) if is_number else value
    return config or None


def parsed_config(text: str | bool | None) -> dict[str, Any] | None:
    """The JSON object in ``text``, or ``None``."""
    if not isinstance(text, str):
        return None
    try:
        parsed = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def guessed_method(config: Mapping[str, Any]) -> str | None:
    """What vLLM 0.32 takes from the model's name where ``method`` is absent; ``None`` without a model.

    A ``model_type`` of the draft can still change ``draft_model`` into medusa,
    mlp_speculator or mtp: that is in its ``config.json``, not in the name.
    """
    model = config.get("model")
    if not isinstance(model, str):
        return None
    if model in ("ngram", "[ngram]"):
        return "ngram"
    name = model.lower()
    for part, method in (
        ("eagle-", "eagle"),
        ("eagle3", "eagle3"),
        ("dflash", "dflash"),
        ("dspark", "dspark"),
    ):
        if part in name:
            return method
    return "draft_model"
