"""Public failures that the files show before a launch. Each test is named after its case of the catalogue."""

import json
from pathlib import Path
from typing import Any

import pytest
from healthy.models import (
    alarms,
    codes,
    eagle3_head,
    eagle3_tensors,
    judged,
    make_model,
    write_gguf,
)

from spectune.domain.findings import Finding
from spectune.domain.machine import Machine
from spectune.preflight.rules import Judgement

PAIRS = json.loads((Path(__file__).parent / "healthy" / "pairs.json").read_text())
LLAMA = PAIRS["targets"]["llama-3.1-8b"]
LLAMA_HEAD = PAIRS["drafts"]["H13-llama-3.1-8b-specforge"]["config"]
QWEN = PAIRS["targets"]["qwen3-8b"]
QWEN_HEAD = PAIRS["drafts"]["H11-qwen3-8b"]["config"]
SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "vocab_size": 4000,
}
SMALL_HEAD = {
    **SMALL,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 1000,
}


def the(judgement: Judgement, code: str) -> Finding:
    """The one finding of that code."""
    found = [finding for finding in judgement.findings if finding.code == code]
    assert len(found) == 1, f"{code}: {judgement.findings}"
    return found[0]


def text_of(finding: Finding) -> str:
    parts = [finding.message, finding.remedy or "", finding.effect or ""]
    return "\n".join([*parts, *(f"{e.source}: {e.detail}" for e in finding.evidence)])


@pytest.fixture
def small(tmp_path: Path) -> str:
    return make_model(tmp_path / "target", SMALL)


def test_a01_eagle_flag_with_an_eagle3_draft_names_what_it_expects_gets_and_needs(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", PAIRS["targets"]["kimi-k2.5"])
    draft = eagle3_head(tmp_path / "draft", PAIRS["drafts"]["H2-kimi-k2.5"]["config"])
    flags: dict[str, Any] = {"speculative-algorithm": "EAGLE", "context-length": "131072"}
    finding = the(judged("sglang", "eagle", target, draft, flags=flags), "draft-algorithm-mismatch")
    assert finding.severity == "error"
    text = text_of(finding)
    for part in (
        "[7168, 21504]",
        "expects 21504 values per token (3 hidden states of 7168)",
        "1 state of 7168",
        "LlamaForCausalLMEagle3",
        "--speculative-algorithm EAGLE3",
        "num_hidden_layers: 61",
        "1.00",
    ):
        assert part in text, part


def test_a01_the_tensors_alone_show_an_eagle3_draft(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "renamed", {**SMALL_HEAD, "architectures": ["LlamaForCausalLM"]})
    assert codes(judged("sglang", "eagle", small, draft), "error") == {"draft-algorithm-mismatch"}


def test_a01_an_eagle1_head_under_eagle3_is_found_as_well(tmp_path: Path, small: str) -> None:
    tensors = {"fc.weight": ("BF16", (64, 128)), "layers.0.self_attn.q_proj.weight": ("BF16", (64, 64))}
    config = {**SMALL, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle"]}
    draft = make_model(tmp_path / "draft", config, tensors)
    finding = the(judged("sglang", "eagle3", small, draft), "draft-algorithm-mismatch")
    assert "--speculative-algorithm EAGLE" in text_of(finding)


def _mtp_target(
    tmp_path: Path, quantization: dict[str, Any] | None, names: tuple[str, ...], **config: Any
) -> str:
    whole = {**SMALL, "num_nextn_predict_layers": 1, **config}
    if quantization is not None:
        whole["quantization_config"] = quantization
    tensors = dict.fromkeys(names, ("BF16", (64, 64)))
    return make_model(tmp_path / "target", whole, {"model.norm.weight": ("BF16", (64,)), **tensors})


def test_a05_prediction_layer_excluded_part_by_part(tmp_path: Path) -> None:
    parts = tuple(f"mtp.layers.0.self_attn.{p}" for p in ("q_proj", "k_proj", "v_proj", "o_proj"))
    section = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head", *parts],
    }
    target = _mtp_target(tmp_path, section, tuple(f"{name}.weight" for name in parts))
    finding = the(judged("sglang", "mtp", target, None, num_draft_tokens=3), "mtp-exclude-list-unfused")
    assert "mtp.layers.0.self_attn.q_proj" in text_of(finding) and "re:.*mtp.*" in text_of(finding)


def test_a05_a_pattern_for_the_whole_prediction_layer_is_fine(tmp_path: Path) -> None:
    section = {"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*mtp.*"]}
    target = _mtp_target(tmp_path, section, ("mtp.fc.weight",))
    assert alarms(judged("sglang", "mtp", target, None, num_draft_tokens=3)) == []


def test_a06_sglang_hands_awq_on_to_an_unquantised_draft(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD)
    finding = the(
        judged("sglang", "eagle3", small, draft, flags={"quantization": "awq"}), "draft-inherits-quantization"
    )
    assert finding.severity == "error" and "--speculative-draft-model-quantization unquant" in text_of(
        finding
    )
    explicit: dict[str, Any] = {"quantization": "awq", "speculative-draft-model-quantization": "unquant"}
    assert alarms(judged("sglang", "eagle3", small, draft, flags=explicit)) == []


def test_a07_vllm_leaves_the_draft_in_bf16(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "draft", {**SMALL_HEAD, "torch_dtype": "bfloat16"})
    flags: dict[str, Any] = {"quantization": "fp8_per_tensor"}
    finding = the(judged("vllm", "eagle3", small, draft, flags=flags), "draft-not-quantized")
    assert finding.severity == "note" and "bfloat16" in finding.message


def _speculators(**extra: Any) -> dict[str, Any]:
    layer = {k: v for k, v in SMALL_HEAD.items() if k not in ("architectures", "draft_vocab_size")}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 1000,
        "transformer_layer_config": {"model_type": "llama", **layer},
        "speculators_config": {"verifier": {"name_or_path": "org/small"}},
        **extra,
    }


def _speculators_head(tmp_path: Path, **extra: Any) -> str:
    config = _speculators(**extra)
    return make_model(
        tmp_path / "draft", config, eagle3_tensors(SMALL_HEAD, layer="layers.0", with_maps=False) | MAPS
    )


MAPS: dict[str, Any] = {"d2t": ("I32", (1000,)), "t2d": ("U8", (4000,))}


def test_a08_norm_before_fc_is_lost_by_an_early_vllm(tmp_path: Path, small: str) -> None:
    draft = _speculators_head(tmp_path, norm_before_fc=True, norm_before_residual=True)
    finding = the(judged("vllm", "eagle3", small, draft, version="0.17.1"), "draft-option-ignored")
    assert "norm_before_fc" in finding.message and "38111" in text_of(finding)
    assert "draft-option-ignored" not in codes(judged("vllm", "eagle3", small, draft, version="0.32.0"))


def test_a08_sglang_has_no_norm_before_residual(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "draft", {**SMALL_HEAD, "norm_before_residual": True})
    finding = the(judged("sglang", "eagle3", small, draft), "draft-option-ignored")
    assert finding.severity == "warning" and "norm_before_residual" in finding.message
    assert alarms(judged("vllm", "eagle3", small, draft)) == []


def test_a09_the_default_of_norm_before_residual_is_named_with_its_origin(tmp_path: Path, small: str) -> None:
    draft = _speculators_head(tmp_path)
    finding = the(judged("vllm", "eagle3", small, draft), "draft-norm-default")
    assert "true" in finding.message and "speculators" in finding.message


def test_a10_an_early_vllm_replaces_the_drafts_own_head(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD, embeddings=True)
    finding = the(judged("vllm", "eagle3", small, draft, version="0.11.0"), "draft-tensor-unused")
    assert "lm_head.weight" in finding.message and "embed_tokens.weight" in finding.message
    assert alarms(judged("vllm", "eagle3", small, draft, version="0.32.0")) == []


def _wide_pair(tmp_path: Path, *, embeddings: bool) -> tuple[str, str]:
    target = make_model(tmp_path / "target", PAIRS["targets"]["llama-3-70b"])
    config = {**LLAMA_HEAD, "hidden_size": 6144, "num_attention_heads": 48, "target_hidden_size": 8192}
    draft = eagle3_head(tmp_path / "draft", config, target_hidden=8192, embeddings=embeddings)
    return target, draft


def test_a11_another_hidden_size_needs_a_vllm_after_0_9_0(tmp_path: Path) -> None:
    target, draft = _wide_pair(tmp_path, embeddings=True)
    finding = the(judged("vllm", "eagle3", target, draft, version="0.9.0"), "draft-hidden-size-differs")
    assert finding.severity == "error" and "6144" in finding.message and "8192" in finding.message
    assert alarms(judged("vllm", "eagle3", target, draft)) == []


def test_a11_another_hidden_size_needs_its_own_embeddings(tmp_path: Path) -> None:
    target, draft = _wide_pair(tmp_path, embeddings=False)
    finding = the(judged("sglang", "eagle3", target, draft), "draft-hidden-size-differs")
    assert finding.severity == "error" and "embed_tokens.weight" in finding.message


def test_a11_a_draft_for_a_target_of_another_width_is_an_error(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "draft", LLAMA_HEAD)
    found = codes(judged("vllm", "eagle3", small, draft), "error")
    assert "draft-hidden-size-differs" in found and "draft-vocabulary-differs" in found


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ({}, {"add": {"lm_head.weight": ("BF16", (4000, 64))}}, "lm_head has 4000 rows"),
        ({}, {"add": {"d2t": ("I64", (999,))}}, "d2t has 999 entries"),
        ({}, {"add": {"t2d": ("BOOL", (3999,))}}, "t2d has 3999 entries"),
        ({}, {"drop": ("d2t",)}, "no d2t"),
        ({"draft_vocab_size": 999}, {"add": {"t2d": ("BOOL", (4000,))}}, "draft_vocab_size is 999"),
    ],
)
def test_a12_head_map_and_mask_must_agree_with_the_reduced_vocabulary(
    tmp_path: Path, small: str, config: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    tensors = eagle3_tensors(SMALL_HEAD) | options.get("add", {})
    tensors = {name: tensor for name, tensor in tensors.items() if name not in options.get("drop", ())}
    draft = make_model(tmp_path / "draft", {**SMALL_HEAD, **config}, tensors)
    finding = the(judged("sglang", "eagle3", small, draft), "draft-reduced-vocabulary")
    assert finding.severity == "error" and words in finding.message


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a12_ids_in_place_of_offsets_are_an_error(tmp_path: Path, small: str, engine: str) -> None:
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD, as_ids=True)
    finding = the(judged(engine, "eagle3", small, draft), "draft-vocabulary-map")
    assert finding.severity == "error" and "ids" in finding.message


def test_a12_without_a_mask_ids_are_still_told_from_offsets(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD, as_ids=True, drop=("t2d",))
    assert "draft-vocabulary-map" in codes(judged("sglang", "eagle3", small, draft), "error")


def test_a14_eagle3_without_a_draft_is_an_error_before_the_target_is_read() -> None:
    flags: dict[str, Any] = {"speculative-algorithm": "EAGLE3"}
    finding = the(
        judged("sglang", "eagle3", "Qwen/Qwen2.5-0.5B-Instruct", None, flags=flags), "draft-missing"
    )
    assert finding.severity == "error" and "--speculative-draft-model-path" in text_of(finding)


def test_a14_eagle_without_a_draft_is_an_error_for_a_target_without_prediction_layers(small: str) -> None:
    assert codes(judged("sglang", "eagle", small, None), "error") == {"draft-missing"}
    assert codes(judged("vllm", "eagle3", small, None), "error") == {"draft-missing"}


def test_a15_a_folder_without_eagle3_in_its_name_needs_the_method_written(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "my-head", SMALL_HEAD)
    flags: dict[str, Any] = {"speculative-config": json.dumps({"model": draft, "num_speculative_tokens": 2})}
    judgement = judged("vllm", "draft_model", small, draft, flags=flags)
    assert the(judgement, "draft-algorithm-mismatch").severity == "error"
    assert '"method": "eagle3"' in text_of(the(judgement, "draft-method-guessed"))


def test_a15_a_right_guess_is_only_a_note(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "EAGLE3-LLaMA3.1-Instruct-8B", SMALL_HEAD)
    flags: dict[str, Any] = {"speculative-config": json.dumps({"model": draft, "num_speculative_tokens": 2})}
    judgement = judged("vllm", "eagle3", small, draft, flags=flags)
    assert the(judgement, "draft-method-guessed").severity == "note" and alarms(judgement) == []


def _eagle1(tmp_path: Path, **config: Any) -> str:
    tensors = {
        "fc.weight": ("BF16", (64, 128)),
        "fc.bias": ("BF16", (64,)),
        "layers.0.self_attn.q_proj.weight": ("BF16", (64, 64)),
    }
    return make_model(
        tmp_path / "EAGLE-head",
        {**SMALL, "num_hidden_layers": 1, "architectures": ["EagleModel"], **config},
        tensors,
    )


def test_a16_a_bias_of_fc_must_be_announced(tmp_path: Path, small: str) -> None:
    finding = the(judged("vllm", "eagle", small, _eagle1(tmp_path)), "draft-tensor-unused")
    assert "eagle_fc_bias" in text_of(finding)


def test_a16_an_announced_bias_is_fine(tmp_path: Path, small: str) -> None:
    assert "draft-tensor-unused" not in codes(
        judged("vllm", "eagle", small, _eagle1(tmp_path, eagle_fc_bias=True))
    )


def test_a16_an_eagle1_head_without_lm_head_needs_a_vllm_after_0_6(tmp_path: Path, small: str) -> None:
    draft = _eagle1(tmp_path, eagle_fc_bias=True)
    finding = the(judged("vllm", "eagle", small, draft, version="0.6.4"), "draft-tensor-missing")
    assert "lm_head" in finding.message
    assert "draft-tensor-missing" not in codes(judged("vllm", "eagle", small, draft))


@pytest.mark.parametrize(("layers", "alarm"), [(78, True), (61, False)])
def test_a18_quark_exclude_list_under_another_layer_number_than_61(
    tmp_path: Path, layers: int, alarm: bool
) -> None:
    section = {"quant_method": "quark", "exclude": [f"model.layers.{layers}.eh_proj", "lm_head"]}
    names = (f"model.layers.{layers}.eh_proj.weight",)
    target = _mtp_target(
        tmp_path, section, names, num_hidden_layers=layers, architectures=["GlmMoeDsaForCausalLM"]
    )
    found = codes(judged("sglang", "mtp", target, None, num_draft_tokens=3), "warning", "error")
    assert found == ({"mtp-exclude-list-prefix"} if alarm else set())


def _gguf(
    path: Path, tokens: list[str], *, model: str = "gpt2", pre: str = "qwen2", name: str = "qwen2"
) -> str:
    return write_gguf(
        path,
        {
            "general.architecture": name,
            f"{name}.block_count": 24,
            f"{name}.embedding_length": 64,
            f"{name}.attention.head_count": 4,
            f"{name}.context_length": 4096,
            "tokenizer.ggml.model": model,
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.eos_token_id": 2,
        },
        {"token_embd.weight": (0, (len(tokens), 64))},
        data_bytes=len(tokens) * 256,
    )


WORDS = [f"word{number}" for number in range(1500)]


@pytest.mark.parametrize(
    ("tokens", "kind", "words"),
    [
        (WORDS[:300], {}, "1500 tokens, the draft 300"),
        (WORDS, {"model": "llama"}, "tokenizer.ggml.model"),
        (WORDS, {"pre": "llama-bpe"}, "tokenizer.ggml.pre"),
    ],
)
def test_a19_llamacpp_stand_alone_drafts_with_another_vocabulary(
    tmp_path: Path, tokens: list[str], kind: dict[str, str], words: str
) -> None:
    target, draft = _gguf(tmp_path / "t.gguf", WORDS), _gguf(tmp_path / "d.gguf", tokens, **kind)
    finding = the(judged("llamacpp", "draft_model", target, draft), "draft-vocabulary-differs")
    assert finding.severity == "error" and words in finding.message


def test_a19_equal_sizes_with_other_contents_are_an_error(tmp_path: Path) -> None:
    other = ["!", *WORDS[1:]]
    target, draft = _gguf(tmp_path / "t.gguf", WORDS), _gguf(tmp_path / "d.gguf", other)
    assert (
        the(judged("llamacpp", "draft_model", target, draft), "draft-tokenizer-differs").severity == "error"
    )


def test_a19_llamacpp_accepts_128_tokens_of_padding(tmp_path: Path) -> None:
    target, draft = _gguf(tmp_path / "t.gguf", WORDS), _gguf(tmp_path / "d.gguf", WORDS[:1400])
    assert "draft-vocabulary-differs" not in codes(judged("llamacpp", "draft_model", target, draft))


def test_a19_the_gap_for_other_kinds_of_drafts_is_closed(tmp_path: Path) -> None:
    target, draft = _gguf(tmp_path / "t.gguf", WORDS), _gguf(tmp_path / "d.gguf", WORDS[:1400], name="eagle3")
    assert "draft-vocabulary-differs" in codes(judged("llamacpp", "eagle3", target, draft), "error")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a19_stand_alone_drafts_of_another_family(tmp_path: Path, small: str, engine: str) -> None:
    draft = make_model(tmp_path / "draft", {**SMALL, "vocab_size": 1900})
    assert "draft-vocabulary-differs" in codes(judged(engine, "draft_model", small, draft), "error")


def test_a21_a_gemma4_assistant_beside_a_quantised_target_is_noted(tmp_path: Path) -> None:
    section = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    target = make_model(
        tmp_path / "t", {**PAIRS["targets"]["gemma-4-26b-a4b"], "quantization_config": section}
    )
    draft = make_model(tmp_path / "d", {"architectures": ["Gemma4AssistantForCausalLM"], "hidden_size": 2816})
    finding = the(judged("vllm", "mtp", target, draft, num_draft_tokens=3), "draft-for-unquantized-target")
    assert "unquantised" in finding.message and finding.severity == "note"


def test_a22_a_four_bit_prediction_layer_is_a_warning(tmp_path: Path) -> None:
    tensors = {
        "model.norm.weight": ("BF16", (64,)),
        "model.layers.0.mlp.up_proj.weight_packed": ("I32", (64, 8)),
        "mtp.layers.0.mlp.up_proj.weight_packed": ("I32", (64, 8)),
    }
    target = make_model(tmp_path / "target", {**SMALL, "num_nextn_predict_layers": 1}, tensors)
    finding = the(judged("vllm", "mtp", target, None, num_draft_tokens=3), "draft-weights-below-8-bit")
    assert finding.severity == "warning" and "mtp.layers.0.mlp.up_proj.weight_packed: I32" in text_of(finding)


def test_a22_a_four_bit_target_with_a_bf16_prediction_layer_is_fine(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.mlp.up_proj.weight_packed": ("I32", (64, 8)),
        "mtp.layers.0.mlp.up_proj.weight": ("BF16", (64, 64)),
    }
    target = make_model(tmp_path / "target", {**SMALL, "num_nextn_predict_layers": 1}, tensors)
    assert alarms(judged("vllm", "mtp", target, None, num_draft_tokens=3)) == []


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.9"), ("vllm", "0.19.0")])
def test_a24_g12_eagle31_features_need_a_newer_engine(
    tmp_path: Path, small: str, engine: str, version: str
) -> None:
    config = {
        **SMALL_HEAD,
        "fc_norm": True,
        "norm_output": True,
        "num_aux_hidden_states": 4,
        "target_hidden_size": 64,
    }
    draft = eagle3_head(tmp_path / "draft", config, states=4, layer="layers.0")
    finding = the(judged(engine, "eagle3", small, draft, version=version), "draft-needs-newer-engine")
    assert "fc_norm" in finding.message and "fc over 4 states" in finding.message
    assert alarms(judged(engine, "eagle3", small, draft)) == []


def test_a24_four_states_that_the_configuration_does_not_announce_are_an_error(
    tmp_path: Path, small: str
) -> None:
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD, states=4)
    finding = the(judged("sglang", "eagle3", small, draft), "draft-state-count")
    assert '"num_aux_hidden_states": 4' in text_of(finding)


def test_a26_a_dflash_draft_is_known_although_its_model_type_is_qwen3(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", QWEN)
    draft = make_model(tmp_path / "draft", PAIRS["drafts"]["H10-qwen3-8b-dflash"]["config"])
    finding = the(judged("vllm", "draft_model", target, draft), "draft-algorithm-mismatch")
    assert "DFlash" in finding.message and '"method": "dflash"' in text_of(finding)


@pytest.mark.parametrize("declared_in", ["card", "speculators", "config"])
def test_a29_a_draft_of_a_sibling_model_is_told_by_what_it_declares(tmp_path: Path, declared_in: str) -> None:
    base = "moonshotai/Kimi-K2-Instruct"
    config = dict(PAIRS["drafts"]["H1-kimi-k2"]["config"])
    card = f"---\nlicense: mit\nbase_model: {base}\n---\ntext" if declared_in == "card" else None
    if declared_in == "speculators":
        config["speculators_config"] = {"verifier": {"name_or_path": base}}
    if declared_in == "config":
        config["target_model_name_or_path"] = base
    draft = eagle3_head(tmp_path / "draft", config, readme=card)
    finding = the(judged("sglang", "eagle3", "moonshotai/Kimi-K2.5", draft), "draft-of-another-model")
    assert finding.severity == "warning" and "first position" in text_of(finding) + (finding.remedy or "")
    assert "draft-of-another-model" not in codes(judged("sglang", "eagle3", base, draft))


def test_a29_a_fine_tuned_target_says_so_in_its_own_card(tmp_path: Path) -> None:
    target = make_model(tmp_path / "t", {**LLAMA, "_name_or_path": "me/Llama-3.1-8B-finance"})
    card = "---\nbase_model: meta-llama/Llama-3.1-8B-Instruct\n---\n"
    draft = eagle3_head(tmp_path / "d", LLAMA_HEAD, readme=card)
    assert "draft-of-another-model" in codes(judged("vllm", "eagle3", target, draft), "warning")


@pytest.mark.parametrize("name", ["RedHatAI/Qwen3-8B-FP8-dynamic", "Qwen/Qwen3-8B-AWQ", "qwen/qwen3_8b"])
def test_a29_a_quantised_target_is_the_same_model(tmp_path: Path, name: str) -> None:
    draft = eagle3_head(tmp_path / "d", QWEN_HEAD, readme="---\nbase_model: Qwen/Qwen3-8B\n---\n")
    assert "draft-of-another-model" not in codes(judged("vllm", "eagle3", name, draft))


def test_a29_without_a_declared_base_it_is_not_checked_and_says_how_to_tell(
    tmp_path: Path, small: str
) -> None:
    judgement = judged("vllm", "eagle3", small, eagle3_head(tmp_path / "d", SMALL_HEAD))
    assert any(
        "declares no base model" in reason and "measured" in reason for reason in judgement.not_checked
    )


def test_a31_an_eagle3_head_under_draft_model(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", QWEN)
    draft = eagle3_head(tmp_path / "qwen3_8b_eagle3", QWEN_HEAD)
    finding = the(judged("vllm", "draft_model", target, draft), "draft-algorithm-mismatch")
    assert '"method": "eagle3"' in text_of(finding)


def test_a31_a_draft_simple_with_an_eagle3_gguf(tmp_path: Path) -> None:
    target, draft = _gguf(tmp_path / "t.gguf", WORDS), _gguf(tmp_path / "d.gguf", WORDS, name="eagle3")
    finding = the(judged("llamacpp", "draft_model", target, draft), "draft-algorithm-mismatch")
    assert "--spec-type draft-eagle3" in text_of(finding)


def test_a32_an_eagle3_head_needs_its_own_lm_head(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD, drop=("lm_head.weight",))
    finding = the(judged("sglang", "eagle3", small, draft), "draft-tensor-missing")
    assert finding.severity == "error" and "lm_head.weight" in finding.message


def test_a32_embeddings_may_be_absent(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD)
    assert "draft-tensor-missing" not in codes(judged("sglang", "eagle3", small, draft))


def test_a33_llamacpp_targets_without_layer_inputs(tmp_path: Path) -> None:
    target, draft = (
        _gguf(tmp_path / "t.gguf", WORDS, name="minimax-m2"),
        _gguf(tmp_path / "d.gguf", WORDS, name="eagle3"),
    )
    finding = the(judged("llamacpp", "eagle3", target, draft, version="b9500"), "target-without-eagle3-hooks")
    assert "minimax-m2" in finding.message
    newer = judged("llamacpp", "eagle3", target, draft, version="b10500")
    assert "target-without-eagle3-hooks" not in codes(newer)
    unknown = judged("llamacpp", "eagle3", target, draft)
    assert any("minimax-m2" in reason for reason in unknown.not_checked)


@pytest.mark.parametrize(
    ("engine", "architecture", "version", "severity"),
    [
        ("sglang", "MixtralForCausalLM", None, "error"),
        ("sglang", "Qwen2ForCausalLM", "0.5.3", "warning"),
        ("sglang", "Qwen3_5ForConditionalGeneration", "0.5.12", "warning"),
        ("vllm", "Gemma2ForCausalLM", None, "error"),
    ],
)
def test_a39_targets_without_hooks(
    tmp_path: Path, engine: str, architecture: str, version: str | None, severity: str
) -> None:
    target = make_model(tmp_path / "target", {**SMALL, "architectures": [architecture]})
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD)
    finding = the(judged(engine, "eagle3", target, draft, version=version), "target-without-eagle3-hooks")
    assert finding.severity == severity and architecture in finding.message


def test_a39_a_class_nobody_knows_is_not_checked(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", {**SMALL, "architectures": ["BrandNewForCausalLM"]})
    judgement = judged("sglang", "eagle3", target, eagle3_head(tmp_path / "draft", SMALL_HEAD))
    assert alarms(judgement) == []
    assert any("BrandNewForCausalLM" in reason for reason in judgement.not_checked)


def test_b09_sglang_refuses_a_context_longer_than_the_drafts(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", LLAMA)
    draft = eagle3_head(tmp_path / "draft", {**LLAMA_HEAD, "max_position_embeddings": 2048})
    finding = the(judged("sglang", "eagle3", target, draft), "draft-context-shorter")
    assert finding.severity == "error" and "--context-length 2048" in text_of(finding)
    allow = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    long = judged("sglang", "eagle3", target, draft, env=allow, max_prompt_tokens=3000)
    assert the(long, "draft-context-shorter").severity == "warning"
    short = judged("sglang", "eagle3", target, draft, env=allow, max_prompt_tokens=1000)
    assert the(short, "draft-context-shorter").severity == "note"
    limited = judged("sglang", "eagle3", target, draft, flags={"context-length": "2048"})
    assert "draft-context-shorter" not in codes(limited)


def test_b10_an_early_vllm_reads_past_the_drafts_rotary_table(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", LLAMA)
    draft = eagle3_head(tmp_path / "draft", {**LLAMA_HEAD, "max_position_embeddings": 2048})
    flags: dict[str, Any] = {"max-model-len": "8192"}
    early = judged("vllm", "eagle3", target, draft, flags=flags, version="0.10.1")
    assert the(early, "draft-context-shorter").severity == "warning"
    assert "max_position_embeddings: 8192" in text_of(the(early, "draft-context-shorter"))
    now = judged("vllm", "eagle3", target, draft, flags=flags)
    assert the(now, "draft-context-shorter").severity == "note"


@pytest.mark.parametrize(("tokens", "is_far"), [(5, False), (7, False), (13, True)])
def test_p07_a_chain_far_beyond_the_trained_layers_is_said_before(
    tmp_path: Path, tokens: int, is_far: bool
) -> None:
    target = _mtp_target(tmp_path, None, ("mtp.fc.weight",))
    found = alarms(judged("vllm", "mtp", target, None, num_draft_tokens=tokens))
    assert any("draft-beyond-trained-depth" in alarm for alarm in found) is is_far


def test_b17_one_prediction_layer_may_draft_more_than_one_token(tmp_path: Path) -> None:
    target = _mtp_target(tmp_path, None, ("mtp.fc.weight",))
    assert (
        the(judged("vllm", "mtp", target, None, num_draft_tokens=1), "mtp-depth-is-not-draft-count").severity
        == "note"
    )
    assert judged("vllm", "mtp", target, None, num_draft_tokens=3).findings == ()


@pytest.mark.parametrize(("tokens", "code"), [(3, "draft-block-cut"), (20, "draft-block-size"), (15, None)])
def test_b18_drafted_tokens_against_the_block(tmp_path: Path, tokens: int, code: str | None) -> None:
    target = make_model(tmp_path / "target", QWEN)
    draft = make_model(tmp_path / "draft", PAIRS["drafts"]["H10-qwen3-8b-dflash"]["config"])
    found = codes(judged("vllm", "dflash", target, draft, num_draft_tokens=tokens)) & {
        "draft-block-cut",
        "draft-block-size",
    }
    assert found == ({code} if code else set())


def test_g05_another_chat_template_in_the_drafts_folder_is_noted(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", SMALL)
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD)
    Path(target, "chat_template.jinja").write_text("{{ messages }}<think>\n\n</think>\n\n")
    Path(draft, "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert the(judged("sglang", "eagle3", target, draft), "draft-chat-template-differs").severity == "note"


def test_g06_a_block_draft_that_names_neither_layers_nor_mask_is_noted(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", QWEN)
    draft = make_model(tmp_path / "draft", PAIRS["drafts"]["H10-qwen3-8b-dflash"]["config"])
    finding = the(judged("sglang", "dflash", target, draft), "draft-block-keys-absent")
    assert "target_layer_ids" in finding.message and "mask_token_id" in finding.message


@pytest.mark.parametrize(
    ("engine", "version", "severity"),
    [("sglang", "0.5.9", "error"), ("vllm", "0.17.1", "error"), ("sglang", None, "note")],
)
def test_g15_a_latent_attention_draft_needs_a_version_that_has_it(
    tmp_path: Path, engine: str, version: str | None, severity: str
) -> None:
    target = make_model(tmp_path / "target", PAIRS["targets"]["kimi-k2.5"])
    draft = make_model(tmp_path / "draft", PAIRS["drafts"]["H3-kimi-k2.5-mla"]["config"])
    finding = the(judged(engine, "eagle3", target, draft, version=version), "draft-architecture-unsupported")
    assert finding.severity == severity and "MLA" in finding.message
    if engine == "vllm":
        assert alarms(judged("vllm", "eagle3", target, draft, version="0.18.0")) == []


@pytest.mark.parametrize(
    "config", [_speculators(), {**SMALL_HEAD, "architectures": ["Eagle3LlamaForCausalLM"]}]
)
def test_g15_sglang_has_no_class_for_drafts_in_vllms_formats(
    tmp_path: Path, small: str, config: dict[str, Any]
) -> None:
    draft = make_model(tmp_path / "draft", config)
    assert "draft-architecture-unsupported" in codes(judged("sglang", "eagle3", small, draft), "error")


HYBRID = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "num_hidden_layers": 48,
    "num_attention_heads": 4,
    "full_attention_interval": 4,
    "vocab_size": 4000,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}


def test_g16_the_default_layers_of_a_hybrid_target_are_not_its_attention_layers(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", HYBRID)
    finding = the(
        judged("sglang", "eagle3", target, eagle3_head(tmp_path / "draft", SMALL_HEAD)),
        "draft-layer-not-attention",
    )
    assert "[2, 24, 45]" in finding.message and "linear_attention" in finding.message


def test_g16_written_attention_layers_are_fine(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", HYBRID)
    config = {**SMALL_HEAD, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 23, 47]}}
    assert alarms(judged("sglang", "eagle3", target, eagle3_head(tmp_path / "draft", config))) == []


def _with_ids(tmp_path: Path, ids: list[int], *, top: bool) -> str:
    place = {"eagle_aux_hidden_state_layer_ids": ids}
    return eagle3_head(tmp_path / "draft", {**SMALL_HEAD, **(place if top else {"eagle_config": place})})


@pytest.mark.parametrize(
    ("engine", "ids", "top", "env", "alarm"),
    [
        ("sglang", [1, 15, 28], False, {}, False),  # outputs, read as outputs
        ("sglang", [2, 16, 29], False, {}, True),  # inputs, read as outputs
        ("sglang", [2, 16, 29], True, {}, False),  # ignored, and the default says the same
        ("sglang", [5, 9, 20], True, {}, True),  # ignored, and the default says otherwise
        ("vllm", [2, 16, 29], True, {}, False),
        ("vllm", [1, 15, 28], True, {}, True),
        ("vllm", [1, 15, 28], False, {}, False),
        ("vllm", [1, 15, 28], False, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, True),
        ("vllm", [5, 9, 20], False, {}, True),
        ("vllm", [5, 9, 20], True, {}, False),
    ],
)
def test_h14_layer_ids_are_read_as_they_were_written(
    tmp_path: Path, small: str, engine: str, ids: list[int], top: bool, env: dict[str, str], alarm: bool
) -> None:
    judgement = judged(engine, "eagle3", small, _with_ids(tmp_path, ids, top=top), env=env)
    assert codes(judgement, "warning", "error") == ({"draft-layer-convention"} if alarm else set())


NO_GPU = Machine(hostname="lab", os="Linux", cpu=None, cores=2, memory_bytes=None, gpus=(), python="3.11")
OTHER_RUNNERS: dict[str, dict[str, Any]] = {
    "V2": {"env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}},
    "V1": {"env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}},
    "a CPU's": {"machine": NO_GPU},
    "unknown": {},
}


@pytest.mark.parametrize("runner", OTHER_RUNNERS)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_h14_inputs_at_the_top_level_beside_outputs_are_right_everywhere(
    tmp_path: Path, small: str, engine: str, runner: str
) -> None:
    config = {
        **SMALL_HEAD,
        "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]},
        "spectune_layers_as_inputs": [2, 16, 29],
    }
    judgement = judged(
        engine, "eagle3", small, eagle3_head(tmp_path / "draft", config), **OTHER_RUNNERS[runner]
    )
    assert "draft-layer-convention" not in codes(judgement)


@pytest.mark.parametrize(
    ("runner", "severity"), [("V2", None), ("V1", "warning"), ("a CPU's", "warning"), ("unknown", "note")]
)
def test_h14_outputs_alone_are_one_layer_off_on_vllms_first_runner(
    tmp_path: Path, small: str, runner: str, severity: str | None
) -> None:
    draft = _with_ids(tmp_path, [1, 15, 28], top=False)
    judgement = judged("vllm", "eagle3", small, draft, **OTHER_RUNNERS[runner])
    found = [f.severity for f in judgement.findings if f.code == "draft-layer-convention"]
    assert found == ([] if severity is None else [severity])


def test_h14_each_engine_is_judged_by_the_place_that_it_reads(tmp_path: Path, small: str) -> None:
    ids = {
        "eagle_aux_hidden_state_layer_ids": [1, 15, 28],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]},
    }
    draft = eagle3_head(tmp_path / "draft", {**SMALL_HEAD, **ids})
    assert "draft-layer-convention" not in codes(judged("sglang", "eagle3", small, draft))
    finding = the(judged("vllm", "eagle3", small, draft), "draft-layer-convention")
    assert "[1, 15, 28]" in finding.message and "eagle_config" not in str(finding.evidence)


def test_h14_layers_that_the_target_does_not_have_are_an_error(tmp_path: Path, small: str) -> None:
    found = codes(judged("sglang", "eagle3", small, _with_ids(tmp_path, [1, 15, 33], top=False)), "error")
    assert found == {"draft-layer-out-of-range"}


def test_h14_layers_out_of_order_are_an_error(tmp_path: Path, small: str) -> None:
    assert "draft-layer-order" in codes(
        judged("vllm", "eagle3", small, _with_ids(tmp_path, [29, 16, 2], top=True)), "error"
    )


def test_h9_head_dim_that_is_not_hidden_over_heads_must_be_written(tmp_path: Path, small: str) -> None:
    tensors = eagle3_tensors({**SMALL_HEAD, "head_dim": 32})
    draft = make_model(tmp_path / "draft", SMALL_HEAD, tensors)
    finding = the(judged("sglang", "eagle3", small, draft), "draft-tensor-shape")
    assert "q_proj.weight is [128, 128], expected [64, 128]" in finding.message


def test_a_target_cut_short_is_an_error(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", SMALL, {"model.norm.weight": ("BF16", (64,))})
    path = Path(target, "model.safetensors")
    path.write_bytes(path.read_bytes()[:-10])
    finding = the(judged("vllm", "none", target, None), "checkpoint-damaged")
    assert "10 bytes" in text_of(finding)


@pytest.mark.parametrize(
    ("architecture", "severity"), [("DeepseekV3ForCausalLM", "error"), ("BrandNewForCausalLM", "warning")]
)
def test_announced_prediction_layers_that_the_files_lack(
    tmp_path: Path, architecture: str, severity: str
) -> None:
    target = _mtp_target(tmp_path, None, (), architectures=[architecture])
    judgement = judged("vllm", "mtp", target, None, num_draft_tokens=3)
    assert the(judgement, "mtp-layers-missing").severity == severity


def test_tensors_that_sglang_would_drop_without_a_word_are_named(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD, add={"gate.weight": ("BF16", (64, 64))})
    assert "gate.weight" in text_of(the(judged("sglang", "eagle3", small, draft), "draft-tensor-unused"))


def test_a01_a_name_that_says_eagle3_is_a_warning_where_the_files_cannot_be_read() -> None:
    judgement = judged("sglang", "eagle", "moonshotai/Kimi-K2.5", "lightseekorg/kimi-k2.5-eagle3")
    finding = the(judgement, "draft-algorithm-mismatch")
    assert finding.severity == "warning" and "name" in finding.message
    assert alarms(judged("sglang", "eagle3", "moonshotai/Kimi-K2.5", "lightseekorg/kimi-k2.5-eagle3")) == []


def test_a01_nextn_is_eagle_by_another_name(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD)
    finding = the(judged("sglang", "mtp", small, draft), "draft-algorithm-mismatch")
    assert "NEXTN" in finding.message and "1.00" in (finding.effect or "")


def test_vllm_puts_model_in_front_of_every_name_itself(tmp_path: Path, small: str) -> None:
    tensors = {
        f"model.{name}": tensor
        for name, tensor in eagle3_tensors(SMALL_HEAD).items()
        if "lm_head" not in name
    }
    tensors["lm_head.weight"] = ("BF16", (1000, 64))
    draft = make_model(tmp_path / "draft", SMALL_HEAD, tensors)
    assert "draft-tensor-missing" in codes(judged("vllm", "eagle3", small, draft), "error")
    assert "draft-tensor-missing" not in codes(judged("sglang", "eagle3", small, draft))


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [("absent", "error", "not written"), ("null", "warning", "target's")],
)
def test_sglang_needs_the_drafts_vocabulary_size_written(
    tmp_path: Path, small: str, change: str, severity: str, words: str
) -> None:
    config: dict[str, Any] = {k: v for k, v in SMALL_HEAD.items() if k != "draft_vocab_size"}
    tensors = eagle3_tensors(config)
    if change == "null":
        config["draft_vocab_size"] = None
    draft = make_model(tmp_path / "draft", config, tensors)
    finding = the(judged("sglang", "eagle3", small, draft), "draft-reduced-vocabulary")
    assert finding.severity == severity and words in finding.message
    assert alarms(judged("vllm", "eagle3", small, draft)) == []


def test_embeddings_that_sglang_replaces_are_noted(tmp_path: Path, small: str) -> None:
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD, embeddings=True)
    assert the(judged("sglang", "eagle3", small, draft), "draft-tensor-unused").severity == "note"


def test_heads_that_do_not_divide_by_tensor_parallelism(tmp_path: Path) -> None:
    config = {**SMALL, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    target = make_model(tmp_path / "target", config)
    draft = eagle3_head(
        tmp_path / "draft", {**SMALL_HEAD, **config, "architectures": ["LlamaForCausalLMEagle3"]}
    )
    messages = {
        engine: [
            f.message
            for f in judged(engine, "eagle3", target, draft, flags={flag: "2"}).findings
            if "heads" in f.code
        ]
        for engine, flag in (("sglang", "tp-size"), ("vllm", "tensor-parallel-size"))
    }
    of_draft = "the draft's 9 attention heads cannot be divided over 2 GPUs"
    of_target = (
        "the target's 9 attention heads cannot be divided over 2 GPUs"  # vLLM's flag rules say it there
    )
    assert messages == {"sglang": [of_target, of_draft], "vllm": [of_draft]}
    assert "heads-not-divisible-by-tp" not in codes(
        judged("sglang", "eagle3", target, draft, flags={"tp-size": "3"})
    )


def test_a26_sglang_takes_the_class_from_architectures_whatever_the_tensors_are(
    tmp_path: Path, small: str
) -> None:
    draft = eagle3_head(tmp_path / "draft", {**SMALL_HEAD, "architectures": ["LlamaForCausalLM"]})
    finding = the(judged("sglang", "eagle3", small, draft), "draft-architecture-unsupported")
    assert finding.severity == "error" and "LlamaForCausalLMEagle3" in finding.message
    assert alarms(judged("vllm", "eagle3", small, draft)) == []  # which puts Eagle3 in front of the name


def test_a01_the_draft_that_ships_under_the_flag_eagle(tmp_path: Path) -> None:
    config = {
        **SMALL,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
    }
    target = make_model(tmp_path / "target", config)
    shipped = (
        Path(__file__).parent.parent / "src" / "spectune" / "embedded" / "drafts" / "smollm2-135m-eagle3"
    )
    finding = the(judged("sglang", "eagle", target, str(shipped)), "draft-algorithm-mismatch")
    assert "[576, 1728]" in finding.message and "3 hidden states of 576" in finding.message
    gguf = str(shipped / "draft-q8_0.gguf")
    finding = the(judged("llamacpp", "draft_model", None, gguf), "draft-algorithm-mismatch")
    assert "--spec-type draft-eagle3" in (finding.remedy or "")


def test_vllm_reads_speculators_heads_of_two_kinds_of_layers_only(tmp_path: Path, small: str) -> None:
    config = _speculators(norm_before_residual=True)
    config["transformer_layer_config"]["model_type"] = "gpt_oss"
    finding = the(
        judged("vllm", "eagle3", small, make_model(tmp_path / "d", config)), "draft-architecture-unsupported"
    )
    assert finding.severity == "error" and "gpt_oss" in finding.message


def test_a_vocabulary_that_vllm_is_told_to_translate_is_fine(tmp_path: Path, small: str) -> None:
    draft = make_model(tmp_path / "draft", {**SMALL, "vocab_size": 1900})
    config = {"method": "draft_model", "model": draft, "use_heterogeneous_vocab": True}
    flags: dict[str, Any] = {"speculative-config": json.dumps(config)}
    assert alarms(judged("vllm", "draft_model", small, draft, flags=flags)) == []


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a11_fc_says_which_width_of_target_the_draft_was_made_for(
    tmp_path: Path, small: str, engine: str
) -> None:
    draft = eagle3_head(tmp_path / "draft", {**SMALL_HEAD, "target_hidden_size": 96}, target_hidden=96)
    finding = the(judged(engine, "eagle3", small, draft), "draft-target-width-differs")
    assert finding.severity == "error" and "96" in finding.message and "64 wide" in finding.message
    fitting = eagle3_head(tmp_path / "fitting", {**SMALL_HEAD, "target_hidden_size": 64})
    assert "draft-target-width-differs" not in codes(judged(engine, "eagle3", small, fitting))


def test_a_block_draft_for_a_target_of_another_depth_is_a_warning(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", QWEN)
    config = PAIRS["drafts"]["H10-qwen3-8b-dflash"]["config"]
    other = make_model(tmp_path / "other", {**config, "num_target_layers": 64})
    finding = the(judged("sglang", "dflash", target, other), "draft-block-target-differs")
    assert finding.severity == "warning" and "64 layers, this one has 36" in finding.message
    same = make_model(tmp_path / "same", {**config, "num_target_layers": 36})
    assert "draft-block-target-differs" not in codes(judged("sglang", "dflash", target, same))


@pytest.mark.parametrize(
    ("theta", "said"), [(500000.0, "500000 in the draft"), (None, "not written (engines take 10000)")]
)
def test_another_rotary_base_than_the_targets_is_noted(
    tmp_path: Path, theta: float | None, said: str
) -> None:
    target = make_model(tmp_path / "target", {**SMALL, "rope_theta": 1000000.0})
    config = {key: value for key, value in SMALL_HEAD.items() if key != "rope_theta"}
    draft = eagle3_head(tmp_path / "draft", config | ({"rope_theta": theta} if theta else {}))
    finding = the(judged("sglang", "eagle3", target, draft), "draft-rope-differs")
    assert finding.severity == "note" and said in finding.message and "1e+06 in the target" in finding.message
    like = eagle3_head(tmp_path / "like", {**config, "rope_theta": 1000000.0})
    assert "draft-rope-differs" not in codes(judged("sglang", "eagle3", target, like))


@pytest.mark.parametrize(("engine", "tokens"), [("sglang", "1000000"), ("vllm", "1048576")])
def test_b09_a_context_with_a_suffix_is_read_as_the_engine_reads_it(
    tmp_path: Path, engine: str, tokens: str
) -> None:
    # 1M is 1,000,000 tokens in SGLang and 1,048,576 in vLLM.
    target = make_model(tmp_path / "target", {**SMALL, "max_position_embeddings": 2_000_000})
    draft = eagle3_head(tmp_path / "draft", SMALL_HEAD)
    flag = {"sglang": "context-length", "vllm": "max-model-len"}[engine]
    finding = the(judged(engine, "eagle3", target, draft, flags={flag: "1M"}), "draft-context-shorter")
    assert tokens in text_of(finding)


ASSISTANT = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "model_type": "gemma4_assistant",
    "hidden_size": 32,
    "backbone_hidden_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 4000,
}


@pytest.mark.parametrize(
    ("engine", "method", "flags"),
    [
        ("vllm", "mtp", {"speculative-config": '{"method": "mtp", "model": "d"}'}),
        ("vllm", "draft_model", {"speculative-config": '{"model": "d"}'}),
        ("sglang", "mtp", {"speculative-algorithm": "NEXTN"}),
    ],
)
def test_f1_an_external_assistant_projects_from_its_targets_width(
    tmp_path: Path, small: str, engine: str, method: str, flags: dict[str, Any]
) -> None:
    draft = make_model(tmp_path / "draft", ASSISTANT)
    assert not alarms(judged(engine, method, small, draft, flags=flags))
    other = make_model(tmp_path / "other", {**ASSISTANT, "backbone_hidden_size": 128})
    if method == "mtp":  # without a method the widths are not looked at
        assert codes(judged(engine, method, small, other, flags=flags), "error") == {
            "draft-target-width-differs"
        }


@pytest.mark.parametrize(("columns", "is_right"), [(8192, True), (7168, False)])
def test_f6_heads_of_latent_attention_have_values_of_their_own_width(
    tmp_path: Path, columns: int, is_right: bool
) -> None:
    target = make_model(tmp_path / "target", PAIRS["targets"]["kimi-k2.5"])
    config = {**PAIRS["drafts"]["H2-kimi-k2.5"]["config"], "v_head_dim": 128, "num_attention_heads": 64}
    attention = (
        "midlayer.self_attn.q_proj.weight",
        "midlayer.self_attn.k_proj.weight",
        "midlayer.self_attn.v_proj.weight",
    )
    added = {"midlayer.self_attn.o_proj.weight": ("BF16", (7168, columns))}
    draft = eagle3_head(tmp_path / "draft", config, drop=attention, add=added)
    assert ("draft-tensor-shape" not in codes(judged("sglang", "eagle3", target, draft))) is is_right
