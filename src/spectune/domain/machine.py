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

    @property
    def kind(self) -> tuple[str | None, int | None, int | None, tuple[str, ...] | None]:
        """Processor, cores, memory in whole GiB and GPUs: equal for machines whose speeds may be set side by side."""
        memory_gib = None if self.memory_bytes is None else round(self.memory_bytes / 2**30)
        return (self.cpu, self.cores, memory_gib, self.gpus)

    @property
    def kind_words(self) -> str:
        """The kind for people."""
        cpu, cores, memory_gib, gpus = self.kind
        parts = [cpu or "processor unknown", f"{cores if cores is not None else '?'} cores"]
        parts.append("memory unknown" if memory_gib is None else f"{memory_gib} GiB")
        parts.append("GPUs unknown" if gpus is None else ", ".join(gpus) or "no GPU")
        return ", ".join(parts)
