"""Healthy logs of every engine raise no errors and no warnings."""

# ruff: noqa: E501  (log lines stand as engines write them)

import re
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

HEALTHY = [
    path
    for path in sorted(RECORDED.glob("*/*/server.log"))
    if path.parent.name in ("none", "bare", "ngram", "eagle3")
]
DEAD = sorted(RECORDED.glob("*/eagle3-random-draft/server.log"))


def test_there_are_healthy_logs_of_three_engines() -> None:
    assert len(HEALTHY) == 11
    assert {path.parent.parent.name.split("-")[0] for path in HEALTHY} == {"llamacpp", "sglang", "vllm"}


@pytest.mark.parametrize("path", HEALTHY, ids=lambda p: f"{p.parent.parent.name}-{p.parent.name}")
def test_a_healthy_log_is_clean(path: Path) -> None:
    assert codes(judge_file(path), "error", "warning") == []


@pytest.mark.parametrize("path", DEAD, ids=lambda p: p.parent.parent.name)
def test_a_draft_of_random_weights_is_the_one_error_of_its_log(path: Path) -> None:
    result = judge_file(path)
    assert codes(result, "error", "warning") == ["draft-contributes-nothing"]


BAD_STARTS = {
    "draft-missing": "server-died",
    "draft-is-no-draft": "speculation-silently-off",
    "no-draft-named": "server-died",
    "no-amx": "server-died",
    "only-steps-named": "server-died",
    "tree-larger-than-its-candidates": "server-died",
    "metrics-flag-without-speculation": "server-died",
    "unknown-flag": "server-died",
    "port-taken": "port-taken",
}


@pytest.mark.parametrize("path", sorted((RECORDED / "bad-starts").glob("*.log")), ids=lambda p: p.stem)
def test_a_bad_start_is_one_error(path: Path) -> None:
    name = next(name for name in BAD_STARTS if path.stem.endswith(name))
    assert codes(judge_file(path), "error", "warning") == [BAD_STARTS[name]]


def test_a_backend_that_sglang_takes_instead_is_named_with_what_the_server_died_of() -> None:
    result = judge_file(RECORDED / "bad-starts" / "sglang-0.5.23-no-amx.log")
    (changed,) = (f for f in result.findings if f.code == "settings-changed-by-engine")
    assert "will fallback to torch_native backend" in str(changed.evidence)
    (died,) = (f for f in result.findings if f.severity == "error")
    assert "EAGLE is not supported in decode attention backend torch_native" in died.message
    assert died.remedy is not None and "without Intel AMX" in died.remedy


def test_the_samples_that_die_say_why() -> None:
    context = judge_file(LOGS / "sglang-0.5.23-draft-context-shorter-than-target-dies.log.gz")
    memory = judge_file(LOGS / "vllm-0.32.0-died-memory.log.gz")
    for result, words in (
        (context, "derived context_length (2048)"),
        (memory, "less than desired CPU memory"),
    ):
        (error,) = (f for f in result.findings if f.severity == "error")
        assert error.code == "server-died"
        assert words in error.message
        assert error.remedy is not None


SGLANG_FORMS = {
    "S1": "Decode batch. #running-req: 4, #token: 4322, token usage: 0.02, accept len: 2.61, gen throughput (token/s): "
    "297.52, #queue-req: 0",
    "S2": "Decode batch. #running-req: 4, #token: 4322, token usage: 0.02, accept len: 2.61, cuda graph: True, gen "
    "throughput (token/s): 297.52, #queue-req: 0, ",
    "S3": "Decode batch. #running-req: 4, #token: 4322, token usage: 0.02, accept len: 2.61, accept rate: 0.65, cuda "
    "graph: True, gen throughput (token/s): 297.52, #queue-req: 0, ",
    "S4": "Decode batch, #running-req: 4, #token: 4322, token usage: 0.02, accept len: 2.61, accept rate: 0.54, cuda "
    "graph: True, gen throughput (token/s): 297.52, #queue-req: 0",
    "plain": "Decode batch, #running-req: 4, #token: 4322, token usage: 0.02, cuda graph: True, gen throughput "
    "(token/s): 297.52, #queue-req: 0",
    "S8": "Decode batch, #running-req: 4, #token: 4333, token usage: 0.00, pre-allocated usage: 0.00, #prealloc-req: 0, "
    "#transfer-req: 0, #retracted-req: 0, cuda graph: True, gen throughput (token/s): 297.04, #queue-req: 0",
}
VLLM_FORMS = {
    "V1b": "Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, Number of speculative tokens: 3, "
    "Number of accepted tokens: 8547, Number of draft tokens: 13311, Number of emitted tokens: 10616.",
    "V2": "SpecDecoding metrics: Draft acceptance rate: 60.0%, Accepted: 660 tokens, Drafted: 1100 tokens",
    "V2b": "SpecDecoding metrics: Draft acceptance rate: 55.0%, Mean acceptance length: 2.65, Accepted: 1650 tokens, "
    "Drafted: 3000 tokens, Per-position acceptance rate: 0.750, 0.530, 0.370",
    "V3": "SpecDecoding metrics: Mean acceptance length: 2.65, Accepted throughput: 165.00 tokens/s, Drafted throughput: "
    "300.00 tokens/s, Accepted: 1650 tokens, Drafted: 3000 tokens, Per-position acceptance rate: 0.750, 0.530, 0.370, "
    "Avg Draft acceptance rate: 55.0%",
}
LLAMACPP_FORMS = {
    "L1": "draft acceptance rate = 0.57576 (  171 accepted /   297 generated)",
    "L2": "slot print_timing: id  1 | task 0 | draft acceptance = 0.64479 (  167 accepted /   259 generated)",
    "L4": "slot print_timing: id  1 | task 0 | draft acceptance = 0.64479 (  167 accepted /   259 generated), mean len =  2.92",
    "statistics": "statistics draft-eagle3: #calls(b,g,a) = 1 87 87, #gen drafts = 87, #acc drafts = 70, #gen tokens = 259, "
    "#acc tokens = 167, #mean acc len = 2.92, #acc rate/pos = (0.805, 0.632, 0.483), dur(b,g,a) = 0.005, 325.555, 0.114 ms",
}
HEADS = {
    "bare": "",
    "docker": "2026-05-17 11:04:29.854 | ",
    "cri": "2026-05-17T11:04:29.854123456Z stdout F ",
    "compose": "server-1  | ",
    "journal": "May 17 11:04:29 node7 inference[4711]: ",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("form", SGLANG_FORMS.values(), ids=SGLANG_FORMS.keys())
def test_healthy_sglang_lines_of_every_version_are_clean(form: str, head: str) -> None:
    run = run_of(*[f"{head}[2026-05-17 11:04:29 TP0] {form}"] * 20)
    assert run.engine == "sglang"
    assert run.speed.windows == 20
    assert codes(judged([run]), "error", "warning") == []


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("form", VLLM_FORMS.values(), ids=VLLM_FORMS.keys())
def test_healthy_vllm_lines_of_every_version_are_clean(form: str, head: str) -> None:
    run = run_of(*[f"{head}INFO 05-17 11:04:29 [metrics.py:120] {form}"] * 20)
    assert run.engine == "vllm"
    assert run.acceptance is not None and run.acceptance.windows > 0
    assert codes(judged([run]), "error", "warning") == []


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("form", LLAMACPP_FORMS.values(), ids=LLAMACPP_FORMS.keys())
def test_healthy_llamacpp_lines_of_every_version_are_clean(form: str, head: str) -> None:
    run = run_of(*[head + form] * 20)
    assert run.engine == "llamacpp"
    assert run.acceptance is not None and run.acceptance.rate is not None and run.acceptance.rate > 0.5
    assert codes(judged([run]), "error", "warning") == []


def test_a_large_draft_tree_with_a_small_rate_is_healthy() -> None:
    args = re.sub(r"'speculative_(num_steps|eagle_topk|num_draft_tokens)': \d+", lambda m: {
        "num_steps": "'speculative_num_steps': 8", "eagle_topk": "'speculative_eagle_topk': 8",
        "num_draft_tokens": "'speculative_num_draft_tokens': 64"}[m[1]], SGLANG_ARGS)  # fmt: skip
    run = run_of(args, SGLANG_READY, *[decode_line(4.4)] * 10)
    assert run.acceptance is not None and run.acceptance.rate is not None and run.acceptance.rate < 0.1
    assert codes(judged([run]), "error", "warning") == []


def test_a_busy_server_with_a_shared_system_prompt_is_healthy() -> None:
    prefill = (
        "[2026-05-17 11:04:29] Prefill batch, #new-seq: 2, #new-token: 700, #cached-token: 2400, token usage: 0.30, "
        "#running-req: 12, #queue-req: 0, cuda graph: False"
    )
    lines = [prefill, decode_line(2.6, running=12, tokens=9000)] * 20
    assert codes(judged([run_of(SGLANG_ARGS, SGLANG_READY, *lines)]), "error", "warning") == []


def test_what_a_logged_prompt_says_is_no_symptom() -> None:
    prompt = "why do I get CUDA out of memory and Address already in use, accept len: 1.00?"
    lines = [
        f"[2026-05-17 11:04:29] Receive: obj=GenerateReqInput(text='{prompt}')",
        f"[2026-05-17 11:04:31] Finish: obj=GenerateReqInput(text='{prompt}'), out={{'text': 'GGML_ASSERT(x) failed', "
        "'meta_info': {'completion_tokens': 250, 'spec_verify_ct': 100}}",
    ]
    run = run_of(SGLANG_ARGS, SGLANG_READY, *lines * 3)
    assert codes(judged([run]), "error", "warning") == []
    assert run.acceptance is not None and run.acceptance.length == 2.5


def test_a_failed_request_at_the_end_of_a_rotated_log_is_no_death() -> None:
    lines = [decode_line(None)] * 5 + [
        "[2026-05-17 11:04:29] ValueError: The input (9000 tokens) is longer than the context"
    ]
    assert codes(judged([run_of(*lines)]), "error", "warning") == []


def test_another_programs_traceback_is_not_called_a_servers_death() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "plot.py", line 3, in <module>',
        "KeyError: 'speed'",
    ]
    assert runs_of(lines) == ()


def test_an_ngram_drafter_is_not_held_to_a_trained_drafts_published_value() -> None:
    args = SGLANG_ARGS.replace("'EAGLE3'", "'NGRAM'").replace(
        "'model_path': 'target'", "'model_path': 'GLM-5.2'"
    )
    args = args.replace("'speculative_draft_model_path': 'draft'", "'speculative_draft_model_path': None")
    assert codes(judged([run_of(args, SGLANG_READY, *[decode_line(1.3)] * 5)]), "error", "warning") == []


def test_mentioning_another_engine_does_not_make_it_that_engines_log() -> None:
    run = run_of(
        "[2026-05-17 11:04:29] WARNING: vllm is not installed, some quantization methods fall back to slower kernels",
        SGLANG_ARGS, SGLANG_READY, *[decode_line(2.5)] * 5,
    )  # fmt: skip
    assert run.engine == "sglang"
    assert run.acceptance is not None and run.acceptance.length == 2.5
