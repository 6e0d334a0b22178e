"""One process, or several under torchrun: who am I, and how tensors are spread (FSDP2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from spectune.errors import BadInput

_RENDEZVOUS = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """This process among all."""

    rank: int
    size: int
    device: str

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def number_of(name: str, default: int) -> int:
    """Of the environment. Raises ``BadInput``."""
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdecimal()):
        raise BadInput(f"{name} is {text!r} in the environment, expected a whole number, as torchrun sets it")
    return int(text)


def is_first_process() -> bool:
    """Whether this one speaks for all."""
    return number_of("WORLD_SIZE", 1) <= 1 or number_of("RANK", 0) == 0


@contextmanager
def join_world(device: str) -> Iterator[World]:
    """From torchrun's environment; alone without one. ``device``: ``auto``, ``cpu`` or ``cuda``."""
    size, rank = number_of("WORLD_SIZE", 1), number_of("RANK", 0)
    chosen = choose_device(device, local_rank=number_of("LOCAL_RANK", 0))
    if size > 1 and (absent := [name for name in _RENDEZVOUS if name not in os.environ]):
        raise BadInput(
            f"WORLD_SIZE is {size} in the environment, without {', '.join(absent)}: start several processes with "
            "torchrun, or take WORLD_SIZE out of the environment"
        )
    if size <= 1:
        yield World(0, 1, chosen)
        return
    dist.init_process_group("nccl" if chosen.startswith("cuda") else "gloo")
    try:
        yield World(rank, size, chosen)
    finally:
        dist.destroy_process_group()


def choose_device(device: str, *, local_rank: int = 0) -> str:
    """Raises ``BadInput`` for a device that is not here."""
    have_gpu = torch.cuda.is_available()
    if device == "cpu" or (device == "auto" and not have_gpu):
        return "cpu"
    if not have_gpu:
        raise BadInput(f"--device {device}: torch sees no GPU here; use --device cpu")
    if local_rank >= torch.cuda.device_count():
        raise BadInput(
            f"--device {device}: process {local_rank} of this machine has no GPU: torch sees "
            f"{torch.cuda.device_count()}; start as many processes"
        )
    torch.cuda.set_device(local_rank)
    return f"cuda:{local_rank}"


def shard(module: nn.Module, world: World) -> None:
    """Spreads a module's parameters over all processes; does nothing alone."""
    if world.size == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.split(":")[0], (world.size,))
    # The draft's one layer runs once per step of the test: gathering it anew each time would buy little.
    fully_shard(module, mesh=mesh, reshard_after_forward=False)


def shard_target(trunk: Any, layers: nn.ModuleList, world: World) -> None:
    """Spreads a frozen target: one layer is whole at a time."""
    if world.size == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.split(":")[0], (world.size,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(trunk, mesh=mesh)


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of a sharded one; every process must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(full: Tensor, example: Tensor) -> Tensor:
    """``full``, spread as ``example`` is."""
    if isinstance(example, DTensor):
        return distribute_tensor(full.to(example.device), example.device_mesh, example.placements)
    return full.to(example.device)


def add_over_processes(values: Tensor, world: World) -> Tensor:
    """The sum of one small tensor over all processes."""
    if world.size > 1:
        dist.all_reduce(values)
    return values


def wait_for_all(world: World) -> None:
    if world.size > 1:
        dist.barrier()
