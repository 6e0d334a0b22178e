"""Operations counted from shapes, against those torch counts while it trains."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from drafter_training import random_draft  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from spectune.drafter.config import DraftConfig  # noqa: E402
from spectune.drafter.target import Ends, Features  # noqa: E402
from spectune.drafter.train.batches import collate, training_starts  # noqa: E402
from spectune.drafter.train.floor import measure_matrix_rate, train_operations_per_token  # noqa: E402
from spectune.drafter.train.objective import TestTimeLoss  # noqa: E402

pytestmark = pytest.mark.drafter


def test_the_count_agrees_with_what_torch_counts() -> None:
    config = DraftConfig(64, 128, 4, 2, 16, 300, 200, (1, 2, 3))
    draft = random_draft(config)
    length, steps = 96, 3
    ids, mask = np.arange(length, dtype=np.int32), np.ones(length, np.uint8)
    batch = collate([(ids, mask)] * 4, [training_starts(mask)] * 4, rows=range(4), num_steps=steps)
    ends = Ends(torch.randn(300, 64), torch.randn(300, 64))
    features = Features(
        torch.randn(4, length, 192),
        torch.randn(4, length, 64),
        torch.zeros(4, length),
        torch.zeros(4, length).long(),
    )
    objective = TestTimeLoss(draft, ends, num_steps=steps, decay=0.8, dtype=torch.float32)
    with FlopCounterMode(display=False) as counter:
        objective(batch, features, [1.0] * steps)[0].backward()
    counted = train_operations_per_token(config, num_steps=steps, mean_context=2 * length).total
    # Dense attention computes what its mask hides, so its mean context is that of a text twice as long.
    assert counter.get_total_flops() / batch.num_tokens == pytest.approx(counted, rel=0.05)


def test_the_rate_is_operations_over_the_shortest_time() -> None:
    ticks = itertools.count(0.0, 0.5)
    rate = measure_matrix_rate(dtype="float32", for_s=0.1, clock=lambda: next(ticks))
    assert rate == 2.0 * 2048**3 / 0.5
