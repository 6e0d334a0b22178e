"""YAML that remembers on which line each value stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from spectune.errors import Problem, StudyFileError

_MAX_NODES = 100_000
"""Aliases can make a small file expand without end."""

_MAX_DEPTH = 40
_SCALAR_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null"))
_PLAIN_TAGS = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """Plain values, and the line (from 1) of every path in them."""

    value: Any
    lines: dict[Path, int]

    def line_of(self, path: Path) -> int | None:
        """The line of ``path``, or of the nearest enclosing value."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return None


def read_yaml(text: str, *, name: str) -> Document:
    """Parses one document; syntax errors and repeated keys raise ``StudyFileError`` with their lines."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(part for part in (error.context, error.problem) if part)
        hint = "; YAML indents with spaces, not tabs" if "'\\t'" in message else ""
        line = None if mark is None else mark.line + 1
        raise StudyFileError(name, [Problem("YAML", f"{message}{hint}", line)]) from error
    except yaml.YAMLError as error:
        raise StudyFileError(name, [Problem("YAML", " ".join(str(error).split()))]) from error
    except RecursionError as error:
        raise StudyFileError(name, [Problem("YAML", "is nested too deeply")]) from error
    if root is None:
        raise StudyFileError(name, [Problem("file", "is empty; see docs/study-file.md for an example", 1)])
    builder = _Builder(name)
    value = builder.build(root, ())
    if builder.problems:
        raise StudyFileError(name, builder.problems)
    return Document(value, builder.lines)


class _Builder:
    def __init__(self, name: str) -> None:
        self._name = name
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self._constructor = yaml.SafeLoader("")
        self._nodes = 0

    def build(self, node: yaml.Node, path: Path) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise StudyFileError(
                self._name, [Problem("YAML", f"more than {_MAX_NODES} values; is an alias recursive?")]
            )
        line = node.start_mark.line + 1
        if len(path) > _MAX_DEPTH:
            raise StudyFileError(
                self._name, [Problem("YAML", f"is nested more than {_MAX_DEPTH} deep", line)]
            )
        self.lines.setdefault(path, line)
        if isinstance(node, yaml.CollectionNode) and node.tag not in _PLAIN_TAGS:
            self.problems.append(Problem(_dotted(path), f"not a plain value: tag {node.tag}", line))
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, index)) for index, child in enumerate(node.value)]
        if node.tag == "tag:yaml.org,2002:timestamp":
            return str(node.value)  # a date is a word here
        if node.tag not in _SCALAR_TAGS:
            self.problems.append(Problem(_dotted(path), f"not a plain value: tag {node.tag}", line))
            return None
        try:
            return self._constructor.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            self.problems.append(Problem(_dotted(path), f"not a plain value: {_short(error)}", line))
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(_dotted(path), "keys must be plain words", key_line))
                continue
            key = str(key_node.value)
            if key in values:
                first = self.lines[(*path, key)]
                self.problems.append(
                    Problem(_dotted((*path, key)), f"given twice (first on line {first})", key_line)
                )
                continue
            self.lines[(*path, key)] = key_line
            values[key] = self.build(value_node, (*path, key))
        return values


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path) or "file"


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
