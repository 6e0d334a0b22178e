"""Acceptance of drafted tokens: counts, and the figures that follow from them.

Terms (see docs/guide): a *verify step* is one target forward pass that checked
a draft (vLLM ``num_drafts``, SGLang ``spec_verify_ct``). Forward passes without
a draft are not verify steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import model_validator

from spectune.domain.record import Record

SKIPS_BELOW = 0.98
"""Of forward passes that check a draft: with fewer a drafter skips some, and its acceptance length is not tokens per
forward pass."""


class AcceptanceCounts(Record):
    """Counts over some requests. ``None`` is unknown; zero is an observation."""

    num_drafts: int | None
    """Verify steps."""
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_position: tuple[int, ...] | None = None
    """``[i]``: verify steps in which draft position i was kept."""

    @model_validator(mode="after")
    def _consistent(self) -> AcceptanceCounts:
        if self.num_accepted_tokens > self.num_draft_tokens:
            raise ValueError(
                f"{self.num_accepted_tokens} accepted of only {self.num_draft_tokens} drafted tokens"
            )
        return self

    @classmethod
    def from_histogram(cls, steps_by_accepted: Sequence[int], *, num_draft_tokens: int) -> AcceptanceCounts:
        """``steps_by_accepted[j]``: verify steps that kept exactly j drafted tokens."""
        per_position = tuple(sum(steps_by_accepted[i + 1 :]) for i in range(len(steps_by_accepted) - 1))
        return cls(
            num_drafts=sum(steps_by_accepted),
            num_draft_tokens=num_draft_tokens,
            num_accepted_tokens=sum(j * steps for j, steps in enumerate(steps_by_accepted)),
            accepted_per_position=per_position,
        )

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens per verify step, bonus included: ``1 + accepted / drafts`` (tau)."""
        if not self.num_drafts:
            return None
        return 1 + self.num_accepted_tokens / self.num_drafts

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted share of drafted tokens. Not alpha: tokens behind a rejection were never tested."""
        if not self.num_draft_tokens:
            return None
        return self.num_accepted_tokens / self.num_draft_tokens

    @property
    def marginal_acceptance(self) -> tuple[float, ...] | None:
        """``[i]``: share of verify steps in which position i was kept."""
        if self.accepted_per_position is None or not self.num_drafts:
            return None
        return tuple(kept / self.num_drafts for kept in self.accepted_per_position)

    @property
    def conditional_acceptance(self) -> tuple[float | None, ...] | None:
        """``[i]``: chance that position i is kept, given that every earlier one was.

        This, not ``acceptance_rate``, is alpha in Leviathan et al. 2023
        (arXiv:2211.17192). ``None`` where no step came that far. Assumes that
        every step drafted every position; with early-stopping drafters
        (ngram, ``p_min``) it is a lower bound.
        """
        if self.accepted_per_position is None or not self.num_drafts:
            return None
        tested = (self.num_drafts, *self.accepted_per_position)  # one longer: the last tests nothing more
        return tuple(
            kept / reached if reached else None
            for kept, reached in zip(self.accepted_per_position, tested, strict=False)
        )


def pool_counts(parts: Iterable[AcceptanceCounts]) -> AcceptanceCounts | None:
    """Sum of ``parts`` (token-weighted pooling); what any part does not know, the sum does not know."""
    items = list(parts)
    if not items:
        return None
    drafts = [item.num_drafts for item in items]
    per_position = [item.accepted_per_position for item in items]
    known_positions = [positions for positions in per_position if positions is not None]
    pooled: tuple[int, ...] | None = None
    if len(known_positions) == len(items):
        width = max(len(positions) for positions in known_positions)
        pooled = tuple(
            sum(positions[i] for positions in known_positions if i < len(positions)) for i in range(width)
        )
    return AcceptanceCounts(
        num_drafts=None if any(d is None for d in drafts) else sum(d for d in drafts if d is not None),
        num_draft_tokens=sum(item.num_draft_tokens for item in items),
        num_accepted_tokens=sum(item.num_accepted_tokens for item in items),
        accepted_per_position=pooled,
    )


def request_weighted_acceptance_length(parts: Iterable[AcceptanceCounts]) -> float | None:
    """Mean over requests of each request's acceptance length; requests without a verify step are left out."""
    lengths = [length for part in parts if (length := part.acceptance_length) is not None]
    return sum(lengths) / len(lengths) if lengths else None
