"""One measured arm at one concurrency: what every model and strategy learns from."""

from __future__ import annotations

from dataclasses import dataclass

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm
from spectune.domain.request_time import RequestTimes


@dataclass(frozen=True)
class Observation:
    """One measured trial: end-to-end tok/s of a request, and its ratio to the baseline measured before it."""

    arm: Arm
    tok_per_s: float
    speedup: float | None
    acceptance: AcceptanceCounts | None
    concurrency: int = 1
    context_tokens: float | None = None
    log_sd: float | None = None
    """Standard error of log tok/s; ``None``: unknown, a default is taken."""
    length: float | None = None
    """Acceptance length where there are no counts (published or hand-measured figures)."""
    length_log_sd: float | None = None
    synthetic: bool = False
    """Acceptance was imposed on the engine: the step cost is real, the speed is not a result."""
    stopped: bool = False
    """Measuring ended early, the arm being clearly worse than the fastest: it teaches the models and never wins."""
    launch: int = 0
    """Observations of one launch share it."""
    times: RequestTimes | None = None
    """Where the time of its requests goes; ``None``: unknown, and all of it is taken for decoding."""
    decode_tok_per_s: float | None = None
    """After the first token. Of plain decoding: one over a forward pass."""

    @property
    def drafted(self) -> float | None:
        """Mean number of tokens drafted per decode step, which an arm's limit does not tell of one that stops early."""
        counts = self.acceptance
        return (
            counts.num_draft_tokens / counts.num_drafts if counts is not None and counts.num_drafts else None
        )

    @property
    def acceptance_length(self) -> float | None:
        if self.length is not None:
            return self.length
        return self.acceptance.acceptance_length if self.acceptance is not None else None
