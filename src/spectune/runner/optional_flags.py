"""Flags that spectune adds to measure better, left out where an engine's version does not know them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

from spectune.domain.arm import Arm
from spectune.domain.study import Study
from spectune.engines.flags import normalise
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput, EnvironmentFailed, ServerDied
from spectune.hosts.choose import LOCAL
from spectune.preflight.command.launch import find_launch
from spectune.preflight.versions import ask_installed, is_older

_UNKNOWN = re.compile(
    r"(?:unrecognized|unknown|invalid) argument|no such option|unexpected argument", re.IGNORECASE
)
_FLAG = re.compile(r"--([A-Za-z0-9][\w-]*)")


def without_flags(study: Study, lacking: Iterable[str]) -> Study:
    """``study`` whose servers are started without these flags; its record keeps what the user wrote."""
    left_out = dict.fromkeys(sorted(lacking), False)
    if not left_out:
        return study
    engine = study.engine.model_copy(update={"flags": {**left_out, **study.engine.flags}})
    return study.model_copy(update={"engine": engine})


async def lacking_by_version(study: Study) -> set[str]:
    """Flags that came later than the version installed here, or than the tag of the container's image."""
    since = {
        flag: version for flag, version in adapter_for(study.engine.name).optional_flags.items() if version
    }
    if not since:
        return set()
    engine = study.engine
    version = None
    if study.host == LOCAL and not engine.command:
        version = await asyncio.to_thread(
            ask_installed, engine.name, python=engine.python, executable=engine.executable
        )
    if version is None and engine.command:
        try:
            launch = find_launch(engine.command, {})
        except BadInput:
            launch = None
        version = None if launch is None else launch.version_hint
    return {flag for flag, first in since.items() if is_older(version, first)}


def unknown_flag(error: EnvironmentFailed | None, arm: Arm, study: Study) -> str | None:
    """The flag of ours that a server died of; ``None`` for any other death, and for a flag that the user gave."""
    if not isinstance(error, ServerDied):
        return None
    said = [line for line in (error.cause or "", *error.log_tail) if _UNKNOWN.search(line)]
    named = {normalise(name) for line in said for name in _FLAG.findall(line)}
    given = {normalise(name) for name in (*study.engine.flags, *arm.flags)}
    ours = adapter_for(arm.engine).optional_flags
    return next((flag for flag in ours if flag in named and flag not in given), None)
