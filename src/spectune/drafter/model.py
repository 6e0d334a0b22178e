"""The EAGLE-3 draft (Li et al. 2025, arXiv:2503.01840): a fusion, one decoder layer, a head.

Shapes:  B batch, L positions, M starts, F fused width (states * D), D hidden, H query heads,
         G key heads, R = H / G, C head width, V draft vocabulary, N rows

What happens at position t: the target has read tokens 0..t and its states there are known; token t + 1 is
known too. The draft reads the embedding of token t + 1 beside the fused states of t, and its output predicts
token t + 2. Its output is also the state with which it goes on: the next step reads the embedding of
token t + 2 beside that output, and predicts token t + 3.

A *start* is a position t from which the draft runs ahead. Step j of a start sees what an engine's draft sees
there: true states at positions 0..t (the *prefix*), then its own outputs at t + 1 .. t + j (its *own* keys).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spectune.drafter.config import DraftConfig
from spectune.errors import BadInput

_SCORES_KEPT = 64_000_000
"""Attention scores of one step above which they are computed in blocks, and again in the backward pass, not kept."""


@dataclass(frozen=True)
class Keys:
    """Rotated keys and values: of the prefix ``[B, G, L, C]``, or of one own step ``[B, G, M, C]``."""

    k: Tensor
    v: Tensor

    def select(self, index_BM: Tensor) -> Keys:
        """Own keys of other rows: a branch of a tree takes those of its parent."""
        index = index_BM[:, None, :, None].expand(-1, self.k.shape[1], -1, self.k.shape[3])
        return Keys(self.k.gather(2, index), self.v.gather(2, index))


class RMSNorm(nn.Module):
    """Computed in float32, as Llama's."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Norm.apply(x, self.weight.to(x.dtype), self.eps)
        return out


class _Norm(torch.autograd.Function):
    """With its gradient written out: left to autograd, norms cost as much as the feed-forward's products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        wide = x.float()
        inverse = torch.rsqrt(torch.linalg.vecdot(wide, wide)[..., None] / x.shape[-1] + eps)
        scaled = (wide * inverse).to(x.dtype)
        ctx.save_for_backward(scaled, inverse, weight_D)
        return scaled * weight_D

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled, inverse, weight_D = ctx.saved_tensors
        wide, by_scaled = scaled.float(), (grads[0] * weight_D).float()
        by_weight = (grads[0].float() * wide).flatten(0, -2).sum(0).to(weight_D.dtype)
        along = torch.linalg.vecdot(by_scaled, wide)[..., None] / wide.shape[-1]
        by_x = torch.addcmul(by_scaled, wide, along, value=-1).mul_(inverse)
        return by_x.to(scaled.dtype), by_weight, None


class Attention(nn.Module):
    """Grouped-query attention whose queries, keys and values read ``[embedding, state]``, twice the width."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.num_groups = config.num_kv_heads
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def keys(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Keys:
        heads = (*x.shape[:2], self.num_groups, self.head_dim)
        k = self.k_proj(x).view(heads).transpose(1, 2)
        return Keys(rotate(k, turn), self.v_proj(x).view(heads).transpose(1, 2))

    def queries(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """``[B, H, M, C]``."""
        return rotate(self.q_proj(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2), turn)

    def forward(self, q_BHMC: Tensor, prefix: Keys, starts_BM: Tensor, own: Sequence[Keys]) -> Tensor:
        B, H, M, C = q_BHMC.shape
        own_parts = [part for keys in own for part in (keys.k, keys.v)]
        wanted = B * H * M * (prefix.k.shape[2] + len(own))
        if wanted > _SCORES_KEPT:
            attend = partial(checkpoint, _attend, use_reentrant=False) if torch.is_grad_enabled() else _attend
            blocks = range(0, M, max(1, M * _SCORES_KEPT // wanted))
            pieces = []
            for first in blocks:
                rows = slice(first, first + blocks.step)
                parts = [part[:, :, rows] for part in own_parts]
                pieces.append(attend(q_BHMC[:, :, rows], prefix.k, prefix.v, starts_BM[:, rows], *parts))
            mixed = torch.cat(pieces, dim=2)
        else:
            mixed = _attend(q_BHMC, prefix.k, prefix.v, starts_BM, *own_parts)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(B, M, H * C))
        return out


def _attend(q_BHMC: Tensor, k_BGLC: Tensor, v_BGLC: Tensor, starts_BM: Tensor, *own: Tensor) -> Tensor:
    """Attention over prefix positions up to each row's start, and over the row's own keys."""
    B, H, M, C = q_BHMC.shape
    G, L = k_BGLC.shape[1:3]
    q = q_BHMC.reshape(B, G, H // G, M, C) * C**-0.5
    scores = (q.reshape(B, G, -1, C) @ k_BGLC.transpose(2, 3)).view(B, G, -1, M, L)
    hidden_BML = torch.arange(L, device=q.device) > starts_BM[:, :, None]
    scores = scores.masked_fill(hidden_BML[:, None, None], -math.inf)
    own_scores = [(q * k[:, :, None]).sum(-1, keepdim=True) for k in own[0::2]]
    # The products' type goes in and comes out; softmax itself computes in float32.
    weights = torch.cat([scores, *own_scores], dim=-1).softmax(-1).to(v_BGLC.dtype)
    mixed = (weights[..., :L].reshape(B, G, -1, L) @ v_BGLC).view(B, G, -1, M, C)
    for j, v in enumerate(own[1::2]):
        mixed = mixed + weights[..., L + j : L + j + 1] * v[:, :, None]
    return mixed.reshape(B, H, M, C)


class FeedForward(nn.Module):
    """Llama's gated feed-forward."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DraftLayer(nn.Module):
    """One decoder layer; the two halves of its input have their own norms."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def joined(self, normed_embedding: Tensor, state: Tensor) -> Tensor:
        return torch.cat([normed_embedding, self.hidden_norm(state)], dim=-1)


class EagleDraft(nn.Module):
    """The draft. Its parameters are named as in the checkpoints that SGLang and vLLM load."""

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.layers) * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = DraftLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.register_buffer("frequencies", inverse_frequencies(config), persistent=False)

    @property
    def target_ids_V(self) -> Tensor:
        """Target token of each draft token."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def draft_ids(self) -> Tensor:
        """``[target vocabulary]``: draft token of each target token, -1 where there is none."""
        ids = torch.full((self.config.vocab_size,), -1, dtype=torch.int64, device=self.d2t.device)
        ids[self.target_ids_V] = torch.arange(len(self.d2t), device=self.d2t.device)
        return ids

    def fuse(self, states_BLF: Tensor) -> Tensor:
        fused: Tensor = self.fc(states_BLF)
        return fused

    def read(self, embedding: Tensor) -> Tensor:
        """Token embeddings as the layer takes them in: behind their norm."""
        out: Tensor = self.midlayer.input_layernorm(embedding)
        return out

    def prefix(self, read_BLD: Tensor, fused_BLD: Tensor) -> Keys:
        """Keys of every position, from the target's own states."""
        turn = self._turn(torch.arange(read_BLD.shape[1], device=read_BLD.device)[None])
        return self.midlayer.self_attn.keys(self.midlayer.joined(read_BLD, fused_BLD), turn)

    def step(
        self,
        read_BMD: Tensor,
        state_BMD: Tensor,
        *,
        prefix: Keys,
        starts_BM: Tensor,
        own: list[Keys],
        j: int,
    ) -> Tensor:
        """The state after step ``j`` of each start; from step 1 on, ``own`` gains the step's keys.

        Step 0 stands on the start itself, whose keys are part of the prefix.
        """
        layer = self.midlayer
        turn = self._turn(starts_BM + j)
        x = layer.joined(read_BMD, state_BMD)
        if j > 0:
            own.append(layer.self_attn.keys(x, turn))
        mixed = layer.self_attn(layer.self_attn.queries(x, turn), prefix, starts_BM, own)
        state = state_BMD + mixed
        out: Tensor = state + layer.mlp(layer.post_attention_layernorm(state))
        return out

    def logits(self, state: Tensor) -> Tensor:
        """Over the draft vocabulary."""
        out: Tensor = self.lm_head(self.norm(state))
        return out

    def _turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None, :, None].float() * self.frequencies
        return angles.cos(), angles.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding in Llama's layout (halves, not pairs)."""
    out: Tensor = _Rotation.apply(x, *turn)
    return out


class _Rotation(torch.autograd.Function):
    """The gradient of a rotation is the rotation back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turned(grads[0], cos, -sin), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    out, half = torch.empty_like(x), first.shape[-1]
    out[..., :half] = torch.addcmul(first * cos, second, sin, value=-1)
    out[..., half:] = torch.addcmul(second * cos, first, sin)
    return out


def inverse_frequencies(config: DraftConfig) -> Tensor:
    """Radians per position of each rotated pair; plain, ``linear`` and ``llama3`` scaling."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
    frequencies = config.rope_theta ** -(pairs / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    kind = scaling.get("rope_type", scaling.get("type"))
    try:
        factor = float(scaling["factor"])
        if kind == "linear":
            return frequencies / factor
        if kind == "llama3":
            low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
            turns = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
            kept = ((turns - low) / (high - low)).clamp(0, 1)
            return frequencies * (kept + (1 - kept) / factor)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"rope_scaling of the draft: {error!s} is missing or no number") from error
    raise BadInput(f"rope_scaling of the draft is of type {kind!r}; known: linear, llama3")


def _check_values(path: Path, name: str, tensor: Tensor, *, whole: bool) -> None:
    """Numbers of the kind that is meant, all finite. Raises ``BadInput``."""
    if whole == tensor.is_floating_point():
        meant = (
            "whole numbers" if whole else "plain floating-point numbers; quantised drafts are not modelled"
        )
        raise BadInput(
            f"{path}: {name} is of type {str(tensor.dtype).removeprefix('torch.')}, expected {meant}"
        )
    if not whole and not bool(tensor.float().isfinite().all()):
        raise BadInput(f"{path}: {name} holds numbers that are not finite: the training has diverged")


def load_draft(folder: Path, config: DraftConfig, *, device: str = "cpu") -> EagleDraft:
    """A draft from ``model.safetensors``, in float32. Raises ``BadInput`` naming the tensor that does not fit."""
    draft = EagleDraft(config)
    wanted = dict(draft.state_dict())
    path = folder / "model.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            names = {name.replace("layers.0.", "midlayer.", 1): name for name in file.keys()}  # noqa: SIM118
            missing = sorted(set(wanted) - set(names) - {"t2d"})
            unknown = sorted(set(names) - set(wanted) - {"embed_tokens.weight"})
            if missing or unknown:
                what = f"lacks {', '.join(missing)}" if missing else f"also has {', '.join(unknown)}"
                raise BadInput(f"{path}: not the EAGLE-3 draft this code models: it {what}")
            tensors = {name: file.get_tensor(names[name]) for name in wanted if name in names}
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file; weights must be in one safetensors file") from error
    except SafetensorError as error:
        raise BadInput(f"{path}: damaged, or not safetensors: {error}") from error
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise BadInput(
                f"{path}: {name} is {list(tensor.shape)}, config.json asks for {list(wanted[name].shape)}"
            )
        _check_values(path, name, tensor, whole=not wanted[name].is_floating_point())
    targets = torch.arange(config.draft_vocab_size) + tensors["d2t"]
    if (
        int(targets.min()) < 0
        or int(targets.max()) >= config.vocab_size
        or len(targets.unique()) < len(targets)
    ):
        raise BadInput(
            f"{path}: d2t does not lead to {len(targets)} different tokens below {config.vocab_size}; "
            "its entries must be offsets (target id minus draft id)"
        )
    tensors.setdefault("t2d", torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, targets, True))
    draft.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()})
    draft.to(device)
    return draft
