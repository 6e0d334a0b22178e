"""The text of a streamed chunk without parsing all of it again.

The chunks of one answer differ in their text alone (and, with some engines, in
a time stamp of whole seconds). What stands before and behind the text is
learned from one chunk, and proven there by parsing it with another text in
its place; a later chunk of the same shape is then read by comparing bytes.
Parsing is most of what a chunk costs the client.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from spectune.bench.delta import read_delta

_KEYS = ("content", "text", "reasoning_content", "reasoning")
_PROBE = "7c0f3d"
_QUOTE, _BACKSLASH = b'"\\'  # as numbers: looking for bytes in bytes goes through an exception first


@dataclass(frozen=True)
class ChunkShape:
    """All of a chunk but its text. ``key`` is the field that holds the text."""

    key: str
    head: bytes
    tail: bytes

    def text_of(self, payload: bytes) -> str | None:
        """The text, or ``None`` if ``payload`` has another shape, or a text with escapes or of no length."""
        if not payload.startswith(self.head) or not payload.endswith(self.tail):
            return None
        raw = payload[len(self.head) : -len(self.tail)]
        if not raw or _QUOTE in raw or _BACKSLASH in raw:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return None


def learn_shape(payload: bytes) -> ChunkShape | None:
    """The shape of ``payload``, which is known to parse, if its text stands in one plain place."""
    for key in _KEYS:
        opening = f'"{key}":"'.encode()
        start = payload.find(opening)
        if start < 0:
            continue
        head, rest = payload[: start + len(opening)], payload[start + len(opening) :]
        raw, _, behind = rest.partition(b'"')
        if not raw or _BACKSLASH in raw:
            continue
        shape = ChunkShape(key, head, b'"' + behind)
        if _is_proven(shape):
            return shape
    return None


def _is_proven(shape: ChunkShape) -> bool:
    """With another text in its place, that is all that the first choice says."""
    event = json.loads(shape.head + _PROBE.encode() + shape.tail)
    try:
        choice = event["choices"][0]
    except (LookupError, TypeError):
        return False
    return isinstance(choice, dict) and read_delta(choice).text == _PROBE
