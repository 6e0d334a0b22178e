"""YAML that remembers on which line each value stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from spectune.domain.yaml_values import NotYaml, guarded
from spectune.errors import Problem, StudyFileError

_MAX_NODES = 100_000
"""Aliases can make a small file expand without end."""

_MAX_KEYS = 1000
"""Of one mapping. Lists (of prompts, of arms) can be long; a place with so many keys is no study file's."""

_MAX_DEPTH = 40
_SCALAR_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null"))
_NUMBER_TAGS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
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
        root = guarded(lambda: yaml.compose(text, Loader=_Loader))
    except NotYaml as error:
        hint = "; YAML indents with spaces, not tabs" if "'\\t'" in str(error) else ""
        raise StudyFileError(name, [Problem("YAML", f"{error}{hint}", error.line)]) from error
    if root is None:
        raise StudyFileError(name, [Problem("file", "is empty; see docs/study-file.md for an example", 1)])
    builder = _Builder(name)
    value = builder.build(root, ())
    if builder.problems:
        raise StudyFileError(name, builder.problems)
    return Document(value, builder.lines)


class _Loader(yaml.SafeLoader):
    """Gives up early: PyYAML takes a millisecond for four keys, and a file may hold 500,000."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if isinstance(parent, yaml.MappingNode) and len(parent.value) >= _MAX_KEYS:
            problem = f"more than {_MAX_KEYS} keys in one mapping; a study file has a few dozen"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=parent.value[-1][0].start_mark)
        return super().compose_node(parent, index)


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
        if node.tag == "tag:yaml.org,2002:timestamp" or (node.tag in _NUMBER_TAGS and ":" in node.value):
            return str(node.value)  # a date is a word here, and so is 1:30, which YAML counts in sixties
        if node.tag not in _SCALAR_TAGS:
            self.problems.append(Problem(_dotted(path), f"not a plain value: tag {node.tag}", line))
            return None
        try:
            return _in_range(guarded(lambda: self._constructor.construct_object(node)))
        except NotYaml:
            message = f"not a plain value: {str(node.value)!r:.60} cannot be read as {node.tag[18:]}"
            self.problems.append(Problem(_dotted(path), message, line))
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(_dotted(path), "keys must be plain words", key_line))
                continue
            key = str(key_node.value)
            if _HALF_CHARACTER.search(key):
                self.problems.append(Problem(_dotted(path), "a key holds half of a character", key_line))
                continue
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


def _in_range(value: Any) -> Any:
    """``value``; raises ``NotYaml`` for what no record could hold: a huge number, half of a character."""
    if isinstance(value, int) and abs(value) >= 2**63:
        raise NotYaml("a number beyond 64 bits")
    if isinstance(value, str) and _HALF_CHARACTER.search(value):
        raise NotYaml("half of a surrogate pair is no character")
    return value
