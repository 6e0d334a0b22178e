"""SGLang's flag rules. What the engine does was measured on, or read in, sglang 0.5.23."""

import pytest
from flag_judging import alarms, finding, judged, numbers, sglang

from spectune.checkpoints.facts import CheckpointFacts
from spectune.preflight.command.reading import read_command
from spectune.preflight.draft import method as draft_fit_method
from spectune.preflight.rules import judge
from spectune.preflight.situation import EngineVersion

CHAIN = numbers(3, 1, 4)
TREE = numbers(3, 4, 8)


# --- B01, A23: silently rewritten ---


def test_b01_24_draft_tokens_become_5_in_a_chain_of_4_steps() -> None:
    found = finding(sglang(numbers(4, 1, 24)), "speculative-number-rewritten")
    assert found.severity == "warning"
    assert "24 becomes 5" in found.message
    assert "--speculative-num-draft-tokens 5" in (found.remedy or "")


def test_a23_the_reported_command_names_the_rewriting_and_the_removed_flag() -> None:
    text = (
        "python3 -m sglang.launch_server --model-path Qwen2.5-VL-7B-Instruct --speculative-draft-model-path "
        "qwen2.5-vl-7b-eagle3-sgl --speculative-algorithm EAGLE3 --speculative-num-steps 4 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 24 --chunked-prefill-size -1 --cuda-graph-max-bs 1 --tp 1 "
        "--mem-fraction-static 0.7"
    )
    assert alarms(text) == {"speculative-number-rewritten": "warning", "flag-removed": "error"}
    assert alarms(text, version="0.5.3") == {"speculative-number-rewritten": "warning"}
    wanted = alarms(text, version="0.5.3", max_concurrency=8)
    assert wanted["cuda-graphs-below-concurrency"] == "warning"


# --- B02, B31: only some of the three ---


@pytest.mark.parametrize(
    "given", [(None, None, 8), (None, 4, None), (None, 1, 4), (3, None, None), (3, None, 4)]
)
def test_b02_some_of_the_three_numbers_alone_are_an_error(given: tuple[int | None, ...]) -> None:
    found = finding(sglang(numbers(*given)), "speculative-numbers-incomplete")
    assert found.severity == "error"
    assert "all three" in (found.remedy or "")


def test_b02_the_remedy_keeps_what_was_given() -> None:
    found = finding(sglang(numbers(None, None, 8)), "speculative-numbers-incomplete")
    assert "--speculative-num-steps 7 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8" in (
        found.remedy or ""
    )


def test_b31_the_model_card_command_without_draft_tokens_is_an_error_that_completes_it() -> None:
    text = sglang("--speculative-num-steps 5 --speculative-eagle-topk 4 --dtype bfloat16")
    found = finding(text, "speculative-numbers-incomplete")
    assert found.severity == "error"
    # SGLang's own choice for Llama is (5, 4, 8)
    assert "--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8" in (
        found.remedy or ""
    )


def test_draft_tokens_may_be_left_out_of_a_chain() -> None:
    assert alarms(sglang(numbers(3, 1, None))) == {}
    assert "becomes 4" in finding(sglang(numbers(3, 1, None)), "speculative-numbers-completed").message


def test_none_of_the_three_is_completed_by_the_targets_architecture() -> None:
    llama = CheckpointFacts(source="m", kind="folder", architectures=("LlamaForCausalLM",))
    qwen = CheckpointFacts(source="m", kind="folder", architectures=("Qwen3ForCausalLM",))
    assert (
        "5 steps, topk 4, 8 tokens"
        in finding(sglang(), "speculative-numbers-completed", target=llama).message
    )
    assert (
        "3 steps, topk 1, 4 tokens" in finding(sglang(), "speculative-numbers-completed", target=qwen).message
    )
    assert any("architecture" in reason for reason in judged(sglang()).not_checked)


# --- tree sizes: measured, "RuntimeError: selected index k out of range" at the first draft ---


@pytest.mark.parametrize(
    ("steps", "topk", "most"),
    # counted by hand: level 1 has topk nodes, every further one topk * topk candidates
    [(1, 4, 5), (2, 2, 7), (3, 4, 37), (5, 4, 69), (2, 8, 73)],
)
def test_a_tree_holds_no_more_tokens_than_candidates_and_the_root(steps: int, topk: int, most: int) -> None:
    assert alarms(sglang(numbers(steps, topk, most))) == {}
    assert alarms(sglang(numbers(steps, topk, most + 1))) == {"draft-tree-too-large": "error"}


@pytest.mark.parametrize("given", [(0, 1, 1), (0, 4, 2), (3, 4, 1), (-1, 1, 4), (3, 0, 4), (3, 4, 0)])
def test_numbers_that_draft_nothing_are_an_error(given: tuple[int, ...]) -> None:
    assert alarms(sglang(numbers(*given)))["nothing-drafted"] == "error"


def test_a_value_only_a_shell_knows_is_not_checked() -> None:
    judgement = judged(sglang("--speculative-num-steps $N --speculative-eagle-topk 1"))
    assert judgement.findings == tuple(f for f in judgement.findings if f.severity == "note")
    assert any("not readable" in reason for reason in judgement.not_checked)


# --- B04, B05: pages and backends ---


@pytest.mark.parametrize("backend", ["flashinfer", "fa3", "triton"])
def test_b04_paged_trees_work_on_three_backends(backend: str) -> None:
    assert alarms(sglang(TREE, f"--page-size 64 --attention-backend {backend}")) == {}


@pytest.mark.parametrize("backend", ["intel_amx", "aiter", "fa4"])
def test_b04_paged_trees_on_another_backend_are_an_error(backend: str) -> None:
    found = finding(sglang(TREE, f"--page-size 64 --attention-backend {backend}"), "page-size-with-tree")
    assert found.severity == "error"
    assert "--page-size 1" in (found.remedy or "")


@pytest.mark.parametrize("backend", ["flashmla", "trtllm_mla", "cutedsl_mla"])
def test_b04_backends_that_force_pages_take_no_trees(backend: str) -> None:
    assert alarms(sglang(TREE, f"--attention-backend {backend}"))["page-size-with-tree"] == "error"


def test_b04_a_page_without_a_named_backend_is_not_checked() -> None:
    judgement = judged(sglang(TREE, "--page-size 16"))
    assert any("page size 16" in reason for reason in judgement.not_checked)


def test_b04_on_a_cpu_the_backend_is_no_choice() -> None:
    assert alarms(sglang(TREE, "--page-size 16 --device cpu")) == {"page-size-with-tree": "error"}
    ngram = sglang("--page-size 16 --device cpu", algorithm="NGRAM", draft=False)
    assert alarms(ngram) == {"page-size-with-tree": "error"}


def test_b04_before_0_5_23_triton_is_doubtful() -> None:
    text = sglang(TREE, "--page-size 16 --attention-backend triton")
    assert alarms(text, version="0.5.9") == {"page-size-with-tree": "warning"}


def test_b04_a_chain_takes_any_page() -> None:
    assert alarms(sglang(CHAIN, "--page-size 64 --attention-backend intel_amx")) == {}


@pytest.mark.parametrize(
    "flag", ["attention-backend", "decode-attention-backend", "prefill-attention-backend"]
)
def test_b05_trtllm_mha_takes_chains_only(flag: str) -> None:
    assert alarms(sglang(TREE, f"--{flag} trtllm_mha"))["attention-backend-chains-only"] == "error"
    assert alarms(sglang(CHAIN, f"--{flag} trtllm_mha")) == {}


def test_a_backend_that_cannot_draft_is_an_error() -> None:
    text = sglang(CHAIN, "--attention-backend torch_native")
    assert alarms(text) == {"draft-attention-backend-unsupported": "error"}
    assert alarms(text + " --speculative-draft-attention-backend triton") == {}
    assert alarms(sglang(numbers(1, 1, 2), "--attention-backend torch_native")) == {}


# --- B07: switched off ---


def test_b07_mixed_chunk_is_switched_off_by_ngram_and_in_older_releases() -> None:
    text = sglang("--enable-mixed-chunk", algorithm="NGRAM", draft=False)
    assert alarms(text) == {"option-switched-off-by-speculation": "warning"}
    assert alarms(sglang(CHAIN, "--enable-mixed-chunk")) == {}
    assert alarms(sglang(CHAIN, "--enable-mixed-chunk"), version="0.5.3") == {
        "option-switched-off-by-speculation": "warning"
    }


def test_b07_the_variable_of_spec_v2_has_no_effect_any_more() -> None:
    text = "SGLANG_ENABLE_SPEC_V2=1 " + sglang(CHAIN)
    assert "no effect" in finding(text, "speculation-overlap").message
    assert not [f for f in judged(text, version="0.5.9").findings if f.code == "speculation-overlap"]


def test_b22_a_chain_on_fa3_is_noted_as_hard_to_compare() -> None:
    text = sglang(CHAIN, "--attention-backend fa3")
    assert finding(text, "draft-extend-without-graph").severity == "note"
    assert not [
        f for f in judged(sglang(TREE, "--attention-backend fa3")).findings if f.code.startswith("draft-ext")
    ]


def test_a14_eagle3_without_a_draft_is_an_error_of_the_draft_rules() -> None:
    command = read_command(
        "sglang serve --model-path Qwen/Qwen2.5-0.5B-Instruct --speculative-algorithm EAGLE3"
    )
    judgement = judge(command.situation(EngineVersion("0.5.23", "test")), draft_fit_method.RULES)
    (found,) = judgement.findings
    assert found.severity == "error"
    assert "--speculative-draft-model-path" in (found.remedy or "")


# --- C09, C11, C02, B24, B20, A30 ---


def test_c09_expert_metrics_with_two_steps_are_a_known_bad_pair() -> None:
    pair = "--enable-expert-distribution-metrics"
    text = sglang(numbers(2, 1, 3), pair, algorithm="NEXTN")
    assert alarms(text, version="0.5.17") == {"known-bad-flag-pair": "warning"}
    assert alarms(sglang(numbers(1, 1, 2), pair, algorithm="NEXTN"), version="0.5.17") == {}
    assert alarms(text)["flag-removed"] == "error"


def test_c11_early_releases_capture_graphs_without_memory() -> None:
    assert alarms(sglang(CHAIN), version="0.4.3") == {"cuda-graphs-without-memory": "warning"}
    assert alarms(sglang(CHAIN, "--cuda-graph-max-bs 16"), version="0.4.3") == {}


def test_c02_a_health_endpoint_that_does_not_generate_is_noted() -> None:
    text = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0 " + sglang(CHAIN)
    assert finding(text, "health-endpoint-does-not-generate").severity == "note"


def test_b20_more_steps_than_heads_are_trained_for_is_noted() -> None:
    assert finding(sglang(numbers(8, 1, 9)), "draft-beyond-trained-depth").severity == "note"
    assert not [
        f for f in judged(sglang(numbers(7, 1, 8))).findings if f.code == "draft-beyond-trained-depth"
    ]


def test_a30_lora_with_eagle_in_releases_of_2025_is_a_warning() -> None:
    text = sglang(CHAIN, "--enable-lora --lora-paths a=b", algorithm="EAGLE")
    assert alarms(text, version="0.5.1") == {"speculation-with-lora": "warning"}
    assert alarms(text) == {}
    assert alarms(sglang(CHAIN, "--enable-lora", algorithm="STANDALONE")) == {
        "speculation-with-lora": "error"
    }


@pytest.mark.parametrize("fraction", ["0", "1", "1.5", "-0.1"])
def test_a_memory_fraction_lies_between_0_and_1(fraction: str) -> None:
    assert (
        alarms(f"sglang serve --model-path m --mem-fraction-static {fraction}")["memory-fraction"] == "error"
    )


# --- requests and graphs ---


def test_the_cap_of_48_is_noted_and_a_warning_where_it_bites() -> None:
    assert finding(sglang(CHAIN), "running-requests-capped").severity == "note"
    assert finding(sglang(CHAIN), "running-requests-capped", max_concurrency=48).severity == "note"
    assert finding(sglang(CHAIN), "running-requests-capped", max_concurrency=49).severity == "warning"
    assert alarms(sglang(CHAIN, "--max-running-requests 64"), max_concurrency=64) == {}
    few = "sglang serve --model-path m --max-running-requests 8"
    assert alarms(few, max_concurrency=9) == {"running-requests-capped": "warning"}


def test_graphs_up_to_the_concurrency() -> None:
    base = "sglang serve --model-path m "
    assert alarms(base + "--cuda-graph-max-bs-decode 8", max_concurrency=16) == {
        "cuda-graphs-below-concurrency": "warning"
    }
    assert alarms(base + "--cuda-graph-bs-decode 1 2 16", max_concurrency=16) == {}


# --- verification, parallelism, adaptive ---


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (sglang(TREE, "--speculative-use-rejection-sampling"), "verification-option-refused"),
        (sglang(CHAIN, "--speculative-use-rejection-sampling", algorithm="STANDALONE"), "verification-option-refused"),
        (
            sglang(CHAIN, "--speculative-use-rejection-sampling --speculative-accept-threshold-acc 0.9"),
            "verification-option-refused",
        ),
        (sglang("--speculative-use-block-verification", algorithm="NGRAM", draft=False), "verification-option-refused"),
        (sglang(CHAIN, "--speculative-use-block-verification --device cpu"), "speculation-device"),
        (sglang("--device cpu", algorithm="DFLASH"), "speculation-device"),
        (sglang(CHAIN, "--tp 2 --dp 2 --enable-dp-attention", algorithm="STANDALONE"), "speculation-with-parallelism"),
        (sglang("--tp 2 --attn-dp-size 2", algorithm="NGRAM", draft=False), "speculation-with-parallelism"),
        (sglang("--tp 2 --attn-dp-size 2", algorithm="DFLASH"), "speculation-with-parallelism"),
        (sglang(CHAIN, "--pp-size 2"), "speculation-with-parallelism"),
        (sglang(CHAIN, "--pp-size 2", algorithm="EAGLE"), "speculation-with-parallelism"),
        (sglang(numbers(4, 1, None), "--speculative-adaptive"), "adaptive-steps-not-a-candidate"),
        (sglang(CHAIN, "--enable-lora --speculative-adaptive"), "speculation-with-lora"),
        (sglang(CHAIN, "--speculative-draft-sink-size 4"), "draft-window"),
        (sglang(CHAIN, "--speculative-draft-window-size 0"), "draft-window"),
        (sglang("--speculative-num-draft-tokens 8 --speculative-dflash-block-size 16", algorithm="DFLASH"),
         "draft-block-size-contradiction"),
        (sglang("--speculative-dflash-block-size 0", algorithm="DFLASH"), "draft-block-size-contradiction"),
        (sglang("--speculative-num-draft-tokens 8 --speculative-dspark-block-size 8", algorithm="DSPARK"),
         "draft-block-size-contradiction"),
        (sglang("--speculative-num-draft-tokens 16 --speculative-draft-window-size 8", algorithm="DFLASH"),
         "draft-block-size-contradiction"),
        (sglang("--speculative-num-draft-tokens 4", algorithm="UNO", draft=False), "uno-settings-refused"),
        (sglang("--speculative-ngram-external-corpus-path c", algorithm="NGRAM", draft=False),
         "ngram-settings-refused"),
        (sglang("--speculative-ngram-external-corpus-path c --speculative-ngram-external-sam-budget 12",
                algorithm="NGRAM", draft=False), "ngram-settings-refused"),
        (sglang("--page-size 16 --attention-backend triton", algorithm="NGRAM", draft=False), "page-size-with-tree"),
        (sglang(CHAIN, algorithm="EAGEL3"), "speculative-algorithm-unknown"),
        (sglang("--uno-lora-path l --speculative-num-draft-tokens 4", algorithm="UNO"), "draft-path-unused"),
    ],
)  # fmt: skip
def test_what_sglang_refuses_is_an_error(text: str, code: str) -> None:
    assert alarms(text) == {code: "error"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (sglang(TREE, "--speculative-adaptive"), "adaptive-speculation-off"),
        (sglang("--speculative-adaptive", algorithm="NGRAM", draft=False), "adaptive-speculation-off"),
        (sglang(numbers(3, 1, 8), "--speculative-adaptive"), "speculative-number-rewritten"),
        (sglang("--speculative-eagle-topk 4", algorithm="NGRAM", draft=False), "speculative-number-rewritten"),
        (sglang("--speculative-num-steps 4", algorithm="DFLASH"), "speculative-number-rewritten"),
        (sglang(CHAIN, "--speculative-token-map t.pt"), "token-map-ignored"),
        (sglang(CHAIN, "--speculative-accept-threshold-single 0.8"), "acceptance-threshold-lossy"),
        (sglang(algorithm="NGRAM"), "draft-path-unused"),
        (sglang(CHAIN, "--speculative-draft-window-size 512", algorithm="STANDALONE"), "draft-window"),
        ("sglang serve --model-path m --speculative-draft-model-path d --speculative-num-steps 3",
         "speculation-not-switched-on"),
        ("SGLANG_SIMULATE_ACC_LEN=2.5 " + sglang(CHAIN), "synthetic-acceptance"),
    ],
)  # fmt: skip
def test_what_sglang_changes_or_ignores_is_a_warning(text: str, code: str) -> None:
    assert alarms(text) == {code: "warning"}


def test_simulated_acceptance_that_is_off_is_no_warning() -> None:
    assert alarms("SGLANG_SIMULATE_ACC_LEN=-1 " + sglang(CHAIN)) == {}
