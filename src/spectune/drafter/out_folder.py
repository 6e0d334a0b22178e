"""Where a command writes: a folder, and not that of another command."""

from __future__ import annotations

from pathlib import Path

from spectune.errors import BadInput

_OWNERS = {"run.json": "a training run", "plan.json": "a data set"}


def check_out(flag: str, path: Path, *, own: str | None = None) -> None:
    """Raises ``BadInput`` for a file, a path through one, and a folder of ``drafter train`` or ``drafter data``.

    ``own``: the file that marks the command's own folders, which it goes on with.
    """
    there = next((place for place in (path, *path.parents) if place.exists()), path)
    if there.exists() and not there.is_dir():
        raise BadInput(f"{flag} {path}: {there} is a file; give a folder")
    for name, what in _OWNERS.items():
        if name != own and (path / name).is_file():
            raise BadInput(f"{flag} {path}: holds {what}; give another folder")
