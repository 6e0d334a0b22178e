"""Bookkeeping of cache slots and of the tokens a verification kept.

``req_to_token[row, position]`` is the cache slot of a request's token; ``row`` is
the request's entry in ``req_pool_indices``. Arguments are positional, in the
order of the kernels replaced; results are written in place unless returned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor


def _pieces(req_pool_indices: Tensor, start: Tensor, end: Tensor) -> Iterator[tuple[int, slice, slice]]:
    """For each request: its row, its positions, and where they lie in the flat list of slots."""
    offset = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        length = last - first
        yield row, slice(first, last), slice(offset, offset + length)
        offset += length


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """``req_to_token[row, start:end] = slots``, the slots one request after another."""
    for row, positions, flat in _pieces(req_pool_indices, start_offset, end_offset):
        req_to_token[row, positions] = out_cache_loc[flat].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The inverse: ``slots = req_to_token[row, start:end]``."""
    for row, positions, flat in _pieces(req_pool_indices, start_offset, end_offset):
        out_cache_loc[flat] = req_to_token[row, positions].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """The ``topk * num_steps`` slots reserved behind each request's text."""
    width = topk * num_steps
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[row, length : length + width]
        out_cache_loc[i * width : (i + 1) * width] = slots.to(out_cache_loc.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """A slot table with a row per branch: the request's, with the branch's slots moved up behind the text."""
    rows = []
    for row, length in zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True):
        for branch in range(topk):
            first = length + branch * num_steps
            slots = req_to_token[row].clone()
            slots[length : length + num_steps] = req_to_token[row, first : first + num_steps]
            rows.append(slots)
    return torch.stack(rows) if rows else req_to_token.new_zeros((0, req_to_token.shape[1]))


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, target_locs: Tensor, source_locs: Tensor
) -> None:
    """Copies whole slots within every layer's buffer, given by address and bytes per slot.

    All sources are read before the first target is written, as the two may overlap.
    """
    sources, targets = source_locs.tolist(), target_locs.tolist()
    for address, num_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        slots = [ctypes.string_at(address + source * num_bytes, num_bytes) for source in sources]
        for target, slot in zip(targets, slots, strict=True):
            ctypes.memmove(address + target * num_bytes, slot, num_bytes)


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """The last kept token of each request: the one the target chose itself."""
    num_requests = accept_lens.shape[0]
    last = torch.arange(num_requests) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:num_requests] = accept_tokens.view(-1)[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """The slots of kept tokens, packed; -1 in ``accept_index`` marks an unused place."""
    kept = accept_index.view(-1)
    kept = kept[kept > -1].long()
    accept_out_cache_loc[: kept.numel()] = out_cache_loc[kept].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Each request's ids moved one to the left, the new one at the end or where ``select_index`` says."""
    new_ids = topk_index.view(-1).tolist()
    chosen = None if select_index is None else select_index.tolist()
    pieces = zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)
    for i, (start, length) in enumerate(pieces):
        if length > 0:
            last = start + length - 1
            input_ids[start:last] = input_ids[start + 1 : last + 1].clone()
            input_ids[last if chosen is None else chosen[i]] = new_ids[i]
