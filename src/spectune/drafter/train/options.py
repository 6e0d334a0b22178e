"""What a training run was asked for, stored beside it, and what it reports. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from spectune.domain.record import Record
from spectune.errors import BadInput

SCHEMA_VERSION = 1
WIDTH_TIMES_RATE = 1.2
"""Default learning rate times hidden size: 2e-3 at width 576, 3e-4 at 4096."""


class TrainOptions(Record):
    """Everything that the result depends on besides data and target."""

    layers: tuple[int, ...] | None = None
    """Target layers whose inputs are fused; ``None``: 2, L // 2, L - 3."""
    draft_vocab_size: int = Field(default=8192, ge=2)
    num_test_steps: int = Field(default=4, ge=1, le=16)
    """Steps of the training-time test."""
    step_decay: float = Field(default=0.8, gt=0, le=1)
    """Weight of each further step's loss, relative to the one before."""
    epochs: float = Field(default=3.0, gt=0)
    max_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps; overrides ``epochs``."""
    batch_size: int = Field(default=8, ge=1)
    """Rows per optimizer step, over all processes and accumulated parts."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Rows per forward pass of one process; ``None``: the whole batch."""
    learning_rate: float | None = Field(default=None, gt=0)
    """``None``: 1.2 / hidden size."""
    warmup_frac: float = Field(default=0.04, ge=0, lt=1)
    final_rate_frac: float = Field(default=0.02, ge=0, le=1)
    weight_decay: float = Field(default=0.01, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    max_length: int = Field(default=2048, ge=8)
    num_train_rows: int | None = Field(default=None, ge=1)
    """Train on so many of the training rows, by chance; a smaller choice is part of a larger one."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of matrix products and of the target; weights and optimizer state are float32."""
    features: Literal["cache", "on-the-fly"] = "cache"
    seed: int = Field(default=0, ge=0)
    warm_start: bool = True
    """Begin with the target's head, last norm and highest fused state instead of random ones."""

    @model_validator(mode="after")
    def _parts_fit(self) -> TrainOptions:
        micro = self.micro_batch_size or self.batch_size
        if self.batch_size % micro:
            raise ValueError(f"batch_size {self.batch_size} is not a multiple of micro_batch_size {micro}")
        return self

    def num_micro_batches(self, *, num_processes: int) -> int:
        """Forward passes per step and process."""
        micro = self.micro_batch_size or max(1, self.batch_size // num_processes)
        if self.batch_size % (micro * num_processes):
            raise BadInput(
                f"--batch-size {self.batch_size} cannot be dealt to {num_processes} processes "
                f"in parts of {micro}; make it a multiple of {micro * num_processes}"
            )
        return self.batch_size // (micro * num_processes)


class StepReport(Record):
    """One line of ``progress.jsonl``: means since the line before."""

    step: int
    num_steps: int
    loss: float
    accuracy_per_step: tuple[float, ...]
    """``[j]``: share of positions where step j's most likely token is the target's, given the target's tokens."""
    learning_rate: float
    grad_norm: float
    samples_per_s: float
    tok_per_s: float
    """Answer tokens trained on per second, each counted once."""
    elapsed_s: float
    held_out_acceptance_length: tuple[float, ...] | None = None
    """``[k - 1]``: simulated with k drafted tokens; ``None``: not evaluated at this step."""
    held_out_accuracy: float | None = None


class TrainResult(Record):
    """How a run ended."""

    schema_version: int = SCHEMA_VERSION
    draft: str
    """Folder with ``config.json`` and ``model.safetensors``."""
    num_steps: int
    num_epochs: float
    num_train_rows: int
    num_answer_tokens: int
    """Of the training rows."""
    vocabulary_coverage: float
    held_out_coverage: float | None
    final_loss: float
    held_out_acceptance_length: tuple[float, ...] | None
    tok_per_s: float
    train_s: float
    """Over all starts of the run, without making features and without evaluation."""
    floor_frac: float | None
    """Share of the time that the counted operations alone would take at the measured matrix rate."""
