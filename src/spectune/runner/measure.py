"""Warm-up and measurement of a server that runs, at every load point."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from spectune.bench.client import StreamingClient
from spectune.bench.load import run_load
from spectune.bench.prompts import warmup_prompts
from spectune.bench.tokens import tokenize_outputs
from spectune.bench.warmup import warm_up
from spectune.domain.measurement import LoadResult, RequestRecord, ServerCounters
from spectune.domain.trial import EarlyEnd
from spectune.domain.workload import LoadPoint, Workload, warmup_requests_at
from spectune.engines.adapter import EngineAdapter
from spectune.errors import EnvironmentFailed, TransportError
from spectune.hosts.supervised import SupervisedServer
from spectune.race import ends_before
from spectune.runner.flush import flush_prefix_cache, refuse_leak
from spectune.runner.stated_acceptance import LogPart, with_stated_acceptance
from spectune.runner.stop_early import EndsEarly
from spectune.server.phases import PhaseClock
from spectune.store.study_dir import TrialDir
from spectune.transport import HttpClient

_MAX_INTERRUPTIONS = 5


@dataclass(frozen=True)
class Measured:
    """A server to measure: ours, or one that was already running."""

    base_url: str
    model: str
    adapter: EngineAdapter
    api_key: str | None = None
    may_flush: bool = True
    """Emptying the prefix cache of a server that others use would disturb them."""


class Measurement:
    """Measures point after point; finished ones are appended to ``loads``, also one that ``stop`` cut short."""

    def __init__(
        self,
        server: Measured,
        *,
        workload: Workload,
        warmup_requests: int | None,
        loads: list[LoadResult],
        clock: PhaseClock,
        on_request: Callable[[int, int], None],
        directory: TrialDir | None = None,
        link: SupervisedServer | None = None,
        ends_early: EndsEarly | None = None,
    ) -> None:
        self._server = server
        self._workload = workload
        self._warmup_requests = warmup_requests
        self._loads = loads
        self._clock = clock
        self._on_request = on_request
        self._directory = directory
        self._link = link
        self._ends_early = ends_early
        self._stopped = False
        self.ended_early: EarlyEnd | None = None
        """Why not every prompt was asked, if the arm needed no more."""
        self._cut = asyncio.Event()

    @property
    def _is_worse(self) -> bool:
        return self.ended_early is not None and self.ended_early.verdict == "worse"

    def stop(self) -> None:
        """Ends the measurement within moments; what was measured is kept."""
        self._stopped = True
        self._cut.set()

    async def run(self) -> None:
        server, workload = self._server, self._workload
        async with HttpClient(server.base_url, api_key=server.api_key) as http:
            client = StreamingClient(
                http,
                adapter=server.adapter,
                model=server.model,
                api=workload.api,
                request_timeout_s=workload.request_timeout_s,
            )
            for index, load in enumerate(workload.loads):
                await self._point(http, client, index, load)
                if self._stopped or self._is_worse:
                    return

    async def _point(self, http: HttpClient, client: StreamingClient, index: int, load: LoadPoint) -> None:
        """One load point; from the beginning again if the connection to the host dropped meanwhile."""
        for _ in range(_MAX_INTERRUPTIONS):
            result = await self._try_point(http, client, index, load)
            if result is not None:
                self._loads.append(result)
                self._record()
            if result is not None or self._stopped:
                return
            self._record()  # without what was just thrown away
            assert self._link is not None
            await self._link.until_connected()
        raise EnvironmentFailed(
            f"the connection to the host dropped {_MAX_INTERRUPTIONS} times during one load point; "
            "measure over a steadier one, or run spectune on the host"
        )

    async def _try_point(
        self, http: HttpClient, client: StreamingClient, index: int, load: LoadPoint
    ) -> LoadResult | None:
        """The result, or ``None`` if the connection dropped."""
        server, workload = self._server, self._workload
        if not self._stopped:
            self._cut.clear()
        if index == 0:
            self.ended_early = None
        guard = asyncio.create_task(self._cut_on_drop())
        try:
            self._clock.enter("warm-up")
            await self._unless_cut(self._warm_up(http, client, load))
            if self._cut.is_set():
                return None
            refused = await flush_prefix_cache(http, server.adapter) if server.may_flush else None
            log = await LogPart.begin(self._link)
            self._clock.enter("measure")
            result = await run_load(
                client,
                workload=workload,
                load=load,
                read_counters=counter_reader(http, server.adapter),
                on_record=self._keeper(index, load),
                stop=self._cut,
                goes_on=(lambda: self.ended_early is None) if index == 0 else None,
            )
            if guard.done() and not self._stopped and not self._is_worse:
                return None
            if self._stopped or self._is_worse:
                return result.model_copy(update={"cut_short": True})
            if index == 0 and self.ended_early is not None:
                result = result.model_copy(update={"cut_short": True})
            self._clock.close()
            refuse_leak(result, refused=refused, workload=workload, adapter=server.adapter)
            was_flushed = server.may_flush and refused is None
            result = await with_stated_acceptance(
                result, http=http, adapter=server.adapter, log=log, was_flushed=was_flushed
            )
            return await tokenize_outputs(http, server.adapter, server.model, result)
        finally:
            guard.cancel()

    async def _warm_up(self, http: HttpClient, client: StreamingClient, load: LoadPoint) -> None:
        await warm_up(
            client,
            warmup_prompts(),
            load=load,
            count=warmup_requests_at(load, self._warmup_requests),
            sampling=self._workload.sampling,
        )

    async def _unless_cut(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs ``work`` to its end, or until the measurement is cut."""
        await ends_before(work, self._cut.wait())

    async def _cut_on_drop(self) -> None:
        if self._link is None:
            await asyncio.Event().wait()
        assert self._link is not None
        await self._link.dropped.wait()
        self._cut.set()

    def _keeper(self, index: int, load: LoadPoint) -> Callable[[RequestRecord], None]:
        total = self._workload.requests_at(load)
        finished = 0
        records: list[RequestRecord] = []

        def keep(record: RequestRecord) -> None:
            nonlocal finished
            finished += 1
            records.append(record)
            if index == 0 and self._ends_early is not None and self.ended_early is None:
                self.ended_early = self._ends_early(records)
                if self._is_worse:
                    self._cut.set()
            if self._directory is not None:
                self._directory.append_request(index, record)
            self._on_request(finished, total)

        return keep

    def _record(self) -> None:
        if self._directory is not None:
            self._directory.replace_requests([r.requests for r in self._loads])


def counter_reader(
    http: HttpClient, adapter: EngineAdapter
) -> Callable[[], Awaitable[ServerCounters | None]]:
    """Reads the engine's counters; ``None`` where it publishes none."""

    async def read() -> ServerCounters | None:
        try:
            reply = await http.request("GET", adapter.metrics_path, timeout_s=10)
        except TransportError:
            return None
        return adapter.read_counters(reply.text) if reply.status == 200 else None

    return read
