"""Drafts that public projects train, beside the targets they were trained for: nothing to complain of."""

import json
from pathlib import Path
from typing import Any

import pytest
from healthy.models import alarms, codes, eagle3_head, judged, make_model

PAIRS = json.loads((Path(__file__).parent / "healthy" / "pairs.json").read_text())
HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "spectune"


def made(tmp_path: Path, name: str) -> tuple[str, str, dict[str, Any]]:
    pair = PAIRS["drafts"][name]
    target = make_model(tmp_path / "target", PAIRS["targets"][pair["target"]])
    config = pair["config"]
    if pair.get("tensors", True):
        return target, eagle3_head(tmp_path / "draft", config), pair
    return target, make_model(tmp_path / "draft", config), pair


@pytest.mark.parametrize("name", PAIRS["drafts"])
def test_a_published_draft_beside_its_target_gives_no_alarm_on_sglang(tmp_path: Path, name: str) -> None:
    target, draft, pair = made(tmp_path, name)
    limit = pair["config"].get("max_position_embeddings")
    flags = {"context-length": str(limit)} if limit else {}
    judgement = judged("sglang", pair.get("method", "eagle3"), target, draft, flags=flags)
    assert alarms(judgement) == []


IDS_ONLY_SGLANG_READS = ("H4-gpt-oss-20b", "H9-gemma-4-26b-a4b")


@pytest.mark.parametrize("name", [name for name in PAIRS["drafts"] if name not in IDS_ONLY_SGLANG_READS])
def test_a_published_draft_beside_its_target_gives_no_alarm_on_vllm(tmp_path: Path, name: str) -> None:
    target, draft, pair = made(tmp_path, name)
    judgement = judged("vllm", pair.get("method", "eagle3"), target, draft)
    assert alarms(judgement) == []


@pytest.mark.parametrize("name", IDS_ONLY_SGLANG_READS)
def test_layer_ids_that_vllm_does_not_read_are_an_alarm_there_and_not_on_sglang(
    tmp_path: Path, name: str
) -> None:
    target, draft, _ = made(tmp_path, name)
    assert codes(judged("vllm", "eagle3", target, draft), "warning") == {"draft-layer-convention"}


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_draft_that_ships_fits_the_target_that_ships(tmp_path: Path, engine: str) -> None:
    target = make_model(
        tmp_path / "smollm2",
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "max_position_embeddings": 8192,
            "rope_theta": 100000.0,
            "vocab_size": 49152,
        },
    )
    draft = str(PACKAGE / "embedded" / "drafts" / "smollm2-135m-eagle3")
    assert alarms(judged(engine, "eagle3", target, draft)) == []


def test_a_quantised_target_beside_an_unquantised_draft_gives_no_alarm(tmp_path: Path) -> None:
    config = dict(PAIRS["targets"]["qwen3-8b"])
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    target = make_model(tmp_path / "target", config)
    draft = eagle3_head(tmp_path / "draft", PAIRS["drafts"]["H11-qwen3-8b"]["config"])
    for engine in ("sglang", "vllm"):
        assert alarms(judged(engine, "eagle3", target, draft)) == []


def test_prediction_layers_inside_the_target_need_no_draft_path(tmp_path: Path) -> None:
    config = {**PAIRS["targets"]["kimi-k2"], "num_nextn_predict_layers": 1}
    tensors = {
        "model.layers.61.eh_proj.weight": ("BF16", (7168, 14336)),
        "model.norm.weight": ("BF16", (7168,)),
    }
    target = make_model(tmp_path / "target", config, tensors)
    for engine, method in (("sglang", "mtp"), ("sglang", "eagle"), ("vllm", "mtp")):
        assert alarms(judged(engine, method, target, None, num_draft_tokens=3)) == []


def test_a_small_model_of_the_same_family_drafts_on_its_own(tmp_path: Path) -> None:
    small = {**PAIRS["targets"]["qwen3-8b"], "hidden_size": 1024, "num_hidden_layers": 28}
    draft = make_model(tmp_path / "draft", small)
    target = make_model(tmp_path / "target", PAIRS["targets"]["qwen3-8b"])
    for engine in ("sglang", "vllm"):
        assert alarms(judged(engine, "draft_model", target, draft)) == []


def test_without_speculation_nothing_is_said_about_drafts(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target", PAIRS["targets"]["qwen3-8b"])
    for engine in ("sglang", "vllm", "llamacpp"):
        for method in ("none", "ngram"):
            assert judged(engine, method, target, None).findings == ()


def test_names_that_are_not_on_this_machine_are_not_checked_and_no_alarm() -> None:
    judgement = judged("sglang", "eagle3", "nobody/no-such-target", "/no/such/draft")
    assert alarms(judgement) == []
    text = " ".join(judgement.not_checked)
    assert "nobody/no-such-target" in text and "/no/such/draft" in text
