"""spectune's own client as a process, for ``client_overhead.py``: modes ``load`` and ``delay``."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys

from spectune.bench.answer import Answer
from spectune.bench.client import StreamingClient
from spectune.bench.load import run_load
from spectune.bench.shapes import drive
from spectune.domain.workload import LoadPoint, Prompt, Sampling, Workload
from spectune.engines.fake.adapter import FakeAdapter
from spectune.transport import HttpClient


async def load(url: str, *, streams: int, requests: int, tokens: int) -> dict[str, float]:
    workload = Workload(
        prompts=tuple(Prompt(prompt_id=str(n), turns=(f"Tell me about {n}.",)) for n in range(requests)),
        sampling=Sampling(max_tokens=tokens),
        loads=(),
    )
    async with HttpClient(url) as http:
        client = StreamingClient(http, adapter=FakeAdapter(), model="fake-model")
        result = await run_load(
            client,
            workload=workload,
            load=LoadPoint.closed(streams),
            read_counters=None,
            on_record=lambda record: None,
        )
    assert len(result.completed) == requests, result.failed[:1]
    return {"max_loop_lag_s": result.max_loop_lag_s or 0.0, "duration_s": result.duration_s}


async def delay(url: str, *, streams: int, requests: int, tokens: int) -> dict[str, float]:
    """Send-to-time-stamp delays of every text chunk, with the client's usual work done on each."""
    arrivals: list[tuple[bytes, float]] = []

    async def send(prompt: Prompt) -> None:
        answer = Answer()

        def take(payload: bytes, arrived_s: float) -> bool:
            arrivals.append((payload, arrived_s))
            return answer.take(payload, arrived_s)

        body = {
            "messages": [{"role": "user", "content": prompt.turns[0]}],
            "max_tokens": tokens,
            "stream": True,
            "stamp_chunks": True,
        }
        await http.stream("/v1/chat/completions", body, take, timeout_s=120)

    prompts = [Prompt(prompt_id=str(n), turns=(f"Tell me about {n}.",)) for n in range(requests)]
    async with HttpClient(url) as http:
        await drive(send, prompts, LoadPoint.closed(streams), rng_seed=0, on_late=lambda _: None)
    delays = [at - event["sent_s"] for payload, at in arrivals if "sent_s" in (event := json.loads(payload))]
    assert len(delays) == requests * tokens
    percentiles = statistics.quantiles(delays, n=100)
    return {"p50_s": percentiles[49], "p99_s": percentiles[98], "max_s": max(delays), "n": len(delays)}


if __name__ == "__main__":
    mode, url, *numbers = sys.argv[1:]
    streams, requests, tokens = map(int, numbers)
    job = {"load": load, "delay": delay}[mode]
    print(json.dumps(asyncio.run(job(url, streams=streams, requests=requests, tokens=tokens))))
