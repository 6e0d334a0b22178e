"""Soft-label cross-entropy over the draft vocabulary, with its gradient made on the way.

Shapes:  N rows, D hidden, V draft vocabulary, P distinct target positions

The target's probabilities p are not renormalised over the draft vocabulary: mass outside cannot be drafted,
so a row counts by the mass within. With m = sum of p over V, row loss = m * logsumexp(z) - sum(p * z), and its
gradient by the logits z is m * softmax(z) - p. Written out because the plain way keeps several float32
arrays of N x V per step for the backward pass; here one array in the computing type lives for a moment.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROWS_AT_ONCE = 128
"""Rows whose float32 logits fit a processor's cache."""


class SoftLabelLoss(torch.autograd.Function):
    """``apply(state_ND, weight_VD, probabilities_PV, which_N, scale, dtype)`` -> (loss, num_hits).

    ``which_N`` names each row's target position. ``scale`` multiplies loss and gradient. A hit is a row whose
    most likely draft token is the target's.
    """

    @staticmethod
    def forward(
        ctx: Any,
        state_ND: Tensor,
        weight_VD: Tensor,
        probabilities_PV: Tensor,
        top_P: Tensor,
        which_N: Tensor,
        scale: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        state, weight = state_ND.to(dtype), weight_VD.to(dtype)
        logits_NV = state @ weight.T
        loss = torch.zeros((), dtype=torch.float32, device=state.device)
        hits = torch.zeros((), dtype=torch.int64, device=state.device)
        for first in range(0, len(logits_NV), _rows_at_once(state.device)):
            rows = slice(first, first + _rows_at_once(state.device))
            z, which = logits_NV[rows].float(), which_N[rows]
            p = probabilities_PV[which].float()
            mass, (highest, guess) = p.sum(-1, keepdim=True), z.max(-1, keepdim=True)
            hits += (guess[:, 0] == top_P[which]).sum()
            loss -= torch.linalg.vecdot(p, z).sum()
            z.sub_(highest).exp_()
            total = z.sum(-1, keepdim=True)
            loss += (mass * (highest + total.log())).sum()
            z.mul_(mass / total).sub_(p)
            logits_NV[rows] = z
        ctx.save_for_backward(logits_NV @ weight, logits_NV.T @ state)
        ctx.scale, ctx.dtypes = scale, (state_ND.dtype, weight_VD.dtype)
        ctx.mark_non_differentiable(hits)
        return loss * scale, hits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        by_state, by_weight = ctx.saved_tensors
        factor = grads[0] * ctx.scale
        return (
            by_state.to(ctx.dtypes[0]) * factor,
            by_weight.to(ctx.dtypes[1]) * factor,
            None,
            None,
            None,
            None,
            None,
        )


def _rows_at_once(device: torch.device) -> int:
    return _ROWS_AT_ONCE if device.type == "cpu" else 32 * _ROWS_AT_ONCE
