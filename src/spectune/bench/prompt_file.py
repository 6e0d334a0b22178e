"""The JSON objects of a prompt file, each with its place, and the problems found in them.

A file is JSON Lines, read line by line, or one JSON list; UTF-8, with or
without a byte order mark.
"""

from __future__ import annotations

import itertools
import json
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from spectune.errors import Problem, StudyFileError

_MAX_LISTED = 20
_BOM = b"\xef\xbb\xbf"
_JSON_SPACE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass
class Problems:
    """The first problems of the file ``name``, and the count of all."""

    name: str
    listed: list[Problem] = field(default_factory=list)
    count: int = 0

    def add(self, line: int | None, where: str, message: str) -> None:
        self.count += 1
        if self.count <= _MAX_LISTED:
            self.listed.append(Problem(where=where, message=message, line=line))

    def error(self) -> StudyFileError:
        return StudyFileError(self.name, self.listed, num_not_listed=self.count - len(self.listed))


@dataclass(frozen=True)
class Record:
    """One JSON object of a file."""

    value: dict[str, Any]
    line: int
    place: str
    """``line-17``, or ``item-17`` in a JSON list; counted from 1."""
    problems: Problems

    def report(self, where: str, message: str) -> None:
        prefix = f"{self.place}, " if self.place.startswith("item") else ""
        self.problems.add(self.line, prefix + where, message)

    def text(self, where: str, value: Any) -> str | None:
        """``value`` if it can be sent as a message; otherwise a problem is noted."""
        if not isinstance(value, str):
            self.report(where, f"must be text, got {reprlib.repr(value)}")
        elif not value.strip():
            self.report(where, "is empty")
        elif _SURROGATE.search(value):
            self.report(where, "holds half of a surrogate pair, which cannot be sent as UTF-8")
        else:
            return value
        return None

    def optional_text(self, where: str, value: Any) -> str | None:
        is_blank = value is None or (isinstance(value, str) and not value.strip())
        return None if is_blank else self.text(where, value)


def records(handle: IO[bytes], problems: Problems) -> Iterator[Record]:
    """Every object in order; what is not a JSON object is added to ``problems``.

    JSON Lines are read as they are asked for, so a pipe or a file larger than
    memory will do; a list is read whole, then parsed item by item.
    """
    is_first = True
    for line, raw in enumerate(handle, start=1):
        data = raw.removeprefix(_BOM) if line == 1 else raw
        if not data.strip():
            continue
        if is_first and data.lstrip().startswith(b"["):
            yield from _list_items(data + handle.read(), line, problems)
            return
        is_first = False
        text = _decoded(data.rstrip(), line, problems)
        if text is None:
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            problems.add(line, "record", _json_mistake(error))
            continue
        if isinstance(value, dict):
            yield Record(value, line, f"line-{line}", problems)
        else:
            problems.add(line, "record", f"must be a JSON object, got {reprlib.repr(value)}")


def _list_items(data: bytes, first_line: int, problems: Problems) -> Iterator[Record]:
    """The objects of a JSON list, parsed one at a time up to a syntax error."""
    text = _decoded(data, first_line, problems)
    if text is None:
        return
    decoder = json.JSONDecoder()
    line, counted, position = first_line, 0, _after_space(text, text.index("[") + 1)
    for item in itertools.count(1) if not text.startswith("]", position) else ():
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            if isinstance(error, json.JSONDecodeError):
                line = first_line + error.lineno - 1
            problems.add(line, f"item-{item}", _json_mistake(error))
            return
        if isinstance(value, dict):
            yield Record(value, line, f"item-{item}", problems)
        else:
            problems.add(line, f"item-{item}", f"must be a JSON object, got {reprlib.repr(value)}")
        position = _after_space(text, position)
        if not text.startswith(",", position):
            break
        position = _after_space(text, position + 1)
    if text[position:].rstrip() != "]":
        line += text.count("\n", counted, position)
        problems.add(line, "list", "must go on with ',' or end the file with ']'; is the file cut off?")


def _after_space(text: str, position: int) -> int:
    space = _JSON_SPACE.match(text, position)
    return space.end() if space else position


def _decoded(data: bytes, line: int, problems: Problems) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        problems.add(line, "text", f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8")
        return None


def _json_mistake(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error.msg} at column {error.colno}"
    return f"is not JSON that can be read: {error}"
