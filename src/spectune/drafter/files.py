"""Tensors on disk: whole or not at all, never pickled, and a full disk said plainly."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from spectune.errors import EnvironmentFailed


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes beside the final name, flushes to disk, then renames. Raises ``EnvironmentFailed``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # as the user's umask has it; safetensors would leave 0600
        save_file({name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}, temporary)
        temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise disk_failure(path, error) from error


def disk_failure(path: Path, error: Exception) -> EnvironmentFailed:
    """A full disk and its like, with what to do."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full or "No space left" in str(error) else str(error)
    return EnvironmentFailed(
        f"{path}: could not be written: {what}; everything before it is whole: "
        "free space and run the same command again"
    )
