"""How fast training could be: operations counted from the shapes, over the matrix rate measured here.

One multiply-add is two operations. Counted are matrix products only: what else happens is what a share below 1
consists of, together with products that run slower than the best shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from spectune.drafter.config import DraftConfig

_MEAN_CONTEXT = 256
_SIZE = 1024


@dataclass(frozen=True)
class Operations:
    """Per answer token, over all steps of the test, forward and backward."""

    fusion: float
    layer: float
    attention: float
    head: float
    labels: float
    """The target's head over the draft vocabulary, forward only."""

    @property
    def total(self) -> float:
        return self.fusion + self.layer + self.attention + self.head + self.labels


def train_operations_per_token(
    config: DraftConfig, *, num_steps: int, mean_context: float = _MEAN_CONTEXT
) -> Operations:
    """Prompt tokens are left out: they need only the fusion, keys and values of one step.

    A product costs 2 operations per weight forward, 2 for the gradient of its weights and 2 for that of its
    input, which the fusion, standing first, does not need.
    """
    hidden, head_dim = config.hidden_size, config.head_dim
    queries, keys = config.num_heads * head_dim, config.num_kv_heads * head_dim
    projections = 2 * hidden * (queries + 2 * keys) + queries * hidden
    layer = projections + 3 * hidden * config.intermediate_size
    mean_keys = mean_context / 2 + (num_steps - 1) / 2
    return Operations(
        fusion=4.0 * len(config.layers) * hidden * hidden,
        layer=6.0 * num_steps * layer,
        attention=6.0 * num_steps * 2 * queries * mean_keys,
        head=6.0 * num_steps * config.draft_vocab_size * hidden,
        labels=2.0 * config.draft_vocab_size * hidden,
    )


def measure_matrix_rate(
    *, dtype: str, device: str = "cpu", for_s: float = 1.0, clock: Callable[[], float] = time.monotonic
) -> float:
    """Operations per second of the best square product found, with as many threads as torch uses now."""
    import torch

    best = 0.0
    sizes = (_SIZE, 2 * _SIZE) if device == "cpu" else (4 * _SIZE, 8 * _SIZE)
    for size in sizes:
        a = torch.randn(size, size, device=device).to(getattr(torch, dtype))
        b = torch.randn(size, size, device=device).to(getattr(torch, dtype))
        spent_s, repeats = 0.0, 0
        while spent_s < for_s / len(sizes) or repeats < 3:
            began_s = clock()
            product = a @ b
            float(product[0, 0])  # waits for a GPU
            took_s = clock() - began_s
            spent_s += took_s
            repeats += 1
            best = max(best, 2.0 * size**3 / took_s)
    return best
