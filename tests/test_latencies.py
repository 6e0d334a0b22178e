"""Of the tail only what so many values can tell; zero is an observation."""

import pytest
from report_studies import load_result, prompts, request

from spectune.analysis.latencies import latencies
from spectune.analysis.words import tail
from spectune.domain.measurement import RequestRecord
from spectune.domain.workload import LoadPoint


def waiting(number: int, *, ttft_s: float, start_s: float = 0.0) -> RequestRecord:
    (prompt,) = prompts(1)
    made = request(prompt, 10.0, ttft_s=ttft_s, latency_s=5.0, start_s=start_s, chunk_gaps_s=())
    return made.model_copy(update={"prompt_id": f"p{number}"})


@pytest.mark.parametrize(
    ("values", "p99", "shown"),
    [(24, None, "max 230"), (99, None, "max 980"), (100, 0.9801, "980"), (101, 0.99, "990")],
)
def test_a_p99_needs_a_hundred_values(values: int, p99: float | None, shown: str) -> None:
    """0, 10, 20 ... ms; the percentile by hand: 0.99 of the way from the first to the last."""
    found = latencies([load_result([waiting(n, ttft_s=n / 100) for n in range(values)])])
    assert found["p99_ttft_s"] == (None if p99 is None else pytest.approx(p99))
    assert found["largest_ttft_s"] == (values - 1) / 100
    assert tail(found["p99_ttft_s"], found["largest_ttft_s"]) == shown


def test_a_median_of_zero_is_zero() -> None:
    assert latencies([load_result([waiting(n, ttft_s=0.0) for n in range(3)])])["median_ttft_s"] == 0.0


def test_first_tokens_at_c_2_are_those_of_requests_sent_to_a_full_server() -> None:
    """The first two wait for each other, 1 s; the third and fourth, sent as others end, 0.1 s."""
    sent = [(0.0, 1.0), (0.0, 1.0), (5.1, 0.1), (5.2, 0.1)]
    loads = [
        load_result([waiting(n, ttft_s=w, start_s=s) for n, (s, w) in enumerate(sent)], LoadPoint.closed(2))
    ]
    assert latencies(loads)["largest_ttft_s"] == 0.1
