"""The reduced vocabulary of a draft: the answer tokens seen most often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spectune.drafter.train.rows import SPLITS, Ints, Rows

_CHUNK = 2_000_000


@dataclass(frozen=True)
class DraftVocabulary:
    """``target_ids[i]`` is the target's token of draft token i; they rise with i."""

    target_ids: Ints
    vocab_size: int
    """Of the target."""
    num_answer_tokens: int
    """It was counted over: those of the training rows."""
    coverage: float
    """Share of them that it holds."""
    held_out_coverage: float | None
    """The same over held-out answers: a token outside can never be drafted."""

    @property
    def d2t(self) -> Ints:
        """Offsets, as engines read them: target id minus draft id."""
        return self.target_ids - np.arange(len(self.target_ids))

    @property
    def t2d(self) -> Ints:
        """Whether each target token can be drafted."""
        mask = np.zeros(self.vocab_size, bool)
        mask[self.target_ids] = True
        return mask


def answer_token_counts(rows: Rows, *, vocab_size: int) -> Ints:
    """``[split, token]``: how often each target token occurs in the answers of each split."""
    counts = np.zeros(len(SPLITS) * vocab_size, np.int64)
    for first in range(0, len(rows.tokens), _CHUNK):
        last = min(first + _CHUNK, len(rows.tokens))
        row = np.searchsorted(rows.offsets, np.arange(first, last), "right") - 1
        keys = rows.splits[row].astype(np.int64) * vocab_size + rows.tokens[first:last]
        counted = (rows.mask[first:last] == 1) & (rows.splits[row] < len(SPLITS))
        counts += np.bincount(keys[counted], minlength=len(counts))
    return counts.reshape(len(SPLITS), vocab_size)


def choose_vocabulary(rows: Rows, *, size: int, vocab_size: int) -> DraftVocabulary:
    """The ``size`` most frequent answer tokens of the training rows; of equally frequent ones the lower ids."""
    counts, held = answer_token_counts(rows, vocab_size=vocab_size)
    target_ids = np.sort(np.argsort(-counts, kind="stable")[:size])
    return DraftVocabulary(
        target_ids=target_ids,
        vocab_size=vocab_size,
        num_answer_tokens=int(counts.sum()),
        coverage=float(counts[target_ids].sum() / max(1, counts.sum())),
        held_out_coverage=float(held[target_ids].sum() / held.sum()) if held.sum() else None,
    )
