"""What the draft is trained towards: the target's probabilities over the draft vocabulary, and the loss.

Shapes:  B batch, L positions, M starts, J steps, N rows, P distinct target positions, V draft vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spectune.drafter.model import EagleDraft
from spectune.drafter.target import Ends, Features
from spectune.drafter.train.batches import Batch
from spectune.drafter.train.features import needed_positions
from spectune.drafter.train.loss import WantedRows, shares_and_logsumexp, soft_label_loss
from spectune.drafter.unroll import unroll


@dataclass(frozen=True)
class Labels:
    """The target's view at each position that predicts an answer token, each made once for all steps."""

    shares_PV: Tensor
    """Probabilities within the draft vocabulary: they sum to 1."""
    mass_P: Tensor
    """Probability of the whole draft vocabulary, float32."""
    top_P: Tensor
    """The target's most likely token as a draft token, -1 if it cannot be drafted."""
    place_BL: Tensor
    """Position in the row -> position in the arrays above."""


class Labeller:
    """The head's rows of the draft vocabulary, kept apart."""

    def __init__(self, draft: EagleDraft, ends: Ends) -> None:
        self._ids = draft.target_ids_V
        self._head = Ends(
            ends.embedding_VD,
            ends.head_VD[self._ids],
            None if ends.bias_V is None else ends.bias_V[self._ids],
        )
        self._draft_ids = draft.draft_ids()

    def labels(self, batch: Batch, features: Features, dtype: torch.dtype) -> Labels:
        needed = torch.as_tensor(needed_positions(batch.mask_BL), device=features.final_BLD.device)
        with torch.no_grad():
            logits_PV = self._head.logits(features.final_BLD[needed])
            shares_PV, _, logsumexp_P = shares_and_logsumexp(logits_PV)
            mass_P = (logsumexp_P - features.logsum_BL[needed]).exp().clamp(max=1)
        place_BL = (needed.flatten().cumsum(0) - 1).view(needed.shape)
        return Labels(shares_PV.to(dtype), mass_P, self._draft_ids[features.top_BL[needed]], place_BL)


class TestTimeLoss(nn.Module):
    """The unrolled draft with its loss, as one module whose forward pass is one micro-batch.

    Step j's loss is a mean over the positions it predicts; the steps are averaged with weights decay ** j.
    """

    __test__ = False  # not a test, whatever its name begins with

    def __init__(
        self, draft: EagleDraft, ends: Ends, *, num_steps: int, decay: float, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.draft = draft
        self._ends = ends
        self._labeller = Labeller(draft, ends)
        self._weights = [decay**j / sum(decay**i for i in range(num_steps)) for j in range(num_steps)]
        self._dtype = dtype

    def forward(
        self, batch: Batch, features: Features, scale_J: list[float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``scale_J``: what each step's sum is multiplied by to become a mean over the whole step's rows.

        Returns the loss to descend, and by step the scaled loss (its mean) and the number of hits.
        """
        device = features.final_BLD.device
        labels = self._labeller.labels(batch, features, self._dtype)
        starts_BM = torch.as_tensor(batch.starts_BM, device=device)
        valid_JBM = torch.as_tensor(batch.valid_JBM, device=device)
        losses, hits = [], []
        with torch.autocast(device.type, self._dtype, enabled=self._dtype != torch.float32):
            states = unroll(
                self.draft,
                embedding_VD=self._ends.embedding_VD,
                tokens_BL=torch.as_tensor(batch.tokens_BL, device=device),
                states_BLF=features.states_BLF,
                starts_BM=starts_BM,
                num_steps=len(self._weights),
            )
            head_DV = self.draft.lm_head.weight.to(self._dtype).T.contiguous()
            wanted_PD = WantedRows.apply(labels.shares_PV, head_DV).float()
            for j, state_BMD in enumerate(states):
                valid_BM = valid_JBM[j]
                predicted_BM = (starts_BM + 1 + j).clamp(max=labels.place_BL.shape[1] - 1)
                which_N = labels.place_BL.gather(1, predicted_BM)[valid_BM]
                loss, num_hits = soft_label_loss(
                    self.draft.norm(state_BMD[valid_BM]),
                    head_DV,
                    wanted_PD=wanted_PD,
                    mass_P=labels.mass_P,
                    top_P=labels.top_P,
                    which_N=which_N,
                    scale=scale_J[j],
                )
                losses.append(loss)
                hits.append(num_hits)
        loss_J = torch.stack(losses)
        return loss_J @ loss_J.new_tensor(self._weights), loss_J.detach(), torch.stack(hits)
