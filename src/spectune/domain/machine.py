"""The machine a measurement came from."""

from __future__ import annotations

from spectune.domain.record import Record


class Machine(Record):
    """Facts read once per study and once per resume; a difference is a finding."""

    hostname: str
    os: str
    cpu: str | None
    cores: int | None
    memory_bytes: int | None
    gpus: tuple[str, ...] | None
    """Names of the GPUs; empty: none; ``None``: could not be asked."""
    python: str
