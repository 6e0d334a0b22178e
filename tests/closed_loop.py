"""A simulated server with continuous batching, under the closed loop that spectune drives; its true speed is known.

A pass over ``b`` requests costs ``fixed_s + b * each_s * (1 + drafted)``, so that speculation gains less the more
requests there are. A prompt is computed between two passes, which hold every stream up, as on real engines.
"""

import asyncio
import random
from dataclasses import dataclass, field
from itertools import pairwise

from virtual_time import run_virtually

from spectune.bench.shapes import drive, repeated
from spectune.domain.measurement import LoadResult, RequestRecord
from spectune.domain.workload import LoadPoint, Prompt


@dataclass
class Stream:
    prompt: Prompt
    tokens: int
    kept: float
    rng: random.Random
    sent_s: float
    done: asyncio.Event = field(default_factory=asyncio.Event)
    arrivals: list[float] = field(default_factory=list)
    made: int = 0


@dataclass(frozen=True)
class Server:
    """``drafted`` tokens a pass; of them ``kept`` on average, by prompt. Plain decoding drafts none."""

    fixed_s: float = 0.010
    each_s: float = 0.00025
    prompt_s: float = 0.004
    drafted: int = 0
    kept: float = 0.0
    most: int = 10_000
    """Requests that run at once; others wait."""
    noise: float = 0.0
    """Log sd of a prompt's kept tokens."""

    def pass_s(self, running: int) -> float:
        return self.fixed_s + running * self.each_s * (1 + self.drafted)


class _Engine:
    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.seed = seed
        self.waiting: list[Stream] = []
        self.running: list[Stream] = []
        self.wake = asyncio.Event()
        self.now = asyncio.get_running_loop().time
        self.records: list[RequestRecord] = []

    async def send(self, prompt: Prompt) -> None:
        rng = random.Random(f"{self.seed}/{prompt.prompt_id}")
        tokens = prompt.output_tokens or 128
        stream = Stream(
            prompt, tokens, self.server.kept * rng.lognormvariate(0, self.server.noise), rng, self.now()
        )
        self.waiting.append(stream)
        self.wake.set()
        await stream.done.wait()
        self.records.append(_record(stream))

    async def serve(self) -> None:
        while True:
            if not self.waiting and not self.running:
                self.wake.clear()
                await self.wake.wait()
            free = self.server.most - len(self.running)
            admitted, self.waiting = self.waiting[:free], self.waiting[free:]
            for stream in admitted:
                await asyncio.sleep(self.server.prompt_s)
                self._emit(stream, 1)
            self.running += admitted
            await asyncio.sleep(self.server.pass_s(len(self.running)))
            for stream in self.running:
                self._emit(stream, 1 + _whole(stream.kept, stream.rng))
            self.running = [s for s in self.running if s.made < s.tokens]
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _emit(self, stream: Stream, tokens: int) -> None:
        stream.made = min(stream.tokens, stream.made + tokens)
        stream.arrivals.append(self.now())
        if stream.made >= stream.tokens:
            stream.done.set()


def _whole(mean: float, rng: random.Random) -> int:
    return int(mean) + (rng.random() < mean % 1)


def _record(stream: Stream) -> RequestRecord:
    return RequestRecord(
        prompt_id=stream.prompt.prompt_id,
        start_s=stream.sent_s,
        ttft_s=stream.arrivals[0] - stream.sent_s,
        latency_s=stream.arrivals[-1] - stream.sent_s,
        prompt_tokens=40,
        output_tokens=stream.made,
        chunk_gaps_s=tuple(b - a for a, b in pairwise(stream.arrivals)),
        text="x",
        finish_reason="length",
    )


def measured(
    server: Server, *, concurrency: int, requests: int, prompts: list[Prompt], seed: int = 0
) -> LoadResult:
    """What the client would record of it."""
    return measured_at(server, LoadPoint.closed(concurrency), requests=requests, prompts=prompts, seed=seed)


def measured_at(
    server: Server, point: LoadPoint, *, requests: int, prompts: list[Prompt], seed: int = 0
) -> LoadResult:
    async def scenario() -> tuple[list[RequestRecord], float]:
        engine = _Engine(server, seed)
        serving = asyncio.create_task(engine.serve())
        await drive(engine.send, repeated(prompts, requests), point, rng_seed=seed, on_late=lambda _: None)
        serving.cancel()
        return engine.records, engine.now()

    records, duration_s = run_virtually(scenario())
    return LoadResult(
        load=point,
        requests=tuple(sorted(records, key=lambda r: r.start_s)),
        duration_s=duration_s,
        peak_in_flight=min(point.concurrency or requests, requests),
    )
