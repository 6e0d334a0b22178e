"""Acceptance where an engine gives none per request: counters, the log's windows, the server's info, in this order."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from scripted_http import scripted_http

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.measurement import LoadResult, RequestRecord, ServerCounters
from spectune.domain.workload import LoadPoint
from spectune.engines.registry import adapter_for
from spectune.runner.stated_acceptance import LogPart, acceptance_in_log, with_stated_acceptance
from spectune.transport import HttpClient

SGLANG = adapter_for("sglang")
LINE = "[2026-12-01 01:00:0{n}] Decode batch, #running-req: {running}, #token: 90, token usage: 0.01, "
LINE += "accept len: {length}, accept rate: 0.47, cuda graph: True, gen throughput (token/s): 99.1, #queue-req: 0\n"
WARM_UP = LINE.format(n=0, running=1, length="4.00")
WINDOWS = LINE.format(n=1, running=1, length="3.00") + LINE.format(n=2, running=3, length="2.20")
INFO = {
    "version": "0.5.14",
    "speculative_algorithm": "EAGLE3",
    "internal_states": [{"avg_spec_accept_length": 2.7}],
}


class Server:
    """What is needed of a supervised one: where its log is."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path

    async def sync_log(self) -> None:
        """The log is here."""


def load(*, calls: int | None = None, counted: AcceptanceCounts | None = None) -> LoadResult:
    """Three answers of 40 tokens; the server counted ``calls`` verify steps meanwhile."""
    requests = tuple(
        RequestRecord(prompt_id=f"p{i}", start_s=i, output_tokens=40, latency_s=1.0, ttft_s=0.1)
        for i in range(3)
    )
    return LoadResult(
        load=LoadPoint.closed(1),
        requests=requests,
        duration_s=3.0,
        acceptance=counted,
        acceptance_source=None if counted is None else "per-request",
        counters_before=ServerCounters(generation_tokens=8, verify_calls=None if calls is None else 7),
        counters_after=ServerCounters(
            generation_tokens=128, verify_calls=None if calls is None else 7 + calls
        ),
        foreign_tokens=0,
    )


def stated(
    result: LoadResult, log: Path | None, *, info: dict[str, object] | None = None, was_flushed: bool = True
) -> tuple[float | None, str | None]:
    async def ask() -> LoadResult:
        part = None
        if log is not None:
            log.write_text(WARM_UP, encoding="utf-8")
            part = await LogPart.begin(Server(log))  # type: ignore[arg-type]
            with log.open("a", encoding="utf-8") as file:
                file.write(WINDOWS)
        with scripted_http({"/server_info": json.dumps(info or {})}) as url:
            async with HttpClient(url) as http:
                return await with_stated_acceptance(
                    result, http=http, adapter=SGLANG, log=part, was_flushed=was_flushed
                )

    found = asyncio.run(ask())
    return (None if found.totals is None else found.totals.acceptance_length), found.acceptance_source


def test_windows_of_the_load_alone_are_weighted_by_their_requests(tmp_path: Path) -> None:
    length, source = stated(load(), tmp_path / "server.log")
    assert (length, source) == (pytest.approx((3.0 + 3 * 2.2) / 4), "server log")


def test_counted_verify_steps_are_better_than_the_log(tmp_path: Path) -> None:
    """3 x 40 tokens, the first of each from the prompt: 117 tokens in 45 steps."""
    assert stated(load(calls=45), tmp_path / "server.log") == (pytest.approx(2.6), "counters")


def test_the_info_of_a_server_whose_log_is_not_ours() -> None:
    assert stated(load(), None, info=INFO) == (2.7, "server info")


def test_but_not_the_mean_of_earlier_requests() -> None:
    assert stated(load(), None, info=INFO, was_flushed=False) == (None, None)


def test_counts_stay_as_they_are(tmp_path: Path) -> None:
    counts = AcceptanceCounts(num_drafts=50, num_draft_tokens=150, num_accepted_tokens=67)
    assert stated(load(counted=counts), tmp_path / "server.log", info=INFO) == (None, "per-request")


@pytest.mark.parametrize(
    "part", [b"", b"junk\x00\xff\n" * 50, WINDOWS.replace("accept len", "other").encode()]
)
def test_a_log_that_does_not_say_it_gives_nothing(part: bytes) -> None:
    assert acceptance_in_log(part, engine="sglang") is None
