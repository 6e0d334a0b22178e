"""The operators of a dense Llama layer other than attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def ignore(*_: object) -> None:
    """Thread pinning and shared-memory set-up: nothing to do in one process."""


def keep_weight(weight: Tensor) -> Tensor:
    """The weight as it is; the real kernel packs it for AMX tiles."""
    return weight.detach().clone()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, is_packed: bool) -> Tensor:
    return F.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)


def add_and_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """In place: ``residual += x``, then ``x`` becomes the normed residual."""
    residual.add_(x)
    x.copy_(rms_norm(residual, weight, eps))


def silu_and_multiply(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> tuple[Tensor, Tensor]:
    """Query and key rotated by position.

    ``cos_sin_cache`` is [positions, rotary size]: cosines, then sines. ``is_neox``
    pairs component i with i + half; otherwise neighbours are paired.
    """
    cos, sin = (half.unsqueeze(1) for half in cos_sin_cache[positions].float().chunk(2, dim=-1))
    rotary_size = cos_sin_cache.shape[-1]

    def rotate(t: Tensor) -> Tensor:
        heads = t.view(positions.numel(), -1, head_size)
        rotated, rest = heads[..., :rotary_size].float(), heads[..., rotary_size:]
        first, second = rotated.chunk(2, dim=-1) if is_neox else (rotated[..., ::2], rotated[..., 1::2])
        pair = (first * cos - second * sin, second * cos + first * sin)
        turned = torch.cat(pair, dim=-1) if is_neox else torch.stack(pair, dim=-1).flatten(-2)
        return torch.cat((turned.to(t.dtype), rest), dim=-1).reshape(t.shape)

    return rotate(query), rotate(key)


def store_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor, row_size: int
) -> None:
    """Writes keys and values of new tokens into their cache slots."""
    num_tokens = indices.numel()
    for new, cache in ((k, k_cache), (v, v_cache)):
        cache.view(cache.shape[0], -1)[indices] = new.reshape(num_tokens, -1).to(cache.dtype)
