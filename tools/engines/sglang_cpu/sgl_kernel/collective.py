"""What the ranks of a tensor parallel server exchange, over torch.distributed instead of shared memory.

SGLang on a CPU takes all ranks for processes of one machine, on several nodes
too, and asks its kernels for shared memory; the process group that it made
reaches ranks on other nodes as well.
"""

from __future__ import annotations

import torch
from torch import distributed

_num_ranks: int | None = None


def initialize(num_ranks: int, rank: int) -> None:
    """Notes how many ranks share each layer; the process group does not exist yet."""
    global _num_ranks
    _num_ranks = num_ranks


def all_reduce(data: torch.Tensor, op: int) -> None:
    """The sum over the ranks, in place; ``data``: any shape."""
    if op != int(distributed.ReduceOp.SUM):
        raise NotImplementedError(f"the CPU stand-in for sgl_kernel only adds up, reduction {op} was asked for")
    _require_one_group()
    distributed.all_reduce(data)


def all_gather(data: torch.Tensor, dim: int) -> torch.Tensor:
    """The ranks' tensors of one shape, joined in the order of the ranks along ``dim``."""
    _require_one_group()
    parts = [torch.empty_like(data) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, data.contiguous())
    return torch.cat(parts, dim=dim)


def _require_one_group() -> None:
    """With pipeline stages besides, the ranks of a layer are not all ranks."""
    if distributed.get_world_size() != _num_ranks:
        raise NotImplementedError(
            f"the CPU stand-in for sgl_kernel joins all {distributed.get_world_size()} ranks, "
            f"{_num_ranks} share a layer"
        )
