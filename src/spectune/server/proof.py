"""GPU memory after a stop: back to what it was before the launch, or an error that names who holds it."""

from __future__ import annotations

import asyncio

from spectune.domain.trial import StopProof
from spectune.errors import TeardownUnproven
from spectune.hosts.facts import Gpu, HostFacts
from spectune.hosts.host import Host

_WAIT_S = 30.0
_POLL_S = 0.5
_TOLERANCE_MIB = 256
_TOLERANCE_FRAC = 0.01


async def prove_gpu_memory(
    host: Host, proof: StopProof, *, before: tuple[Gpu, ...] | None, wait_s: float = _WAIT_S
) -> StopProof:
    """``proof`` with what the GPUs showed; raises ``TeardownUnproven``. Drivers free memory late: it waits."""
    if before is None:
        return proof.model_copy(update={"gpu": "unknown: nvidia-smi did not answer before the launch"})
    if not before:
        return proof.model_copy(update={"gpu": "no GPU"})
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        after = await host.facts(gpus=True)
        held = _still_held(before, after.gpus)
        if held is not None and not held:
            used = {gpu.uuid: gpu.used_mib for gpu in after.gpus or ()}
            shown = ", ".join(f"GPU {g.index}: {g.used_mib} MiB before, {used[g.uuid]} after" for g in before)
            return proof.model_copy(update={"gpu": shown})
        if loop.time() > deadline:
            raise _unproven(held, after)
        await asyncio.sleep(_POLL_S)


def _still_held(before: tuple[Gpu, ...], after: tuple[Gpu, ...] | None) -> list[str] | None:
    """Devices with more memory in use than before; ``None`` if that cannot be told."""
    if after is None:
        return None
    now = {gpu.uuid: gpu for gpu in after}
    held = []
    for gpu in before:
        if gpu.uuid not in now:
            held.append(f"GPU {gpu.index} is no longer listed")
            continue
        tolerance = max(_TOLERANCE_MIB, round(_TOLERANCE_FRAC * gpu.total_mib))
        used = now[gpu.uuid].used_mib
        if used > gpu.used_mib + tolerance:
            held.append(f"GPU {gpu.index}: {used} MiB in use, {gpu.used_mib} MiB before the launch")
    return held


def _unproven(held: list[str] | None, after: HostFacts) -> TeardownUnproven:
    left = held if held is not None else [f"GPU memory: {after.gpu_error or 'nvidia-smi no longer answers'}"]
    holders = [f"pid {h.pid} ({h.command}) holds {h.used_mib} MiB" for h in after.gpu_holders]
    return TeardownUnproven(
        "every process of the server is gone, but its GPU memory did not come back:\n"
        + "\n".join(f"  {item}" for item in left)
        + (
            "\nprocesses on the GPUs now: " + "; ".join(holders)
            if holders
            else "\nno process is listed on the GPUs"
        )
        + "\nNothing more was started. Wait, or reset the devices, then resume.",
        left,
    )
