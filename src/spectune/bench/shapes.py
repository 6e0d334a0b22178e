"""The shapes of load: who is sent when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence

from spectune.domain.workload import LoadPoint, Prompt
from spectune.errors import BadInput

Send = Callable[[Prompt], Awaitable[None]]


def repeated(prompts: Sequence[Prompt], count: int | None) -> list[Prompt]:
    """``count`` prompts, in order and from the start again when they run out; ``None``: each once."""
    if not prompts:
        raise BadInput("workload.prompts: must hold at least one prompt")
    total = len(prompts) if count is None else count
    return [prompts[index % len(prompts)] for index in range(total)]


async def drive(
    send: Send,
    prompts: Sequence[Prompt],
    load: LoadPoint,
    *,
    rng_seed: int,
    on_late: Callable[[float], None],
    goes_on: Callable[[], bool] | None = None,
) -> None:
    """Sends every prompt in the shape of ``load`` and returns when all are answered.

    ``on_late`` hears how many seconds after its due time an open-loop request
    was started. ``goes_on`` is asked before each request of a closed loop: after
    a no none is sent, and those in flight are answered.
    """
    if load.shape == "open":
        await _open_loop(send, prompts, _rate(load), rng_seed=rng_seed, on_late=on_late)
    else:
        await _closed_loop(send, prompts, 1 if load.shape == "single" else _concurrency(load), goes_on)


async def _closed_loop(
    send: Send, prompts: Sequence[Prompt], concurrency: int, goes_on: Callable[[], bool] | None
) -> None:
    queue = iter(prompts)

    async def worker() -> None:
        for prompt in queue:
            if goes_on is not None and not goes_on():
                return
            await send(prompt)

    await _all_of(worker() for _ in range(min(concurrency, len(prompts))))


async def _open_loop(
    send: Send,
    prompts: Sequence[Prompt],
    request_rate: float,
    *,
    rng_seed: int,
    on_late: Callable[[float], None],
) -> None:
    rng = random.Random(rng_seed)  # noqa: S311
    now = asyncio.get_running_loop().time
    start_s = now()
    due_s = 0.0
    due_times: list[float] = []
    for _ in prompts:
        due_s += rng.expovariate(request_rate)
        due_times.append(start_s + due_s)

    async def arrival(prompt: Prompt, due_s: float) -> None:
        await asyncio.sleep(max(0.0, due_s - now()))
        on_late(now() - due_s)
        await send(prompt)

    await _all_of(arrival(prompt, due_s) for prompt, due_s in zip(prompts, due_times, strict=True))


async def _all_of(coroutines: Iterable[Awaitable[None]]) -> None:
    """Runs all; the first exception cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _concurrency(load: LoadPoint) -> int:
    if load.concurrency is None or load.concurrency < 1:
        raise BadInput(f"workload load: concurrency must be >= 1 for a closed loop, got {load.concurrency}")
    return load.concurrency


def _rate(load: LoadPoint) -> float:
    if load.request_rate is None or load.request_rate <= 0:
        raise BadInput(f"workload load: request_rate must be > 0 for an open loop, got {load.request_rate}")
    return load.request_rate
