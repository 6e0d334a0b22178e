"""``read_checkpoint``: facts of a model by the name a user gives it."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

from spectune.checkpoints.facts import CheckpointFacts
from spectune.checkpoints.folder import CONFIG, read_folder
from spectune.checkpoints.gguf_facts import read_gguf_facts
from spectune.checkpoints.hub import HUB_ID, read_hub
from spectune.checkpoints.reading import LocalFiles
from spectune.errors import BadInput


def read_checkpoint(
    source: str, *, base_dir: Path | None = None, revision: str | None = None, network: bool = True
) -> CheckpointFacts:
    """Facts of a folder, a GGUF file or a hub id; as engines do, an existing path wins over a hub id.

    A name that leads nowhere gives facts of kind ``absent``. Raises
    ``BadInput`` for a path that exists and is no model, or is broken beyond
    its first file.
    """
    try:
        path = Path(base_dir or "", Path(source).expanduser())
        status = path.stat() if source else None
    except (FileNotFoundError, NotADirectoryError, ValueError, RuntimeError):
        status = None  # ValueError: a null byte; RuntimeError: a home that does not exist
    except OSError as error:
        raise BadInput(f"{source}: {error.strerror or error}") from error
    if status is None:
        return _not_here(source, revision=revision, network=network)
    if stat.S_ISDIR(status.st_mode):
        return _read_directory(path, source)
    if stat.S_ISREG(status.st_mode):
        return _read_file(path, source)
    raise BadInput(f"{source}: neither a file nor a folder")


def _not_here(source: str, *, revision: str | None, network: bool) -> CheckpointFacts:
    if HUB_ID.fullmatch(source) and ".." not in source:
        return read_hub(source, revision=revision, network=network)
    return CheckpointFacts(
        source=source, kind="absent", not_read=(f"{source}: no such file or folder on this machine",)
    )


def _read_directory(path: Path, source: str) -> CheckpointFacts:
    try:
        files = LocalFiles(path)
    except OSError as error:
        raise BadInput(f"{source}: {error.strerror or error}") from error
    names = files.names()
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    if CONFIG not in names and ggufs and not any(name.endswith(".safetensors") for name in names):
        raise BadInput(f"{source}: a folder of GGUF files; name one of them: {', '.join(ggufs[:5])}")
    facts = read_folder(files, source=source, kind="folder")
    if files.problems:
        facts = replace(facts, not_read=(*facts.not_read, *files.problems))
    return facts


def _read_file(path: Path, source: str) -> CheckpointFacts:
    if path.suffix == ".safetensors":
        raise BadInput(f"{source}: one file of a model; name the folder it is in")
    if path.suffix != ".gguf" and not _is_gguf(path):
        raise BadInput(f"{source}: not a GGUF file; a model is a folder with {CONFIG}, or a .gguf file")
    return read_gguf_facts(path, source=source)


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
