"""Prompt sets: the built-in one, and files in the formats that other load clients read.

A file is JSON Lines or one JSON list, in UTF-8. The keys of its first record
decide the format of all of them: see ``_FORMATS`` and the functions it names.
"""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from spectune.bench.prompt_file import Problems, Record, records
from spectune.domain.workload import Prompt
from spectune.errors import BadInput

CATEGORIES = ("code", "maths", "chat", "summary", "translation", "structured")
"""Of the built-in prompts, in the order in which the file takes turns through them."""

Turns = Literal["first", "all"]

_MAX_KEYS = 12
_ID_KEYS = ("prompt_id", "question_id", "id")


@cache
def builtin_prompts() -> tuple[Prompt, ...]:
    """48 prompts, 8 of each category; every prefix is balanced over the categories."""
    return _packaged("builtin.jsonl")


@cache
def warmup_prompts() -> tuple[Prompt, ...]:
    """Prompts on other subjects, so that warming up puts no measured prompt into a server's caches."""
    return _packaged("builtin_warmup.jsonl")


def load_prompts(
    source: str, *, limit: int | None = None, turns: Turns = "first", base_dir: Path | None = None
) -> tuple[Prompt, ...]:
    """At most ``limit`` prompts, in order, of ``builtin``, ``builtin:code,maths`` or a file.

    A relative path starts at ``base_dir``. JSON Lines are read no further than
    the last prompt needed. ``turns="first"`` drops later user turns unchecked.
    Raises ``BadInput``; ``StudyFileError`` holds all problems of a file.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"prompts: limit must be >= 1, got {limit}; leave it out to take every prompt")
    name, colon, categories = source.partition(":")
    if name == "builtin":
        return _builtin(categories.split(",") if colon else CATEGORIES)[:limit]
    path = (base_dir or Path()) / source
    try:
        handle = path.open("rb")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise BadInput(
            f"prompts: cannot open {str(path)!r}: {reason}; give the path of a prompt file, 'builtin', "
            f"or 'builtin:' and some of {', '.join(CATEGORIES)}"
        ) from error
    with handle:
        return _read(handle, name=str(path), limit=limit, turns=turns)


def merge_prompts(sets: Sequence[Sequence[Prompt]], *, limit: int | None = None) -> tuple[Prompt, ...]:
    """One from each set in turn, so that ``limit`` takes of all; an id that is taken gets ``@2`` for the second set."""
    merged: list[Prompt] = []
    taken: set[str] = set()
    for place in range(max(map(len, sets), default=0)):
        for number, prompts in enumerate(sets, start=1):
            if place < len(prompts):
                prompt = prompts[place]
                name = prompt.prompt_id if prompt.prompt_id not in taken else f"{prompt.prompt_id}@{number}"
                taken.add(name)
                merged.append(prompt.model_copy(update={"prompt_id": name}))
    return tuple(merged[:limit])


def _packaged(name: str) -> tuple[Prompt, ...]:
    file = resources.files("spectune.bench") / "prompt_data" / name
    with file.open("rb") as handle:
        return _read(handle, name=name, limit=None, turns="all")


def _builtin(categories: Sequence[str]) -> tuple[Prompt, ...]:
    wanted = {category.strip() for category in categories}
    unknown = sorted(wanted.difference(CATEGORIES))
    if unknown:
        raise BadInput(
            f"prompts: no built-in category {', '.join(map(repr, unknown))}; "
            f"valid are {', '.join(CATEGORIES)}, for example builtin:code,maths"
        )
    return tuple(prompt for prompt in builtin_prompts() if prompt.category in wanted)


def _read(handle: IO[bytes], *, name: str, limit: int | None, turns: Turns) -> tuple[Prompt, ...]:
    problems = Problems(name)
    prompts: list[Prompt] = []
    place_of_id: dict[str, str] = {}
    key: str | None = None
    for record in records(handle, problems):
        key = key or format_key(record)
        prompt = read_prompt(record, key, turns)
        if prompt is None:
            continue
        place = place_of_id.setdefault(prompt.prompt_id, record.place)
        if place != record.place:
            record.report("prompt_id", f"{prompt.prompt_id!r} is already that of {place}")
        prompts.append(prompt)
        if len(prompts) == limit:
            break
    if key is None:
        unread = problems.listed[:1]
        problems = Problems(name, unread, len(unread))
        state = "holds no record that can be read" if unread else "is empty"
        problems.add(None, "file", f"{state}; {_understood()}")
    elif not prompts and not problems.count:
        problems.add(None, "file", "a user speaks in none of its conversations")
    if problems.count:
        raise problems.error()
    return tuple(prompts)


def format_key(first: Record) -> str:
    """The key that marks the format of a file, by its first record; raises ``BadInput``."""
    for key in _FORMATS:
        if key in first.value:
            return key
    found = ", ".join(reprlib.repr(key) for key in itertools.islice(first.value, _MAX_KEYS)) or "none"
    first.report("format", f"unknown; keys found: {found}; {_understood()}")
    raise first.problems.error()


def _understood() -> str:
    examples = ", ".join(format_.example for format_ in _FORMATS.values())
    return f"understood are JSON Lines, or a JSON list, of objects such as {examples}"


def read_prompt(record: Record, key: str, turns: Turns) -> Prompt | None:
    """The prompt of one record; ``None`` for one with problems, which it notes, and where no user speaks."""
    value, problems_before = record.value, record.problems.count
    if key not in value:
        record.report(key, "is missing, though the first record has it")
        return None
    said = _FORMATS[key].read(record)
    user = said.user if turns == "all" else said.user[:1]
    texts = [record.text(where, text) for where, text in user]
    system = [record.optional_text(where, text) for where, text in said.system]
    category = record.optional_text("category", value.get("category"))
    tokens = value.get("output_tokens")
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1):
        record.report("output_tokens", f"must be a whole number >= 1, got {reprlib.repr(tokens)}")
    prompt_id = _prompt_id(record)
    if record.problems.count > problems_before or not texts:
        return None
    return Prompt(
        prompt_id=prompt_id,
        turns=tuple(text for text in texts if text is not None),
        category=category,
        system="\n\n".join(text for text in system if text is not None) or None,
        output_tokens=tokens,
    )


def _prompt_id(record: Record) -> str:
    for key in _ID_KEYS:
        value = record.value.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            return record.text(key, value) or record.place
    return record.place


class _Said(NamedTuple):
    """The words of user and system with their places in the record; not checked to be text."""

    user: list[tuple[str, Any]]
    system: list[tuple[str, Any]]


def _custom(record: Record) -> _Said:
    """vLLM's "custom" data."""
    return _Said([("prompt", record.value["prompt"])], [("system", record.value.get("system"))])


def _questions(record: Record) -> _Said:
    """Questions of MT-Bench and Spec-Bench, and the built-in set."""
    turns = record.value["turns"]
    if not isinstance(turns, list) or not turns:
        record.report("turns", f"must be a list of user messages, got {reprlib.repr(turns)}")
        turns = []
    user = [(f"turns[{index}]", turn) for index, turn in enumerate(turns)]
    return _Said(user, [("system", record.value.get("system"))])


def _messages(record: Record) -> _Said:
    """Chat messages; what assistant and tools said is left to the server under test."""
    said = _dialogue(record, "messages", "role", "content")
    if not said.user:
        record.report("messages", "has no message with role 'user'")
    return said


def _sharegpt(record: Record) -> _Said:
    """ShareGPT; published copies hold conversations without a human turn, which are left out."""
    return _dialogue(record, "conversations", "from", "value")


def _dialogue(record: Record, key: str, role_key: str, text_key: str) -> _Said:
    said = _Said([], [])
    entries = record.value[key]
    if not isinstance(entries, list):
        record.report(key, f"must be a list, got {reprlib.repr(entries)}")
        return said
    for index, entry in enumerate(entries):
        role = entry.get(role_key) if isinstance(entry, dict) else None
        if not isinstance(role, str):
            record.report(f"{key}[{index}]", f"must be an object with {role_key!r} and {text_key!r}")
        elif role in ("user", "human"):
            said.user.append((f"{key}[{index}].{text_key}", entry.get(text_key)))
        elif role == "system":
            said.system.append((f"{key}[{index}].{text_key}", entry.get(text_key)))
    return said


class _Format(NamedTuple):
    read: Callable[[Record], _Said]
    example: str


_FORMATS = {
    "turns": _Format(_questions, '{"question_id": 81, "category": "...", "turns": ["...", "..."]}'),
    "messages": _Format(_messages, '{"messages": [{"role": "user", "content": "..."}]}'),
    "conversations": _Format(
        _sharegpt, '{"id": "...", "conversations": [{"from": "human", "value": "..."}]}'
    ),
    "prompt": _Format(_custom, '{"prompt": "...", "output_tokens": 128}'),
}
"""By the key that marks a format; some chat files also have "prompt", so that one comes last."""
