"""One load point: requests sent in a shape, with the server's counters around them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from spectune.bench.client import StreamingClient
from spectune.bench.counters import (
    CounterReader,
    ReadCounters,
    acceptance_between,
    own_output_tokens,
    tokens_between,
)
from spectune.bench.shapes import drive, repeated
from spectune.domain.acceptance import AcceptanceCounts, pool_counts
from spectune.domain.measurement import AcceptanceSource, LoadResult, RequestRecord, ServerCounters
from spectune.domain.steady import steady_span
from spectune.domain.workload import LoadPoint, Prompt, Sampling, Workload
from spectune.race import ends_before

_LAG_SAMPLE_S = 0.1
_FIRST_GAUGE_S, _MOST_GAUGE_S = 0.1, 3.0


async def run_load(
    client: StreamingClient,
    *,
    workload: Workload,
    load: LoadPoint,
    read_counters: ReadCounters | None,
    on_record: Callable[[RequestRecord], None],
    rng_seed: int = 0,
    stop: asyncio.Event | None = None,
    goes_on: Callable[[], bool] | None = None,
) -> LoadResult:
    """Runs one load point. ``on_record`` gets every request as it ends, also before a cancellation.

    When ``stop`` is set, requests in flight are dropped and the result holds
    what had ended. Once ``goes_on`` says no, a closed loop sends no more, and
    the result is as whole as that of fewer prompts. ``duration_s`` leaves out the counter readings that a
    one-at-a-time load makes between its requests.
    """
    run = _LoadRun(client, workload, load, CounterReader(read_counters), on_record)
    prompts = repeated(workload.prompts, workload.requests_at(load))
    gc.collect()
    gc.freeze()  # else a full collection goes through all modules, while every stream waits for it
    try:
        await run.begin()
        was_stopped = await _until_stopped(run.drive(prompts, rng_seed=rng_seed, goes_on=goes_on), stop)
    finally:
        gc.unfreeze()
    return await run.result(was_stopped=was_stopped)


class _LoadRun:
    def __init__(
        self,
        client: StreamingClient,
        workload: Workload,
        load: LoadPoint,
        counters: CounterReader,
        on_record: Callable[[RequestRecord], None],
    ) -> None:
        self._client = client
        self._workload = workload
        self._load = load
        self._counters = counters
        self._on_record = on_record
        self._records: list[RequestRecord] = []
        self._asked: dict[str, int] = {}
        self._in_flight = 0
        self._peak_in_flight = 0
        self._peak_running: int | None = None
        self._peak_waiting: int | None = None
        self._max_lag_s = 0.0
        self._last_end_s = 0.0
        self._reading_s = 0.0
        self._attached = False
        self._before: ServerCounters | None = None
        self._previous: ServerCounters | None = None
        self._origin = 0.0
        self._sampler: asyncio.TimerHandle | None = None
        self._cpu_start_s = 0.0
        self._cpu_s: float | None = None

    async def begin(self) -> None:
        self._before = await self._counters.now()
        self._previous = self._before if self._load.shape == "single" else None
        self._cpu_start_s = time.process_time()
        self._origin = perf_counter()

    async def drive(
        self, prompts: list[Prompt], *, rng_seed: int, goes_on: Callable[[], bool] | None
    ) -> None:
        self._sample_lag(perf_counter())
        watching = asyncio.create_task(self._watch_gauges()) if self._load.shape != "single" else None
        try:
            await drive(
                self._send,
                prompts,
                self._load,
                rng_seed=rng_seed,
                on_late=self._note_lag,
                goes_on=goes_on,
            )
        finally:
            if self._sampler is not None:
                self._sampler.cancel()
            if watching is not None:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
            self._cpu_s = time.process_time() - self._cpu_start_s

    async def result(self, *, was_stopped: bool) -> LoadResult:
        records = tuple(sorted(self._records, key=lambda record: record.start_s))
        own_tokens = None if was_stopped else own_output_tokens(records)
        after = None if was_stopped else await self._counters.caught_up(self._before, own_tokens)
        foreign_tokens = _foreign_tokens(self._before, after, own_tokens)
        acceptance, source = self._acceptance(records, after, foreign_tokens)
        first_sent_s = records[0].start_s if records else 0.0
        result = LoadResult(
            load=self._load,
            requests=records,
            duration_s=max(0.0, self._last_end_s - first_sent_s - self._reading_s),
            acceptance=acceptance,
            acceptance_source=source,
            counters_before=self._before,
            counters_after=after,
            foreign_tokens=foreign_tokens,
            client_cpu_s=self._cpu_s,
            max_loop_lag_s=self._max_lag_s,
            peak_in_flight=self._peak_in_flight,
            peak_running=self._peak_running,
            peak_waiting=self._peak_waiting,
        )
        return result.model_copy(update={"steady": steady_span(result)})

    async def _send(self, prompt: Prompt) -> None:
        self._in_flight += 1
        self._peak_in_flight = max(self._peak_in_flight, self._in_flight)
        try:
            sampling = self._salted(prompt)
            await self._client.run(prompt, sampling, origin=self._origin, after_turn=self._after_turn)
        finally:
            self._in_flight -= 1

    def _salted(self, prompt: Prompt) -> Sampling:
        """A prompt that was asked before finds itself in the cache, unless its copies are told apart."""
        sampling, field = self._workload.sampling, self._client.adapter.salt_field
        wave = self._asked.get(prompt.prompt_id, 0)
        self._asked[prompt.prompt_id] = wave + 1
        if wave == 0 or field is None or field in sampling.extra_body:
            return sampling
        return sampling.model_copy(
            update={"extra_body": {**sampling.extra_body, field: f"{self._load.label}, wave {wave + 1}"}}
        )

    async def _after_turn(self, record: RequestRecord) -> RequestRecord:
        ended_s = perf_counter()
        if self._previous is not None:
            record = await self._with_counted_acceptance(record, self._previous)
            self._reading_s += perf_counter() - ended_s
            ended_s = perf_counter()
        self._last_end_s = ended_s - self._origin
        self._records.append(record)
        self._on_record(record)
        return record

    async def _with_counted_acceptance(self, record: RequestRecord, before: ServerCounters) -> RequestRecord:
        """``record`` with the difference of the counters, if it alone can have moved them."""
        if record.acceptance is not None and record.acceptance.num_drafts is not None:
            return record
        after = await self._counters.caught_up(before, record.output_tokens)
        # An engine that publishes no acceptance at all need not be asked again.
        self._previous = after if after is not None and after.acceptance is not None else None
        counted = acceptance_between(before, after)
        if not record.ok or counted is None or tokens_between(before, after) != record.output_tokens:
            return record
        self._attached = True
        return record.model_copy(update={"acceptance": counted})

    def _acceptance(
        self, records: tuple[RequestRecord, ...], after: ServerCounters | None, foreign_tokens: int | None
    ) -> tuple[AcceptanceCounts | None, AcceptanceSource | None]:
        completed = [record.acceptance for record in records if record.ok]
        known = [counts for counts in completed if counts is not None and counts.num_drafts is not None]
        if self._attached and foreign_tokens != 0:
            return None, None  # differences of counters that others moved too, or that are published late
        if known and len(known) == len(completed):
            pooled = pool_counts(known)
            source: AcceptanceSource = "counters" if self._attached else "per-request"
        else:
            pooled = acceptance_between(self._before, after) if foreign_tokens == 0 else None
            source = "counters"
        return (None, None) if pooled is None else (pooled, source)

    async def _watch_gauges(self) -> None:
        """Asks rarely: a server that answers about itself does not generate meanwhile."""
        pause_s = _FIRST_GAUGE_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_GAUGE_S)
            seen = await self._counters.now()
            if seen is None or seen.requests_running is None:
                return
            self._peak_running = max(seen.requests_running, self._peak_running or 0)
            if seen.requests_waiting is not None:
                self._peak_waiting = max(seen.requests_waiting, self._peak_waiting or 0)

    def _sample_lag(self, due_s: float) -> None:
        now_s = perf_counter()
        self._note_lag(now_s - due_s)
        self._sampler = asyncio.get_running_loop().call_later(
            _LAG_SAMPLE_S, self._sample_lag, now_s + _LAG_SAMPLE_S
        )

    def _note_lag(self, lag_s: float) -> None:
        self._max_lag_s = max(self._max_lag_s, lag_s)


def _foreign_tokens(
    before: ServerCounters | None, after: ServerCounters | None, own_tokens: int | None
) -> int | None:
    generated = tokens_between(before, after)
    if generated is None or own_tokens is None or generated < own_tokens:
        return None
    return generated - own_tokens


async def _until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event | None) -> bool:
    """Runs ``work`` to its end, or until ``stop`` is set; true for the latter."""
    if stop is None:
        await work
        return False
    return not await ends_before(work, stop.wait())
