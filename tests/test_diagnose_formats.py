"""Every published form of an engine's lines is read, and means what its version meant by it."""

# ruff: noqa: E501  (log lines stand as engines write them)

import math

import pytest
from diagnose_logs import SGLANG_ARGS, SGLANG_READY, decode_line, run_of

from spectune.diagnose.log import llamacpp as llamacpp_log
from spectune.diagnose.log import sglang as sglang_log
from spectune.diagnose.log import vllm as vllm_log
from spectune.diagnose.log.records import (
    DecodeWindow,
    DraftTotals,
    PrefillWindow,
    RequestDraft,
    RequestTimings,
    SpecWindow,
)

SGLANG_DECODE = {
    "F01-S1": (
        "[2025-06-07 21:25:14 TP0] Decode batch. #running-req: 1, #token: 9322, token usage: 0.00, "
        "gen throughput (token/s): 97.52, #queue-req: 0",
        (1, 9322, None, None, None, 97.52),
    ),
    "F01-S1-spec": (
        "[2025-04-07 21:25:14 TP0] Decode batch. #running-req: 1, #token: 9322, token usage: 0.00, "
        "accept len: 2.21, gen throughput (token/s): 82.30, #queue-req: 0",
        (1, 9322, 2.21, None, None, 82.30),
    ),
    "F02-S2": (
        "[2025-07-18 15:32:54 TP0] Decode batch. #running-req: 1, #token: 108, token usage: 0.00, accept len: 2.50, "
        "cuda graph: True, gen throughput (token/s): 91.25, #queue-req: 0, timestamp: 2025-07-18T15:32:54.159394",
        (1, 108, 2.50, None, True, 91.25),
    ),
    "F02-cpu-graph": (
        "[2025-08-18 15:32:54 TP0] Decode batch. #running-req: 2, #token: 108, token usage: 0.00, accept len: 2.50, "
        "cpu graph: False, gen throughput (token/s): 91.25, #queue-req: 0, ",
        (2, 108, 2.50, None, False, 91.25),
    ),
    "F03-S3": (
        "[2025-10-22 10:27:57 TP0] Decode batch. #running-req: 1, #token: 108, token usage: 0.00, accept len: 2.17, "
        "accept rate: 0.54, cuda graph: True, gen throughput (token/s): 0.39, #queue-req: 0, ",
        (1, 108, 2.17, 0.54, True, 0.39),
    ),
    "F04-S4": (
        "[2025-11-19 15:25:25] Decode batch, #running-req: 1, #token: 353, token usage: 0.00, accept len: 1.04, "
        "accept rate: 0.21, cuda graph: True, gen throughput (token/s): 41.96, #queue-req: 0, ",
        (1, 353, 1.04, 0.21, True, 41.96),
    ),
    "F04-tags": (
        "[2025-11-19 15:25:25 DP0 TP0 EP0] Decode batch [1234], #running-req: 1, #token: 353, token usage: 0.00, "
        "accept len: 1.04, accept rate: 0.21, cuda graph: True, gen throughput (token/s): 41.96, #queue-req: 0",
        (1, 353, 1.04, 0.21, True, 41.96),
    ),
    "F07-S8": (
        "[2026-03-02 14:44:10 TP0] Decode batch, #running-req: 1, #token: 33, token usage: 0.00, pre-allocated usage: "
        "0.00, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cuda graph: True, gen throughput (token/s): 0.04, "
        "#queue-req: 0",
        (1, 33, None, None, True, 0.04),
    ),
    "hybrid": (
        "[2026-01-05 10:00:00 TP0] Decode batch, #running-req: 1, #full token: 353, full token usage: 0.00, #swa token: 353, "
        "swa token usage: 0.00, accept len: 1.20, accept rate: 0.07, npu graph: True, gen throughput (token/s): 41.96, "
        "#queue-req: 0",
        (1, 353, 1.20, 0.07, True, 41.96),
    ),
    "0.5.23-fields": (
        "[2026-11-02 14:44:10] Decode batch, #running-req: 3, #token: 33, token usage: 0.00, accept len: 3.60, "
        "accept rate: 0.87, cap len: 3.90, block accept len: 2.00, cuda graph: True, gen throughput (token/s): 7.30, "
        "#queue-req: 0, est. something: 4",
        (3, 33, 3.60, 0.87, True, 7.30),
    ),
}


@pytest.mark.parametrize(("line", "expected"), SGLANG_DECODE.values(), ids=SGLANG_DECODE.keys())
def test_sglang_decode_lines(line: str, expected: tuple[object, ...]) -> None:
    window = sglang_log.parse(line)
    assert isinstance(window, DecodeWindow)
    seen = (
        window.running,
        window.context_tokens,
        window.accept_length,
        window.accept_rate,
        window.graph,
        window.tok_per_s,
    )
    assert seen == expected


@pytest.mark.parametrize(("line", "expected"), SGLANG_DECODE.values(), ids=SGLANG_DECODE.keys())
def test_the_short_cut_knows_every_published_form(line: str, expected: tuple[object, ...]) -> None:
    is_tagged = "Decode batch [" in line
    assert (sglang_log.fast(line.encode()) is None) == is_tagged


@pytest.mark.parametrize(("line", "expected"), SGLANG_DECODE.values(), ids=SGLANG_DECODE.keys())
def test_the_short_cut_reads_what_the_parser_reads(line: str, expected: tuple[object, ...]) -> None:
    short = sglang_log.fast(line.encode())
    assert short is None or short == sglang_log.parse(line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Prefill batch. #new-seq: 1, #new-token: 13, #cached-token: 30, cache hit rate: 53.73%, token usage: 0.00, "
            "#running-req: 0, #queue-req: 0",
            (1, 13, 30, 0, 0),
        ),
        (
            "Prefill batch. #new-seq: 1, #new-token: 2192, #cached-token: 35, #token: 35, token usage: 0.00, "
            "#running-req: 2, #queue-req: 1, ",
            (1, 2192, 35, 2, 1),
        ),
        (
            "Prefill batch, #new-seq: 1, #new-token: 3, #cached-token: 0, token usage: 0.00, #running-req: 0, "
            "#queue-req: 0, cuda graph: False",
            (1, 3, 0, 0, 0),
        ),
    ],
    ids=["F08-2025-01", "F08-2025-07", "F08-2026"],
)
def test_sglang_prefill_lines(line: str, expected: tuple[int, ...]) -> None:
    window = sglang_log.parse(line)
    assert isinstance(window, PrefillWindow)
    assert tuple(window) == expected
    assert sglang_log.fast(line.encode()) == window


def test_F09_replies_give_the_length_by_either_generation_of_names() -> None:
    older = run_of(
        *['{"meta_info": {"completion_tokens": 240, "spec_verify_ct": 100, "spec_accept_length": 2.4}}'] * 2
    )
    newer = run_of(
        *[
            '{"meta_info": {"spec_verify_ct": 100, "spec_num_correct_drafts": 140, "spec_num_proposed_drafts": 300}}'
        ]
        * 2
    )
    assert older.acceptance is not None and newer.acceptance is not None
    assert older.acceptance.length == newer.acceptance.length == 2.4
    assert newer.acceptance.rate == pytest.approx(280 / 600)


def test_F10_vllm_0_5_keeps_nothing_when_efficiency_is_one_in_seventeen() -> None:
    run = run_of(
        "INFO 07-24 04:00:31 metrics.py:316] Speculative metrics: Draft acceptance rate: 0.000, System efficiency: "
        "0.059, Number of speculative tokens: 16, Number of accepted tokens: 0, Number of draft tokens tokens: 42272, "
        "Number of emitted tokens tokens: 2642."
    )
    assert run.acceptance is not None
    assert (run.acceptance.drafted, run.acceptance.accepted, run.acceptance.steps) == (42272, 0, 2642)
    assert run.acceptance.length == 1.0
    assert run.acceptance.cumulative


def test_F11_length_of_the_v0_engine_comes_from_emitted_tokens_and_the_last_line_counts() -> None:
    line = (
        "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: "
        "0.598, Number of speculative tokens: 3, Number of accepted tokens: {}, Number of draft tokens: {}, Number of "
        "emitted tokens: {}."
    )
    run = run_of(line.format(100, 200, 150), line.format(8547, 13311, 10616))
    assert run.acceptance is not None
    assert run.acceptance.length == pytest.approx(0.598 * 4, abs=0.005)  # efficiency = emitted / (steps x 4)
    assert run.acceptance.rate == pytest.approx(0.642, abs=0.001)


@pytest.mark.parametrize(
    "line",
    [
        "Speculative metrics: Draft acceptance rate: 1.000, Number of accepted tokens: 66, Number of draft tokens: 66, ",
        "SpecDecoding metrics: Draft acceptance rate: 100.0%, Accepted: 66 tokens, Drafted: 66 tokens",
    ],
    ids=["F12-before", "F12-after"],
)
def test_F12_without_a_length_there_are_counts_only(line: str) -> None:
    window = vllm_log.parse(line)
    assert isinstance(window, SpecWindow)
    assert (window.accepted, window.drafted, window.length, window.cumulative) == (66, 66, None, False)
    run = run_of(line)
    assert run.acceptance is not None and run.acceptance.length is None and run.acceptance.rate == 1.0


def test_F12_counts_become_a_length_where_the_log_names_the_draft_length() -> None:
    run = run_of(
        "INFO 04-02 10:00:00 [api_server.py:1] non-default args: {'model': 'm', 'speculative_config': "
        "{'method': 'eagle', 'model': 'd', 'num_speculative_tokens': 3}}",
        "SpecDecoding metrics: Draft acceptance rate: 40.0%, Accepted: 120 tokens, Drafted: 300 tokens",
    )
    assert run.acceptance is not None and run.acceptance.length == pytest.approx(2.2)


def test_F12b_rate_before_length() -> None:
    run = run_of(
        "INFO 06-06 14:20:34 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: 38.8%, Mean acceptance "
        "length: 2.16, Accepted: 150 tokens, Drafted: 387 tokens, Per-position acceptance rate: 0.543, 0.357, 0.264"
    )
    assert run.acceptance is not None
    assert run.acceptance.length == pytest.approx(1 + 150 / 129)
    assert run.acceptance.per_position == pytest.approx((0.543, 0.357, 0.264))


def test_F12b_nan_of_an_idle_interval_enters_nothing() -> None:
    idle = "SpecDecoding metrics: Draft acceptance rate: nan%, Accepted: 0 tokens, Drafted: 0 tokens"
    busy = "SpecDecoding metrics: Draft acceptance rate: 50.0%, Mean acceptance length: 2.00, Accepted: 50 tokens, "
    run = run_of(idle, busy + "Drafted: 100 tokens, Per-position acceptance rate: 0.600, 0.400", idle)
    assert run.acceptance is not None
    assert run.acceptance.length == pytest.approx(2.0)
    assert (run.acceptance.windows, run.acceptance.idle_windows) == (1, 2)
    only_idle = run_of(idle, idle)
    assert only_idle.acceptance is not None and only_idle.acceptance.length is None


def test_F14_a_depth_field_and_a_varying_depth() -> None:
    line = (
        "(APIServer pid=1) INFO 09-04 11:01:16 [metrics.py:125] SpecDecoding metrics: Mean acceptance length: 6.82, "
        "Current speculative depth: 7, Accepted throughput: 6.46 tokens/s, Drafted throughput: 7.77 tokens/s, Accepted: "
        "256 tokens, Drafted: 308 tokens, Per-position acceptance rate: 1.000, 1.000, 1.000, 1.000, 0.795, 0.614, 0.409, "
        "Avg Draft acceptance rate: 83.1%"
    )
    run = run_of(line)
    assert run.acceptance is not None
    assert run.acceptance.length == pytest.approx(6.82, abs=0.005)
    assert run.acceptance.steps == 44
    # Half of the steps drafted 7, half 3: 60 steps drafted 300 and kept 90; the printed mean is right, 300 / 7 is not.
    varying = line.replace("6.82", "2.50").replace("256", "90").replace("308", "300")
    other = run_of(varying)
    assert other.acceptance is not None and other.acceptance.steps == 60


def test_F15_a_scrape_is_summed_over_engines_and_its_time_stamps_are_not_counts() -> None:
    run = run_of(
        "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.",
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="moonshotai/kimi-k2.5"} 42668.0',
        'vllm:spec_decode_num_drafts_total{engine="1",model_name="moonshotai/kimi-k2.5"} 332.0',
        'vllm:spec_decode_num_drafts_created{engine="0",model_name="moonshotai/kimi-k2.5"} 1.79e9',
        'vllm:spec_decode_num_draft_tokens{engine="0",model_name="moonshotai/kimi-k2.5"} 129000.0',
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="moonshotai/kimi-k2.5"} 64500.0',
    )
    assert run.acceptance is not None
    assert (run.acceptance.steps, run.acceptance.length) == (43000, 2.5)


def test_F15_the_last_of_several_scrapes_counts() -> None:
    scrape = [
        "llamacpp:spec_decode_num_drafts_total {}",
        "llamacpp:spec_decode_num_draft_tokens_total {}",
        "llamacpp:spec_decode_num_accepted_tokens_total {}",
    ]
    lines = [
        form.format(n)
        for numbers in ((10, 30, 5), (100, 300, 150))
        for form, n in zip(scrape, numbers, strict=True)
    ]
    run = run_of(*lines)
    assert run.acceptance is not None and run.acceptance.length == 2.5


def test_F16_vllm_offline_example() -> None:
    run = run_of(
        "vllm 0.11.0",
        "total_num_output_tokens: 16990",
        "num_drafts: 4816",
        "num_draft_tokens: 33712",
        "num_accepted_tokens: 12208",
        "mean acceptance length: 3.53",
        "acceptance at token 0: 0.65",
    )
    assert run.acceptance is not None
    assert run.acceptance.length == pytest.approx(3.53, abs=0.006)
    assert run.acceptance.rate == pytest.approx(12208 / 33712)


@pytest.mark.parametrize(
    ("line", "length"),
    [
        ("draft acceptance rate = 0.57576 (  171 accepted /   297 generated)", None),
        (
            "slot print_timing: id  1 | task 0 | draft acceptance = 0.64479 (  167 accepted /   259 generated)",
            None,
        ),
        ("draft acceptance = 0.64479 (  167 accepted /   259 generated), mean len =  2.92", 2.92),
        (
            "1.12.930.368 I slot print_timing: id  3 | task 0 | draft acceptance = 0.64479 (  167 accepted /   259 "
            "generated), mean acceptance length = 2.92",
            2.92,
        ),
    ],
    ids=["F17-L1", "F18-L2", "F20-L4", "other-words"],
)
def test_llamacpp_acceptance_lines(line: str, length: float | None) -> None:
    record = llamacpp_log.parse(line)
    assert isinstance(record, RequestDraft)
    assert record.length == length
    assert (record.accepted, record.drafted) in ((171, 297), (167, 259))


def test_F20_the_trace_line_gives_positions_of_the_request_before_it() -> None:
    run = run_of(
        "slot print_timing: id  0 | task 0 | draft acceptance = 0.64479 (  167 accepted /   259 generated), mean len =  2.92",
        "     acc per pos = (0.805, 0.632, 0.483)",
    )
    assert run.acceptance is not None and run.acceptance.per_position == pytest.approx((0.805, 0.632, 0.483))


def test_F20_length_is_pooled_by_steps_and_not_averaged() -> None:
    run = run_of(
        "srv init: listening on http://127.0.0.1:8080",
        "slot print_timing: id  0 | task 0 | draft acceptance = 0.90000 (   90 accepted /   100 generated), mean len =  3.00",
        "slot print_timing: id  0 | task 1 | draft acceptance = 0.10000 (   30 accepted /   300 generated), mean len =  1.10",
    )
    assert run.acceptance is not None
    assert run.acceptance.length == pytest.approx(1 + 120 / (45 + 300))  # 90/2 and 30/0.1 steps


@pytest.mark.parametrize(
    ("line", "method", "drafted", "accepted", "length"),
    [
        (
            "statistics ngram_mod: #calls = 810, #gen drafts = 15, #acc drafts = 15, #gen tokens = 960, #acc tokens = 730, "
            "dur(b,g,a) = 0.149, 0.347, 0.005 ms",
            "ngram_mod",
            960,
            730,
            None,
        ),
        (
            "statistics ngram_map_k: #calls(b,g,a) = 6 1690 26, #gen drafts = 26, #acc drafts = 26, #gen tokens = 1248, "
            "#acc tokens = 968, dur(b,g,a) = 2.234, 1.427, 0.016 ms",
            "ngram_map_k",
            1248,
            968,
            None,
        ),
        (
            "statistics draft-mtp: #calls(b,g,a) = 1 4 4, #gen drafts = 4, #acc drafts = 4, #gen tokens = 12, "
            "#acc tokens = 9, dur(b,g,a) = 2.234, 1.427, 0.016 ms",
            "draft-mtp",
            12,
            9,
            None,
        ),
        (
            "statistics     draft-eagle3: #calls(b,g,a) =    1     87     87, #gen drafts =     87, #acc drafts =    70, "
            "#gen tokens =    259, #acc tokens =   167, #mean acc len = 2.92, #acc rate/pos = (0.805, 0.632, 0.483), "
            "dur(b,g,a) = 0.005, 325.555, 0.114 ms",
            "draft-eagle3",
            259,
            167,
            2.92,
        ),
    ],
    ids=["F21-first", "F21-map", "F21-mtp", "F21-eagle3"],
)
def test_F21_statistics_lines(
    line: str, method: str, drafted: int, accepted: int, length: float | None
) -> None:
    record = llamacpp_log.parse(line)
    assert isinstance(record, DraftTotals)
    assert (record.method, record.drafted, record.accepted, record.length) == (
        method,
        drafted,
        accepted,
        length,
    )
    run = run_of(line)
    assert run.totals is not None and run.totals.length == pytest.approx(1 + accepted / run.totals.steps)  # type: ignore[operator]


def test_F22_a_reply_without_draft_counts_is_unknown_and_not_zero() -> None:
    plain = (
        '{"timings":{"predicted_n":665,"predicted_ms":20629.211,"predicted_per_second":32.235842660196745}}'
    )
    drafting = plain.replace("}}", ',"draft_n":604,"draft_n_accepted":515}}')
    assert llamacpp_log.parse(plain) == RequestTimings(generated=665)
    without = run_of("llama_server: x", plain)
    assert without.acceptance is None
    run = run_of("llama_server: x", plain, drafting)
    assert run.acceptance is not None
    assert (run.acceptance.drafted, run.acceptance.accepted) == (604, 515)


def test_F23_old_and_new_flag_names_are_read_from_a_pasted_command() -> None:
    run = run_of(
        "$ llama-server -m target.gguf -md draft.gguf --spec-type draft-simple --spec-draft-n-max 3 --draft-p-min 0",
        "srv init: listening on http://127.0.0.1:8080",
    )
    assert run.asked is not None
    assert (run.asked.method, run.asked.drafter, run.asked.num_draft_tokens) == (
        "draft_model",
        "draft.gguf",
        3,
    )
    assert run.settings["draft_p_min"] == 0


@pytest.mark.parametrize(
    "head",
    ["", "1.12.931.215 I ", "[53409] ", "2026-05-17 11:04:29.854 | ", "2026-05-17T11:04:29.854123456Z ", "llama-1  | ",
     "May 17 11:04:29 host llama-server[77]: ", "\x1b[32m", "[pod/llama-0/server] "],
    ids=["bare", "clock", "router", "docker", "cri", "compose", "journal", "colour", "kubectl"],
)  # fmt: skip
def test_F24_what_is_put_around_a_line_does_not_hide_it(head: str) -> None:
    lines = [
        "slot print_timing: id  3 | task 0 | draft acceptance = 0.50000 (  100 accepted /   200 generated), mean len =  2.00",
        "slot      release: id  3 | task 0 | stop processing: n_tokens = 2180, truncated = 0",
    ]
    run = run_of(*(head + line for line in lines))
    assert run.acceptance is not None
    assert run.acceptance.length == pytest.approx(2.0)
    assert [s.label for s in run.acceptance.by_context] == ["2048-4095"]


def test_E01_the_bonus_token_is_counted_alike_for_every_engine() -> None:
    """300 steps of 3 drafted tokens, 360 kept: each engine's own words for a length of 2.2."""
    sglang = run_of(SGLANG_ARGS, SGLANG_READY, *[decode_line(2.2)] * 3)
    vllm = run_of(
        "SpecDecoding metrics: Mean acceptance length: 2.20, Accepted throughput: 36.00 tokens/s, Drafted throughput: "
        "90.00 tokens/s, Accepted: 360 tokens, Drafted: 900 tokens, Per-position acceptance rate: 0.600, 0.400, 0.200, "
        "Avg Draft acceptance rate: 40.0%"
    )
    llamacpp = run_of("draft acceptance = 0.40000 (  360 accepted /   900 generated), mean len =  2.20")
    for run in (sglang, vllm, llamacpp):
        assert run.acceptance is not None and run.acceptance.length is not None
        assert math.isclose(run.acceptance.length, 2.2, abs_tol=0.001)
        assert run.acceptance.rate == pytest.approx(0.4, abs=0.001)


@pytest.mark.parametrize(
    ("length", "rate", "tokens", "formula"),
    [
        (2.17, 0.54, None, "length / n"),
        (2.17, 0.54, 4, "length / n"),
        (2.17, 0.39, 4, "(length - 1) / (n - 1)"),
        (2.17, 0.39, None, "(length - 1) / (n - 1)"),
        (1.00, 0.25, 4, "length / n"),
        (1.00, 0.00, 4, "(length - 1) / (n - 1)"),
    ],
)
def test_E02_the_formula_of_the_printed_rate_is_found_by_trying(
    length: float, rate: float, tokens: int | None, formula: str
) -> None:
    line = decode_line(length).replace("cuda graph", f"accept rate: {rate:.2f}, cuda graph")
    lines = [line] if tokens is None else [SGLANG_ARGS.replace("tokens': 4", f"tokens': {tokens}"), line]
    run = run_of(*lines)
    assert run.acceptance is not None and run.acceptance.rate_formula == formula


def test_settings_of_the_v0_engine_are_speculation_too() -> None:
    run = run_of(
        "INFO 02-01 10:00:00 api_server.py:700] vLLM API server version 0.6.3",
        "INFO 02-01 10:00:00 api_server.py:701] args: Namespace(host='0.0.0.0', model='m', speculative_model='d', num_speculative_tokens=5)",
    )
    assert run.version == "0.6.3"
    assert run.knobs is not None
    assert (run.knobs.method, run.knobs.drafter, run.knobs.num_draft_tokens) == ("draft_model", "d", 5)


def test_older_settings_of_sglang_are_a_call_and_not_a_mapping() -> None:
    run = run_of(
        "[2025-06-01 10:00:00] server_args=ServerArgs(model_path='target', tokenizer_path='x', speculative_algorithm='EAGLE', "
        "speculative_draft_model_path='/d/kimi-eagle3', speculative_num_steps=3, speculative_eagle_topk=1, "
        "speculative_num_draft_tokens=4, max_running_requests=None)"
    )
    assert run.knobs is not None
    assert (run.knobs.method, run.knobs.drafter, run.knobs.num_draft_tokens) == ("eagle", "/d/kimi-eagle3", 3)


def test_startup_complete_counts_for_vllm_once_it_is_known_to_be_vllm() -> None:
    run = run_of(
        "INFO:     Application startup complete.",
        "(EngineCore_0 pid=9) ERROR 05-01 10:00:00 [core.py:600] EngineCore encountered a fatal error.",
    )
    assert run.death is not None and run.death.after_ready
