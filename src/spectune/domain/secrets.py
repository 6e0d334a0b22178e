"""Credentials: recognised by the name of the variable or flag that holds them, and kept out of records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

REDACTED = "***"
_SECRET_NAME = re.compile(
    r"(^|[-_])(api-?key|key|token|secret|password|passwd|credentials?|authorization)$", re.IGNORECASE
)


def is_secret(name: str) -> bool:
    """Whether a variable or flag of this name holds a credential, judged by its last word."""
    return bool(_SECRET_NAME.search(name))


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables as they may be recorded."""
    return {name: REDACTED if is_secret(name) else value for name, value in env.items()}


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line as it may be recorded: the values of flags such as ``--api-key`` are replaced."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, _ = word.partition("=")
        secret = name.startswith("-") and is_secret(name.lstrip("-"))
        if hide_next and not word.startswith("--"):
            shown.append(REDACTED)
        else:
            shown.append(f"{name}={REDACTED}" if secret and equals else word)
        hide_next = secret and not equals
    return tuple(shown)
