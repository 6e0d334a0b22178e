"""Shell text as bash would read it: the words of every command, its variables filled in where the text sets them.

The syntax is that of tree-sitter. Nothing is run: what only a running shell could know (``$HOME``, ``$(...)``, a
variable that one of two branches sets) stays in the text behind ``UNRESOLVED``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spectune.errors import BadInput
from spectune.preflight.command.shell_words import Value, WordReader

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_MAX_DEPTH = 120
"""Of one construct in another; no script is nested as deeply."""
_MAX_CALLS = 8
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
"""The grammar's scanner looks characters up in a table of 256, beyond its end for others: the parser sees none of
them. One byte stands for each, so that places in the bytes are places in the text."""
_RUN_INSIDE = frozenset(
    {
        *(
            "program",
            "list",
            "pipeline",
            "compound_statement",
            "do_group",
            "subshell",
        ),
        *("negated_command", "else_clause", "variable_assignments", "ERROR"),
    }
)
_SETS = frozenset({"set", "setenv"})
"""``set NAME=value`` of Windows, ``setenv NAME value`` of csh."""


@dataclass(frozen=True)
class SimpleCommand:
    """One command of the text: its words, and the variables set for it."""

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def shell_commands(text: str) -> tuple[SimpleCommand, ...]:
    """The commands of ``text`` in the order in which they stand. Raises ``BadInput`` for a quote never closed."""
    root = _parser().parse(_NOT_ASCII.sub("x", text).encode("ascii")).root_node
    if root.has_error:
        _check_quotes(root, text)
    shell = _Shell(text)
    shell.run(root)
    shell.run_what_nobody_called()
    return tuple(shell.done)


@functools.cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _check_quotes(root: Node, text: str) -> None:
    for node in _errors(root):
        rest = text[node.start_byte :]
        quote = rest[:1]
        if quote and quote in "'\"`" and rest.count(quote) == 1:
            raise BadInput(
                f"command: line {node.start_point[0] + 1}: the quote {quote} is never closed: {rest[:60].strip()}; "
                "close it, or leave it out"
            )


def _errors(node: Node, depth: int = 0) -> Iterator[Node]:
    if node.type == "ERROR":
        yield node
    if node.has_error and depth < _MAX_DEPTH:
        for child in node.children:
            yield from _errors(child, depth + 1)


class _Shell(WordReader):
    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.done: list[SimpleCommand] = []
        self.exported: set[str] = set()
        self.functions: dict[str, Node] = {}
        self.called: set[str] = set()
        self.depth = 0
        self.calls = 0

    # commands

    def run(self, node: Node) -> None:
        if self.depth > _MAX_DEPTH:
            return
        self.depth += 1
        run: Callable[[Node], None] | None = {
            "command": self._command,
            "declaration_command": self._declaration,
            "variable_assignment": self._assignment,
            "function_definition": self._definition,
            "if_statement": self._if,
            "case_statement": self._case,
            "for_statement": self._for,
            "c_style_for_statement": self._loop,
            "while_statement": self._loop,
            "redirected_statement": self._redirected,
            "heredoc_redirect": self._behind_heredoc,
        }.get(node.type)
        if run is not None:
            run(node)
        elif node.type == "ERROR" and not any(
            child.type in _RUN_INSIDE | {"command"} for child in node.children
        ):
            self._run_words(self._words(node.children))
        elif node.type in _RUN_INSIDE:
            for child in node.named_children:
                self.run(child)
        self.depth -= 1

    def run_what_nobody_called(self) -> None:
        for name, body in self.functions.items():
            if name not in self.called:
                self.positional = None
                self.run(body)

    def _command(self, node: Node) -> None:
        self._run_words(self._words(node.children))

    def _redirected(self, node: Node) -> None:
        """Words may stand behind a redirection too; the grammar counts them among its targets."""
        body, *redirects = node.named_children
        if body.type != "command":
            self.run(body)
        else:
            more = [
                word
                for redirect in redirects
                if redirect.type == "file_redirect"
                for child in redirect.children_by_field_name("destination")[1:]
                for word in self.fields_of(child)
            ]
            self._run_words([*self._words(body.children), *more])
        for redirect in redirects:
            if redirect.type == "heredoc_redirect":
                self.run(redirect)

    def _words(self, nodes: Sequence[Node]) -> list[str]:
        words: list[str] = []
        for child in nodes:
            if child.type == "variable_assignment":
                name, _, value = self.text_of(child).partition("=")
                given = child.child_by_field_name("value")
                words.append(f"{name}={self.joined(given) if given else value}")
            elif child.type == "command_name":
                words += self.fields_of(child.children[0])
            elif child.type not in ("file_redirect", "herestring_redirect", "heredoc_redirect", "comment"):
                words += self.fields_of(child)
        return words

    def _run_words(self, words: list[str]) -> None:
        if not words:
            return
        name = words[0]
        if name in self.functions and self.calls < _MAX_CALLS:
            self.called.add(name)
            before, self.positional = self.positional, words[1:]
            self.calls += 1
            self.run(self.functions[name])
            self.calls -= 1
            self.positional = before
        elif name == "set" and words[1:2] == ["--"]:
            self.positional = words[2:]
        elif name in _SETS:
            self._set(words[1:])
        elif name == "eval":
            self.done += shell_commands(" ".join(words[1:]))
        elif name == "shift":
            count = int(words[1]) if len(words) > 1 and words[1].isdecimal() else 1
            self.positional = None if self.positional is None else self.positional[count:]
        elif name == "read":
            self.variables |= dict.fromkeys(words[1:])
        else:
            self.done.append(SimpleCommand(tuple(words), self._env()))

    def _set(self, words: list[str]) -> None:
        if len(words) == 2 and "=" not in words[0] and not words[0].startswith(("-", "+")):
            words = ["=".join(words)]
        for word in words:
            name, equals, value = word.partition("=")
            if equals and name.isidentifier():
                self.variables[name] = value
                self.exported.add(name)

    def _env(self) -> dict[str, str]:
        return {
            name: self.scalar(name, f"${name}") for name in sorted(self.exported) if name in self.variables
        }

    # variables

    def _assignment(self, node: Node) -> None:
        target, given = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None or target.type != "variable_name":
            if target is not None and target.child_count:
                self.variables[self.text_of(target.children[0])] = None  # one element of an array
            return
        name = self.text_of(target)
        appends = any(child.type == "+=" for child in node.children)
        before = self.variables.get(name) if appends else ""
        value: Value
        if given is None:
            value = ""
        elif given.type == "array":
            value = [
                word
                for child in given.named_children
                if child.type != "comment"
                for word in self.fields_of(child)
            ]
        else:
            value = self.joined(given)
        self.variables[name] = _appended(before, value) if appends else value

    def _declaration(self, node: Node) -> None:
        options = [self.text_of(child) for child in node.named_children if child.type == "word"]
        exports = node.children[0].type == "export" or any(
            option.startswith("-") and "x" in option for option in options
        )
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assignment(child)
                child = child.children[0]
            elif child.type not in ("variable_name", "string", "raw_string", "concatenation"):
                continue
            name, equals, value = self.joined(child).partition("=")
            if equals:
                self.variables[name] = value
            if exports:
                self.exported.add(name)

    def _definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self.text_of(name)] = body

    # branches

    def _if(self, node: Node) -> None:
        blocks: list[list[Node]] = [[]]
        is_condition = True
        for child in node.children:
            if child.type == "then":
                is_condition = False
            elif child.type == "elif_clause":
                then = next((i for i, inner in enumerate(child.children) if inner.type == "then"), 0)
                blocks.append([inner for inner in child.children[then + 1 :] if inner.is_named])
            elif child.type == "else_clause":
                blocks.append(list(child.named_children))
            elif child.is_named and not is_condition:
                blocks[0].append(child)
        self._either(blocks, is_one_taken=any(child.type == "else_clause" for child in node.children))

    def _case(self, node: Node) -> None:
        items = [child for child in node.named_children if child.type == "case_item"]
        blocks, takes_all = [], False
        for item in items:
            values = item.children_by_field_name("value")
            takes_all = takes_all or any(self.text_of(value) == "*" for value in values)
            blocks.append([child for child in item.named_children if child not in values])
        self._either(blocks, is_one_taken=takes_all)

    def _for(self, node: Node) -> None:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        values = [word for child in node.children_by_field_name("value") for word in self.fields_of(child)]
        if name is None or body is None:
            return
        self.variables[self.text_of(name)] = values[0] if values else None
        self._either([[body]], is_one_taken=bool(values))
        self.variables[self.text_of(name)] = None

    def _loop(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.variables[self.text_of(child).partition("=")[0]] = None
        body = node.child_by_field_name("body")
        self._either([[body]] if body is not None else [], is_one_taken=False)

    def _either(self, blocks: Sequence[Sequence[Node]], *, is_one_taken: bool) -> None:
        """Runs each; a variable that they leave with different values is not known afterwards."""
        before, ends = dict(self.variables), []
        for block in blocks:
            self.variables = dict(before)
            for node in block:
                self.run(node)
            ends.append(self.variables)
        if not is_one_taken or not ends:
            ends.append(before)
        names = dict.fromkeys(name for end in ends for name in end)
        self.variables = {
            name: ends[0].get(name)
            if all(name in end and end[name] == ends[0].get(name) for end in ends)
            else None
            for name in names
        }

    def _behind_heredoc(self, node: Node) -> None:
        for child in node.named_children:
            if child.type in ("pipeline", "list", "command", "redirected_statement"):
                self.run(child)


def _appended(before: Value, more: Value) -> Value:
    if before is None or more is None:
        return None
    if isinstance(more, list):
        return [*([before] if isinstance(before, str) and before else before or []), *more]
    return (
        [*before[:-1], before[-1] + more] if isinstance(before, list) and before else f"{before or ''}{more}"
    )
