"""What a draft proposes at every start of some rows, in one pass.

Shapes:  B batch, L positions, M starts, K drafted tokens, D hidden, V draft vocabulary

Greedy: a drafted token is kept if it is the target's next one. Sampled with proposals drawn from the draft
(q) and a text drawn from the target (p): given that x came out, x was the drafted token, and kept, with
probability min(1, q(x) / p(x)), because P(drafted and kept) = min(p, q) (Leviathan et al. 2023,
arXiv:2211.17192, A.1). So a text of the target's own tells the acceptance without a server. Proposals that
are the draft's most likely token, as engines make them by default, are kept when x is that token.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from spectune.drafter.acceptance import Kept, kept_lengths
from spectune.drafter.model import EagleDraft
from spectune.drafter.target import Ends, Features
from spectune.drafter.train.batches import Batch
from spectune.drafter.train.rows import Ints
from spectune.drafter.unroll import unroll


def greedy_chains(
    draft: EagleDraft, ends: Ends, batch: Batch, features: Features, *, num_steps: int
) -> list[Kept]:
    """How many of ``num_steps`` most likely tokens are the row's own, for each row and start."""
    matches_KBM = np.zeros(batch.valid_JBM.shape, bool)
    for j, logits_BMV in enumerate(draft_logits(draft, ends, batch, features, num_steps=num_steps)):
        proposed = draft.target_ids_V[logits_BMV.argmax(-1)].cpu().numpy()
        matches_KBM[j] = (proposed == actual_tokens(batch, j)) & batch.valid_JBM[j]
    return _by_row(batch, matches_KBM)


def sampled_chains(
    draft: EagleDraft,
    ends: Ends,
    batch: Batch,
    features: Features,
    *,
    num_steps: int,
    temperature: float,
    chance: np.random.Generator,
) -> list[Kept]:
    """The same with proposals drawn from the draft; the rows must be the target's samples at ``temperature``."""
    matches_KBM = np.zeros(batch.valid_JBM.shape, bool)
    ratios = keep_chances(draft, ends, batch, features, num_steps=num_steps, temperature=temperature)
    for j, ratio_BM in enumerate(ratios):
        matches_KBM[j] = (chance.random(ratio_BM.shape) < ratio_BM) & batch.valid_JBM[j]
    return _by_row(batch, matches_KBM)


def keep_chances(
    draft: EagleDraft, ends: Ends, batch: Batch, features: Features, *, num_steps: int, temperature: float
) -> Iterator[Ints]:
    """``min(1, q(x) / p(x))`` of the row's own token x at each step and start, ``[B, M]``."""
    draft_ids = draft.draft_ids()
    starts = torch.as_tensor(batch.starts_BM, device=draft_ids.device)
    last = batch.tokens_BL.shape[1] - 1
    for j, logits_BMV in enumerate(draft_logits(draft, ends, batch, features, num_steps=num_steps)):
        actual = torch.as_tensor(actual_tokens(batch, j), device=starts.device)
        log_q = (logits_BMV.float() / temperature).log_softmax(-1)
        ids = draft_ids[actual]
        log_q = log_q.gather(-1, ids.clamp(min=0)[..., None])[..., 0].masked_fill(ids < 0, -torch.inf)
        positions = (starts + 1 + j).clamp(max=last)
        log_p = _target_log_probability(ends, features, positions, actual, temperature)
        yield (log_q - log_p).exp().clamp(max=1).cpu().numpy()


def draft_logits(
    draft: EagleDraft, ends: Ends, batch: Batch, features: Features, *, num_steps: int
) -> Iterator[Tensor]:
    """``[B, M, V]`` after each step from each of the batch's starts."""
    device = draft.d2t.device
    with torch.no_grad():
        states = list(
            unroll(
                draft,
                embedding_VD=ends.embedding_VD,
                tokens_BL=torch.as_tensor(batch.tokens_BL, device=device),
                states_BLF=features.states_BLF,
                starts_BM=torch.as_tensor(batch.starts_BM, device=device),
                num_steps=num_steps,
            )
        )
    for state_BMD in states:
        with torch.no_grad():  # not across the yield: it would hold for the caller, too
            logits_BMV = draft.logits(state_BMD)
        yield logits_BMV


def actual_tokens(batch: Batch, j: int) -> Ints:
    """The token that step j predicts, at each start."""
    last = batch.tokens_BL.shape[1] - 1
    tokens: Ints = np.take_along_axis(batch.tokens_BL, np.minimum(batch.starts_BM + 2 + j, last), axis=1)
    return tokens


def _target_log_probability(
    ends: Ends, features: Features, positions_BM: Tensor, actual_BM: Tensor, temperature: float
) -> Tensor:
    rows = []
    for final_LD, positions_M, actual_M in zip(features.final_BLD, positions_BM, actual_BM, strict=True):
        logits = ends.logits(final_LD[positions_M]).float() / temperature
        rows.append(logits.gather(-1, actual_M[:, None])[:, 0] - logits.logsumexp(-1))
    return torch.stack(rows)


def _by_row(batch: Batch, matches_KBM: Ints) -> list[Kept]:
    kept_BM = kept_lengths(np.moveaxis(matches_KBM, 0, -1))
    used_BM = batch.valid_JBM[0]
    return [
        Kept(starts[used], kept[used])
        for starts, kept, used in zip(batch.starts_BM, kept_BM, used_BM, strict=True)
    ]
