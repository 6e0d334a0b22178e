"""Requests before the measurement, whose figures are thrown away."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from spectune.bench.client import StreamingClient
from spectune.bench.shapes import drive, repeated
from spectune.domain.workload import LoadPoint, Prompt, Sampling


async def warm_up(
    client: StreamingClient,
    prompts: Sequence[Prompt],
    *,
    load: LoadPoint,
    count: int,
    sampling: Sampling,
    rng_seed: int = 0,
) -> tuple[str, ...]:
    """Sends ``count`` prompts in the shape of ``load``; the errors of those that failed.

    The concurrency is the measurement's own: graphs are captured, kernels
    compiled and connections opened for the batch sizes that come next.
    """
    errors: list[str] = []
    origin = perf_counter()

    async def send(prompt: Prompt) -> None:
        records = await client.run(prompt, sampling, origin=origin)
        errors.extend(record.error for record in records if record.error is not None)

    await drive(send, repeated(prompts, count), load, rng_seed=rng_seed, on_late=lambda _: None)
    return tuple(errors)
