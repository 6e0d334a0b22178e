"""What may be replaced or removed in a folder that a user names: what spectune wrote there, and nothing else."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from spectune.errors import BadInput

_LOCK_TEXT = re.compile(r"(?:\d+(?: \S+)?)?\s*")


def check_replaceable(said: str, folder: Path, *, names: Iterable[str], marks: Collection[str]) -> None:
    """Raises ``BadInput`` if a folder that has none of ``marks``, which we leave in ours, holds one of ``names``."""
    if any((folder / mark).exists() for mark in marks):
        return
    for name in names:
        if (folder / name).exists():
            raise BadInput(
                f"{said}: holds {name}, which spectune did not write, so it is not replaced; give another folder"
            )


def check_lock_text(file: Path, text: str) -> None:
    """Raises ``BadInput`` for a file in the place of a lock that is no lock of ours: pid, and perhaps host name."""
    if not _LOCK_TEXT.fullmatch(text):
        raise BadInput(f"{file}: is no lock of spectune's, so it is not replaced; give another folder")


def check_made_anew(made: Path, place: Path) -> None:
    """Raises ``BadInput`` if a folder holds what the one that is to replace it does not hold."""
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise BadInput(f"{place}: is no folder, so it is not replaced; give another")
    foreign = sorted(str(path) for path in _inside(place) - _inside(made)) if place.is_dir() else []
    if foreign:
        raise BadInput(
            f"{place}: holds {foreign[0]}, which the new one does not have, so it is not replaced; move that away or "
            "give another folder"
        )


def replace_folder(made: Path, place: Path) -> None:
    """Renames ``made`` to ``place``. A folder that is there goes once the new one stands; see ``check_made_anew``."""
    check_made_anew(made, place)
    if not place.is_dir():
        made.rename(place)
        return
    old = place.with_name(f".{place.name}.{secrets.token_hex(4)}.old")
    place.rename(old)
    try:
        made.rename(place)
    except OSError:
        old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Removes these files, in this order, and then the folder, which stays if it holds anything else."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _inside(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*")}
