"""The YAML file behind ``--config``: its entries as the words the engine turns them into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spectune.domain.yaml_values import NotYaml, yaml_values
from spectune.errors import BadInput
from spectune.preflight.flags.table import FlagTable

MAX_BYTES = 1_000_000


def config_words(path: str, table: FlagTable) -> list[str] | None:
    """Flags of the file, or ``None`` if it is not on this machine. Raises ``BadInput`` if it cannot be read."""
    file = Path(path)
    try:
        if not file.is_file():
            return None
        if file.stat().st_size > MAX_BYTES:
            raise BadInput(f"--config {path}: larger than {MAX_BYTES} bytes; that is no file of flags")
        content: Any = yaml_values(file.read_text(encoding="utf-8"))
    except (NotYaml, UnicodeDecodeError) as reason:
        raise BadInput(f"--config {path}: not YAML: {str(reason)[:300]}") from reason
    except OSError as reason:
        raise BadInput(f"--config {path}: {reason.strerror or reason}") from reason
    if not isinstance(content, dict):
        raise BadInput(f"--config {path}: must hold flags and their values, e.g. 'port: 8000'")
    try:
        return [word for key, value in content.items() for word in _words(f"--{key}", value, table)]
    except ValueError as reason:
        raise BadInput(f"--config {path}: holds a number of more than 4300 digits") from reason


def _words(flag: str, value: Any, table: FlagTable) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        if value:
            return [flag]
        off = flag.replace("--", "--no-", 1)
        return [off] if off in table.by_spelling else []
    if isinstance(value, list):
        return [flag, *map(str, value)] if value else []
    if isinstance(value, dict):
        return [flag, json.dumps(value, ensure_ascii=False, default=str)]
    return [flag, str(value)]
