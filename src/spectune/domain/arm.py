"""One immutable configuration of a server, in words that hold for every engine."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import Field

from spectune.domain.record import Record

FlagValue = bool | int | float | str | None
"""``True``: the bare flag; ``False`` and ``None``: leave it out; else its value."""

FACTORS = ("method", "drafter", "num_steps", "topk", "num_draft_tokens", "cuda_graphs")
"""Neutral knobs; any engine flag is a factor too, as ``flags.<name>``, any field of a request as ``request.<name>``."""


_IMPOSING = ("spec-synth-", "synthetic-acceptance", "simulate-acc-")
"""In names of llama.cpp's and vLLM's flags and of SGLang's variables."""


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
    request: dict[str, Any] = Field(default_factory=dict)
    """Fields of the body of each of its requests. Arms that differ in nothing else are measured on one server."""
    synthetic_acceptance_length: float | None = Field(default=None, ge=1)
    """The engine accepts drafts by lot, at this mean length, bonus token included.

    Drafting and verification run as always, so the cost of a step is measured
    whatever the drafter is worth. The text means nothing, and such an arm is
    never compared as a result.
    """

    synthetic_acceptance_rates: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = None
    """As above by position: ``[i]`` is the share of steps in which position i is kept (marginal), never rising.

    A shorter draft uses the first of them, as a drafter of fixed worth would.
    """

    @property
    def arm_id(self) -> str:
        payload = self.model_dump(mode="json", exclude={"name"})
        for name in ("synthetic_acceptance_length", "synthetic_acceptance_rates"):
            if payload[name] is None:
                del payload[name]
        if not self.request:
            del payload["request"]
        encoded = json.dumps(payload, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(encoded.encode()).hexdigest()[:8]

    @property
    def launch_id(self) -> str:
        """Equal for arms that one server can serve one after another: they differ in their requests alone."""
        return self.model_copy(update={"request": {}}).arm_id

    @property
    def is_baseline(self) -> bool:
        return self.knobs.method == "none"

    @property
    def is_synthetic(self) -> bool:
        """Whether acceptance is imposed: by the fields above, or by a flag or variable of the engine's own."""
        if self.synthetic_acceptance_length is not None or self.synthetic_acceptance_rates is not None:
            return True
        names = {name.lower().lstrip("-").replace("_", "-") for name in (*self.flags, *self.env)}
        return any(word in name for name in names for word in _IMPOSING)

    def factors(self) -> dict[str, Any]:
        """Every factor and its value, flags included."""
        values: dict[str, Any] = {name: getattr(self.knobs, name) for name in FACTORS}
        values.update({f"flags.{name}": value for name, value in sorted(self.flags.items())})
        values.update({f"env.{name}": value for name, value in sorted(self.env.items())})
        values.update({f"request.{name}": value for name, value in sorted(self.request.items())})
        if self.synthetic_acceptance_length is not None:
            values["synthetic_acceptance_length"] = self.synthetic_acceptance_length
        if self.synthetic_acceptance_rates is not None:
            values["synthetic_acceptance_rates"] = self.synthetic_acceptance_rates
        return values


def baseline_arm(*, engine: str, target: str, flags: dict[str, FlagValue] | None = None) -> Arm:
    """The arm without speculation against which every speedup of a study is defined."""
    return Arm(name="baseline", engine=engine, target=target, flags=dict(flags or {}))


def differing_factors(arm: Arm, other: Arm) -> tuple[str, ...]:
    """Names of the factors in which two arms differ."""
    ours, theirs = arm.factors(), other.factors()
    names = [*ours, *(name for name in theirs if name not in ours)]
    return tuple(name for name in names if ours.get(name) != theirs.get(name))
