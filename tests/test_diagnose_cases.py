"""Public failure cases, from their lines alone. ``docs`` lists them by the same names.

One file in ``logs`` per case: lines as reported, or written from the report.
"""

# ruff: noqa: E501  (log lines stand as engines write them)

from pathlib import Path

import pytest
from diagnose_logs import (
    LOGS,
    RECORDED,
    SGLANG_ARGS,
    SGLANG_READY,
    codes,
    decode_line,
    judge_file,
    judged,
    run_of,
    runs_of,
)

from spectune.domain.findings import Finding
from spectune.findings.catalogue import finding_kind

CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # case: (severity, code, words that the finding says)
    "A01": ("error", "eagle3-draft-under-eagle", ("three hidden states", "--speculative-algorithm EAGLE3")),
    "A05": ("error", "no-draft-ever-accepted", ("1. tensors were skipped at load",)),
    "A06": (
        "error",
        "server-died",
        ("config file for awq", "--speculative-draft-model-quantization unquant"),
    ),
    "A11": ("error", "server-died", ("hidden size is not the target's",)),
    "A12": ("error", "server-died", ("size mismatch for lm_head", "draft_vocab_size")),
    "A18": ("error", "server-died", ("Downcasting not allowed", "exclude list")),
    "A19": ("error", "server-died", ("target vocab size 152064", "tokenizer is not the target's")),
    "A19-newer": ("error", "draft-vocabulary-refused", ("same model family",)),
    "A21": ("error", "draft-contributes-nothing", ("1. quantisation (fp8)", "control with both unquantised")),
    "A22": ("error", "no-draft-ever-accepted", ("0 of 1800",)),
    "A23": ("error", "draft-contributes-nothing", ("1.037",)),
    "A27": ("error", "no-draft-ever-accepted", ("0 of 9000",)),
    "A28": ("warning", "acceptance-falls-with-context", ("2.60", "from 128-255 on", "page size")),
    "A29": ("note", "first-position-below-healthy", ("32%", "base model")),
    "A33": ("error", "server-died", ("t_layer_inp", "no EAGLE-3 hooks")),
    "A34": ("error", "draft-decode-fails", ("3 lines",)),
    "A36": ("error", "no-draft-ever-accepted", ("eager", "asynchronous scheduling")),
    "A38": ("note", "drafts-mostly-wasted", ("--spec-draft-p-min",)),
    "A39": ("error", "server-died", ("set_eagle3_layers_to_capture", "no EAGLE-3 hooks")),
    "B01": ("warning", "draft-tokens-rewritten", ("changed to 5",)),
    "B02": ("error", "server-died", ("give all three",)),
    "B04": ("error", "server-died", ("--page-size 1",)),
    "B05": ("error", "server-died", ("--speculative-eagle-topk 1",)),
    "B07": (
        "note",
        "settings-changed-by-engine",
        ("Overlap scheduler is disabled", "Mixed chunked prefill is disabled"),
    ),
    "B09": ("warning", "context-longer-than-draft", ("2048", "--context-length")),
    "B13": ("warning", "grammar-rejects-drafts", ("LLMatcher",)),
    "B14": ("error", "server-died", ("tensor parallelism only",)),
    "B16": ("error", "server-died", ('add "num_speculative_tokens"',)),
    "B18": ("error", "server-died", ("self must be contiguous", "trained with")),
    "B25": ("error", "server-died", ("do not fit together",)),
    "B26": ("warning", "little-memory-left", ("2.83 GB",)),
    "B27": ("error", "server-died-after-ready", ("Decode out of memory", "says nothing about the draft")),
    "B29": ("error", "server-died-after-ready", ("memory leak detected",)),
    "C04": ("note", "health-check-failed-under-load", ("Busy is not dead", "SGLANG_HEALTH_CHECK_TIMEOUT")),
    "C07": ("note", "not-ready-yet", ("being compiled",)),
    "C09": ("error", "crash-loop", ("3 starts died alike", "capturing")),
    "C10": ("error", "server-died", ("no kernel image", "--attention-backend")),
    "C12": ("error", "server-died", ("VLLM_ENGINE_READY_TIMEOUT_S",)),
    "C14": ("error", "port-taken", ("--nccl-port",)),
    "C21": ("error", "server-died-after-ready", ("exit code 9", "out-of-memory killer")),
    "C23": ("error", "engine-hangs", ("4 times in a row",)),
    "E02": ("note", "accept-rate-of-old-formula", ("0.54 is 2.17 / 4", "0.39")),
    "E04": ("note", "windows-after-idle", ("2 first lines",)),
    "E09": ("warning", "compiled-while-serving", ("2 lines while serving",)),
    "E11": ("warning", "acceptance-below-published", ("2.01", "MT-Bench")),
    "E16": ("note", "drafts-rarely-made", ("80 were drafted for 1000",)),
    "E18": ("error", "acceptance-is-simulated", ("SGLANG_SIMULATE_ACC_LEN=3.24",)),
    "E18-vllm": ("error", "acceptance-is-simulated", ("synthetic",)),
    "E20": ("note", "counts-since-start", ("70%", "78%", "whole process")),
    "E22": ("warning", "prompts-repeated", ("8 of 9",)),
    "crowded": ("warning", "running-requests-at-cap", ("48 running and up to 30 waiting",)),
    "graphs-off": ("warning", "decode-graphs-off", ("5 of 10", "at 40 running")),
    "silently-off": ("error", "speculation-silently-off", ("none with an accept length",)),
    "collapsed": ("warning", "acceptance-collapsed", ("2.40", "1.00 in the last")),
    "first-position": ("warning", "first-position-near-ten-percent", ("10%", "auxiliary layer ids")),
    "retracted": ("warning", "requests-retracted", ("Retract requests",)),
}


def words_of(finding: Finding) -> str:
    parts = [
        finding.message,
        finding.effect or "",
        finding.remedy or "",
        finding_kind(finding.code).explanation,
    ]
    return "\n".join([*parts, *(f"{e.source} {e.detail}" for e in finding.evidence)])


@pytest.mark.parametrize("case", CASES)
def test_the_case_is_found_with_its_cause(case: str) -> None:
    severity, code, words = CASES[case]
    result = judge_file(LOGS / f"{case}.log")
    found = [finding for finding in result.findings if finding.code == code]
    assert found, f"{case}: {codes(result)}"
    assert found[0].severity == severity
    for word in words:
        assert word in words_of(found[0])


@pytest.mark.parametrize("case", [case for case, (severity, _, _) in CASES.items() if severity != "error"])
def test_what_is_no_error_raises_none(case: str) -> None:
    assert codes(judge_file(LOGS / f"{case}.log"), "error") == []


def test_every_written_case_is_tested() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(CASES)


# Must show 3: the known story, from the log alone --------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        LOGS / "sglang-0.5.23-trained-eagle3-draft-flag-EAGLE.log.gz",
        RECORDED / "sglang-0.5.23" / "eagle3-draft-with-flag-eagle" / "server.log",
    ],
    ids=lambda p: p.parent.name,
)
def test_a_trained_eagle3_draft_under_eagle_is_an_error_that_names_the_flag_first(path: Path) -> None:
    result = judge_file(path)
    assert codes(result, "error") == ["eagle3-draft-under-eagle"]
    (finding,) = (f for f in result.findings if f.severity == "error")
    assert "Likely causes: 1. an EAGLE-3 draft served with --speculative-algorithm EAGLE" in finding.message
    assert finding.remedy == "--speculative-algorithm EAGLE3"
    assert any("LlamaForCausalLMEagle3" in item.detail for item in finding.evidence)


@pytest.mark.parametrize(
    "path",
    [
        LOGS / "sglang-0.5.23-trained-eagle3-draft-flag-EAGLE3.log.gz",
        RECORDED / "sglang-0.5.23" / "eagle3" / "server.log",
    ],
    ids=lambda p: p.parent.name,
)
def test_the_same_draft_under_eagle3_gives_no_error_and_no_warning(path: Path) -> None:
    assert codes(judge_file(path), "error", "warning") == []


def test_causes_are_ranked_without_the_flag_where_the_flag_is_right() -> None:
    run = run_of(SGLANG_ARGS, SGLANG_READY, *[decode_line(1.0)] * 5)
    (finding,) = (f for f in judged([run]).findings if f.severity == "error")
    assert finding.code == "draft-contributes-nothing"
    assert "Likely causes: 1. auxiliary layer ids" in finding.message
    assert "EAGLE algorithm" not in finding.message


def test_the_flag_is_an_error_before_a_token_was_generated() -> None:
    run = run_of(
        SGLANG_ARGS.replace("EAGLE3", "EAGLE"),
        "[2026-03-24 10:01:00] Load weight end. elapsed=0.05 s, type=LlamaForCausalLMEagle3, avail mem=19.97 GB",
    )
    assert codes(judged([run]), "error") == ["eagle3-draft-under-eagle"]


# What tells a fault from a weak draft --------------------------------------------------------------


def vllm_interval(per_position: tuple[float, ...], *, steps: int = 1000) -> str:
    accepted = round(sum(per_position) * steps)
    rates = ", ".join(f"{share:.3f}" for share in per_position)
    return (
        f"INFO 07-16 10:01:00 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: {1 + accepted / steps:.2f}, "
        f"Accepted throughput: 1.00 tokens/s, Drafted throughput: 1.00 tokens/s, Accepted: {accepted} tokens, Drafted: "
        f"{steps * len(per_position)} tokens, Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 1.0%"
    )


@pytest.mark.parametrize(
    ("per_position", "expected"),
    [
        ((0.0, 0.0, 0.0), "no-draft-ever-accepted"),
        ((0.02, 0.001, 0.0), "draft-contributes-nothing"),
        ((0.10, 0.01, 0.002), "first-position-near-ten-percent"),
        ((0.35, 0.12, 0.04), "first-position-below-healthy"),
        ((0.70, 0.45, 0.30), None),
    ],
)
def test_thresholds_separate_load_faults_wiring_features_siblings_and_health(
    per_position: tuple[float, ...], expected: str | None
) -> None:
    found = set(codes(judged([run_of(vllm_interval(per_position))])))
    classes = {
        "no-draft-ever-accepted",
        "draft-contributes-nothing",
        "first-position-near-ten-percent",
        "first-position-below-healthy",
    }
    assert found & classes == ({expected} if expected else set())


def test_a_few_steps_say_nothing_and_say_so() -> None:
    result = judged([run_of(vllm_interval((0.0, 0.0, 0.0), steps=10))])
    assert codes(result, "error") == []
    assert any("only acceptance length 1.000" in item for item in result.not_checked)


def test_an_ngram_drafter_that_finds_nothing_is_no_fault() -> None:
    args = SGLANG_ARGS.replace("'EAGLE3'", "'NGRAM'")
    assert codes(judged([run_of(args, SGLANG_READY, *[decode_line(1.0)] * 5)]), "error", "warning") == []


def test_A37_one_drafted_token_at_31_percent_is_no_wiring_fault_but_no_good_draft() -> None:
    result = judged([run_of(vllm_interval((0.308,)))])
    assert codes(result, "error", "warning") == []
    assert "first-position-below-healthy" in codes(result)


def test_warm_up_before_the_ready_line_is_no_traffic() -> None:
    run = run_of(SGLANG_ARGS, *[decode_line(1.0)] * 9, SGLANG_READY, *[decode_line(2.5)] * 3)
    assert run.acceptance is not None and run.acceptance.length == 2.5


def test_acceptance_that_falls_with_the_batch_is_named() -> None:
    lines = [decode_line(2.6, running=1)] * 4 + [decode_line(1.2, running=16, tokens=9000)] * 4
    result = judged([run_of(SGLANG_ARGS, SGLANG_READY, *lines)])
    assert "acceptance-falls-with-concurrency" in codes(result, "warning")


def test_an_adaptive_draft_length_may_do_the_same() -> None:
    args = SGLANG_ARGS.replace("}", ", 'speculative_adaptive': True}")
    lines = [decode_line(2.6, running=1)] * 4 + [decode_line(1.2, running=16, tokens=9000)] * 4
    assert codes(judged([run_of(args, SGLANG_READY, *lines)]), "warning") == []


def test_B01_a_pasted_command_tells_what_was_asked_for() -> None:
    result = judge_file(LOGS / "A23.log")
    (finding,) = (f for f in result.findings if f.code == "draft-tokens-rewritten")
    assert finding.message == "num_draft_tokens 24 becomes 5"


def test_A31_a_draft_model_method_for_an_eagle3_head() -> None:
    run = run_of(
        "(APIServer pid=1) INFO 08-06 10:00:00 [api_utils.py:286] non-default args: {'model': 'm', 'speculative_config': "
        "{'method': 'draft_model', 'model': 'qwen3_8b_eagle3', 'num_speculative_tokens': 5}}",
        vllm_interval((0.02, 0.0, 0.0, 0.0, 0.0)),
    )
    (finding,) = (f for f in judged([run]).findings if f.severity == "error")
    assert finding.remedy == '--speculative-config: "method": "eagle3"'


def test_G07_a_grid_of_another_tool_is_read_for_its_lengths() -> None:
    run = run_of(
        '{"batch_size": 1, "steps": 3, "topk": 8, "num_draft_tokens": 10, "acc_length": 1.042, "step_time": 0.00984, "speed": 105.927}'
    )
    assert codes(judged([run]), "error") == ["draft-contributes-nothing"]


@pytest.mark.parametrize(
    "line",
    [
        "Accept length:                          1.02",
        "accept_len: 1.00",
        "Avg Draft acceptance rate: 0.2%",
        '{"completed": 80, "spec_decode_acceptance_length": 1.01}',
        '{"internal_states": [{"avg_spec_accept_length": 1.0}]}',
    ],
)
def test_the_result_of_a_client_alone_is_enough_to_call_a_draft_useless(line: str) -> None:
    assert codes(judged([run_of(line)]), "error") == ["draft-contributes-nothing"]


def test_E17_a_server_that_drafts_seldom_is_told_by_drafts_per_generated_token() -> None:
    lines = [
        "srv init: listening on http://127.0.0.1:8080",
        *[
            "slot print_timing: id  0 | task 1 |        eval time =    7328.39 ms /   400 tokens (   14.65 ms per token,    68.23 tokens per second)",
            "slot print_timing: id  0 | task 1 | draft acceptance = 0.98718 (   77 accepted /    78 generated), mean len =  3.96",
        ]
        * 2,
    ]
    assert "drafts-rarely-made" in codes(judged([run_of(*lines)]))


def test_unused_mtp_layers_of_a_plain_server_are_left_out_rightly() -> None:
    args = "[2026-03-24 10:00:00] server_args={'model_path': 'deepseek', 'speculative_algorithm': None}"
    run = run_of(
        args,
        "Skip loading weights of the nextn layer: model.layers.61.eh_proj.weight",
        SGLANG_READY,
        decode_line(None),
    )
    assert codes(judged([run]), "error", "warning") == []


def test_C23_a_hang_needs_three_lines_without_a_token_in_between() -> None:
    lines = (LOGS / "C23.log").read_text(encoding="utf-8").splitlines()
    busy, hang = lines[2], lines[3]
    drafting = vllm_interval((0.7, 0.5))
    twice = runs_of([*lines[:3], drafting, hang, hang, busy, hang, hang, busy])
    assert codes(judged(twice), "error") == []


def test_C21_a_death_while_stopping_is_no_death() -> None:
    run = run_of(
        SGLANG_ARGS, SGLANG_READY, "[2026-03-24 10:06:00] SIGTERM received. signum=None frame=None. Draining requests",
        "[2026-03-24 10:06:01] Child process unexpectedly failed with an exit code 9. pid=52910",
    )  # fmt: skip
    assert codes(judged([run]), "error") == []


# Comparable? ---------------------------------------------------------------------------------------


def arm(**changes: str) -> list[str]:
    args = SGLANG_ARGS
    for old, new in changes.items():
        args = args.replace(f"'{old}': ", f"'{old}': {new}, 'was_{old}': ")
    return [args, SGLANG_READY, *[decode_line(2.2)] * 5]


def test_equal_arms_are_comparable() -> None:
    assert codes(judged(runs_of(arm()), runs_of(arm())), "warning", "error") == []


def test_B22_a_different_attention_backend_is_named() -> None:
    result = judged(runs_of(arm()), runs_of(arm(attention_backend="'triton'")))
    (finding,) = (f for f in result.findings if f.severity == "warning")
    assert finding.code == "runs-differ-in-settings"
    assert [(e.source, e.detail) for e in finding.evidence] == [("attention_backend", "fa3 / triton")]


def test_a_running_limit_set_for_one_arm_only_is_named() -> None:
    result = judged(runs_of(arm()), runs_of(arm(max_running_requests="2048")))
    assert "runs-differ-in-settings" in codes(result, "warning")


def test_no_more_than_4096_sizes_of_a_batch_are_kept_and_known_ones_still_count() -> None:
    """Of a log that invents sizes; each line has requests waiting and at least the limit of 48 running."""
    lines = [decode_line(2.2, running=48 + n).replace("#queue-req: 0", "#queue-req: 1") for n in range(5000)]
    (run,) = runs_of([*arm()[:2], *lines, lines[0]])
    assert run.speed.windows == 5001
    assert run.speed.windows_at_cap == 4096 + 1


def test_B17_B24_kv_caches_of_different_size_are_shown() -> None:
    pool = "[2026-03-24 10:03:00] max_total_num_tokens={}, chunked_prefill_size=4096, max_running_requests=48, context_len=8192"
    result = judged(*(runs_of([*arm()[:1], pool.format(n), *arm()[1:]]) for n in (1175056, 1562880)))
    (finding,) = (f for f in result.findings if f.code == "runs-differ-in-kv-cache")
    assert finding.message == "1175056 and 1562880 tokens"


@pytest.mark.parametrize("case", ["B28", "E23"])
def test_different_shares_of_cached_prompts_are_named(case: str) -> None:
    prefill = (
        "[2026-03-24 10:04:30] Prefill batch, #new-seq: 1, #new-token: {}, #cached-token: {}, token usage: 0.00, "
        "#running-req: 1, #queue-req: 0, cuda graph: False"
    )
    shares = {"B28": ((30, 970), (600, 400)), "E23": ((1000, 1072), (2072, 0))}[case]
    result = judged(*(runs_of([*arm(), *[prefill.format(*share)] * 5]) for share in shares))
    assert "runs-differ-in-cache-share" in codes(result, "warning")


def test_E13_E14_graphs_and_concurrency_of_the_arms_must_be_the_same() -> None:
    eager = [line.replace("graph: True", "graph: False") for line in arm()]
    crowded = [line.replace("#running-req: 1", "#running-req: 32") for line in arm()]
    assert "runs-differ-in-graphs" in codes(judged(runs_of(arm()), runs_of(eager)))
    assert "runs-differ-in-concurrency" in codes(judged(runs_of(arm()), runs_of(crowded)))


def test_B15_async_scheduling_in_one_arm_only() -> None:
    start = "(APIServer pid=1) INFO 01-16 10:00:00 [api_utils.py:286] non-default args: {'model': 'm'}"
    lines = [[start, f"INFO 01-16 10:00:01 [vllm.py:500] Asynchronous scheduling is {word}.",
              "INFO:     Application startup complete."] for word in ("enabled", "disabled")]  # fmt: skip
    assert "runs-differ-in-settings" in codes(judged(*(runs_of(log) for log in lines)), "warning")


def test_what_only_one_log_tells_is_not_checked() -> None:
    result = judged(runs_of(arm()), runs_of([SGLANG_READY, decode_line(2.2), decode_line(2.2)]))
    assert any("settings (one of the logs does not list them)" in item for item in result.not_checked)
