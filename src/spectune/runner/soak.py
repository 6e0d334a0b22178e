"""The best arm under load for a long time, before it is recommended: a crash there is a result."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from time import perf_counter

from spectune.bench.client import StreamingClient
from spectune.domain.measurement import RequestRecord
from spectune.domain.trial import SoakResult
from spectune.domain.workload import Workload
from spectune.race import ends_before
from spectune.runner.measure import Measured
from spectune.transport import HttpClient

_OPEN_LOOP_WORKERS = 16
_ENDS = 4
"""The first and the last quarter are compared: a server that slows down is not steady."""


class Soak:
    """Keeps a server as busy as the workload's largest load point for ``asked_s`` seconds."""

    def __init__(
        self,
        server: Measured,
        *,
        workload: Workload,
        asked_s: float,
        on_request: Callable[[int, int], None],
        on_record: Callable[[RequestRecord], None],
    ) -> None:
        self._server = server
        self._workload = workload
        self._asked_s = asked_s
        self._on_request = on_request
        self._on_record = on_record
        self._began = perf_counter()
        self._records: list[tuple[float, RequestRecord]] = []
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Ends the load within moments."""
        self._stopped.set()

    async def run(self) -> None:
        self._began = perf_counter()
        prompts = itertools.cycle(self._workload.prompts)
        server = self._server
        async with HttpClient(server.base_url, api_key=server.api_key) as http:
            client = StreamingClient(
                http,
                adapter=server.adapter,
                model=server.model,
                api=self._workload.api,
                request_timeout_s=self._workload.request_timeout_s,
            )

            async def worker() -> None:
                while self._elapsed() < self._asked_s:
                    records = await client.run(next(prompts), self._workload.sampling, origin=self._began)
                    for record in records:
                        self._note(record)
                    if any(not record.ok for record in records):
                        await asyncio.sleep(0.1)  # a server that refuses is not hammered

            async def workers() -> None:
                await asyncio.gather(*(worker() for _ in range(self._num_workers())))

            await ends_before(workers(), self._stopped.wait())

    def result(self) -> SoakResult:
        """What was seen so far."""
        ran_s = self._elapsed()
        return SoakResult(
            asked_s=self._asked_s,
            ran_s=round(min(ran_s, max(self._asked_s, self._last_end_s())), 3),
            num_requests=len(self._records),
            num_failed=sum(not record.ok for _, record in self._records),
            first_tok_per_s=self._tok_per_s(0.0, ran_s / _ENDS),
            last_tok_per_s=self._tok_per_s(ran_s * (1 - 1 / _ENDS), ran_s),
        )

    def _num_workers(self) -> int:
        return max(
            _OPEN_LOOP_WORKERS if load.shape == "open" else load.streams for load in self._workload.loads
        )

    def _note(self, record: RequestRecord) -> None:
        self._records.append((self._elapsed(), record))
        self._on_record(record)
        self._on_request(min(int(self._elapsed()), int(self._asked_s)), int(self._asked_s))

    def _elapsed(self) -> float:
        return perf_counter() - self._began

    def _last_end_s(self) -> float:
        return self._records[-1][0] if self._records else 0.0

    def _tok_per_s(self, start_s: float, end_s: float) -> float | None:
        """Output tokens of the requests that ended in this span, per second of it."""
        tokens = [r.output_tokens for at, r in self._records if start_s <= at < end_s and r.ok]
        if end_s <= start_s or not tokens or any(count is None for count in tokens):
            return None
        return sum(count for count in tokens if count is not None) / (end_s - start_s)
