"""What ``spectune explain --json`` prints. Fields may be added, never renamed; ``None`` is unknown."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from spectune.domain.interval import Interval
from spectune.domain.record import Record

EXPLAIN_SCHEMA_VERSION = 1
ActionKind = Literal[
    "change-flag",
    "switch-off",
    "switch-off-above",
    "use-drafter",
    "train",
    "stop",
    "measure",
    "schedule",
    "check",
]


class StepPart(Record):
    """A part of one verify step."""

    name: str
    s: float
    share: float
    """Of the whole step."""
    low_s: float | None
    high_s: float | None
    separated: bool
    """False: the arms measured do not tell this part from another, and the prior split them."""

    @property
    def is_shown(self) -> bool:
        """Large enough to be worth a reader's time."""
        return abs(self.share) >= 0.005


class RequiredLength(Record):
    """The acceptance length that reaches a speed at the present step cost."""

    speedup: float
    tok_per_s: float
    acceptance_length: Interval | None
    """``None``: no length is enough, the time before the first token alone is too long."""
    tokens_per_pass: float | None = None
    """The same, counting passes without a draft."""
    reachable: bool | None
    """Whether a draft of this depth can give so many tokens; ``None``: depth unknown."""

    @property
    def words(self) -> str:
        """``2.41 for 1x``, or that it cannot be."""
        if self.acceptance_length is None:
            return f"{self.speedup:g}x cannot be reached: the time before the first token alone is too long"
        beyond = " (more than this draft length allows)" if self.reachable is False else ""
        return f"{self.acceptance_length.value:.2f} for {self.speedup:g}x{beyond}"


class ImposedCost(Record):
    """A step of an arm whose acceptance was imposed: what it costs, and so what a drafter would have to keep."""

    arm: str
    arm_id: str
    concurrency: int
    acceptance_length: float
    """As it was served."""
    step_cost_s: float
    step_cost_ratio: float
    """In baseline steps; the acceptance length that breaks even."""
    num_launches: int
    parts: tuple[StepPart, ...]
    required: tuple[RequiredLength, ...]

    @property
    def words(self) -> str:
        """One sentence."""
        needed = ", ".join(r.words for r in self.required)
        return (
            f"{self.arm} (c={self.concurrency}, acceptance imposed, {self.acceptance_length:.2f} counted, "
            f"n = {self.num_launches}): a step costs {self.step_cost_ratio:.2f} plain ones, so a drafter must keep "
            f"{needed}"
        )


class LossShares(Record):
    """What keeps an arm from the ideal, every draft kept at the price of a baseline step; adds up to 1."""

    acceptance: float
    step_overhead: float


class ExplainedRow(Record):
    """One measured arm at one concurrency."""

    arm: str
    arm_id: str
    is_baseline: bool
    has_drafter: bool = True
    """False: plain decoding, or drafts that are looked up (ngram, suffix), which nothing trains."""
    concurrency: int
    e2e_tok_per_s: float
    speedup: float | None
    acceptance_length: float | None
    acceptance_length_interval: Interval | None = None
    acceptance_assumed_from: str | None = None
    implied_acceptance_length: Interval | None = None
    """Where it was not measured: what the speed means at the predicted step cost."""
    tokens_per_pass: float | None = None
    """Tokens per forward pass, passes without a draft included: what speeds of arms can be compared by."""
    most_tokens_per_pass: float | None = None
    """Were every draft kept."""
    verify_step_frac: float | None = None
    """Share of forward passes that check a draft: the acceptance length is of these alone."""
    first_token_s: float | None = None
    """Before the first token, by token of the answer; ``first_token_share`` of the request's time."""
    first_token_share: float | None = None
    step_cost_s: float | None
    """Seconds per forward pass: tokens per pass x decode time per token."""
    step_cost_ratio: float | None
    """In baseline steps."""
    break_even_tokens_per_pass: float | None = None
    """At which decoding is as fast as without speculation; ``required`` has what whole requests need."""
    break_even_reachable: bool | None = None
    """False: more than the draft length allows. ``None``: unknown."""
    break_even_acceptance_length: float | None
    break_even_interval: Interval | None = None
    zero_overhead_tok_per_s: float | None
    """Were a verify step as cheap as a plain one."""
    perfect_acceptance_tok_per_s: float | None
    """At the present step cost, were every draft kept."""
    machine_ceiling_tok_per_s: float | None = None
    """Were a step only the reading of the weights."""
    parts: tuple[StepPart, ...] = ()
    loss_shares: LossShares | None = None
    binding_limit: str
    binding_factor: str | None
    """acceptance, drafting, verification, overhead, no graphs, ... or ``None`` where it cannot be told."""
    required: tuple[RequiredLength, ...] = ()


class WhatIf(Record):
    """A speed that was not measured."""

    factor: Literal["acceptance", "num_draft_tokens", "num_steps", "concurrency", "cuda_graphs", "overhead"]
    arm: str
    """The measured arm that is changed."""
    change: str
    concurrency: int
    acceptance_length: float | None
    predicted_tok_per_s: Interval
    speedup: float
    basis: str


class NextAction(Record):
    """What to do, the most promising first."""

    rank: int
    kind: ActionKind
    action: str
    why: str
    predicted_tok_per_s: Interval | None
    gain_frac: float | None
    """Against the best measured speed at that concurrency."""
    command: str | None = None


class Schedule(Record):
    """The best draft length by concurrency, in the engines' own words."""

    best_by_concurrency: dict[str, int]
    off_above_concurrency: int | None
    vllm_speculative_config: dict[str, Any] | None
    sglang_adaptive_config: dict[str, Any] | None
    sglang_flags: tuple[str, ...]
    notes: tuple[str, ...]


class PredictedAgainstMeasured(Record):
    """``None``: nothing bore on the arm before its launch, or it was not measured."""

    arm: str
    predicted_tok_per_s: Interval | None
    predicted_speedup: Interval | None
    measured_tok_per_s: float | None
    measured_speedup: float | None
    error_frac: float | None
    """Predicted over measured - 1; of the speedup where both are known."""
    inside: bool | None
    """Whether the measured value lies in the predicted interval."""


class ModelError(Record):
    n: int
    median_abs_frac: float
    worst_abs_frac: float
    inside_frac: float
    level: float


class Explanation(Record):
    """What limits the speed of each arm, what a change would bring, and what to do next; seconds and tok/s."""

    schema_version: int = EXPLAIN_SCHEMA_VERSION
    headline: str
    first_concurrency: int
    """The one that the headline, the winner and what to do next are about."""
    baseline_tok_per_s: dict[str, float]
    """By concurrency."""
    best_arm: str
    rows: tuple[ExplainedRow, ...]
    what_if: tuple[WhatIf, ...]
    next: tuple[NextAction, ...]
    imposed: tuple[ImposedCost, ...] = ()
    """Of arms of imposed acceptance, which are no rows: their speed is no result."""
    schedule: Schedule | None = None
    predictions: tuple[PredictedAgainstMeasured, ...] = ()
    model_error: ModelError | None = None
    winning_arm: str | None = None
    """The arm that is shown to be best, by name; ``plain decoding`` for the baseline. ``winning_command`` serves it."""
    winning_command: str | None = None
    winning_request: dict[str, Any] = Field(default_factory=dict)
    """What the body of each request must hold beside it: with other fields it is another arm."""
    training: tuple[str, ...] = ()
    """What more training data would buy, where acceptance lengths at three data sizes are known."""
    assumptions: tuple[str, ...] = ()

    @property
    def winning_title(self) -> str:
        """What the command is of: where nothing is shown to be faster, of plain decoding."""
        return "The command to serve" + (f": {self.winning_arm}" if self.winning_arm else "")

    @property
    def winning_request_note(self) -> str | None:
        """What the command alone does not do."""
        if not self.winning_request:
            return None
        return f"with {json.dumps(self.winning_request, ensure_ascii=False)} in the body of each request"
