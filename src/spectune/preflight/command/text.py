"""Pasted text -> commands: prompts, fences and placeholders of pages are seen to, and the rest is the shell's."""

from __future__ import annotations

import re

from spectune.errors import BadInput
from spectune.preflight.command.shell import SimpleCommand, shell_commands
from spectune.preflight.command.shell_words import UNRESOLVED

MAX_CHARS = 200_000
"""More than any command; the limit keeps a wrongly piped file from being read for minutes."""

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=)(.*)", re.DOTALL)
_FENCED = re.compile(
    r"^ {0,3}```+[ \t]*(?:bash|sh|shell|zsh|console|shell-session|text|cmd|powershell)?[ \t]*\n"
    r"(.*?)^ {0,3}```+[ \t]*$",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_PROMPT = re.compile(
    r"^[ \t]*(?:\([\w.-]+\)[ \t]+)?(?:(?:[\w.-]+@[\w.-]+[: ][^\s$#]*[ \t]?)[$#]|[$%❯])[ \t]+(?=\S)"
    r"|^[ \t]*!(?=[A-Za-z./])|^%%(?:bash|sh)[ \t]*$",
    re.MULTILINE,
)
_PROMPT_OF_A_CONTINUATION = re.compile(r"(?<=\\)\n[ \t]*>[ \t]+(?=\S)")
_WINDOWS_CONTINUATION = re.compile(r"(?<=[ \t])[`^][ \t]*\n")
_CALL_OF_POWERSHELL = re.compile(r"^[ \t]*&[ \t]+(?=\S)", re.MULTILINE)
_WINDOWS_PATH = re.compile(r"""(?<![^\s"'=])(?:[A-Za-z]:|\.{1,2})(?:\\[\w.-]+)+""")
_PLACEHOLDER = re.compile(r"""(?<![^\s="'/:,])<([A-Za-z][\w .:/-]{0,60}?(?<! ))>(?![^\s"'/:,])""")
_OPEN, _SHUT = "\ue001", "\ue002"
_LEFT_OUT = re.compile(r"\.{3}|…|\[(?:\.{3}|…|options|args|flags|arguments)\]", re.IGNORECASE)
_IN_BRACES = re.compile(r"(?<![^\s=])\{[A-Za-z_][\w-]*\}(?!\S)")


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
    text = text.replace("\r\n", "\n").replace("\ufeff", "").replace("\u00a0", " ")
    fenced = _FENCED.findall(text)
    text = "\n".join(fenced) if fenced else text
    text = _PROMPT_OF_A_CONTINUATION.sub("\n", _PROMPT.sub("", text))
    text = _WINDOWS_CONTINUATION.sub("\\\\\n", text)
    text = _CALL_OF_POWERSHELL.sub("", text)
    text = _WINDOWS_PATH.sub(lambda found: found[0].replace("\\", "/"), text)
    text = _PLACEHOLDER.sub(rf"{UNRESOLVED}{_OPEN}\1{_SHUT}", text)
    return tuple(_as_written(command) for command in shell_commands(text))


def _as_written(command: SimpleCommand) -> SimpleCommand:
    """With its placeholders in their brackets; what only says "and so on" is no word."""
    words = []
    for word in command.words:
        word = word.replace(_OPEN, "<").replace(_SHUT, ">")
        if _IN_BRACES.fullmatch(word):
            word = UNRESOLVED + word
        if not _LEFT_OUT.fullmatch(word):
            words.append(word)
    return SimpleCommand(tuple(words), command.env)
