"""The words that bash makes of one written word: quotes, variables, splitting at blanks."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tree_sitter import Node

UNRESOLVED = "\ue000"
"""Stands in front of whatever only a shell could fill in; a private-use character, never in a real command."""

Value = str | list[str] | None
"""Of a variable: a text, an array, or ``None`` where the text does not decide it."""

_ESCAPE = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPE_IN_QUOTES = re.compile(r'\\(["\\$`\n])')
_SUM = re.compile(r"[\d+\-*/%() ]{1,80}")


@dataclass(frozen=True)
class _Piece:
    """Part of a word. ``split``: unquoted, so that blanks in it end a word; ``fields``: words of their own."""

    text: str = ""
    kind: Literal["text", "split", "fields"] = "text"
    fields: tuple[str, ...] = ()


class WordReader:
    """Reads words of a syntax tree, with the variables that the text has set so far."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.variables: dict[str, Value] = {}
        self.positional: list[str] | None = None

    def text_of(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte]

    def fields_of(self, node: Node) -> list[str]:
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

    def joined(self, node: Node) -> str:
        """One word, as in an assignment: nothing splits it."""
        return "".join(
            " ".join(piece.fields) if piece.kind == "fields" else piece.text for piece in self._pieces(node)
        )

    def _pieces(self, node: Node, *, quoted: bool = False) -> Iterator[_Piece]:
        kind = node.type
        if kind == "string":
            yield from self._string(node)
        elif kind == "raw_string":
            yield _Piece(self.text_of(node)[1:-1])
        elif kind == "ansi_c_string":
            yield _Piece(_unescaped(self.text_of(node)[2:-1]))
        elif kind in ("concatenation", "translated_string"):
            for child in node.children:
                if child.type != "$":
                    yield from self._pieces(child, quoted=quoted)
        elif kind == "simple_expansion":
            written = self.text_of(node).strip()
            yield self._valued(written[1:], written, quoted=quoted)
        elif kind == "expansion":
            yield self._expansion(node, quoted=quoted)
        elif kind == "arithmetic_expansion":
            yield _Piece(self._arithmetic(node))
        elif kind in ("command_substitution", "process_substitution"):
            yield _Piece(UNRESOLVED + self.text_of(node))
        elif self.text_of(node).strip() != "\\":  # else a blank behind the backslash at a line's end
            yield _Piece(_ESCAPE.sub(lambda found: found[1].strip("\n"), self.text_of(node)))

    def _string(self, node: Node) -> Iterator[_Piece]:
        """Blanks between two variables belong to no node of their own."""
        yield _Piece()
        at, end = node.start_byte + 1, max(node.start_byte + 1, node.end_byte - 1)
        for child in node.named_children:
            blanks = (
                len(text := self.text_of(child)) - len(text.lstrip()) if child.type != "string_content" else 0
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

    def scalar(self, name: str, written: str) -> str:
        return self._valued(name, written, quoted=True).text

    def _expansion(self, node: Node, *, quoted: bool) -> _Piece:
        """``${...}``, with the operators that scripts of servers use."""
        written = self.text_of(node)
        unknown = _Piece(UNRESOLVED + written)
        inner = node.children[1:-1]
        if inner and inner[0].type == "subscript":
            return self._element(inner, quoted=quoted) or unknown
        if not inner or inner[0].type not in ("variable_name", "special_variable_name"):
            return unknown
        name, value = self.text_of(inner[0]), self._valued(self.text_of(inner[0]), written, quoted=quoted)
        if len(inner) == 1:
            return value
        other = "".join(self.joined(child) for child in inner[2:])
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
        name, index = self.text_of(inner[0].children[0]), self.text_of(inner[0].children[2])
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
        written = self.text_of(node)
        text = re.sub(
            r"\$?([A-Za-z_]\w*)", lambda found: self.scalar(found[1], UNRESOLVED), written[3:-2]
        ).strip()
        if _SUM.fullmatch(text) and "**" not in text:
            try:
                return str(_sum(ast.parse(text, mode="eval").body))
            except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
                pass
        return UNRESOLVED + written


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
