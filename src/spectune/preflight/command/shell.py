"""Shell text as bash would read it: the words of every command, its variables filled in where the text sets them.

The syntax is that of tree-sitter. Nothing is run: what only a running shell could know (``$HOME``, ``$(...)``, a
variable that one of two branches sets) stays in the text behind ``UNRESOLVED``.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from spectune.errors import BadInput

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

UNRESOLVED = "\ue000"
"""Stands in front of whatever only a shell could fill in; a private-use character, never in a real command."""

Value = str | list[str] | None
"""Of a variable: a text, an array, or ``None`` where the text does not decide it."""

_MAX_DEPTH = 120
"""Of one construct in another; no script is nested as deeply."""
_MAX_CALLS = 8
_ESCAPE = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPE_IN_QUOTES = re.compile(r'\\(["\\$`\n])')
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
"""The grammar's scanner looks characters up in a table of 256, beyond its end for others: the parser sees none of
them. One byte stands for each, so that places in the bytes are places in the text."""
_SUM = re.compile(r"[\d+\-*/%() ]{1,80}")
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
_DECLARES = frozenset({"export", "declare", "typeset", "local", "readonly"})
_SETS = frozenset({"set", "setenv"})
"""``set NAME=value`` of Windows, ``setenv NAME value`` of csh."""


@dataclass(frozen=True)
class SimpleCommand:
    """One command of the text: its words, and the variables set for it."""

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Piece:
    """Part of a word. ``split``: unquoted, so that blanks in it end a word; ``fields``: words of their own."""

    text: str = ""
    kind: Literal["text", "split", "fields"] = "text"
    fields: tuple[str, ...] = ()


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


class _Shell:
    def __init__(self, source: str) -> None:
        self.source = source
        self.done: list[SimpleCommand] = []
        self.variables: dict[str, Value] = {}
        self.exported: set[str] = set()
        self.functions: dict[str, Node] = {}
        self.positional: list[str] | None = None
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
                for word in self._fields(child)
            ]
            self._run_words([*self._words(body.children), *more])
        for redirect in redirects:
            if redirect.type == "heredoc_redirect":
                self.run(redirect)

    def _words(self, nodes: Sequence[Node]) -> list[str]:
        words: list[str] = []
        for child in nodes:
            if child.type == "variable_assignment":
                name, _, value = self._text(child).partition("=")
                given = child.child_by_field_name("value")
                words.append(f"{name}={self._joined(given) if given else value}")
            elif child.type == "command_name":
                words += self._fields(child.children[0])
            elif child.type not in ("file_redirect", "herestring_redirect", "heredoc_redirect", "comment"):
                words += self._fields(child)
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
            name: self._scalar(name, f"${name}") for name in sorted(self.exported) if name in self.variables
        }

    # variables

    def _assignment(self, node: Node) -> None:
        target, given = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None or target.type != "variable_name":
            if target is not None and target.child_count:
                self.variables[self._text(target.children[0])] = None  # one element of an array
            return
        name = self._text(target)
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
                for word in self._fields(child)
            ]
        else:
            value = self._joined(given)
        self.variables[name] = _appended(before, value) if appends else value

    def _declaration(self, node: Node) -> None:
        options = [self._text(child) for child in node.named_children if child.type == "word"]
        exports = node.children[0].type == "export" or any(
            option.startswith("-") and "x" in option for option in options
        )
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assignment(child)
                child = child.children[0]
            elif child.type not in ("variable_name", "string", "raw_string", "concatenation"):
                continue
            name, equals, value = self._joined(child).partition("=")
            if equals:
                self.variables[name] = value
            if exports:
                self.exported.add(name)

    def _definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self._text(name)] = body

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
            takes_all = takes_all or any(self._text(value) == "*" for value in values)
            blocks.append([child for child in item.named_children if child not in values])
        self._either(blocks, is_one_taken=takes_all)

    def _for(self, node: Node) -> None:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        values = [word for child in node.children_by_field_name("value") for word in self._fields(child)]
        if name is None or body is None:
            return
        self.variables[self._text(name)] = values[0] if values else None
        self._either([[body]], is_one_taken=bool(values))
        self.variables[self._text(name)] = None

    def _loop(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.variables[self._text(child).partition("=")[0]] = None
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

    # words

    def _text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte]

    def _fields(self, node: Node) -> list[str]:
        """The words that one written word becomes: none for an empty variable, several for one with blanks."""
        done: list[str] = []
        current: str | None = None
        for piece in self._pieces(node):
            if piece.kind == "text":
                current = (current or "") + piece.text
                continue
            parts = piece.fields if piece.kind == "fields" else tuple(piece.text.split())
            if piece.kind == "split" and piece.text[:1].isspace() and current is not None:
                done.append(current)
                current = None
            for number, part in enumerate(parts):
                if number and current is not None:
                    done.append(current)
                    current = None
                current = (current or "") + part
            if piece.kind == "split" and piece.text[-1:].isspace() and current is not None:
                done.append(current)
                current = None
        return done if current is None else [*done, current]

    def _joined(self, node: Node) -> str:
        """One word, as in an assignment: nothing splits it."""
        return "".join(
            " ".join(piece.fields) if piece.kind == "fields" else piece.text for piece in self._pieces(node)
        )

    def _pieces(self, node: Node, *, quoted: bool = False) -> Iterator[_Piece]:
        kind = node.type
        if kind == "string":
            yield from self._string(node)
        elif kind == "raw_string":
            yield _Piece(self._text(node)[1:-1])
        elif kind == "ansi_c_string":
            yield _Piece(_unescaped(self._text(node)[2:-1]))
        elif kind in ("concatenation", "translated_string"):
            for child in node.children:
                if child.type != "$":
                    yield from self._pieces(child, quoted=quoted)
        elif kind == "simple_expansion":
            written = self._text(node).strip()
            yield self._valued(written[1:], written, quoted=quoted)
        elif kind == "expansion":
            yield self._expansion(node, quoted=quoted)
        elif kind == "arithmetic_expansion":
            yield _Piece(self._arithmetic(node))
        elif kind in ("command_substitution", "process_substitution"):
            yield _Piece(UNRESOLVED + self._text(node))
        elif self._text(node).strip() != "\\":  # else a blank behind the backslash at a line's end
            yield _Piece(_ESCAPE.sub(lambda found: found[1].strip("\n"), self._text(node)))

    def _string(self, node: Node) -> Iterator[_Piece]:
        """Blanks between two variables belong to no node of their own."""
        yield _Piece()
        at, end = node.start_byte + 1, max(node.start_byte + 1, node.end_byte - 1)
        for child in node.named_children:
            blanks = (
                len(text := self._text(child)) - len(text.lstrip()) if child.type != "string_content" else 0
            )
            yield _Piece(self._quoted_text(at, child.start_byte + blanks))
            if child.type == "string_content":
                yield _Piece(self._quoted_text(child.start_byte, child.end_byte))
            else:
                yield from self._pieces(child, quoted=True)
            at = child.end_byte
        yield _Piece(self._quoted_text(at, end))

    def _quoted_text(self, start: int, end: int) -> str:
        return _ESCAPE_IN_QUOTES.sub(lambda found: found[1].strip("\n"), self.source[start:end])

    def _valued(self, name: str, written: str, *, quoted: bool) -> _Piece:
        if name in ("@", "*") and self.positional is not None:
            return _Piece(kind="fields", fields=tuple(self.positional))
        value: Value = self.variables.get(name)
        if name.isdigit() and name != "0" and self.positional is not None:
            value = self.positional[int(name) - 1] if int(name) <= len(self.positional) else ""
        if isinstance(value, list):
            value = value[0] if value else ""
        if value is None:
            return _Piece(UNRESOLVED + written)
        return _Piece(value, "text" if quoted else "split")

    def _scalar(self, name: str, written: str) -> str:
        return self._valued(name, written, quoted=True).text

    def _expansion(self, node: Node, *, quoted: bool) -> _Piece:
        """``${...}``, with the operators that scripts of servers use."""
        written = self._text(node)
        unknown = _Piece(UNRESOLVED + written)
        inner = node.children[1:-1]
        if inner and inner[0].type == "subscript":
            return self._element(inner, quoted=quoted) or unknown
        if not inner or inner[0].type not in ("variable_name", "special_variable_name"):
            return unknown
        name, value = self._text(inner[0]), self._valued(self._text(inner[0]), written, quoted=quoted)
        if len(inner) == 1:
            return value
        other = "".join(self._joined(child) for child in inner[2:])
        return self._operated(name, value, inner[1].type, other, quoted=quoted) or unknown

    def _operated(
        self, name: str, value: _Piece, operator: str, other: str, *, quoted: bool
    ) -> _Piece | None:
        is_set = name in self.variables or (name.isdigit() and self.positional is not None)
        kind: Literal["text", "split"] = "text" if quoted else "split"
        if operator.strip(":") in ("-", "=", "?", "+"):
            return self._by_presence(name, value if is_set else None, operator, _Piece(other, kind))
        if not is_set or UNRESOLVED in value.text + other:
            return None
        changed = _changed(value.text, operator, other)
        return None if changed is None else _Piece(changed, kind)

    def _by_presence(self, name: str, value: _Piece | None, operator: str, other: _Piece) -> _Piece | None:
        """``${NAME:-other}`` and its like; ``value`` is ``None`` where the text sets none."""
        is_empty = value is None or (":" in operator and not value.text)
        if operator.endswith("+"):
            is_open = value is not None and UNRESOLVED in value.text
            return None if is_open else _Piece("", other.kind) if is_empty else other
        if operator.endswith("?"):
            return value
        if not is_empty:
            return value
        if operator.endswith("="):
            self.variables[name] = other.text
        return other

    def _element(self, inner: Sequence[Node], *, quoted: bool) -> _Piece | None:
        """``${ARRAY[@]}`` and ``${ARRAY[0]}``."""
        name, index = self._text(inner[0].children[0]), self._text(inner[0].children[2])
        value = self.variables.get(name)
        if isinstance(value, str):
            value = [value]
        if value is None or (len(inner) > 1 and inner[1].type not in (":-", "-", ":+", "+")):
            return None
        if index in ("@", "*"):
            if not quoted:
                return _Piece(" ".join(value), "split")
            return _Piece(kind="fields", fields=tuple(value))
        if not index.isdigit() or int(index) >= len(value):
            return None
        return _Piece(value[int(index)], "text" if quoted else "split")

    def _arithmetic(self, node: Node) -> str:
        """``$((A + 1))`` of numbers that are known."""
        written = self._text(node)
        text = re.sub(
            r"\$?([A-Za-z_]\w*)", lambda found: self._scalar(found[1], UNRESOLVED), written[3:-2]
        ).strip()
        if _SUM.fullmatch(text) and "**" not in text:
            try:
                return str(_sum(ast.parse(text, mode="eval").body))
            except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
                pass
        return UNRESOLVED + written


def _appended(before: Value, more: Value) -> Value:
    if before is None or more is None:
        return None
    if isinstance(more, list):
        return [*([before] if isinstance(before, str) and before else before or []), *more]
    return (
        [*before[:-1], before[-1] + more] if isinstance(before, list) and before else f"{before or ''}{more}"
    )


def _changed(value: str, operator: str, other: str) -> str | None:
    """A value after ``%``, ``##``, ``^^`` and their like; ``None`` for what is not understood."""
    if operator in ("#", "##", "%", "%%"):
        sizes = list(range(len(value) + 1))
        for size in sizes if len(operator) == 1 else reversed(sizes):
            part, rest = (
                (value[:size], value[size:])
                if "#" in operator
                else (
                    value[len(value) - size :],
                    value[: len(value) - size],
                )
            )
            if fnmatch.fnmatchcase(part, other):
                return rest
        return value
    cases: dict[str, Callable[[str], str]] = {
        "^^": str.upper,
        ",,": str.lower,
        "^": lambda text: text[:1].upper() + text[1:],
        ",": lambda text: text[:1].lower() + text[1:],
    }
    return cases[operator](value) if operator in cases and not other else None


def _sum(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_sum(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _sum(node.left), _sum(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        quotient = int(left / right)
        if isinstance(node.op, ast.Div):
            return quotient
        if isinstance(node.op, ast.Mod):
            return left - quotient * right
    raise ValueError


def _unescaped(text: str) -> str:
    """The escapes of ``$'...'`` that stand in commands."""
    plain = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
    return _ESCAPE.sub(lambda found: plain.get(found[1], found[0]), text)
