"""The tree of draft tokens: building it after drafting, walking it after verification.

Nodes of a request are 0..N-1; node 0, the root, is the last token of the text.
``retrieve_next_token[b, i]`` is the first child of node i and
``retrieve_next_sibling[b, i]`` the next child of its parent, -1 where there is none.
"""

from __future__ import annotations

import torch
from torch import Tensor

FULL_MASK = 0
"""``tree_mask_mode``: rows cover the whole text and the draft, not only the draft."""


def _parents(selected: list[int], parent_list: list[int], *, topk: int, num_nodes: int) -> list[int | None]:
    """Each node's parent; ``None`` where the draft's parent was not selected (and for the root)."""
    node_of: dict[int, int] = {}
    for position, candidate in enumerate(selected[: num_nodes - 1]):
        node_of.setdefault(candidate, position + 1)
    parents: list[int | None] = [None]
    for candidate in selected[: num_nodes - 1]:
        group = candidate // topk
        parents.append(0 if group == 0 else node_of.get(parent_list[group]))
    return parents


def _ancestors(node: int, parents: list[int | None], *, depth: int) -> list[int]:
    """The node and those above it, root excluded, at most ``depth`` of them."""
    path: list[int] = []
    current: int | None = node
    while current and len(path) < depth:
        path.append(current)
        current = parents[current]
    return path


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fills links, positions and visibility of every request's tree, in place."""
    num_nodes = draft_token_num
    index_BN, child_BN, sibling_BN = (
        t.view(-1, num_nodes) for t in (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    )
    flat_mask, mask_start = tree_mask.view(-1), 0
    trees = zip(selected_index.tolist(), parent_list.tolist(), verified_seq_len.tolist(), strict=True)
    for b, (selected, drafted_parents, length) in enumerate(trees):
        parents = _parents(selected, drafted_parents, topk=topk, num_nodes=num_nodes)
        index_BN[b] = torch.arange(b * num_nodes, (b + 1) * num_nodes)
        for node in range(num_nodes - 1, 0, -1):  # backwards, so that children end up in ascending order
            parent = parents[node]
            if parent is not None:
                if (next_child := int(child_BN[b, parent])) != -1:
                    sibling_BN[b, node] = next_child
                child_BN[b, parent] = node

        visible_NN = torch.zeros(num_nodes, num_nodes, dtype=torch.bool)
        visible_NN[:, 0] = True
        node_positions = [length]
        for node in range(1, num_nodes):
            path = _ancestors(node, parents, depth=depth)
            visible_NN[node, path] = True
            node_positions.append(length + len(path))
        positions.view(-1)[b * num_nodes : (b + 1) * num_nodes] = torch.tensor(
            node_positions, dtype=positions.dtype
        )
        width = length + num_nodes if int(tree_mask_mode) == FULL_MASK else num_nodes
        rows = flat_mask[mask_start : mask_start + num_nodes * width].view(num_nodes, width)
        rows[:, width - num_nodes :] = visible_NN.to(rows.dtype)
        mask_start += num_nodes * width


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follows from the root the child that is the target's own choice, until there is none.

    ``accept_token_num`` counts kept drafts, without the bonus token, which
    ``predicts`` holds at the last kept node. Called by keyword, in the kernel's spelling.
    """
    num_places = accept_index.shape[1]
    draft_ids, node_index = candidates.tolist(), retrive_index.tolist()
    children, siblings = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    target_ids = target_predict.reshape(-1).tolist()
    for b in range(candidates.shape[0]):
        node, num_kept = 0, 0
        last = node_index[b][0]
        accept_index[b, 0] = last
        while num_kept + 1 < num_places:
            node = children[b][node]
            while node != -1 and draft_ids[b][node] != target_ids[last]:
                node = siblings[b][node]
            if node == -1:
                break
            predicts[last] = target_ids[last]
            num_kept += 1
            last = node_index[b][node]
            accept_index[b, num_kept] = last
        accept_token_num[b] = num_kept
        predicts[last] = target_ids[last]
