"""One immutable configuration of a server, in words that hold for every engine."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import Field

from spectune.domain.record import Record

FlagValue = bool | int | float | str | None
"""``True``: the bare flag; ``False`` and ``None``: leave it out; else its value."""

FACTORS = ("method", "drafter", "num_steps", "topk", "num_draft_tokens", "cuda_graphs")
"""Neutral knobs; any engine flag is a factor too, as ``flags.<name>``."""


class Knobs(Record):
    """Speculation in neutral words; each engine adapter translates them to its flags and back.

    ``num_draft_tokens`` counts tokens proposed per verify step, without the
    root: vLLM's ``num_speculative_tokens``, llama.cpp's ``--spec-draft-n-max``,
    and SGLang's ``--speculative-num-draft-tokens`` minus one.
    """

    method: str = "none"
    drafter: str | None = None
    num_steps: int | None = Field(default=None, ge=1)
    """Draft passes per verify step; equals ``num_draft_tokens`` for a chain."""
    topk: int | None = Field(default=None, ge=1)
    """Branching of the draft tree; 1 is a chain."""
    num_draft_tokens: int | None = Field(default=None, ge=1)
    cuda_graphs: bool | None = None
    """``None``: the engine's default."""


class Arm(Record):
    """What is served in one trial. ``arm_id`` is a hash of everything but the name."""

    name: str
    engine: str
    target: str
    knobs: Knobs = Knobs()
    flags: dict[str, FlagValue] = Field(default_factory=dict)
    """Engine flags of this arm, on top of the engine's; without leading dashes."""
    env: dict[str, str] = Field(default_factory=dict)
    synthetic_acceptance_length: float | None = Field(default=None, ge=1)
    """The engine accepts drafts by lot, at this mean length, bonus token included.

    Drafting and verification run as always, so the cost of a step is measured
    whatever the drafter is worth. The text means nothing, and such an arm is
    never compared as a result.
    """

    @property
    def arm_id(self) -> str:
        payload = self.model_dump(mode="json", exclude={"name"})
        if self.synthetic_acceptance_length is None:
            del payload["synthetic_acceptance_length"]
        encoded = json.dumps(payload, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(encoded.encode()).hexdigest()[:8]

    @property
    def is_baseline(self) -> bool:
        return self.knobs.method == "none"

    @property
    def is_synthetic(self) -> bool:
        return self.synthetic_acceptance_length is not None

    def factors(self) -> dict[str, Any]:
        """Every factor and its value, flags included."""
        values: dict[str, Any] = {name: getattr(self.knobs, name) for name in FACTORS}
        values.update({f"flags.{name}": value for name, value in sorted(self.flags.items())})
        values.update({f"env.{name}": value for name, value in sorted(self.env.items())})
        if self.synthetic_acceptance_length is not None:
            values["synthetic_acceptance_length"] = self.synthetic_acceptance_length
        return values


def baseline_arm(*, engine: str, target: str, flags: dict[str, FlagValue] | None = None) -> Arm:
    """The arm without speculation against which every speedup of a study is defined."""
    return Arm(name="baseline", engine=engine, target=target, flags=dict(flags or {}))


def differing_factors(arm: Arm, other: Arm) -> tuple[str, ...]:
    """Names of the factors in which two arms differ."""
    ours, theirs = arm.factors(), other.factors()
    names = [*ours, *(name for name in theirs if name not in ours)]
    return tuple(name for name in names if ours.get(name) != theirs.get(name))
