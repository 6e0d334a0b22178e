"""Speeds at c > 1 are those of the steady state, against servers whose true speed is known."""

import random

import pytest
from closed_loop import Server, measured
from report_studies import load_result, speculative, study, trial

from spectune.analysis import pooling
from spectune.analysis.summary import summarize
from spectune.analysis.words import load_note
from spectune.domain.measurement import LoadResult, RequestRecord, SteadySpan
from spectune.domain.steady import SteadyWindow, steady_span, window_of
from spectune.domain.workload import LoadPoint, Prompt
from spectune.report.markdown import render_markdown
from spectune.statistics.intervals import geometric_mean_interval

PLAIN, DRAFTING = Server(), Server(drafted=3, kept=1.515, noise=0.25)
TRUE_SPEEDUP = 1.052
"""At 32 in flight: passes of 18 against 42 ms, 2.5 tokens a pass; from 2,400 requests, and on paper to 0.3 %."""


def some_prompts(seed: int) -> list[Prompt]:
    """48 prompts whose answers have 45 to 128 tokens or so."""
    rng = random.Random(1)
    lengths = [max(8, min(128, int(128 * rng.lognormvariate(-0.3, 0.4)))) for _ in range(48)]
    made = [Prompt(prompt_id=f"p{n}", turns=("x",), output_tokens=tokens) for n, tokens in enumerate(lengths)]
    random.Random(seed).shuffle(made)
    return made


def ratios(arm: LoadResult, plain: LoadResult) -> list[float]:
    ours, theirs = pooling.speed_by_prompt([arm]), pooling.speed_by_prompt([plain])
    return [ours[p] / theirs[p] for p in ours.keys() & theirs.keys()]


def whole(load: LoadResult) -> LoadResult:
    """With its filling and emptying, as it was reported once."""
    return load.model_copy(update={"steady": SteadySpan(start_s=0.0, end_s=1e9, frac=1.0)})


@pytest.mark.parametrize(("requests", "tolerance"), [(48, 0.02), (160, 0.005)])
@pytest.mark.parametrize("seed", range(3))
def test_a_true_speedup_at_32_in_flight_is_reported(requests: int, tolerance: float, seed: int) -> None:
    asked = {"concurrency": 32, "requests": requests, "prompts": some_prompts(seed)}
    plain, arm = measured(PLAIN, **asked), measured(DRAFTING, **asked)  # type: ignore[arg-type]
    speedup = geometric_mean_interval(ratios(arm, plain), unit="x")
    assert speedup is not None and speedup.low is not None and speedup.high is not None
    assert speedup.low < TRUE_SPEEDUP < speedup.high
    assert speedup.value == pytest.approx(TRUE_SPEEDUP, rel=tolerance)
    before = geometric_mean_interval(ratios(whole(arm), whole(plain)), unit="x")
    assert before is not None
    assert before.value > TRUE_SPEEDUP + 0.01


def test_the_steady_state_lasts_until_a_stream_is_not_replaced() -> None:
    """Three requests of 4 s, 2 in flight: the third is sent at 4 s, when the first ends; from 5 s on it is alone."""
    load = load_result([at(0.0, 4.0), at(1.0, 4.0), at(4.0, 4.0)], LoadPoint.closed(2))
    assert steady_span(load) == SteadySpan(start_s=1.0, end_s=5.0, frac=0.5)


def at(
    start_s: float, latency_s: float, *, chunks: int = 41, tokens: int = 40, **fields: object
) -> RequestRecord:
    """First chunk at once, then evenly."""
    gaps = (latency_s / (chunks - 1),) * (chunks - 1) if chunks > 1 else ()
    return RequestRecord(
        prompt_id=str(fields.pop("prompt_id", f"at {start_s:g}")),
        start_s=start_s,
        ttft_s=0.0 if chunks > 1 else latency_s,
        latency_s=latency_s,
        output_tokens=tokens,
        chunk_gaps_s=gaps,
        **fields,  # type: ignore[arg-type]
    )


def test_a_request_counts_with_the_part_of_it_that_lies_in_the_window() -> None:
    window = SteadyWindow(1.0, 5.0)
    inside, most, little = at(1.0, 4.0), at(2.0, 4.0), at(4.0, 4.0)
    assert window.e2e_tok_per_s(inside) == inside.e2e_tok_per_s == 10
    assert window.e2e_tok_per_s(most) == pytest.approx(10, rel=0.04)
    assert window.decode_tok_per_s(most) == pytest.approx(39 / 4)
    assert window.e2e_tok_per_s(little) is None
    assert window.decode_tok_per_s(little) is None
    assert window.tokens(little) == pytest.approx(10, rel=0.1)


def test_an_answer_in_one_chunk_counts_whole_or_not_at_all() -> None:
    window = SteadyWindow(1.0, 5.0)
    assert window.e2e_tok_per_s(at(1.0, 4.0, chunks=1)) == 10
    assert window.e2e_tok_per_s(at(2.0, 4.0, chunks=1)) is None


def test_another_tools_requests_without_single_chunks_are_taken_to_be_even() -> None:
    bare = at(2.0, 4.0).model_copy(update={"chunk_gaps_s": ()})
    assert SteadyWindow(1.0, 5.0).e2e_tok_per_s(bare) == pytest.approx(10, rel=0.04)


@pytest.mark.parametrize(
    ("point", "number"), [(LoadPoint.closed(1), 9), (LoadPoint.open(3.0), 9), (LoadPoint.closed(64), 9)]
)
def test_one_at_a_time_arrivals_of_their_own_and_a_load_never_reached_count_whole(
    point: LoadPoint, number: int
) -> None:
    load = load_result([at(float(n), 4.0) for n in range(number)], point)
    assert window_of(load) is None
    assert pooling.steady_frac([load]) is None


def test_a_later_turn_keeps_its_conversation_in_flight() -> None:
    """Two conversations of two turns, both in flight from 0 s on; the first turn's end at 2 s empties nothing."""
    turns = [at(0.0, 2.0, prompt_id="a"), at(2.0, 4.0, prompt_id="a", turn=1)]
    turns += [at(0.0, 3.0, prompt_id="b"), at(3.0, 2.0, prompt_id="b", turn=1)]
    span = steady_span(load_result(turns, LoadPoint.closed(2)))
    assert span is not None
    assert (span.start_s, span.end_s) == (0.0, 5.0)


def test_categories_keep_the_window_of_the_whole_load() -> None:
    plain = measured(PLAIN, concurrency=8, requests=20, prompts=some_prompts(0))
    marked = [
        r.model_copy(update={"category": "code" if n % 5 else "chat"}) for n, r in enumerate(plain.requests)
    ]
    load = plain.model_copy(update={"requests": tuple(marked)})
    (part,) = pooling.only([load], "chat")
    assert window_of(part) == window_of(load)


def test_the_report_says_which_share_of_the_time_counts() -> None:
    of = study(speculative("eagle3-k3"), loads=(LoadPoint.closed(32),), num_prompts=48)
    work = [p.model_copy(update={"output_tokens": 60 + n}) for n, p in enumerate(of.workload.prompts)]
    loads = {
        arm.arm_id: measured(server, concurrency=32, requests=48, prompts=work)
        for arm, server in zip((of.baseline, of.arms[1]), (PLAIN, DRAFTING), strict=True)
    }
    trials = [trial(of, arm, n, loads=(loads[arm.arm_id],)) for n, arm in enumerate(of.arms, start=1)]
    first = summarize(of, trials).arms[1].loads[0]
    span = steady_span(loads[of.arms[1].arm_id])
    assert span is not None
    assert first.steady_frac == span.frac
    assert 0.3 < span.frac < 0.8
    note = load_note((arm.name, arm.loads[0]) for arm in summarize(of, trials).arms)
    assert note.startswith("tok/s are per stream and of the steady state, ")
    assert note in render_markdown(summarize(of, trials)).replace("Tok/s are", "tok/s are")


def test_nothing_is_said_of_one_request_at_a_time() -> None:
    of = study(speculative("eagle3-k3"))
    trials = [trial(of, arm, n, speeds=10.0 * n) for n, arm in enumerate(of.arms, start=1)]
    assert load_note((arm.name, arm.loads[0]) for arm in summarize(of, trials).arms) == ""
