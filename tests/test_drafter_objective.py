"""The loss against the plain way of writing it, and what it leaves out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from drafter_training import draft_config, random_draft, write_tiny_target  # noqa: E402

from spectune.drafter.model import EagleDraft  # noqa: E402
from spectune.drafter.target import Target, load_target  # noqa: E402
from spectune.drafter.train.batches import Batch, collate, training_starts  # noqa: E402
from spectune.drafter.train.features import needed_positions  # noqa: E402
from spectune.drafter.train.loss import WantedRows, soft_label_loss  # noqa: E402
from spectune.drafter.train.objective import TestTimeLoss  # noqa: E402

pytestmark = pytest.mark.drafter


def test_the_written_out_gradient_is_that_of_the_plain_cross_entropy() -> None:
    chance = torch.Generator().manual_seed(0)
    state = torch.randn(300, 16, generator=chance, requires_grad=True)
    weight = torch.randn(50, 16, generator=chance, requires_grad=True)
    full = torch.randn(90, 70, generator=chance).softmax(-1)
    p, which = full[:, :50], torch.randint(0, 90, (300,), generator=chance)
    plain = -(p[which] * (state @ weight.T).log_softmax(-1)).sum() / 300
    expected = torch.autograd.grad(plain * 3, (state, weight))
    mass = p.sum(-1)
    loss, hits = soft_label_loss(
        state,
        weight.T.contiguous(),
        wanted_PD=WantedRows.apply(p / mass[:, None], weight.T.contiguous()),
        mass_P=mass,
        top_P=p.argmax(-1),
        which_N=which,
        scale=1 / 300,
    )
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(torch.autograd.grad(loss * 3, (state, weight)), expected)
    assert int(hits) == int(((state @ weight.T).argmax(-1) == p.argmax(-1)[which]).sum())


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = write_tiny_target(tmp_path_factory.mktemp("target"))
    return load_target(str(folder), layers=(1, 3, 5), dtype="float32", device="cpu")


@pytest.fixture
def draft(target: Target) -> EagleDraft:
    return random_draft(draft_config(Path(target.source)))


IDS = np.array([5, 9, 11, 30, 31, 32, 33, 34, 12, 13, 14, 40, 41, 42], np.int32)
TWO_TURNS = np.array([0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1], np.uint8)


def batch_of(ids: np.ndarray, mask: np.ndarray, *, num_steps: int = 3) -> Batch:
    return collate([(ids, mask)], [training_starts(mask)], rows=[0], num_steps=num_steps)


def loss_of(draft: EagleDraft, target: Target, batch: Batch, *, num_steps: int = 3) -> torch.Tensor:
    objective = TestTimeLoss(draft, target.ends, num_steps=num_steps, decay=0.8, dtype=torch.float32)
    features = target.features(batch.tokens_BL, needed_positions(batch.mask_BL))
    loss: torch.Tensor = objective(batch, features, [1.0] * num_steps)[0]
    return loss


def test_every_answer_token_is_predicted_once_and_chains_stop_where_an_answer_does() -> None:
    batch = batch_of(IDS, TWO_TURNS)
    predicted = [sorted((batch.starts_BM + 2 + j)[0][batch.valid_JBM[j][0]].tolist()) for j in range(3)]
    # Answers are tokens 3-7 and 11-13. Step 1 cannot predict a first token: its start would lie before the answer.
    assert predicted == [[3, 4, 5, 6, 7, 11, 12, 13], [4, 5, 6, 7, 12, 13], [5, 6, 7, 13]]


def test_the_loss_is_the_plain_sum_over_masked_positions(draft: EagleDraft, target: Target) -> None:
    batch = batch_of(IDS, TWO_TURNS)
    tokens = torch.as_tensor(IDS.astype(np.int64))[None]
    logits = target.model(input_ids=tokens).logits[0]
    p = logits.softmax(-1)[:, draft.target_ids_V]
    from spectune.drafter.unroll import unroll

    with torch.no_grad():
        features = target.features(batch.tokens_BL, needed_positions(batch.mask_BL))
        steps = unroll(
            draft,
            embedding_VD=target.ends.embedding_VD,
            tokens_BL=tokens,
            states_BLF=features.states_BLF,
            starts_BM=torch.as_tensor(batch.starts_BM),
            num_steps=3,
        )
        expected = 0.0
        for j, state in enumerate(steps):
            log_q = draft.logits(state)[0].log_softmax(-1)
            for m, start in enumerate(batch.starts_BM[0]):
                # The mask of each predicted token and of those drafted before it, read straight from the data.
                if all(t < len(IDS) and TWO_TURNS[t] for t in range(start + 2, start + 3 + j)):
                    weight = 0.8**j / (1 + 0.8 + 0.64)
                    expected -= weight * float((p[start + 1 + j] * log_q[m]).sum())
    assert float(loss_of(draft, target, batch)) == pytest.approx(expected, rel=1e-4)


def test_in_bfloat16_the_gradient_points_the_same_way(draft: EagleDraft, target: Target) -> None:
    batch, gradients = batch_of(IDS, TWO_TURNS), []
    features = target.features(batch.tokens_BL, needed_positions(batch.mask_BL))
    for dtype in (torch.float32, torch.bfloat16):
        objective = TestTimeLoss(draft, target.ends, num_steps=3, decay=0.8, dtype=dtype)
        objective(batch, features, [1.0] * 3)[0].backward()
        gradients.append({name: p.grad.flatten() for name, p in draft.named_parameters()})
        draft.zero_grad(set_to_none=True)
    for name, exact in gradients[0].items():
        similar = torch.nn.functional.cosine_similarity(exact, gradients[1][name], dim=0)
        assert float(similar) > 0.99, name


def test_tokens_behind_the_last_answer_change_nothing(draft: EagleDraft, target: Target) -> None:
    ids, mask = IDS[:10].copy(), TWO_TURNS[:10].copy()  # the answer ends at token 7
    before = loss_of(draft, target, batch_of(ids, mask))
    ids[8:] = 50
    assert float(loss_of(draft, target, batch_of(ids, mask))) == float(before)


def test_padding_changes_nothing(draft: EagleDraft, target: Target) -> None:
    short = (IDS[:8], TWO_TURNS[:8])
    long = (np.arange(3, 25, dtype=np.int32), np.ones(22, np.uint8))
    alone = sum(float(loss_of(draft, target, batch_of(*pair))) for pair in (short, long))
    both = collate([short, long], [training_starts(m) for _, m in (short, long)], rows=[0, 1], num_steps=3)
    assert float(loss_of(draft, target, both)) == pytest.approx(alone, rel=1e-5)


def test_the_loss_falls_along_its_gradient(draft: EagleDraft, target: Target) -> None:
    batch = batch_of(IDS, TWO_TURNS)
    before = loss_of(draft, target, batch)
    before.backward()
    squared = sum(float((p.grad**2).sum()) for p in draft.parameters())
    step = 1e-3 / squared**0.5
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter -= step * parameter.grad
    fell = float(before) - float(loss_of(draft, target, batch))
    assert fell == pytest.approx(step * squared, rel=0.1)
