"""Where prompts come from: the built-in generator, the built-in measuring set, and files of users."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spectune.bench.prompt_file import Problems, records
from spectune.bench.prompts import CATEGORIES, Turns, format_key, load_prompts, read_prompt
from spectune.domain.workload import Prompt
from spectune.drafter.data.generator import generate_prompts
from spectune.errors import BadInput


@dataclass(frozen=True)
class PromptSource:
    """``generated:600``, ``builtin`` or a path, as the user gave it."""

    name: str
    count: int | None = None
    """Of generated prompts; ``None``: a file or the built-in set."""

    @property
    def is_file(self) -> bool:
        return self.count is None and self.name.partition(":")[0] != "builtin"


@dataclass(frozen=True)
class SourcedPrompt:
    """``group``: prompts that share it must not be on both sides of the split."""

    prompt: Prompt
    group: str


def source_hash(source: PromptSource, *, categories: Sequence[str] = CATEGORIES) -> str:
    """sha256 of a file's bytes, or of the name of what is built in."""
    if not source.is_file:
        name = f"{source.name}:{source.count}:{','.join(categories) if source.count else ''}"
        return hashlib.sha256(name.encode()).hexdigest()
    try:
        with Path(source.name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise BadInput(
            f"--prompts {source.name}: cannot be read: {error}; give a prompt file, 'builtin' or --generate N"
        ) from error


def iterate_source(
    source: PromptSource, *, seed: int, turns: Turns, categories: Sequence[str] = CATEGORIES
) -> Iterator[SourcedPrompt]:
    """Prompts in order, one at a time: a file of 500,000 is never held whole.

    Raises ``BadInput`` with all problems of a file at its end.
    """
    if source.count is not None:
        for made in generate_prompts(source.count, seed=seed, categories=tuple(categories)):
            prompt = Prompt(prompt_id=made.prompt_id, turns=(made.text,), category=made.category)
            yield SourcedPrompt(prompt, made.group)
    elif source.is_file:
        yield from _file(Path(source.name), turns)
    else:
        yield from (
            SourcedPrompt(prompt, prompt_key(prompt)) for prompt in load_prompts(source.name, turns=turns)
        )


def _file(path: Path, turns: Turns) -> Iterator[SourcedPrompt]:
    problems = Problems(str(path))
    key: str | None = None
    try:
        with path.open("rb") as handle:
            for record in records(handle, problems):
                key = key or format_key(record)
                prompt = read_prompt(record, key, turns)
                if prompt is not None:
                    yield SourcedPrompt(prompt, prompt_key(prompt))
    except OSError as error:
        raise BadInput(f"--prompts {path}: {error.strerror or error}") from error
    if key is None and not problems.count:
        problems.add(None, "file", "is empty")
    if problems.count:
        raise problems.error()


def prompt_key(prompt: Prompt) -> str:
    """What makes two prompts the same: system and user turns, apart from space around and between words."""
    texts = [prompt.system or "", *prompt.turns]
    return "\0".join(" ".join(text.split()) for text in texts)
