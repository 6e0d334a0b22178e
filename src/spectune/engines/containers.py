"""Servers that a container program starts: the client's variables do not reach them by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

PROGRAMS = frozenset({"docker", "podman", "nerdctl"})
_VERBS = ("run", "exec")


def is_container(argv: Sequence[str]) -> bool:
    return bool(argv) and PurePath(argv[0]).name in PROGRAMS


def with_variables(prefix: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """``prefix`` with ``--env NAME`` for each variable: the client passes on its own value, so none is in the command.

    Another program's prefix, and a variable that it names itself, stay as they are.
    """
    words = list(prefix)
    verb = next((i for i, word in enumerate(words) if word in _VERBS), None)
    if not is_container(words) or verb is None:
        return words
    named = _named(words[verb + 1 :])
    passed = [word for name in env if name not in named for word in ("--env", name)]
    return [*words[: verb + 1], *passed, *words[verb + 1 :]]


def _named(words: Sequence[str]) -> set[str]:
    """Variables that ``-e NAME``, ``-eNAME=VALUE`` or ``--env=NAME`` give already."""
    found = set()
    for i, word in enumerate(words):
        if word in ("-e", "--env"):
            value = words[i + 1] if i + 1 < len(words) else ""
        else:
            value = word.removeprefix("--env=") if word.startswith("--env=") else ""
            value = value or (word[2:] if word.startswith("-e") and not word.startswith("--") else "")
        found.add(value.partition("=")[0])
    return found
