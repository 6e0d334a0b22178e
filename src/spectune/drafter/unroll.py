"""Running ahead from every start at once: the training-time test, and one-pass evaluation.

Shapes:  B batch, L positions, M starts, F fused width, D hidden

Both give the draft the target's own tokens. In training that is the test of Li et al. 2025
(arXiv:2503.01840, section 3.2) with teacher forcing; in evaluation it is exact, because a drafted token only
counts where all before it were the target's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from spectune.drafter.model import EagleDraft, Keys


def take(x_BLD: Tensor, positions_BM: Tensor) -> Tensor:
    """``[B, M, D]``: the entries at some positions."""
    return x_BLD.gather(1, positions_BM[:, :, None].expand(-1, -1, x_BLD.shape[2]))


def unroll(
    draft: EagleDraft,
    *,
    embedding_VD: Tensor,
    tokens_BL: Tensor,
    states_BLF: Tensor,
    starts_BM: Tensor,
    num_steps: int,
) -> Iterator[Tensor]:
    """The state ``[B, M, D]`` after each of ``num_steps`` steps from every start.

    Step j reads token ``start + 1 + j``; beyond the row's end it reads its last token, and means nothing.
    """
    device = states_BLF.device.type
    mixed = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if mixed else draft.norm.weight.dtype
    next_BL = torch.cat([tokens_BL[:, 1:], tokens_BL[:, -1:]], dim=1)
    read_BLD = draft.read(F.embedding(next_BL, embedding_VD).to(dtype))
    fused_BLD = draft.fuse(states_BLF.to(dtype))
    prefix = draft.prefix(read_BLD, fused_BLD)
    state_BMD = take(fused_BLD, starts_BM)
    own: list[Keys] = []
    last = tokens_BL.shape[1] - 1
    for j in range(num_steps):
        read_BMD = take(read_BLD, (starts_BM + j).clamp(max=last))
        state_BMD = draft.step(read_BMD, state_BMD, prefix=prefix, starts_BM=starts_BM, own=own, j=j)
        yield state_BMD
