"""Pasted shell text -> simple commands. A reader only: nothing is run, no shell, no file is opened.

Understood: line continuations (also with blanks behind the backslash), both kinds
of quotes, comments, ``$ `` prompts, assignments and ``export``, ``$NAME`` of
variables set in the same text, redirections, and ``;``, ``&``, ``&&``, ``||``,
``|`` between commands. What only a shell could know (``$HOME``, ``$(...)``) stays
in the text and is marked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from spectune.errors import BadInput

MAX_CHARS = 200_000
"""More than any command; the limit keeps a wrongly piped file from being read for minutes."""

UNRESOLVED = "\ue000"
"""Stands in front of whatever only a shell could fill in; a private-use character, never in a real command."""

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=)(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACED = re.compile(r"([A-Za-z_]\w*)(?::?([-=+?])(.*))?", re.DOTALL)
_OPERATORS = ("&&", "||", "|&", ";;", "|", ";", "&", "(", ")", "\n")
_REDIRECTION = re.compile(r"(\d*|&)(>>|>\||>&|>|<<<|<)")
_CONTINUED = re.compile(r"[\\`^][ \t]*\r?\n")


@dataclass(frozen=True)
class SimpleCommand:
    """One command of the text: its words, and the variables set for it."""

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def is_assignment(word: str) -> tuple[str, str] | None:
    """``NAME=value`` split, or ``None``."""
    found = _ASSIGNMENT.fullmatch(word)
    return (found.group(1), found.group(3)) if found else None


def known(text: str | None) -> bool:
    """Nothing in ``text`` was left for a shell to fill in."""
    return text is not None and UNRESOLVED not in text


def shown(text: str) -> str:
    """``text`` as the user wrote it."""
    return text.replace(UNRESOLVED, "")


def read_text(text: str) -> tuple[SimpleCommand, ...]:
    """The commands of a pasted text, in order. Raises ``BadInput`` for a quote that is never closed."""
    if len(text) > MAX_CHARS:
        raise BadInput(f"command: {len(text)} characters; more than {MAX_CHARS} is no server command")
    return _Reader(text.replace("\r\n", "\n").replace("\ufeff", "").replace("\u00a0", " ")).commands()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.variables: dict[str, str] = {}
        self.exported: dict[str, str] = {}
        self.done: list[SimpleCommand] = []
        self.words: list[str] = []

    def commands(self) -> tuple[SimpleCommand, ...]:
        while self.position < len(self.text):
            self._step()
        self._finish()
        return tuple(self.done)

    def _step(self) -> None:
        continued = _CONTINUED.match(self.text, self.position)
        if continued and (continued.group(0)[0] == "\\" or self._before_is_blank()):
            self.position = continued.end()
            return
        character = self.text[self.position]
        if character in " \t":
            self.position += 1
        elif character == "#":
            end = self.text.find("\n", self.position)
            self.position = len(self.text) if end < 0 else end
        elif redirection := _REDIRECTION.match(self.text, self.position):
            self.position = redirection.end()
            self._skip_blanks()
            self._word()  # its target; 2>&1 has the word "1"
        elif operator := next((op for op in _OPERATORS if self.text.startswith(op, self.position)), None):
            self.position += len(operator)
            self._finish()
        else:
            self.words.append(self._word())

    def _before_is_blank(self) -> bool:
        return self.position > 0 and self.text[self.position - 1] in " \t"

    def _skip_blanks(self) -> None:
        while self.position < len(self.text) and self.text[self.position] in " \t&":
            self.position += 1

    def _word(self) -> str:
        """One word: quotes removed, known variables put in."""
        parts: list[str] = []
        while self.position < len(self.text):
            character = self.text[self.position]
            if character in " \t\n" or (character in "|;&()<>" and not (parts and character in "<>")):
                break
            if character in "<>":
                break
            parts.append(self._piece(character))
        return "".join(parts)

    def _piece(self, character: str) -> str:
        if _CONTINUED.match(self.text, self.position) and character == "\\":
            self.position = _CONTINUED.match(self.text, self.position).end()  # type: ignore[union-attr]
            return ""
        if character == "\\":
            self.position += 2
            return self.text[self.position - 1 : self.position]
        if character == "'":
            return self._until("'")
        if character == '"':
            return self._double_quoted()
        if character == "$":
            return self._dollar()
        if character == "`":
            return UNRESOLVED + "`" + self._until("`") + "`"
        self.position += 1
        return character

    def _until(self, quote: str) -> str:
        end = self.text.find(quote, self.position + 1)
        if end < 0:
            line = self.text.count("\n", 0, self.position) + 1
            raise BadInput(
                f"command: line {line}: the quote {quote} is never closed: "
                f"{self.text[self.position : self.position + 60].strip()}; close it, or leave it out"
            )
        inside = self.text[self.position + 1 : end]
        self.position = end + 1
        return inside

    def _double_quoted(self) -> str:
        start = self.position
        self.position += 1
        parts: list[str] = []
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == '"':
                self.position += 1
                return "".join(parts)
            if character == "\\" and self.text[self.position + 1 : self.position + 2] in (
                '"',
                "\\",
                "$",
                "`",
            ):
                parts.append(self.text[self.position + 1])
                self.position += 2
            elif character == "\\" and self.text[self.position + 1 : self.position + 2] == "\n":
                self.position += 2
            elif character == "$":
                parts.append(self._dollar())
            elif character == "`":
                parts.append(UNRESOLVED + "`" + self._until("`") + "`")
            else:
                parts.append(character)
                self.position += 1
        self.position = start
        return self._until('"')  # raises, naming the line

    def _dollar(self) -> str:
        following = self.text[self.position + 1 : self.position + 2]
        if following == "'":
            self.position += 1
            return self._until("'").replace("\\n", "\n").replace("\\'", "'")
        if following == "(":
            return UNRESOLVED + self._parenthesised()
        if following == "{":
            end = self.text.find("}", self.position)
            if end >= 0:
                inside = self.text[self.position + 2 : end]
                self.position = end + 1
                return self._braced(inside)
        name = _NAME.match(self.text, self.position + 1)
        if name is None:
            self.position += 1
            return "$"
        self.position = name.end()
        return self._value(name.group(0), "$" + name.group(0))

    def _braced(self, inside: str) -> str:
        found = _BRACED.fullmatch(inside)
        if found is None:
            return UNRESOLVED + "${" + inside + "}"
        name, how, other = found.groups()
        if name not in self.variables and how in ("-", "="):
            return other or ""
        return self._value(name, "${" + inside + "}")

    def _value(self, name: str, written: str) -> str:
        return self.variables.get(name, UNRESOLVED + written)

    def _parenthesised(self) -> str:
        start = self.position
        depth = 0
        for position in range(self.position, len(self.text)):
            depth += {"(": 1, ")": -1}.get(self.text[position], 0)
            if depth == 0 and self.text[position] == ")":
                self.position = position + 1
                return self.text[start : self.position]
        self.position = len(self.text)
        return self.text[start:]

    def _finish(self) -> None:
        words = self.words
        self.words = []
        while words and words[0] in ("$", "%", ">", "!"):  # a prompt pasted with the command
            words = words[1:]
        if words and words[0] in ("export", "set", "declare", "setenv"):
            self._keep([word for word in words[1:] if not word.startswith("-")], words[0])
            return
        if words and all(is_assignment(word) for word in words):
            self._keep(words, "")
            return
        if words:
            self.done.append(SimpleCommand(tuple(words), dict(self.exported)))

    def _keep(self, words: list[str], how: str) -> None:
        if how == "setenv" and len(words) == 2:
            words = ["=".join(words)]
        for word in words:
            pair = is_assignment(word)
            if pair:
                self.variables[pair[0]] = pair[1]
            name = pair[0] if pair else word
            if how and name in self.variables:
                self.exported[name] = self.variables[name]
