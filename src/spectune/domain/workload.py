"""What is asked of a server: prompts, sampling, and the shape of the load."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from spectune.domain.record import Record


class Prompt(Record):
    """One conversation to run. ``turns`` are the user's messages in order (MT-Bench has two)."""

    prompt_id: str
    turns: tuple[str, ...] = Field(min_length=1)
    category: str | None = None
    system: str | None = None
    output_tokens: int | None = None
    """Overrides the workload's ``max_tokens`` for this prompt."""


class Sampling(Record):
    """Sampling parameters of every request; greedy by default, so that outputs can be compared."""

    max_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    seed: int | None = None
    """Sent only where it is asked for: a seeded request takes vLLM's whole batch off its fast sampler."""
    ignore_eos: bool = False
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Merged last into every request body."""


class LoadPoint(Record):
    """One shape of load.

    ``single``: one request at a time. ``closed``: ``concurrency`` requests in
    flight, the next starts when one ends. ``open``: requests arrive at
    ``request_rate`` per second (Poisson), whether or not earlier ones ended.
    """

    shape: Literal["single", "closed", "open"] = "single"
    concurrency: int | None = None
    request_rate: float | None = None

    @property
    def label(self) -> str:
        if self.shape == "open":
            return f"{self.request_rate:g} req/s"
        return f"c={self.concurrency or 1}"

    @classmethod
    def closed(cls, concurrency: int) -> LoadPoint:
        if concurrency == 1:
            return cls(shape="single", concurrency=1)
        return cls(shape="closed", concurrency=concurrency)

    @classmethod
    def open(cls, request_rate: float) -> LoadPoint:
        return cls(shape="open", request_rate=request_rate)


class Workload(Record):
    """Prompts, sampling and load points; two arms are comparable only under the same ``workload_hash``."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    loads: tuple[LoadPoint, ...]
    api: Literal["chat", "completions"] = "chat"
    requests_per_load: int | None = None
    """Requests at each load point; ``None``: each prompt once. Prompts repeat in order when it is larger."""
    request_timeout_s: float = 600.0

    def with_fields(self, fields: Mapping[str, Any]) -> Workload:
        """The same work with more fields in every request body."""
        if not fields:
            return self
        extra = {**self.sampling.extra_body, **fields}
        return self.model_copy(update={"sampling": self.sampling.model_copy(update={"extra_body": extra})})

    @property
    def workload_hash(self) -> str:
        payload = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(payload.encode()).hexdigest()[:16]
