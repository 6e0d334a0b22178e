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
    host: Host,
    proof: StopProof,
    *,
    before: tuple[Gpu, ...] | None,
    names_are_told: bool = True,
    wait_s: float = _WAIT_S,
) -> StopProof:
    """``proof`` with what the server's devices showed; raises ``TeardownUnproven``. Drivers free late: it waits.

    ``before``: the devices that the server could use. ``names_are_told``: whether a process that the devices list is
    somebody else's for sure, now that the server's are gone; in a container they may live on unseen.
    """
    if before is None:
        return proof.model_copy(update={"gpu": "unknown: the GPUs could not be read before the launch"})
    if not before:
        return proof.model_copy(update={"gpu": "no GPU"})
    if all(gpu.used_mib is None for gpu in before):
        return proof.model_copy(update={"gpu": "unknown: the devices do not tell how much memory is in use"})
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        after = await host.facts(gpus=True)
        now = None if after.gpus is None else {gpu.uuid: gpu for gpu in after.gpus}
        if now is not None:
            held = [line for g in before if (line := still_held(g, now.get(g.uuid), told=names_are_told))]
            if not held:
                return proof.model_copy(update={"gpu": ", ".join(_shown(g, now.get(g.uuid)) for g in before)})
        if loop.time() > deadline:
            raise _unproven(None if now is None else held, before, after)
        await asyncio.sleep(_POLL_S)


def still_held(before: Gpu, now: Gpu | None, *, told: bool = True) -> str | None:
    """What a device has in use beyond what it had and what others have taken since; ``None``: nothing, or not known."""
    if before.used_mib is None:
        return None
    if now is None:
        return f"GPU {before.index} is no longer listed"
    if now.used_mib is None:
        return None
    tolerance = max(_TOLERANCE_MIB, round(_TOLERANCE_FRAC * (before.total_mib or 0)))
    others = _taken_by_others(before, now) if told else 0
    if others is None or now.used_mib - others <= before.used_mib + tolerance:
        return None
    return f"GPU {before.index}: {now.used_mib} MiB in use, {before.used_mib} MiB before the launch"


def _taken_by_others(before: Gpu, now: Gpu) -> int | None:
    """MiB more than before that listed processes hold; ``None``: one holds an amount that is not known."""
    if now.held_mib is None:
        return None
    return max(0, now.held_mib - (before.held_mib or 0))


def _shown(before: Gpu, now: Gpu | None) -> str:
    used = None if now is None else now.used_mib
    if now is None or used is None or before.used_mib is None:
        return f"GPU {before.index}: memory not known"
    others = _taken_by_others(before, now)
    by = f", of which other processes took {'an unknown part' if others is None else f'{others} MiB'}"
    return f"GPU {before.index}: {before.used_mib} MiB before, {used} after{by if others != 0 else ''}"


def _unproven(held: list[str] | None, before: tuple[Gpu, ...], after: HostFacts) -> TeardownUnproven:
    left = held if held is not None else [f"GPU memory: {after.gpu_error or 'the GPUs no longer answer'}"]
    names = {name for gpu in before for name in (gpu.uuid, *gpu.mig)}
    holders = [
        f"pid {h.pid or 'unknown'} ({h.command}) holds {'?' if h.used_mib is None else h.used_mib} MiB"
        for h in after.gpu_holders
        if h.gpu_uuid in names
    ]
    return TeardownUnproven(
        "every process of the server is gone, but memory of the GPUs that it could use did not come back:\n"
        + "\n".join(f"  {item}" for item in left)
        + (
            "\nprocesses on these GPUs now: " + "; ".join(holders)
            if holders
            else "\nno process is listed on these GPUs; one that may not be seen, in a container or of another user, "
            "may hold it"
        )
        + "\nNothing more was started. Wait, or reset the devices, then resume.",
        left,
    )
