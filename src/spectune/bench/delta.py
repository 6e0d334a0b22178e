"""What one streamed choice says: every field of it that holds generated tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CALL_FIELDS = ("arguments", "input")


@dataclass(frozen=True)
class Said:
    """The text of one chunk in its parts, and whether the chunk carries tokens (also such as give no text yet)."""

    reasoning: str
    content: str
    other: str
    """A refusal, and the arguments of tool calls."""
    has_tokens: bool

    @property
    def text(self) -> str:
        return self.reasoning + self.content + self.other


def read_delta(choice: Mapping[str, Any]) -> Said:
    """Roles, ids and indexes are the server's own words, and no tokens of the model's.

    The name of a tool is timed and is no text: servers repeat it as they cut the answer into chunks.
    """
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = _text(choice.get("text"))
        return Said("", text, "", bool(text) or _has_ids(choice))
    content = _content(delta.get("content"))
    reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
    calls = delta.get("tool_calls")
    each = calls if isinstance(calls, list) else []
    other = _text(delta.get("refusal")) + _called(delta.get("function_call"))
    parts = [
        part for call in each if isinstance(call, dict) for part in call.values() if isinstance(part, dict)
    ]
    other += "".join(map(_called, parts))
    named = any(
        _text(part.get("name")) for part in (*parts, delta.get("function_call")) if isinstance(part, dict)
    )
    return Said(reasoning, content, other, bool(reasoning or content or other or named) or _has_ids(choice))


def _has_ids(choice: Mapping[str, Any]) -> bool:
    """Half a character gives no text; engines that are asked for token ids or logprobs send these with it."""
    logprobs = choice.get("logprobs")
    said = logprobs.get("content") if isinstance(logprobs, dict) else None
    return any(isinstance(ids, list) and bool(ids) for ids in (choice.get("token_ids"), said))


def _content(value: object) -> str:
    """Text, or a list of parts with text."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return _text(value)


def _called(call: object) -> str:
    return "".join(_text(call.get(name)) for name in _CALL_FIELDS) if isinstance(call, dict) else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
