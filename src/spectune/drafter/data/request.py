"""A request for a data set, and where its run is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spectune.drafter.data.journal import Tally
from spectune.drafter.data.plan_records import PlanRequest


@dataclass(frozen=True)
class DataRequest:
    """Everything that decides about a data set, except where the server is."""

    out: Path
    prompts: PlanRequest
    concurrency: int = 64
    request_timeout_s: float = 600.0
    redo_damaged: bool = False
    retry_failed: bool = False


@dataclass(frozen=True)
class Served:
    """Where the target answers."""

    base_url: str
    engine: str = "auto"
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    command: tuple[str, ...] = ()
    """Redacted; empty if somebody else started it."""
    died: Callable[[], Coroutine[Any, Any, Exception]] | None = None
    """Returns, as an error to raise, when the server can no longer be used; ``None``: nobody watches it."""


OpenServer = Callable[[], AbstractAsyncContextManager[Served]]
"""Gives a server that answers, and gives it up when the block is left."""


@dataclass(frozen=True)
class Progress:
    """Where a run is; rates are of this run alone."""

    done: int
    total: int
    tally: Tally
    elapsed_s: float
    new_samples: int
    new_tokens: int

    @property
    def tok_per_s(self) -> float | None:
        return self.new_tokens / self.elapsed_s if self.elapsed_s > 0 and self.new_tokens else None

    @property
    def left_s(self) -> float | None:
        if not self.new_samples:
            return None
        return (self.total - self.done) * self.elapsed_s / self.new_samples
