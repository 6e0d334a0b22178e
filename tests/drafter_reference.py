"""An EAGLE-3 draft written a second time, token by token in float64 numpy, for the tests to compare with.

It keeps a list of keys and values as an engine does, and knows nothing of batches, starts or prefixes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


class ReferenceDraft:
    """``tensors``: float64 arrays by checkpoint name."""

    def __init__(
        self, tensors: dict[str, Array], *, heads: int, kv_heads: int, head_dim: int, eps: float, theta: float
    ):
        self.w = tensors
        self.heads, self.kv_heads, self.head_dim, self.eps, self.theta = heads, kv_heads, head_dim, eps, theta
        self.keys: list[Array] = []
        self.values: list[Array] = []

    def fuse(self, state: Array) -> Array:
        return self.w["fc.weight"] @ state

    def forward(self, embedding: Array, feature: Array, position: int) -> Array:
        """Appends one position and returns its output before the last norm."""
        e = self._norm(embedding, "midlayer.input_layernorm.weight")
        f = self._norm(feature, "midlayer.hidden_norm.weight")
        x = np.concatenate([e, f])
        q = (self.w["midlayer.self_attn.q_proj.weight"] @ x).reshape(self.heads, self.head_dim)
        k = (self.w["midlayer.self_attn.k_proj.weight"] @ x).reshape(self.kv_heads, self.head_dim)
        v = (self.w["midlayer.self_attn.v_proj.weight"] @ x).reshape(self.kv_heads, self.head_dim)
        q, k = self._rotate(q, position), self._rotate(k, position)
        self.keys.append(k)
        self.values.append(v)
        mixed = []
        for head in range(self.heads):
            group = head * self.kv_heads // self.heads
            scores = np.array([q[head] @ key[group] for key in self.keys]) / np.sqrt(self.head_dim)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            mixed.append(sum(w * value[group] for w, value in zip(weights, self.values, strict=True)))
        h = feature + self.w["midlayer.self_attn.o_proj.weight"] @ np.concatenate(mixed)
        n = self._norm(h, "midlayer.post_attention_layernorm.weight")
        gate = self.w["midlayer.mlp.gate_proj.weight"] @ n
        up = self.w["midlayer.mlp.up_proj.weight"] @ n
        return h + self.w["midlayer.mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)

    def logits(self, output: Array) -> Array:
        return self.w["lm_head.weight"] @ self._norm(output, "norm.weight")

    def target_id(self, draft_id: int) -> int:
        return int(draft_id + self.w["d2t"][draft_id])

    def read_prefix(self, tokens: list[int], states: Array, embedding: Array, start: int) -> Array:
        """Positions 0..start with the target's states; returns the output at ``start``."""
        self.keys, self.values = [], []
        out = None
        for position in range(start + 1):
            out = self.forward(embedding[tokens[position + 1]], self.fuse(states[position]), position)
        return out

    def chain(
        self,
        tokens: list[int],
        states: Array,
        embedding: Array,
        start: int,
        num_steps: int,
        choose: Callable[[Array, int], int],
    ) -> list[Array]:
        """Logits of each step; ``choose(logits, j)`` names the token that the next step reads."""
        out = self.read_prefix(tokens, states, embedding, start)
        found = [self.logits(out)]
        for j in range(1, num_steps):
            out = self.forward(embedding[choose(found[-1], j)], out, start + j)
            found.append(self.logits(out))
        return found

    def _norm(self, x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean() + self.eps) * self.w[name]

    def _rotate(self, x: Array, position: int) -> Array:
        half = self.head_dim // 2
        angles = position * self.theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles), np.sin(angles)
        a, b = x[:, :half], x[:, half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)


def as_arrays(state_dict: dict[str, Any]) -> dict[str, Array]:
    return {
        name: (x.double() if x.is_floating_point() else x.long()).numpy() for name, x in state_dict.items()
    }
