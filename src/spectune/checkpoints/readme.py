"""What a model card's front matter declares: the model this one was made from."""

from __future__ import annotations

from typing import Any

from spectune.checkpoints.facts import DeclaredBase
from spectune.checkpoints.reading import ModelFiles, Unreadable
from spectune.domain.yaml_values import NotYaml, yaml_values

FILE = "README.md"
_MAX_BYTES = 65_536


def read_bases(files: ModelFiles) -> tuple[DeclaredBase, ...]:
    """``base_model`` of the front matter, with its relation where one is given; empty if there is none."""
    if FILE not in files.names():
        return ()
    try:
        size = files.size(FILE)
        text = files.read(FILE, length=min(_MAX_BYTES, size) if size is not None else _MAX_BYTES)
    except Unreadable:
        return ()
    matter = _front_matter(text.decode("utf-8", "replace"))
    listed = matter.get("base_model")
    names = listed if isinstance(listed, list) else [listed]
    relation = matter.get("base_model_relation")
    where = f"{FILE}: base_model"
    if isinstance(relation, str):
        where += f" ({relation})"
    return tuple(DeclaredBase(name, where) for name in names[:8] if isinstance(name, str) and name)


def _front_matter(text: str) -> dict[str, Any]:
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    end = next((index for index, line in enumerate(lines[1:], 1) if line.strip() == "---"), None)
    if end is None:
        return {}
    try:
        matter = yaml_values("\n".join(lines[1:end]))
    except NotYaml:
        return {}
    return matter if isinstance(matter, dict) else {}
