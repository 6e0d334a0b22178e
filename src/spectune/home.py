"""Where spectune keeps what outlives a study."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_home() -> Path:
    """The folder of models, servers and copies: ``SPECTUNE_HOME``, else the platform's user data folder."""
    if own := os.environ.get("SPECTUNE_HOME"):
        return Path(own).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "spectune"
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "share") / "spectune"
