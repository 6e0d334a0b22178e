"""What is asked of a data set: its prompts and how they are answered."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from spectune.bench.prompts import CATEGORIES, Turns
from spectune.domain.record import Record
from spectune.domain.workload import Prompt
from spectune.drafter.data.sources import PromptSource

SCHEMA_VERSION = 1
Split = Literal["train", "held-out"]


class DataSampling(Record):
    """How the target answers. Every sample has a seed and one of the ``temperatures``, by its prompt's id alone."""

    max_tokens: int = Field(default=512, ge=1)
    temperatures: tuple[float, ...] = Field(default=(0.0,), min_length=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = 0
    extra_body: dict[str, Any] = Field(default_factory=dict)

    def temperature_of(self, prompt_id: str) -> float:
        """By chance, not in turn: categories take turns too, and each would have one temperature throughout."""
        place = int.from_bytes(self._digest(prompt_id)[4:8], "big") % len(self.temperatures)
        return self.temperatures[place]

    def seed_of(self, prompt_id: str) -> int:
        """Depends on nothing but the run's seed and the prompt, so a repeated sample is the same request."""
        return int.from_bytes(self._digest(prompt_id)[:4], "big") >> 1

    def _digest(self, prompt_id: str) -> bytes:
        return hashlib.sha256(f"{self.seed}/{prompt_id}".encode()).digest()


class PlannedSource(Record):
    name: str
    sha256: str
    num_prompts: int
    num_duplicates: int


@dataclass(frozen=True)
class Shards:
    """Which prompts go into one file: ``size`` of them, never on both sides of a place where the set has grown."""

    num_prompts: int
    size: int
    grown_at: tuple[int, ...] = ()

    @cached_property
    def _starts(self) -> list[int]:
        ends = (*self.grown_at, self.num_prompts)
        return [
            start
            for begin, end in zip((0, *ends), ends, strict=False)
            for start in range(begin, end, self.size)
        ]

    def __len__(self) -> int:
        return len(self._starts)

    def of(self, index: int) -> int:
        """The shard of a prompt."""
        return bisect_right(self._starts, index) - 1

    def indexes(self, number: int) -> range:
        """The prompts of a shard."""
        is_last = number + 1 == len(self._starts)
        return range(self._starts[number], self.num_prompts if is_last else self._starts[number + 1])


class Plan(Record):
    """What was asked for; a run that resumes must ask for the same, or for more."""

    schema_version: int = SCHEMA_VERSION
    sources: tuple[PlannedSource, ...]
    turns: Turns
    seed: int
    held_out_frac: float
    num_prompts: int
    num_duplicates: int
    by_category: dict[str, int]
    by_split: dict[str, int]
    prompts_sha256: str
    shard_size: int
    grown_at: tuple[int, ...] = ()
    """Numbers of prompts at which more were asked for."""
    limit: int | None = None
    sampling: DataSampling

    @property
    def shards(self) -> Shards:
        return Shards(self.num_prompts, self.shard_size, self.grown_at)


class PlannedPrompt(Record):
    """One line of ``prompts.jsonl``."""

    prompt: Prompt
    split: Split


@dataclass(frozen=True)
class PlanRequest:
    """The part of a request for data that decides on its prompts."""

    sources: tuple[PromptSource, ...]
    sampling: DataSampling = field(default_factory=DataSampling)
    turns: Turns = "first"
    seed: int = 0
    held_out_frac: float = 0.05
    shard_size: int = 1000
    limit: int | None = None
    categories: tuple[str, ...] = CATEGORIES
