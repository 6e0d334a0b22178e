"""Field names and figures of ``vllm bench serve``.

The expected latencies were printed by ``calculate_metrics`` of vLLM 0.32 for
these four requests (run once; vLLM is not needed here).
"""

from __future__ import annotations

import json

import pytest
from report_studies import BASELINE, counts, load_result, prompts, request, speculative, study, trial

from spectune.domain.workload import LoadPoint
from spectune.report.vllm_result import vllm_bench_result

STUDY = study(speculative("arm"))
PROMPT = prompts(1)[0]


def sent(
    start_s: float, ttft_s: float, gaps_s: tuple[float, ...], tokens: int, prompt_tokens: int, **changes
):
    return request(
        PROMPT,
        1.0,
        **{
            "start_s": start_s,
            "ttft_s": ttft_s,
            "latency_s": ttft_s + sum(gaps_s),
            "chunk_gaps_s": gaps_s,
            "output_tokens": tokens,
            "prompt_tokens": prompt_tokens,
            **changes,
        },
    )


FOUR = [
    sent(0.0, 0.2, (0.1,) * 9, 10, 20),
    sent(0.5, 0.4, (0.2, 0.3, 0.1, 0.4), 5, 30),
    sent(1.5, 0.3, (), 1, 10),
    sent(1.6, 0.0, (), 0, 10, error="connection reset"),
]


def result(requests, **load_changes):
    load = load_result(requests, **{"duration_s": 2.5, **load_changes})
    return vllm_bench_result(trial(STUDY, BASELINE, 1, loads=(load,)), 0, api="chat")


VLLM_0_32 = {
    "completed": 3,
    "failed": 1,
    "total_input_tokens": 60,
    "total_output_tokens": 16,
    "request_throughput": 1.2,
    "output_throughput": 6.4,
    "total_token_throughput": 30.4,
    "mean_ttft_ms": 300.0,
    "median_ttft_ms": 300.0,
    "std_ttft_ms": 81.64965809277261,
    "p99_ttft_ms": 398.0,
    "mean_tpot_ms": 175.0,
    "median_tpot_ms": 175.0,
    "std_tpot_ms": 75.0,
    "p99_tpot_ms": 248.5,
    "mean_itl_ms": 146.1538461538462,
    "median_itl_ms": 100.0,
    "std_itl_ms": 92.946507489189,
    "p99_itl_ms": 388.0,
    "mean_e2el_ms": 933.3333333333333,
    "median_e2el_ms": 1100.0,
    "std_e2el_ms": 464.2796092394706,
    "p99_e2el_ms": 1394.0,
    "max_output_tokens_per_s": 10.0,
    "max_concurrent_requests": 3,
}


@pytest.mark.parametrize("name", VLLM_0_32)
def test_figures_equal_those_of_vllm(name):
    assert result(FOUR)[name] == pytest.approx(VLLM_0_32[name])


def test_every_field_name_of_the_saved_result_is_there():
    names = (
        "date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency "
        "duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput "
        "output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests "
        "spec_decode_acceptance_rate spec_decode_acceptance_length spec_decode_num_drafts spec_decode_draft_tokens "
        "spec_decode_accepted_tokens spec_decode_per_position_acceptance_rates"
    )
    latencies = [
        f"{s}_{m}_ms" for s in ("mean", "median", "std", "p99") for m in ("ttft", "tpot", "itl", "e2el")
    ]
    assert set(names.split()) | set(latencies) | {"spectune"} == result(FOUR).keys()


def test_what_the_study_is_about_is_filled_in():
    body = result(FOUR)
    assert body["date"] == "20261129-200001"
    assert (body["backend"], body["label"], body["model_id"]) == ("openai-chat", "baseline", "smollm2")
    assert (body["num_prompts"], body["request_rate"], body["max_concurrency"]) == (4, "inf", 1)


def test_open_loop_has_a_rate_and_no_concurrency():
    load = load_result(FOUR, LoadPoint.open(2.5))
    body = vllm_bench_result(trial(STUDY, BASELINE, 1, loads=(load,)), 0)
    assert (body["request_rate"], body["max_concurrency"], body["backend"]) == (2.5, None, None)


def test_acceptance_rate_is_in_percent_and_the_length_counts_the_bonus():
    part = counts(40, 0).model_copy(update={"num_accepted_tokens": 30, "accepted_per_position": (20, 8, 2)})
    body = result([request(PROMPT, 50, acceptance=part)])
    assert body["spec_decode_acceptance_rate"] == pytest.approx(25.0)  # 30 of 120
    assert body["spec_decode_acceptance_length"] == pytest.approx(1.75)
    assert body["spec_decode_num_drafts"] == 40
    assert body["spec_decode_draft_tokens"] == 120
    assert body["spec_decode_accepted_tokens"] == 30
    assert body["spec_decode_per_position_acceptance_rates"] == pytest.approx([0.5, 0.2, 0.05])


def test_without_drafts_every_speculation_field_is_null():
    body = result([request(PROMPT, 50, acceptance=counts(0, 0))])
    assert all(body[name] is None for name in body if name.startswith("spec_decode"))


def test_unknown_tokens_make_totals_null_not_small():
    body = result([*FOUR[:2], sent(1.5, 0.3, (), 1, 10, output_tokens=None)])
    assert (body["total_output_tokens"], body["output_throughput"], body["total_token_throughput"]) == (
        None,
    ) * 3
    assert body["total_input_tokens"] == 60


def test_no_answer_gives_nulls_not_zeros():
    body = result([FOUR[3]])
    assert (body["completed"], body["failed"]) == (0, 1)
    assert body["mean_ttft_ms"] is None
    assert body["max_output_tokens_per_s"] is None
    json.dumps(body, allow_nan=False)


def test_a_chunk_of_several_tokens_counts_as_several_in_the_peak():
    # Two chunks of five tokens within the first second: vLLM, counting chunks, would say 2.
    assert result([sent(0.0, 0.2, (0.3,), 10, 5)])["max_output_tokens_per_s"] == pytest.approx(10.0)


def test_ours_stand_beside_them_with_intervals():
    ours = result([request(PROMPT, 50, acceptance=counts(40, 20))])["spectune"]
    assert ours["e2e_tok_per_s"]["value"] == pytest.approx(50.0)
    assert ours["acceptance_length"]["value"] == pytest.approx(1.5)
    assert ours["request_weighted_acceptance_length"] == pytest.approx(1.5)
    assert ours["trial_id"] == f"0001-{BASELINE.arm_id}"


def test_a_simulated_trial_says_that_it_is_no_measurement():
    load = load_result(FOUR)
    body = vllm_bench_result(trial(STUDY, BASELINE, 1, loads=(load,), simulated=True), 0)
    assert body["spectune"]["note"] == "simulated engine: not a measurement"


def test_the_result_is_strict_json():
    json.dumps(result(FOUR), allow_nan=False)
