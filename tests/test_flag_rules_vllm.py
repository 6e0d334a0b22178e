"""vLLM's flag rules. What the engine does was measured on vllm 0.32.0."""

import json
from typing import Any

import pytest
from flag_judging import alarms, finding, judged, vllm

from spectune.checkpoints.facts import CheckpointFacts
from spectune.preflight.command.reading import read_command


def config(**values: Any) -> str:
    return json.dumps(values)


def eagle3(**values: Any) -> str:
    return config(**{"method": "eagle3", "model": "d/e", "num_speculative_tokens": 3, **values})


def ngram(**values: Any) -> str:
    chosen = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
        **values,
    }
    return config(**{key: value for key, value in chosen.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (vllm("eagle3"), "speculative-config-unreadable"),
        (vllm("[1]"), "speculative-config-unreadable"),
        (vllm(eagle3(num_speculative_token=3)), "speculative-config-key-unknown"),
        (vllm(eagle3(num_steps=3)), "speculative-config-key-unknown"),
        (vllm(eagle3(method="eagle-3")), "speculative-method-unknown"),
        (vllm(eagle3(method="EAGLE3")), "speculative-method-unknown"),
        (vllm(config(method="eagle3", model="d/e")), "num-speculative-tokens-missing"),  # B16
        (
            vllm(config(method="ngram", prompt_lookup_max=4, prompt_lookup_min=2)),
            "num-speculative-tokens-missing",
        ),
        (vllm(config(method="mtp")), "num-speculative-tokens-missing"),
        (vllm(eagle3(num_speculative_tokens=0)), "num-speculative-tokens-refused"),
        (vllm(eagle3(num_speculative_tokens="three")), "num-speculative-tokens-refused"),
        (vllm(config(num_speculative_tokens=3)), "speculative-model-missing"),
        (vllm(eagle3(draft_tensor_parallel_size=2)), "draft-tensor-parallel-size"),  # B23
        (vllm(eagle3(draft_tensor_parallel_size=2), "-tp 4"), "draft-tensor-parallel-size"),
        (vllm(eagle3(tensor_parallel_size=1)), "speculative-config-conflict"),
        (vllm(eagle3(use_heterogeneous_vocab=True)), "speculative-config-conflict"),
        (vllm(eagle3(dspark_draft_topk=3)), "speculative-config-conflict"),
        (vllm(eagle3(draft_sample_method="nucleus")), "speculative-config-conflict"),
        (
            vllm(eagle3(enable_adaptive_verification=True, parallel_drafting=True)),
            "speculative-config-conflict",
        ),
        (
            "VLLM_USE_V2_MODEL_RUNNER=0 " + vllm(config(method="dspark", model="d")),
            "speculative-config-conflict",
        ),
        (vllm(eagle3(num_speculative_tokens=16), "--enable-lora"), "batched-tokens-below-draft"),
        (vllm(eagle3(), "--kv-sharing-fast-prefill"), "speculative-config-conflict"),
        (vllm(eagle3(), "--spec-tokens 4"), "speculative-config-conflict"),
        (vllm(ngram(prompt_lookup_min=5)), "prompt-lookup-range"),
        (vllm(ngram(prompt_lookup_min=0)), "speculative-config-conflict"),
        ("vllm serve m --per-request-spec-decode-metrics summary", "spec-metrics-without-speculation"),
        (vllm(eagle3(rejection_sample_method="synthetic")), "synthetic-acceptance-refused"),
        (vllm(eagle3(synthetic_acceptance_length=2)), "synthetic-acceptance-refused"),
        (
            vllm(eagle3(rejection_sample_method="synthetic", synthetic_acceptance_length=4.1)),
            "synthetic-acceptance-refused",
        ),
        (
            vllm(eagle3(rejection_sample_method="synthetic", synthetic_acceptance_rates=[0.5, 0.8, 0.3])),
            "synthetic-acceptance-refused",
        ),
        (vllm(ngram(), "--async-scheduling"), "async-scheduling-refused"),
        (vllm(eagle3(disable_padded_drafter_batch=True), "--async-scheduling"), "async-scheduling-refused"),
        (
            vllm(
                config(method="dflash", model="d", num_speculative_tokens=16), "--max-num-batched-tokens 16"
            ),
            "batched-tokens-below-draft",
        ),
        (
            vllm(eagle3(), "--enable-lora --max-num-batched-tokens 100 --max-num-seqs 26"),
            "batched-tokens-below-draft",
        ),
        ("vllm serve m --max-model-len long", "flag-value-refused"),
        ("vllm serve m --scheduling-policy random", "flag-value-refused"),
        ("vllm serve m --enforce-eagar", "flag-unknown"),
        ("vllm serve m --data-parallel-rpc-port 8000", "port-conflict"),
    ],
)
def test_what_vllm_refuses_is_an_error(text: str, code: str) -> None:
    assert alarms(text) == {code: "error"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            vllm(eagle3(rejection_sample_method="synthetic", synthetic_acceptance_length=2.5)),
            "synthetic-acceptance",
        ),
        (vllm(eagle3(), "--pipeline-parallel-size 2"), "speculation-with-pipeline-parallelism"),  # B14
        (
            vllm(eagle3(), "--override-generation-config '{\"min_p\": 0.1}'"),
            "sampling-parameter-refused",
        ),
        ("VLLM_ENGINE_READY_TIMEOUT_S=120 vllm serve m", "engine-ready-timeout-short"),  # C12
    ],
)
def test_what_vllm_does_unasked_is_a_warning(text: str, code: str) -> None:
    assert alarms(text) == {code: "warning"}


def test_a15_an_omitted_method_is_a_warning_that_names_the_guess() -> None:
    text = vllm(config(model="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", num_speculative_tokens=2))
    found = finding(text, "speculative-method-omitted")
    assert found.severity == "warning"
    assert '"method": "eagle3"' in (found.remedy or "")


def test_a15_a_renamed_folder_is_taken_for_a_draft_model() -> None:
    text = vllm(config(model="/models/my-head", num_speculative_tokens=2))
    assert read_command(text).knobs.method == "draft_model"
    assert any("/models/my-head" in reason for reason in judged(text).not_checked)


def test_b12_penalties_are_ignored_by_early_releases() -> None:
    text = vllm(eagle3(), "--override-generation-config '{\"frequency_penalty\": 2.0}'")
    assert alarms(text, version="0.9.1") == {"penalties-ignored": "warning"}
    assert alarms(text) == {}


def test_b15_asynchronous_scheduling_that_is_off_in_one_arm_only_is_noted() -> None:
    found = finding(vllm(ngram()), "async-scheduling-switched-off")
    assert found.severity == "note"
    assert not [f for f in judged(vllm(eagle3())).findings if f.code == "async-scheduling-switched-off"]
    assert not [
        f
        for f in judged(vllm(ngram(), "--no-async-scheduling")).findings
        if f.code == "async-scheduling-switched-off"
    ]


def test_b17_the_token_budget_under_speculation_is_noted() -> None:
    text = vllm(eagle3(), "--max-num-batched-tokens 2048")
    assert finding(text, "scheduled-tokens-low").severity == "note"


def test_b23_flags_of_0_6_are_removed() -> None:
    text = (
        "python -m vllm.entrypoints.openai.api_server --model meta-llama/Meta-Llama-3-70B-Instruct -tp 4 "
        "--speculative-model yuhuili/EAGLE-LLaMA3-Instruct-70B --num-speculative-tokens 2 "
        "--speculative-draft-tensor-parallel-size 1 --use-v2-block-manager"
    )
    removed = [f for f in judged(text).findings if f.code == "flag-removed"]
    assert len(removed) == 4
    assert all(
        "--speculative-config" in (f.remedy or "") or "leave it out" in (f.remedy or "") for f in removed
    )
    assert alarms(text, version="0.6.4") == {}
    assert {f.severity for f in judged(text, version=None).findings if f.code == "flag-removed"} == {
        "warning"
    }


def test_b30_the_token_tree_of_0_17_is_no_key_any_more() -> None:
    text = vllm(eagle3(speculative_token_tree="[(0,), (1,)]"))
    assert alarms(text) == {"speculative-config-key-unknown": "error"}
    assert alarms(text, version="0.17.1") == {}
    assert any("speculative_token_tree" in reason for reason in judged(text, version="0.17.1").not_checked)


def test_equal_lookup_bounds_are_a_range() -> None:
    assert alarms(vllm(ngram(prompt_lookup_min=4))) == {}


def test_c17_requests_that_reach_the_end_of_the_context_under_data_parallelism() -> None:
    text = vllm(eagle3(), "--data-parallel-size 2 --max-model-len 4096")
    assert alarms(text, max_prompt_tokens=3000, max_tokens=1093) == {
        "speculation-near-context-end": "warning"
    }
    assert alarms(text, max_prompt_tokens=3000, max_tokens=1092) == {}


def test_c24_an_api_key_is_noted_and_not_shown() -> None:
    found = finding("vllm serve m --api-key s3cret", "api-key-set")
    assert found.severity == "note"
    assert "s3cret" not in found.model_dump_json()


def test_mtp_drafts_a_multiple_of_its_layers() -> None:
    target = CheckpointFacts(source="m", kind="folder", num_nextn_layers=2)
    assert alarms(vllm(config(method="mtp", num_speculative_tokens=3)), target=target) == {
        "num-speculative-tokens-refused": "error"
    }
    assert alarms(vllm(config(method="mtp", num_speculative_tokens=4)), target=target) == {}
    assert alarms(vllm(config(method="deepseek_mtp", num_speculative_tokens=1)), target=target) == {}


def test_b16_only_some_drafts_bring_their_length() -> None:
    # vllm 0.32.0 refuses medusa (measured) and dflash (read) without num_speculative_tokens
    assert alarms(vllm(config(method="medusa", model="d"))) == {"num-speculative-tokens-missing": "error"}
    assert alarms(vllm(config(method="dflash", model="d"))) == {"num-speculative-tokens-missing": "error"}
    block = CheckpointFacts(source="d", kind="folder", config={"block_size": 7})
    assert alarms(vllm(config(method="dspark", model="d")), draft=block) == {}
    empty = CheckpointFacts(source="d", kind="folder", config={"hidden_size": 8})
    assert alarms(vllm(config(method="dspark", model="d")), draft=empty) == {
        "num-speculative-tokens-missing": "error"
    }


def test_a_plain_model_is_no_mtp_draft() -> None:
    text = vllm(config(method="mtp", model="d", num_speculative_tokens=1))
    plain = CheckpointFacts(source="d", kind="folder", model_type="llama", config={"model_type": "llama"})
    assert alarms(text, draft=plain) == {"speculative-method-unsupported": "error"}
    deepseek = CheckpointFacts(source="d", kind="folder", model_type="deepseek_v3", num_nextn_layers=1)
    assert alarms(text, draft=deepseek) == {}


def test_lora_needs_room_for_one_sequence_at_least() -> None:
    text = vllm(eagle3(num_speculative_tokens=16), "--enable-lora --max-num-batched-tokens ")
    assert alarms(text + "16") == {"batched-tokens-below-draft": "error"}
    assert alarms(text + "17") == {}


def test_heads_are_shared_by_the_ranks() -> None:
    target = CheckpointFacts(source="m", kind="folder", num_heads=9)
    assert alarms("vllm serve m -tp 2", target=target) == {"heads-not-divisible": "error"}
    assert alarms("vllm serve m -tp 3", target=target) == {}
    assert any("heads" in reason for reason in judged("vllm serve m -tp 2").not_checked)


def test_every_key_of_the_stored_version_is_known_and_no_other() -> None:
    near = finding(vllm(eagle3(num_speculative_tokns=4)), "speculative-config-key-unknown")
    assert "num_speculative_tokens" in (near.remedy or "")
    other = judged(vllm(eagle3(new_key=1)), version="0.99.0")
    assert not [f for f in other.findings if f.severity != "note"]
    assert any("new_key" in reason for reason in other.not_checked)


def test_dashes_in_keys_are_underscores() -> None:
    assert alarms(vllm('{"method": "eagle3", "model": "d", "num-speculative-tokens": 3}')) == {}


def test_a_configuration_from_the_shell_is_not_checked() -> None:
    judgement = judged('vllm serve m --speculative-config "$SPEC"')
    assert not [f for f in judgement.findings if f.severity != "note"]
    assert any("speculative-config" in reason for reason in judgement.not_checked)


@pytest.mark.parametrize(
    "text", ["vllm serve org/Name--trust-remote-code", "vllm serve --model=org/a--enforce-eager"]
)
def test_a_flag_glued_to_a_value_is_named(text: str) -> None:
    assert alarms(text) == {"words-glued": "error"}
    assert "a blank is missing before --" in finding(text, "words-glued").message


@pytest.mark.parametrize("text", ["vllm serve org/a--b", "vllm serve m --served-model-name x--port1"])
def test_two_dashes_in_a_name_are_no_flag(text: str) -> None:
    assert not alarms(text)


def test_a_method_that_no_table_has_is_no_error_of_an_unknown_version_and_has_no_rules() -> None:
    text = vllm(config(method="uno", num_speculative_tokens=2), "--async-scheduling")
    assert alarms(text) == {"speculative-method-unknown": "error"}
    assert alarms(text, version=None) == {"speculative-method-unknown": "warning"}
    key = vllm(config(method="eagle3", model="d", num_speculative_tokens=2, adaptive_verification_x=1))
    assert alarms(key, version=None) == {"speculative-config-key-unknown": "warning"}
