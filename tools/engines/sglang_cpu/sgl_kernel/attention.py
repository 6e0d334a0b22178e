"""Attention over SGLang's paged key-value cache, one request at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def _refuse_unknown(*, logit_cap: float, is_cross_attn: bool, sinks: Tensor | None) -> None:
    if logit_cap > 0 or is_cross_attn or sinks is not None:
        raise NotImplementedError(
            "the CPU stand-in for sgl_kernel has no logit cap, cross attention or attention sinks"
        )


def _attend(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, scale: float, mask_TS: Tensor | None) -> Tensor:
    """Attention of T queries over S keys; ``True`` in the mask means visible."""
    query, key, value = (t.to(q_THD.dtype).transpose(0, 1).unsqueeze(0) for t in (q_THD, k_SGD, v_SGD))
    grouped = query.shape[1] != key.shape[1]
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask_TS, scale=scale, enable_gqa=grouped
    )
    return out.squeeze(0).transpose(0, 1)


def decode_attention(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    scaling: float,
    logit_cap: float,
    is_cross_attn: bool = False,
    sliding_window: int = -1,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """One new token per request: stores its key and value, then attends to everything before it."""
    _refuse_unknown(logit_cap=logit_cap, is_cross_attn=is_cross_attn, sinks=sinks)
    for new, buffer in ((k, k_buffer), (v, v_buffer)):
        if new is not None:
            buffer[loc] = new.view(new.shape[0], *buffer.shape[1:]).to(buffer.dtype)
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        if length <= 0:
            output[i].zero_()
            continue
        slots = req_to_token[row, :length].long()
        if sliding_window > 0:
            slots = slots[-sliding_window:]
        output[i] = _attend(q[i : i + 1], k_buffer[slots], v_buffer[slots], scale=scaling, mask_TS=None)[0]


def extend_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_extend_len: int,
    scaling: float,
    logit_cap: float,
    is_cross_attn: bool = False,
    sliding_window: int = -1,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """Several new tokens per request (prefill or verification), already stored in the cache.

    ``tree_mask`` holds, one request after another, N x N booleans: which draft
    token sees which. Without it the new tokens see each other causally.
    """
    _refuse_unknown(logit_cap=logit_cap, is_cross_attn=is_cross_attn, sinks=sinks)
    mask_start = 0
    requests = (req_pool_indices, seq_lens, extend_seq_lens, extend_start_loc)
    for row, length, num_new, start in zip(*(t.tolist() for t in requests), strict=True):
        if num_new <= 0:
            continue
        slots = req_to_token[row, :length].long()
        mask = None
        if is_causal:
            if tree_mask is None:
                among_new = torch.ones(num_new, num_new, dtype=torch.bool).tril()
            else:
                flat = tree_mask.view(-1)[mask_start : mask_start + num_new * num_new]
                among_new = flat.view(num_new, num_new).bool()
                mask_start += num_new * num_new
            num_old = length - num_new
            mask = torch.cat([torch.ones(num_new, num_old, dtype=torch.bool), among_new], dim=1)
            if sliding_window > 0:
                query_position = torch.arange(num_old, length).unsqueeze(1)
                mask &= torch.arange(length).unsqueeze(0) > query_position - sliding_window
        new = slice(start, start + num_new)
        output[new] = _attend(q[new], k_buffer[slots], v_buffer[slots], scale=scaling, mask_TS=mask)
