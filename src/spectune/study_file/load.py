"""A study file's text -> ``StudySpec``, or one error with every mistake in it."""

from __future__ import annotations

import difflib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from spectune.domain.secrets import redacted
from spectune.errors import MAX_LISTED, BadInput, Problem, StudyFileError
from spectune.study_file.schema import StudySpec
from spectune.study_file.yaml_lines import Document, read_yaml

MAX_BYTES = 2**22
_OTHER_NAMES = {
    "num_speculative_tokens": "num_draft_tokens",
    "speculative_num_draft_tokens": "num_draft_tokens",
    "speculative_num_steps": "num_steps",
    "speculative_eagle_topk": "topk",
    "eagle_topk": "topk",
    "algorithm": "method",
    "draft": "drafter",
    "draft_model": "drafter",
    "model": "target",
    "max_concurrency": "concurrency",
    "num_runs": "repetitions",
    "backend": "engine",
    "output_tokens": "max_tokens",
    "args": "flags",
}
"""Words of the engines and of other tools, and ours for them."""


def load_study_file(path: Path, *, overrides: Sequence[str] = ()) -> tuple[StudySpec, str, Document]:
    """The checked file, its text and its lines. ``overrides``: ``key.path=value``, values in YAML."""
    try:
        with path.open("rb") as file:  # a pipe and a device have no size to ask for
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise BadInput(f"{path}: more than {MAX_BYTES} bytes; a study file has a few kilobytes")
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not a text file (byte {error.start} is not UTF-8)") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot read it: {error.strerror}") from error
    document = read_yaml(text, name=str(path))
    for override in overrides:
        apply_override(document.value, override)
    return parse_study(document, name=str(path)), text, document


def apply_override(value: Any, override: str) -> None:
    """Sets ``a.b=value`` in a parsed document; a bare engine name becomes a mapping where it must."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise BadInput(f"--set {override:.80}: write it as key=value, e.g. --set engine=vllm")
    try:
        new = read_yaml(text, name=f"--set {override:.80}").value if text.strip() else None
    except StudyFileError as error:
        raise BadInput(f"--set {override:.80}: {error.problems[0].message}") from error
    if not isinstance(value, dict):
        raise BadInput(f"--set {override:.80}: the study file is not a mapping")
    *parents, last = path.split(".")
    here: Any = value
    for name in parents:
        if isinstance(here, list):
            here = _item(here, name, override)
            continue
        below = here.get(name)
        if isinstance(below, list):
            here = below
            continue
        if name == "engine" and isinstance(below, str):
            below = {"name": below}
        here[name] = below if isinstance(below, dict) else {}
        here = here[name]
    if isinstance(here, list):
        _item(here, last, override)
        here[int(last)] = new
    else:
        here[last] = new


def _item(items: list[Any], index: str, override: str) -> Any:
    if not index.isdecimal() or len(index) > 9 or int(index) >= len(items):
        raise BadInput(
            f"--set {override:.80}: {index!r:.40} is no place in a list of {len(items)}; the first is 0"
        )
    return items[int(index)]


def parse_study(document: Document, *, name: str) -> StudySpec:
    """Validates a document; every mistake of the file is in the one error."""
    value = document.value
    if not isinstance(value, dict):
        raise StudyFileError(name, [Problem("file", "must be a mapping of keys to values", 1)])
    engine = value.get("engine")
    engine_name = engine.get("name") if isinstance(engine, dict) else engine
    context = {"engine": engine_name if _is_engine(engine_name) else None}
    try:
        return StudySpec.model_validate(value, context=context)
    except ValidationError as error:
        found = sorted(error.errors(), key=lambda d: (document.line_of(d["loc"]) or 0, _where(d)))
        places: set[tuple[int | str, ...]] = set()
        problems = [_problem(details, document, places) for details in found[:MAX_LISTED]]
        raise StudyFileError(name, problems, num_not_listed=len(found) - len(problems)) from error


def _is_engine(name: Any) -> bool:
    from spectune.engines.registry import adapter_for

    try:
        return isinstance(name, str) and bool(adapter_for(name))
    except BadInput:
        return False


def _problem(details: ErrorDetails, document: Document, places: set[tuple[int | str, ...]]) -> Problem:
    """``places``: where the valid keys were listed already; once is enough."""
    path = details["loc"]
    where = _where(details)
    line = document.line_of(tuple(path))
    kind, got = details["type"], details.get("input")
    if kind == "extra_forbidden":
        listed = path[:-1] in places
        places.add(path[:-1])
        return Problem(where, _unknown_key(path, with_valid=not listed), line)
    if kind == "missing":
        return Problem(where, "is missing; it must be given", line)
    message = details["msg"].removeprefix("Value error, ")
    shown = "" if isinstance(got, dict | list) or kind == "value_error" else f", got {redacted(got)!r:.80}"
    return Problem(where, f"{message}{shown}", line)


def _where(details: ErrorDetails) -> str:
    return ".".join(str(part) for part in details["loc"]) or "file"


def _unknown_key(path: tuple[int | str, ...], *, with_valid: bool) -> str:
    valid = valid_keys(path[:-1])
    key = str(path[-1])
    guess = _OTHER_NAMES.get(key)
    if guess not in valid:
        close = difflib.get_close_matches(key, valid, n=1)
        guess = close[0] if close else None
    hint = f"; did you mean {guess}?" if guess else ""
    if not with_valid:
        return f"unknown key{hint}"
    return f"unknown key{hint}{' Valid' if hint else '; valid'} here: {', '.join(valid)}"


def valid_keys(path: tuple[int | str, ...]) -> list[str]:
    """The keys allowed in the mapping at ``path``."""
    model: Any = StudySpec
    for part in path:
        if isinstance(part, int):
            continue
        if isinstance(model, type) and issubclass(model, BaseModel) and part in model.model_fields:
            model = _inner_model(model.model_fields[part].annotation)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return list(model.model_fields)
    return []


def _inner_model(annotation: Any) -> Any:
    """The spec class somewhere inside ``X | None``, ``tuple[X, ...]``, ``dict[str, X]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is not None:
        for part in get_args(annotation):
            found = _inner_model(part)
            if found is not None:
                return found
    return None
