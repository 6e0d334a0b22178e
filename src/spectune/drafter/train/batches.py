"""Which rows make up which step, as a function of the seed alone; and rows as padded tensors.

Shapes:  B batch, L positions, M starts, J steps ahead
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spectune.drafter.train.rows import Ints, Rows
from spectune.errors import BadInput

_BATCHES_SORTED_TOGETHER = 32
"""Rows of so many batches are sorted by length before they are dealt: little padding, still a good mix."""


@dataclass(frozen=True)
class Plan:
    """The order of training: step -> rows. The last, incomplete batch of an epoch is left out of it."""

    rows: Ints
    lengths: Ints
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if not len(self.rows):
            raise BadInput(
                "no training rows: the data has rows of the split held-out alone; give it some of train"
            )
        if len(self.rows) < self.batch_size:
            raise BadInput(
                f"{len(self.rows)} training rows, fewer than one batch of {self.batch_size}; "
                "give more data or a smaller --batch-size"
            )

    @property
    def steps_per_epoch(self) -> int:
        return len(self.rows) // self.batch_size

    def epoch(self, number: int) -> list[Ints]:
        """The batches of one epoch, each of ``batch_size`` row indexes."""
        chance = np.random.default_rng([self.seed, number])
        order = chance.permutation(len(self.rows))[: self.steps_per_epoch * self.batch_size]
        together = self.batch_size * _BATCHES_SORTED_TOGETHER
        batches: list[Ints] = []
        for first in range(0, len(order), together):
            some = order[first : first + together]
            some = some[np.argsort(self.lengths[some], kind="stable")]
            batches.extend(some.reshape(-1, self.batch_size))
        return [self.rows[batches[i]] for i in chance.permutation(len(batches))]


@dataclass(frozen=True)
class Batch:
    """Some rows, padded on the right; causal attention never looks at padding."""

    rows: Ints
    tokens_BL: Ints
    mask_BL: Ints
    """1 on answer tokens."""
    starts_BM: Ints
    valid_JBM: Ints
    """Step j of a start predicts token ``start + 2 + j``: whether that token and all before it are answer."""

    @property
    def num_tokens(self) -> int:
        """Answer tokens to predict, each once."""
        return int(self.valid_JBM[0].sum())


def training_starts(mask: Ints) -> Ints:
    """Positions whose first prediction, two tokens on, is an answer token."""
    return np.flatnonzero(mask[2:])


def serving_starts(mask: Ints) -> Ints:
    """Positions from which an engine may draft: the last token it knows is an answer's, and one more follows."""
    return np.flatnonzero(mask[1:-1] & mask[2:])


def training_batch(rows: Rows, indexes: Ints, *, num_steps: int) -> Batch:
    """Some rows, with the starts that training looks at."""
    pairs = [rows.row(int(index)) for index in indexes]
    starts = [training_starts(mask) for _, mask in pairs]
    return collate(pairs, starts, rows=indexes, num_steps=num_steps)


def collate(
    pairs: Sequence[tuple[Ints, Ints]], starts: Sequence[Ints], *, rows: Sequence[int] | Ints, num_steps: int
) -> Batch:
    """Pads (token ids, loss mask) pairs and their starts to one shape."""
    B, L = len(pairs), max(len(ids) for ids, _ in pairs)
    M = max(1, *(len(some) for some in starts))
    tokens_BL, mask_BL = np.zeros((B, L), np.int64), np.zeros((B, L), np.uint8)
    starts_BM, used_BM = np.zeros((B, M), np.int64), np.zeros((B, M), bool)
    for b, ((ids, mask), some) in enumerate(zip(pairs, starts, strict=True)):
        tokens_BL[b, : len(ids)], mask_BL[b, : len(ids)] = ids, mask
        starts_BM[b, : len(some)], used_BM[b, : len(some)] = some, True
    valid_JBM = np.zeros((num_steps, B, M), bool)
    reached = used_BM
    for j in range(num_steps):
        predicted = np.minimum(starts_BM + 2 + j, L - 1)
        inside = starts_BM + 2 + j < L
        reached = reached & inside & (np.take_along_axis(mask_BL, predicted, axis=1) == 1)
        valid_JBM[j] = reached
    return Batch(np.asarray(rows), tokens_BL, mask_BL, starts_BM, valid_JBM)
