"""Load shapes against the fake engine: concurrency, arrivals, counters, and stopping."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_server_fixture import FakeEngine, fake_engine
from virtual_time import run_virtually

from spectune.bench.client import StreamingClient
from spectune.bench.counters import acceptance_between
from spectune.bench.load import run_load
from spectune.bench.shapes import drive, repeated
from spectune.bench.warmup import warm_up
from spectune.domain.acceptance import AcceptanceCounts, pool_counts
from spectune.domain.measurement import LoadResult, RequestRecord, ServerCounters
from spectune.domain.workload import LoadPoint, Prompt, Sampling, Workload
from spectune.engines.fake.adapter import FakeAdapter
from spectune.errors import BadInput
from spectune.transport import HttpClient

ADAPTER = FakeAdapter()
SINGLE = LoadPoint.closed(1)
EAGLE = ("--method=eagle3", "--accept=0.8,0.6,0.5", "--num-draft-tokens=3")
COUNTERS_ONLY = (*EAGLE, "--no-request-acceptance")
FAST = "--tokens-per-s=500"


def workload(*, prompts: int, max_tokens: int = 20, requests: int | None = None, turns: int = 1) -> Workload:
    return Workload(
        prompts=tuple(
            Prompt(prompt_id=f"p{n}", turns=tuple(f"Question {n}.{t}?" for t in range(turns)))
            for n in range(prompts)
        ),
        sampling=Sampling(max_tokens=max_tokens),
        loads=(),
        requests_per_load=requests,
    )


async def load_once(
    engine: FakeEngine,
    work: Workload,
    load: LoadPoint,
    *,
    beside: Callable[[HttpClient], Awaitable[None]] | None = None,
    counters: bool = True,
    **options: Any,
) -> tuple[LoadResult, list[RequestRecord]]:
    """One load point; ``beside`` runs once, right behind the first reading of the counters."""
    heard: list[RequestRecord] = []
    left = [beside] if beside is not None else []
    async with HttpClient(engine.url) as http:

        async def read_counters() -> ServerCounters:
            counters = ADAPTER.read_counters((await http.request("GET", "/metrics")).text)
            while left:
                await left.pop()(http)
            return counters

        client = StreamingClient(http, adapter=ADAPTER, model="m")
        result = await run_load(
            client,
            workload=work,
            load=load,
            read_counters=read_counters if counters else None,
            on_record=heard.append,
            **options,
        )
    return result, heard


def measure(work: Workload, load: LoadPoint, *engine_options: str, **options: Any) -> LoadResult:
    with fake_engine(*engine_options) as engine:
        result, heard = asyncio.run(load_once(engine, work, load, **options))
    assert sorted(heard, key=lambda r: r.start_s) == list(result.requests)
    return result


def in_flight_at_once(records: tuple[RequestRecord, ...]) -> int:
    """The most records that overlap, from their own times."""
    marks = [(r.start_s, 1) for r in records] + [(r.start_s + (r.latency_s or 0), -1) for r in records]
    running = peak = 0
    for _, step in sorted(marks):
        running += step
        peak = max(peak, running)
    return peak


def server_peak(lines: list[str]) -> int:
    running = peak = 0
    for line in lines:
        running += {"request started": 1, "request ended": -1}.get(line, 0)
        peak = max(peak, running)
    return peak


def test_a_prompt_that_is_asked_again_is_computed_again() -> None:
    """Prompts of 81 tokens, so 80 would be cached; with a cache of their own, copies find nothing."""
    long = tuple(Prompt(prompt_id=f"p{n}", turns=(f"Question {n} " + "word " * 79,)) for n in range(2))
    work = workload(prompts=2, max_tokens=2, requests=6).model_copy(update={"prompts": long})
    cached = [r.cached_tokens for r in measure(work, LoadPoint.closed(2), FAST).requests]
    assert cached == [0] * 6
    own = work.model_copy(update={"sampling": Sampling(max_tokens=2, extra_body={"cache_salt": "mine"})})
    assert (
        sum(c or 0 for c in [r.cached_tokens for r in measure(own, LoadPoint.closed(2), FAST).requests])
        == 320
    )


def test_a_closed_loop_reaches_its_concurrency_and_never_exceeds_it() -> None:
    with fake_engine("--tokens-per-s=100", "--log-requests") as engine:
        result, _ = asyncio.run(load_once(engine, workload(prompts=24), LoadPoint.closed(8)))
        engine.wait_for("request ended", count=24)
        seen_by_server = server_peak(engine.lines)
    assert len(result.completed) == 24
    assert result.peak_in_flight == 8
    assert seen_by_server == 8
    assert in_flight_at_once(result.requests) == 8
    assert result.output_tok_per_s is not None
    # 8 streams of 100 tok/s, three rounds of 20 tokens whose first is free of charge: 8 * 100 * 20 / 19.
    assert result.output_tok_per_s < 8 * 100 * 20 / 19
    assert result.output_tok_per_s > 8 * 100 * 0.4


def test_a_single_loop_runs_one_request_after_another_in_order() -> None:
    result = measure(workload(prompts=5), SINGLE, FAST)
    assert result.peak_in_flight == 1
    assert in_flight_at_once(result.requests) == 1
    assert [r.prompt_id for r in result.requests] == ["p0", "p1", "p2", "p3", "p4"]


def test_prompts_repeat_in_order_until_there_are_enough_requests() -> None:
    result = measure(workload(prompts=2, max_tokens=2, requests=5), SINGLE, FAST)
    assert [r.prompt_id for r in result.requests] == ["p0", "p1", "p0", "p1", "p0"]


def arrivals_of(rate: float, count: int, *, seed: int) -> list[float]:
    """When requests are sent, of which each takes an hour; in a time without delays."""
    arrivals: list[float] = []
    lateness: list[float] = []

    async def send(prompt: Prompt) -> None:
        arrivals.append(asyncio.get_running_loop().time())
        await asyncio.sleep(3600)

    prompts = repeated([Prompt(prompt_id="p", turns=("x",))], count)
    run_virtually(drive(send, prompts, LoadPoint.open(rate), rng_seed=seed, on_late=lateness.append))
    assert max(map(abs, lateness)) < 1e-6
    return arrivals


def test_arrivals_of_an_open_loop_are_poisson() -> None:
    rate, count = 1000.0, 2000
    arrivals = arrivals_of(rate, count, seed=3)
    gaps = [b - a for a, b in zip([0.0, *arrivals], arrivals, strict=False)]
    mean = sum(gaps) / count
    # Exponential: mean 1/rate (standard error 1/rate/sqrt(n)), squared coefficient of variation 1.
    assert mean * rate == pytest.approx(1, abs=4 / count**0.5)
    assert sum((gap - mean) ** 2 for gap in gaps) / count / mean**2 == pytest.approx(1, abs=0.25)
    assert sum(gap > mean for gap in gaps) / count == pytest.approx(0.3679, abs=0.045)


def test_arrivals_repeat_with_the_seed() -> None:
    assert arrivals_of(100, 30, seed=1) == arrivals_of(100, 30, seed=1)
    assert arrivals_of(100, 30, seed=1) != arrivals_of(100, 30, seed=2)


def test_open_loop_arrivals_do_not_wait_for_slow_answers() -> None:
    with fake_engine("--hang-generation", "--log-requests") as engine:
        stop = asyncio.Event()

        async def until_all_wait() -> LoadResult:
            load = asyncio.create_task(
                load_once(engine, workload(prompts=30), LoadPoint.open(200), stop=stop, counters=False)
            )
            await asyncio.to_thread(engine.wait_for, "request started", count=30)
            stop.set()
            return (await load)[0]

        assert asyncio.run(until_all_wait()).peak_in_flight == 30


def test_a_blocked_event_loop_is_measured() -> None:
    async def block_soon(http: HttpClient) -> None:
        asyncio.get_running_loop().call_later(0.1, time.sleep, 0.2)

    result = measure(workload(prompts=4), LoadPoint.closed(2), "--tokens-per-s=50", beside=block_soon)
    assert result.max_loop_lag_s is not None
    assert 0.09 < result.max_loop_lag_s < 2
    assert result.client_cpu_s is not None
    assert 0 < result.client_cpu_s < result.duration_s


def test_pooled_request_acceptance_is_the_servers_to_the_token() -> None:
    result = measure(workload(prompts=6, max_tokens=50), LoadPoint.closed(3), FAST, *EAGLE)
    assert result.acceptance_source == "per-request"
    assert result.counters_after is not None
    assert result.acceptance == result.counters_after.acceptance
    assert result.foreign_tokens == 0


def test_acceptance_by_counters_is_the_servers_to_the_token() -> None:
    with fake_engine(FAST, *COUNTERS_ONLY) as engine:
        work = workload(prompts=6, max_tokens=50)
        asyncio.run(load_once(engine, work, LoadPoint.closed(3)))  # counters do not start at zero
        result, _ = asyncio.run(load_once(engine, work, LoadPoint.closed(3)))
    assert result.acceptance_source == "counters"
    assert result.foreign_tokens == 0
    assert result.counters_before is not None
    assert result.counters_after is not None
    before, after = result.counters_before.acceptance, result.counters_after.acceptance
    assert before is not None
    assert after is not None
    assert before.num_drafts
    assert result.acceptance is not None
    assert pool_counts([before, result.acceptance]) == after
    # Tokens = one from each prefill, one bonus per verify step, and what was accepted.
    counts = result.acceptance
    assert counts.num_drafts is not None
    assert 6 + counts.num_drafts + counts.num_accepted_tokens == 6 * 50


def test_one_at_a_time_the_difference_of_counters_belongs_to_the_request() -> None:
    work = workload(prompts=4, max_tokens=50, turns=2)
    counted = measure(work, SINGLE, FAST, *COUNTERS_ONLY)
    reported = measure(work, SINGLE, FAST, *EAGLE)
    assert [r.acceptance for r in counted.requests] == [r.acceptance for r in reported.requests]
    assert all(r.acceptance is not None for r in counted.requests)
    assert (counted.acceptance_source, reported.acceptance_source) == ("counters", "per-request")
    assert counted.acceptance == reported.acceptance


def test_reading_counters_between_requests_is_outside_the_timed_part() -> None:
    late = "--metrics-delay-s=0.3"
    result = measure(workload(prompts=4, max_tokens=50), SINGLE, FAST, *COUNTERS_ONLY, late)
    assert all(r.acceptance is not None for r in result.requests)
    answering_s = sum(r.latency_s or 0 for r in result.requests)
    assert result.duration_s < answering_s + 0.3
    assert result.requests[-1].start_s > 3 * 0.3  # the waits did happen


def test_counters_that_are_published_late_are_waited_for() -> None:
    work = workload(prompts=4, max_tokens=50)
    result = measure(work, LoadPoint.closed(4), FAST, *COUNTERS_ONLY, "--metrics-delay-s=0.5")
    assert result.foreign_tokens == 0
    assert result.acceptance is not None


def test_counters_that_never_catch_up_leave_acceptance_unknown() -> None:
    work = workload(prompts=2, max_tokens=20)
    start_s = time.monotonic()
    result = measure(work, LoadPoint.closed(2), FAST, *COUNTERS_ONLY, "--metrics-delay-s=60")
    assert time.monotonic() - start_s < 10
    assert result.foreign_tokens is None
    assert result.acceptance is None


async def foreign_request(http: HttpClient) -> None:
    await http.request("POST", "/v1/completions", {"prompt": "mine, not yours", "max_tokens": 7})


@pytest.mark.parametrize("load", [SINGLE, LoadPoint.closed(2)], ids=lambda load: load.label)
def test_foreign_use_is_counted_and_spoils_the_counters(load: LoadPoint) -> None:
    result = measure(workload(prompts=4, max_tokens=50), load, FAST, *COUNTERS_ONLY, beside=foreign_request)
    assert result.foreign_tokens == 7
    assert result.acceptance is None
    assert result.acceptance_source is None


def test_foreign_use_does_not_spoil_what_requests_report_themselves() -> None:
    result = measure(
        workload(prompts=4, max_tokens=50), LoadPoint.closed(2), FAST, *EAGLE, beside=foreign_request
    )
    assert result.foreign_tokens == 7
    assert result.acceptance_source == "per-request"
    own = [r.acceptance for r in result.requests if r.acceptance is not None]
    assert result.acceptance == pool_counts(own)


@pytest.mark.parametrize("load", [SINGLE, LoadPoint.closed(2)], ids=lambda load: load.label)
@pytest.mark.parametrize("zeros", [(), ("--zero-spec-metrics",)], ids=["families absent", "families zero"])
def test_a_baseline_has_no_acceptance_rather_than_one(load: LoadPoint, zeros: tuple[str, ...]) -> None:
    result = measure(workload(prompts=4), load, FAST, *zeros)
    assert result.foreign_tokens == 0
    if zeros:
        assert result.acceptance is not None
        assert (result.acceptance.num_drafts, result.acceptance.num_draft_tokens) == (0, 0)
        assert result.acceptance.acceptance_length is None
    else:
        assert result.acceptance is None
        assert all(r.acceptance is None for r in result.requests)


def test_nothing_accepted_is_zero_not_unknown() -> None:
    options = ("--method=eagle3", "--accept=0", "--no-request-acceptance")
    result = measure(workload(prompts=2), SINGLE, FAST, *options)
    assert result.acceptance is not None
    assert result.acceptance.num_accepted_tokens == 0
    assert result.acceptance.acceptance_length == 1.0


def test_a_failed_request_makes_foreign_tokens_unknown() -> None:
    with fake_engine(FAST, "--die-at-request=3") as engine:
        result, heard = asyncio.run(load_once(engine, workload(prompts=4), SINGLE))
    assert [r.ok for r in result.requests] == [True, True, False, False]
    assert len(heard) == 4
    assert result.foreign_tokens is None
    assert result.counters_after is None
    assert result.output_tok_per_s is not None


def test_without_counters_everything_else_is_measured() -> None:
    result = measure(workload(prompts=2), SINGLE, FAST, counters=False)
    assert len(result.completed) == 2
    assert (result.counters_before, result.counters_after, result.foreign_tokens) == (None, None, None)


def counters(drafts: int, drafted: int, accepted: tuple[int, ...]) -> ServerCounters:
    counts = AcceptanceCounts(
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=sum(accepted),
        accepted_per_position=accepted,
    )
    return ServerCounters(generation_tokens=drafts + sum(accepted), acceptance=counts)


def test_counters_that_went_back_are_a_restart_and_tell_nothing() -> None:
    assert acceptance_between(counters(10, 30, (9, 5, 2)), counters(4, 12, (3, 1, 0))) is None
    # Even if the totals have grown past the old ones again, a position that shrank gives it away.
    assert acceptance_between(counters(10, 30, (9, 5, 2)), counters(20, 60, (19, 4, 2))) is None


def test_counters_that_appear_with_the_first_draft_start_at_zero() -> None:
    after = counters(4, 12, (3, 1, 0))
    assert acceptance_between(ServerCounters(generation_tokens=0), after) == after.acceptance


def stopped(stop_it: Callable[[asyncio.Task[Any], asyncio.Event], None], *, load: LoadPoint) -> Any:
    """A load of quick and endless requests, stopped once the first quick one has ended."""

    async def scenario(url: str) -> tuple[Any, list[RequestRecord], float]:
        heard: list[RequestRecord] = []
        first, stop = asyncio.Event(), asyncio.Event()

        def on_record(record: RequestRecord) -> None:
            heard.append(record)
            first.set()

        prompts = tuple(
            Prompt(prompt_id=f"p{n}", turns=("x",), output_tokens=5 if n == 0 else 100_000) for n in range(40)
        )
        work = Workload(prompts=prompts, sampling=Sampling(), loads=())
        async with HttpClient(url) as http:
            client = StreamingClient(http, adapter=ADAPTER, model="m")
            task = asyncio.create_task(
                run_load(client, workload=work, load=load, read_counters=None, on_record=on_record, stop=stop)
            )
            await first.wait()
            start_s = time.monotonic()
            stop_it(task, stop)
            result = (await asyncio.gather(task, return_exceptions=True))[0]
            return result, heard, time.monotonic() - start_s

    with fake_engine("--tokens-per-s=100") as engine:
        return asyncio.run(scenario(engine.url))


@pytest.mark.parametrize(
    "load", [LoadPoint.closed(16), LoadPoint.open(200), SINGLE], ids=lambda load: load.label
)
def test_a_stop_ends_the_load_quickly_with_what_had_ended(load: LoadPoint) -> None:
    result, heard, took_s = stopped(lambda task, stop: stop.set(), load=load)
    assert took_s < 2
    assert isinstance(result, LoadResult)
    assert [r.prompt_id for r in result.requests] == ["p0"]
    assert result.requests == tuple(heard)


def test_cancellation_ends_the_load_quickly_and_the_records_had_been_handed_out() -> None:
    result, heard, took_s = stopped(lambda task, stop: task.cancel() and None, load=LoadPoint.closed(16))
    assert took_s < 2
    assert isinstance(result, asyncio.CancelledError)
    assert [r.prompt_id for r in heard] == ["p0"]


def test_an_error_of_on_record_ends_the_load_and_is_raised_as_it_is() -> None:
    async def scenario(url: str) -> None:
        def full(record: RequestRecord) -> None:
            raise OSError("disk full")

        async with HttpClient(url) as http:
            client = StreamingClient(http, adapter=ADAPTER, model="m")
            work = workload(prompts=8)
            with pytest.raises(OSError, match="disk full"):
                await run_load(
                    client, workload=work, load=LoadPoint.closed(4), read_counters=None, on_record=full
                )

    with fake_engine(FAST) as engine:
        asyncio.run(scenario(engine.url))


def test_warm_up_runs_at_the_loads_concurrency_and_reports_errors() -> None:
    async def scenario(url: str) -> tuple[str, ...]:
        async with HttpClient(url) as http:
            client = StreamingClient(http, adapter=ADAPTER, model="m")
            prompts = workload(prompts=2).prompts
            return await warm_up(
                client, prompts, load=LoadPoint.closed(6), count=12, sampling=Sampling(max_tokens=10)
            )

    with fake_engine("--tokens-per-s=100", "--log-requests") as engine:
        assert asyncio.run(scenario(engine.url)) == ()
        engine.wait_for("request ended", count=12)
        assert server_peak(engine.lines) == 6
        url = engine.url
    errors = asyncio.run(scenario(url))
    assert len(errors) == 12
    assert all(re.search("cannot connect", error) for error in errors)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (LoadPoint(shape="closed"), "concurrency must be >= 1"),
        (LoadPoint(shape="open"), "request_rate must be > 0"),
    ],
)
def test_a_load_point_without_its_number_is_refused(load: LoadPoint, message: str) -> None:
    async def scenario() -> None:
        async with HttpClient("http://127.0.0.1:9") as http:
            client = StreamingClient(http, adapter=ADAPTER, model="m")
            await warm_up(client, workload(prompts=1).prompts, load=load, count=1, sampling=Sampling())

    with pytest.raises(BadInput, match=message):
        asyncio.run(scenario())


def test_a_fault_in_reading_the_gauges_of_a_busy_server_is_raised() -> None:
    async def run(engine: FakeEngine) -> None:
        readings = 0

        async def read_counters() -> ServerCounters:
            nonlocal readings
            readings += 1
            if readings == 2:  # the first one is before the load
                raise ZeroDivisionError("a fault of ours")
            return ServerCounters()

        async with HttpClient(engine.url) as http:
            await run_load(
                StreamingClient(http, adapter=ADAPTER, model="m"),
                workload=workload(prompts=4),
                load=LoadPoint.closed(2),
                read_counters=read_counters,
                on_record=lambda record: None,
            )

    with (
        fake_engine("--tokens-per-s", "50") as engine,
        pytest.raises(ZeroDivisionError, match="a fault of ours"),
    ):
        asyncio.run(run(engine))
