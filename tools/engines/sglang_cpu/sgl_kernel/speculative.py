"""Links and positions of a draft tree that is given as a visibility mask (n-gram drafting)."""

from __future__ import annotations

import torch
from torch import Tensor


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Fills the last four tensors before the sizes, in place; see ``draft_tree`` for their meaning."""
    num_nodes = draft_token_num
    nodes = range(num_nodes)
    mask_BNN = tree_mask.view(batch_size, num_nodes, num_nodes).bool()
    below_diagonal = torch.ones(num_nodes, num_nodes, dtype=torch.bool).tril(-1)
    for b in range(batch_size):
        ancestors_NN = mask_BNN[b] & below_diagonal
        is_ancestor = ancestors_NN.tolist()
        parents = [max((j for j in range(i) if is_ancestor[i][j]), default=-1) for i in nodes]
        children = [next((j for j in nodes[i + 1 :] if is_ancestor[j][i]), -1) for i in nodes]
        siblings = [
            next((j for j in nodes[i + 1 :] if parents[i] >= 0 and parents[j] == parents[i]), -1)
            for i in nodes
        ]
        mine = slice(b * num_nodes, (b + 1) * num_nodes)
        positions.view(-1)[mine] = (ancestors_NN.sum(1) + verified_seq_len[b]).to(positions.dtype)
        retrieve_index.view(-1)[mine] = torch.arange(mine.start, mine.stop)
        retrieve_next_token.view(-1)[mine] = torch.tensor(children)
        retrieve_next_sibling.view(-1)[mine] = torch.tensor(siblings)
