"""The packages of the extra ``drafter``, imported where they are needed."""

from __future__ import annotations

import importlib
from types import ModuleType

from spectune.errors import BadInput


def needed(module: str) -> ModuleType:
    """The module; raises ``BadInput`` with the way to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(
            f"this needs {module.partition('.')[0]} ({error}); install it: pip install 'spectune[drafter]'"
        ) from error
