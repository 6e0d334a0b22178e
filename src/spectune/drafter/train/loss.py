"""Soft-label cross-entropy over the draft vocabulary, arranged so that nearly all of it is matrix products.

Shapes:  N rows, D hidden, V draft vocabulary, P distinct target positions

The target's probabilities p are not renormalised over the draft vocabulary: mass outside cannot be drafted,
so a row counts by the mass m within. With the row's state h, the head W and p / m =: s,

    row loss  =  m logsumexp(W h) - sum(p * W h)  =  m (logsumexp(W h) - h . (s W))

The *wanted* row s W depends on the target position alone, so one product makes it for all steps of the test.
What is left to do over the vocabulary for each row and step is one softmax, the gradient of the logsumexp;
written out plainly, the same loss spends four times the time of its products on passes over N x V numbers.

The head comes as ``[D, V]``, and states are transposed in memory before they multiply: on a processor a product
whose left side lies across memory takes three times as long.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def shares_and_logsumexp(logits_NV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax in the logits' type, the highest logit, and the float32 logsumexp that both of them imply."""
    shares_NV, highest_N = torch.softmax(logits_NV, -1), logits_NV.amax(-1)
    return shares_NV, highest_N, highest_N.float() - shares_NV.amax(-1).float().log()


class WantedRows(torch.autograd.Function):
    """``apply(shares_PV, head_DV)`` -> ``[P, D]``: the head's rows, mixed as the target would mix them."""

    @staticmethod
    def forward(ctx: Any, shares_PV: Tensor, head_DV: Tensor) -> Tensor:
        ctx.save_for_backward(shares_PV)
        return shares_PV @ head_DV.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (shares_PV,) = ctx.saved_tensors
        return None, grads[0].T.contiguous() @ shares_PV


class WeightedLogSumExp(torch.autograd.Function):
    """``apply(state_ND, head_DV, row_weight_N, top_N)`` -> (sum of weighted logsumexps, num_hits).

    Computed in the head's type. A hit is a row whose most likely draft token is ``top``; -1 is none. No
    gradient goes into ``row_weight``.
    """

    @staticmethod
    def forward(
        ctx: Any, state_ND: Tensor, head_DV: Tensor, row_weight_N: Tensor, top_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        state = state_ND.to(head_DV.dtype)
        logits_NV = state @ head_DV
        at_top_N = logits_NV.gather(1, top_N.clamp(min=0)[:, None])[:, 0]
        shares_NV, highest_N, logsumexp_N = shares_and_logsumexp(logits_NV)
        hits = ((at_top_N == highest_N) & (top_N >= 0)).sum()
        by_row = row_weight_N[:, None]
        weighted_DN = (state * by_row).to(state.dtype).T.contiguous()
        ctx.save_for_backward((shares_NV @ head_DV.T) * by_row, weighted_DN @ shares_NV)
        ctx.state_dtype = state_ND.dtype
        ctx.mark_non_differentiable(hits)
        return (row_weight_N * logsumexp_N).sum(), hits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        by_state, by_head = ctx.saved_tensors
        return (by_state * grads[0]).to(ctx.state_dtype), by_head * grads[0].to(by_head.dtype), None, None


def soft_label_loss(
    state_ND: Tensor,
    head_DV: Tensor,
    *,
    wanted_PD: Tensor,
    mass_P: Tensor,
    top_P: Tensor,
    which_N: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The rows' loss times ``scale``, and the number of hits. ``which_N`` names each row's target position."""
    row_weight_N = mass_P[which_N] * scale
    logsumexps, hits = WeightedLogSumExp.apply(state_ND, head_DV, row_weight_N, top_P[which_N])
    wanted_ND = wanted_PD.index_select(0, which_N)
    return logsumexps - torch.linalg.vecdot(state_ND.float(), wanted_ND) @ row_weight_N, hits
