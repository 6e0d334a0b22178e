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
    def streams(self) -> int:
        """Requests in flight, of a closed loop; 1 where nothing says how many."""
        return 1 if self.concurrency is None else self.concurrency

    @property
    def label(self) -> str:
        if self.shape == "open":
            return f"{self.request_rate:g} req/s"
        return f"c={self.streams}"

    @classmethod
    def closed(cls, concurrency: int) -> LoadPoint:
        if concurrency == 1:
            return cls(shape="single", concurrency=1)
        return cls(shape="closed", concurrency=concurrency)

    @classmethod
    def open(cls, request_rate: float) -> LoadPoint:
        return cls(shape="open", request_rate=request_rate)


WAVES = 5
"""Of ``Workload.waves`` where nothing else is asked for: with fewer, filling and emptying the server is most of it."""


def too_few_requests(asked: int, concurrency: int) -> str:
    return (
        f"{asked} requests cannot keep {concurrency} in flight; give at least {concurrency}, better "
        f"{WAVES * concurrency}, or leave it out"
    )


def warmup_requests_at(load: LoadPoint, asked: int | None) -> int:
    """What was asked for; else twice the load's own concurrency, so that its batch sizes come up more than once."""
    return asked if asked is not None else max(3, 2 * load.streams)


class Workload(Record):
    """Prompts, sampling and load points; two arms are comparable only under the same ``workload_hash``."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    loads: tuple[LoadPoint, ...]
    api: Literal["chat", "completions"] = "chat"
    requests_per_load: int | None = None
    """Requests at each load point; ``None``: see ``requests_at``. Prompts repeat in order when it is larger."""
    waves: int | None = None
    """At least so many requests for each one in flight; ``None``, in older records: each prompt once."""
    request_timeout_s: float = 600.0

    def with_fields(self, fields: Mapping[str, Any]) -> Workload:
        """The same work with more fields in every request body."""
        if not fields:
            return self
        extra = {**self.sampling.extra_body, **fields}
        return self.model_copy(update={"sampling": self.sampling.model_copy(update={"extra_body": extra})})

    def requests_at(self, load: LoadPoint) -> int:
        """What was asked for; else each prompt once, and at c > 1 enough for a steady state."""
        if self.requests_per_load is not None:
            return self.requests_per_load
        in_flight = load.streams
        return max(len(self.prompts), (self.waves or 0) * in_flight if in_flight > 1 else 0)

    @property
    def workload_hash(self) -> str:
        repeats = self.waves is not None and any(load.streams > 1 for load in self.loads)
        told = self.model_dump(mode="json", exclude=None if repeats else {"waves"})
        payload = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(payload.encode()).hexdigest()[:16]
