"""Keeps credentials out of reports, which are made to be passed on.

Commands and variables of a trial are redacted where they are recorded; an
arm's own flags and variables are recorded as the user wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from spectune.domain.arm import Arm

REDACTED = "***"
_SECRET_NAME = re.compile(
    r"(^|[-_])(api-?key|key|token|secret|password|passwd|credentials?|authorization)($|[-_]id$)",
    re.IGNORECASE,
)

Value = TypeVar("Value")


def is_secret(name: str) -> bool:
    """Whether a variable or flag of this name holds a credential, judged by its last word."""
    return bool(_SECRET_NAME.search(name))


def arm_without_secrets(arm: Arm) -> Arm:
    """The arm as it may be shown; its id stays that of what ran."""
    return arm.model_copy(update={"env": _redact(arm.env), "flags": _redact(arm.flags)})


def _redact(values: Mapping[str, Value]) -> dict[str, Value | str]:
    return {
        name: REDACTED if is_secret(name) and not isinstance(value, bool | None) else value
        for name, value in values.items()
    }
