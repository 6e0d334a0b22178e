"""An open loop beyond what the server answers has no speedup; one below it is left alone."""

import pytest
from closed_loop import Server, measured_at
from report_studies import speculative, study, trial

from spectune.analysis.summary import summarize
from spectune.domain.measurement import LoadResult
from spectune.domain.saturation import arrival_surplus
from spectune.domain.workload import LoadPoint, Prompt

PROMPTS = [Prompt(prompt_id=f"p{n}", turns=("x",), output_tokens=20 + n % 7) for n in range(48)]
SLOW, FAST = Server(fixed_s=0.03, most=8), Server(fixed_s=0.01, most=8)
"""8 at once, 22 passes of 32 or 12 ms after 4 ms each: about 10 and 25 requests per second."""


def at_rate(server: Server, rate: float, seed: int) -> LoadResult:
    return measured_at(server, LoadPoint.open(rate), requests=48, prompts=PROMPTS, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_twice_what_is_answered_is_found_and_half_of_it_is_not(seed: int) -> None:
    surplus = arrival_surplus(at_rate(SLOW, 20.0, seed))
    assert surplus is not None
    assert 0.3 < surplus < 1.7  # 1.0: two arrive for each that is answered
    assert arrival_surplus(at_rate(SLOW, 5.0, seed)) is None
    assert arrival_surplus(at_rate(SLOW, 8.0, seed)) is None


def test_a_closed_loop_never_outruns_its_server() -> None:
    load = at_rate(SLOW, 20.0, 0).model_copy(update={"load": LoadPoint.closed(8)})
    assert arrival_surplus(load) is None


@pytest.mark.parametrize(("rate", "is_found"), [(20.0, True), (5.0, False)])
def test_no_speedup_is_said_of_an_over_saturated_load(rate: float, is_found: bool) -> None:
    point = LoadPoint.open(rate)
    of = study(speculative("eagle3-k3"), loads=(point,), num_prompts=48)
    by_id = [p.model_copy(update={"output_tokens": 20 + n % 7}) for n, p in enumerate(of.workload.prompts)]
    trials = [
        trial(of, arm, n, loads=(measured_at(server, point, requests=48, prompts=by_id),))
        for n, (arm, server) in enumerate(zip(of.arms, (SLOW, FAST), strict=True), start=1)
    ]
    summary = summarize(of, trials)
    (load,) = summary.arms[1].loads
    assert (load.speedup is None) is is_found
    assert ("over-saturated" in [f.code for f in summary.findings]) is is_found
    assert (summary.arms[0].loads[0].e2e_tok_per_s is None) is is_found
    assert not (is_found and "fastest" in summary.headline)
