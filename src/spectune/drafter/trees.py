"""What a drafted tree would have kept at every start, built as SGLang builds it.

Shapes:  B batch, M starts, T branches a level (topk), W = M * T rows, N nodes, V draft vocabulary

Level 1 holds the T most likely tokens. Each further level expands all T branches by T tokens and goes on with
the T best of those T * T, by the product of probabilities. At the end the best ``num_tokens - 1`` nodes of all
levels are verified. The kept path is the longest that spells the target's own next tokens; with sampling the
rule of SGLang's kernel (a child is kept if the target's sample is that child) gives the same on a sampled text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from spectune.drafter.acceptance import Kept
from spectune.drafter.chains import actual_tokens
from spectune.drafter.model import EagleDraft, Keys
from spectune.drafter.target import Ends, Features
from spectune.drafter.train.batches import Batch
from spectune.drafter.unroll import take
from spectune.errors import BadInput

MAX_DEPTH = 64
"""Tokens that follow one another; nobody drafts so many, and each is one more pass over all starts."""
MAX_TOPK = 64


@dataclass(frozen=True)
class TreeShape:
    """SGLang's ``--speculative-num-steps``, ``-eagle-topk``, ``-num-draft-tokens`` (the last counts the root)."""

    num_steps: int
    topk: int
    num_tokens: int

    def __post_init__(self) -> None:
        if not (1 <= self.num_steps <= MAX_DEPTH and 1 <= self.topk <= MAX_TOPK):
            raise BadInput(
                f"tree {self.num_steps},{self.topk},{self.num_tokens}: steps are from 1 to {MAX_DEPTH}, top from 1 to "
                f"{MAX_TOPK}"
            )
        most = self.topk + (self.num_steps - 1) * self.topk**2
        if not 1 <= self.num_tokens - 1 <= most:
            raise BadInput(
                f"tree {self.num_steps},{self.topk},{self.num_tokens}: {self.num_steps} steps of top {self.topk} "
                f"give at most {most} nodes, so the number of tokens is from 2 to {most + 1}"
            )


@dataclass
class _Nodes:
    """All nodes so far, in the order of their making. ``[B, M, N]``."""

    scores: list[Tensor]
    on_path: list[Tensor]
    """Whether the path from the root to the node spells the target's own tokens."""
    levels: list[int]


def greedy_trees(
    draft: EagleDraft, ends: Ends, batch: Batch, features: Features, *, shape: TreeShape
) -> list[Kept]:
    """Tokens kept at each start of each row. Raises ``BadInput`` for a tree wider than the draft's vocabulary."""
    if shape.topk > draft.config.draft_vocab_size:
        raise BadInput(
            f"tree: top {shape.topk} of a draft vocabulary of {draft.config.draft_vocab_size} tokens"
        )
    with torch.no_grad():
        kept_BM = _grow(draft, ends, batch, features, shape).cpu().numpy()
    used_BM = batch.valid_JBM[0]
    return [
        Kept(starts[used], kept[used])
        for starts, kept, used in zip(batch.starts_BM, kept_BM, used_BM, strict=True)
    ]


def _grow(draft: EagleDraft, ends: Ends, batch: Batch, features: Features, shape: TreeShape) -> Tensor:
    device, dtype, T = draft.d2t.device, draft.norm.weight.dtype, shape.topk
    tokens_BL = torch.as_tensor(batch.tokens_BL, device=device)
    starts_BM = torch.as_tensor(batch.starts_BM, device=device)
    B, M = starts_BM.shape
    next_BL = torch.cat([tokens_BL[:, 1:], tokens_BL[:, -1:]], dim=1)
    all_read_BLD = draft.read(F.embedding(next_BL, ends.embedding_VD).to(dtype))
    fused_BLD = draft.fuse(features.states_BLF.to(dtype))
    prefix = draft.prefix(all_read_BLD, fused_BLD)
    state = draft.step(
        take(all_read_BLD, starts_BM),
        take(fused_BLD, starts_BM),
        prefix=prefix,
        starts_BM=starts_BM,
        own=[],
        j=0,
    )
    score_BMT, id_BMT = draft.logits(state).softmax(-1).topk(T, dim=-1)
    spells_BMT = _spells(draft, batch, id_BMT, 0)
    nodes = _Nodes([score_BMT], [spells_BMT], [1] * T)
    starts_BW = starts_BM.repeat_interleave(T, dim=1)
    state_BWD = state.repeat_interleave(T, dim=1)
    own: list[Keys] = []
    for level in range(1, shape.num_steps):
        drafted_BW = draft.target_ids_V[id_BMT].view(B, M * T)
        read_BWD = draft.read(F.embedding(drafted_BW, ends.embedding_VD).to(dtype))
        state_BWD = draft.step(read_BWD, state_BWD, prefix=prefix, starts_BM=starts_BW, own=own, j=level)
        chance, child = draft.logits(state_BWD).softmax(-1).topk(T, dim=-1)
        scores = (score_BMT[..., None] * chance.view(B, M, T, T)).flatten(2)
        ids = child.view(B, M, T * T)
        spells = spells_BMT.repeat_interleave(T, dim=2) & _spells(draft, batch, ids, level)
        nodes.scores.append(scores)
        nodes.on_path.append(spells)
        nodes.levels += [level + 1] * T * T
        if level + 1 < shape.num_steps:
            score_BMT, best = scores.topk(T, dim=-1)
            id_BMT, spells_BMT = ids.gather(2, best), spells.gather(2, best)
            parent_BW = (torch.arange(M, device=device)[:, None] * T + best // T).view(B, M * T)
            state_BWD = take(state_BWD, parent_BW)
            own = [keys.select(parent_BW) for keys in own]
    return _longest(nodes, shape)


def _longest(nodes: _Nodes, shape: TreeShape) -> Tensor:
    """Depth of the deepest verified node on the target's path; its ancestors score higher, so they are verified."""
    scores_BMN, on_path_BMN = torch.cat(nodes.scores, dim=-1), torch.cat(nodes.on_path, dim=-1)
    chosen = scores_BMN.topk(shape.num_tokens - 1, dim=-1).indices
    levels = torch.as_tensor(nodes.levels, device=chosen.device)
    longest: Tensor = (levels[chosen] * on_path_BMN.gather(2, chosen)).amax(-1)
    return longest


def _spells(draft: EagleDraft, batch: Batch, ids_BMX: Tensor, j: int) -> Tensor:
    device = ids_BMX.device
    actual_BM = torch.as_tensor(actual_tokens(batch, j), device=device)
    valid_BM = torch.as_tensor(np.ascontiguousarray(batch.valid_JBM[j]), device=device)
    return (draft.target_ids_V[ids_BMX] == actual_BM[..., None]) & valid_BM[..., None]
