"""The load that is asked for is delivered, refused, or said not to be."""

import asyncio
import contextlib
import io
import json
from pathlib import Path

import pytest
from fake_server_fixture import fake_engine
from report_studies import load_result, request, speculative, study, trial

from spectune.analysis.asked_load import loads_not_reached
from spectune.bench.client import StreamingClient
from spectune.bench.load import run_load
from spectune.cli.main import main
from spectune.domain.measurement import LoadResult, ServerCounters
from spectune.domain.workload import LoadPoint, Prompt, Sampling, Workload, warmup_requests_at
from spectune.engines.fake.adapter import FakeAdapter
from spectune.errors import BadInput
from spectune.study_file.load import load_study_file
from spectune.transport import HttpClient


def prompts(number: int) -> tuple[Prompt, ...]:
    return tuple(Prompt(prompt_id=f"p{n}", turns=(f"Question {n}?",)) for n in range(number))


def workload(number: int = 48, **fields: object) -> Workload:
    return Workload(prompts=prompts(number), sampling=Sampling(max_tokens=3), loads=(), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("concurrency", "expected"), [(1, 48), (8, 48), (9, 48), (10, 50), (32, 160), (256, 1280)]
)
def test_five_times_the_concurrency_is_asked_or_each_prompt_once(concurrency: int, expected: int) -> None:
    assert workload(waves=5).requests_at(LoadPoint.closed(concurrency)) == expected


def test_what_is_asked_for_and_older_records_are_kept() -> None:
    assert workload(requests_per_load=300).requests_at(LoadPoint.closed(32)) == 300
    assert workload().requests_at(LoadPoint.closed(256)) == 48
    assert workload(2, waves=5).requests_at(LoadPoint.closed(1)) == 2
    assert workload(2, waves=5).requests_at(LoadPoint.open(3.0)) == 2


def test_the_hash_of_an_older_workload_is_what_its_trials_recorded() -> None:
    """Of a folder written before the number of waves was recorded."""
    folder = Path(__file__).parents[1] / "docs" / "data" / "draft-length"
    stored = json.loads((folder / "study.json").read_text())["workload"]
    trials = sorted(folder.glob("trials/*/trial.json"))
    assert Workload.model_validate(stored).workload_hash == json.loads(trials[0].read_text())["workload_hash"]
    many = workload().model_copy(update={"loads": (LoadPoint.closed(8),)})
    assert many.workload_hash != many.model_copy(update={"waves": 5}).workload_hash
    one = workload().model_copy(update={"loads": (LoadPoint.closed(1),)})
    assert one.workload_hash == one.model_copy(update={"waves": 5}).workload_hash, "asks the same"


@pytest.mark.parametrize(("concurrency", "expected"), [(1, 3), (2, 4), (64, 128), (256, 512)])
def test_a_warm_up_reaches_the_loads_own_concurrency(concurrency: int, expected: int) -> None:
    assert warmup_requests_at(LoadPoint.closed(concurrency), None) == expected
    assert warmup_requests_at(LoadPoint.closed(concurrency), 7) == 7
    assert warmup_requests_at(LoadPoint.closed(concurrency), 0) == 0


def measure(work: Workload, load: LoadPoint, gauges: list[tuple[int, int]] | None = None) -> LoadResult:
    left = list(gauges or [])

    async def read_counters() -> ServerCounters:
        running, waiting = left.pop(0) if left else (0, 0)
        return ServerCounters(requests_running=running, requests_waiting=waiting)

    async def scenario(url: str) -> LoadResult:
        async with HttpClient(url) as http:
            client = StreamingClient(http, adapter=FakeAdapter(), model="m")
            return await run_load(
                client,
                workload=work,
                load=load,
                read_counters=read_counters if gauges else None,
                on_record=lambda _: None,
            )

    with fake_engine("--tokens-per-s=10") as engine:
        return asyncio.run(scenario(engine.url))


def test_sixty_four_are_in_flight_where_there_are_48_prompts() -> None:
    result = measure(workload(48, waves=2), LoadPoint.closed(64))
    assert result.peak_in_flight == 64
    assert len(result.completed) == 128
    assert list(loads_not_reached([of_load(result)])) == []


def test_what_the_server_says_that_it_ran_is_recorded() -> None:
    """It is asked before, meanwhile and after; only meanwhile counts."""
    result = measure(workload(16, waves=2), LoadPoint.closed(8), [(90, 90), (3, 5)])
    assert (result.peak_running, result.peak_waiting) == (3, 5)


def of_load(load: LoadResult):  # type: ignore[no-untyped-def]
    arm = speculative("eagle3-k3")
    return trial(study(arm), arm, 1, loads=(load,))


def some_load(**fields: object) -> LoadResult:
    requests = [request(prompt, 10.0) for prompt in prompts(48)]
    return load_result(requests, LoadPoint.closed(64), **fields)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"peak_in_flight": 48}, "at most 48 in flight at c=64"),
        (
            {"peak_in_flight": 64, "peak_running": 16, "peak_waiting": 48},
            "the server ran at most 16 at once at c=64, and up to 48 waited",
        ),
        ({"peak_in_flight": 64, "peak_running": 16, "peak_waiting": 0}, None),
        ({"peak_in_flight": 64, "peak_running": 62, "peak_waiting": 3}, None),
        ({"peak_in_flight": 48, "cut_short": True}, None),
        ({}, None),
    ],
)
def test_a_load_that_was_not_reached_is_an_error(fields: dict[str, object], told: str | None) -> None:
    found = list(loads_not_reached([of_load(some_load(**fields))]))
    assert [(f.severity, f.evidence[0].detail) for f in found] == ([("error", told)] if told else [])


FILE = """
question: q
engine: fake
target: m
arms: [{method: eagle3, num_draft_tokens: 3, drafter: d}]
workload: {prompts: builtin, %s}
"""


def test_fewer_requests_than_are_to_be_in_flight_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(FILE % "concurrency: [1, 64], requests_per_load: 48")
    with pytest.raises(BadInput, match=r"48 requests cannot keep 64 in flight; give at least 64, better 320"):
        load_study_file(path)
    with contextlib.redirect_stderr(io.StringIO()) as told:
        assert main(["bench", "http://127.0.0.1:9", "--concurrency", "64", "--num-requests", "48"]) == 2
    assert "--num-requests: 48 requests cannot keep 64 in flight" in told.getvalue()
