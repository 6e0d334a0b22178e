"""The engines that ``make engines`` installed, for tests that need them: a missing one fails, and is not skipped."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from spectune.home import data_home

_INSTALL = Path(__file__).parent.parent / "tools" / "engines" / "install.py"


@cache
def _status() -> dict[str, Any]:
    reply = subprocess.run(
        [sys.executable, str(_INSTALL), "status"], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(reply.stdout)
    return found


def engine_of(name: str) -> dict[str, Any]:
    engine: dict[str, Any] = _status()[name]
    assert engine["ready"], f"{name} is not installed: run `make engines`"
    return engine


def model_of(name: str) -> str:
    path = data_home() / "models" / name
    assert (path / "config.json").exists(), f"{path} has not been made: run `make engines`"
    return str(path)
