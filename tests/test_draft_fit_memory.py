"""Memory of a launch, against figures that were published or follow from the files' own sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
from healthy.models import eagle3_head, make_model, situation

from spectune.checkpoints.read import read_checkpoint
from spectune.preflight.memory.estimate import estimate, kv_bytes_per_token
from spectune.preflight.memory.fit import draft_is_counted, memory_fits

PAIRS = json.loads((Path(__file__).parent / "healthy" / "pairs.json").read_text())
GIB = 2**30
LARGE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def sized(folder: Path, gib: int, config: dict[str, Any] | None = None, dtype: str = "BF16") -> str:
    width = {"BF16": 2, "F32": 4}[dtype]
    return make_model(folder, config or LARGE, {"model.weight": (dtype, (gib * GIB // width // 1024, 1024))})


@pytest.mark.parametrize(
    ("config", "published_bytes"),
    [
        # DeepSeek-AI 2025, "Insights into DeepSeek-V3", table 1: KV cache per token in BF16.
        ({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 70_272),
        (
            {
                "num_hidden_layers": 80,
                "num_key_value_heads": 8,
                "num_attention_heads": 64,
                "hidden_size": 8192,
            },
            327_680,
        ),
        (
            {
                "num_hidden_layers": 126,
                "num_key_value_heads": 8,
                "num_attention_heads": 128,
                "hidden_size": 16384,
            },
            516_096,
        ),
    ],
    ids=["DeepSeek-V3", "Qwen2.5-72B", "Llama-3.1-405B"],
)
def test_kv_cache_per_token_is_the_published_one(
    tmp_path: Path, config: dict[str, Any], published_bytes: int
) -> None:
    facts = read_checkpoint(make_model(tmp_path / "m", config))
    launch = situation("sglang", "none", facts, None)
    assert kv_bytes_per_token(launch, facts, tp=1, pp=1) == published_bytes


def test_grouped_heads_are_divided_and_latent_vectors_are_not(tmp_path: Path) -> None:
    grouped = read_checkpoint(make_model(tmp_path / "g", PAIRS["targets"]["llama-3.1-8b"]))
    latent = read_checkpoint(make_model(tmp_path / "l", PAIRS["targets"]["kimi-k2.5"]))
    launch = situation("sglang", "none", grouped, None)
    assert kv_bytes_per_token(launch, grouped, tp=4, pp=1) == 131_072 / 4
    assert kv_bytes_per_token(launch, grouped, tp=16, pp=1) == 131_072 / 8  # a head is never halved
    assert (
        kv_bytes_per_token(launch, latent, tp=8, pp=1)
        == kv_bytes_per_token(launch, latent, tp=1, pp=1)
        == 70_272
    )


def test_an_eight_bit_cache_takes_half(tmp_path: Path) -> None:
    facts = read_checkpoint(make_model(tmp_path / "m", PAIRS["targets"]["llama-3.1-8b"]))
    for engine, flag in (("sglang", "fp8_e4m3"), ("vllm", "fp8")):
        launch = situation(engine, "none", facts, None, flags={"kv-cache-dtype": flag})
        assert kv_bytes_per_token(launch, facts, tp=1, pp=1) == 65_536


def test_weights_are_divided_by_tensor_parallelism_and_the_draft_by_its_own(tmp_path: Path) -> None:
    target, draft = sized(tmp_path / "t", 8), sized(tmp_path / "d", 2)
    config = json.dumps({"method": "draft_model", "model": draft, "draft_tensor_parallel_size": 1})
    flags: dict[str, Any] = {"tensor-parallel-size": "4", "speculative-config": config}
    known = estimate(situation("vllm", "draft_model", target, draft, flags=flags))
    assert (known.target_weights_bytes, known.draft_weights_bytes, known.devices) == (2 * GIB, 2 * GIB, 4)
    assert "estimate on each of 4 devices" in known.described() and "not counted" in known.described()


def test_b25_weights_that_cannot_fit_are_an_error_with_the_figures(tmp_path: Path) -> None:
    target, draft = sized(tmp_path / "t", 46), sized(tmp_path / "d", 3)
    launch = situation("sglang", "draft_model", target, draft, flags={"mem-fraction-static": "0.85"})
    (finding,) = memory_fits(launch, gpu_memory_bytes=(48 * GIB,)).findings
    assert (finding.code, finding.severity) == ("memory-does-not-fit", "error")
    assert "49.0 GiB" in finding.message and "40.8 GiB (0.85 of 48.0 GiB)" in finding.message
    assert "estimate" in finding.evidence[0].detail


def test_b25_a_fraction_that_is_too_low_names_the_one_that_is_needed(tmp_path: Path) -> None:
    launch = situation(
        "sglang", "none", sized(tmp_path / "t", 36), None, flags={"mem-fraction-static": "0.5"}
    )
    (finding,) = memory_fits(launch, gpu_memory_bytes=(48 * GIB,)).findings
    assert finding.remedy == "raise --mem-fraction-static above 0.75"


@pytest.mark.parametrize(
    ("flags", "memory"),
    [
        ({"tp-size": "2"}, (48 * GIB, 48 * GIB)),
        ({"quantization": "fp8"}, (48 * GIB,)),  # may shrink while loading: not certain
        ({}, (80 * GIB,)),
    ],
)
def test_what_may_fit_is_no_finding(tmp_path: Path, flags: dict[str, Any], memory: tuple[int, ...]) -> None:
    launch = situation("sglang", "none", sized(tmp_path / "t", 60), None, flags=flags)
    assert memory_fits(launch, gpu_memory_bytes=memory).findings == ()


def test_a_32_bit_checkpoint_is_counted_at_16_bits(tmp_path: Path) -> None:
    launch = situation("sglang", "none", sized(tmp_path / "t", 60, dtype="F32"), None)
    assert memory_fits(launch, gpu_memory_bytes=(48 * GIB,)).findings == ()


def test_unknown_memory_offloading_and_unread_headers_are_not_checked(tmp_path: Path) -> None:
    target = sized(tmp_path / "t", 60)
    assert memory_fits(situation("sglang", "none", target, None)).not_checked
    moved = situation("sglang", "none", target, None, flags={"cpu-offload-gb": "40"})
    assert memory_fits(moved, gpu_memory_bytes=(48 * GIB,)).not_checked
    bare = situation("vllm", "none", make_model(tmp_path / "bare", LARGE), None)
    judgement = memory_fits(bare, gpu_memory_bytes=(48 * GIB,))
    assert judgement.not_checked and not judgement.findings


def test_vllm_needs_room_for_one_request_of_full_length(tmp_path: Path) -> None:
    target = sized(tmp_path / "t", 40)  # and 32 KiB of cache per token
    flags: dict[str, Any] = {"max-model-len": str(2**20)}
    launch = situation("vllm", "none", target, None, flags=flags)
    assert memory_fits(launch, gpu_memory_bytes=(48 * GIB,)).findings
    assert not memory_fits(launch, gpu_memory_bytes=(80 * GIB,)).findings


def test_more_gpus_asked_for_than_there_are(tmp_path: Path) -> None:
    launch = situation("vllm", "none", sized(tmp_path / "t", 4), None, flags={"tensor-parallel-size": "8"})
    assert [f.code for f in memory_fits(launch, gpu_memory_bytes=(GIB,) * 4).findings] == ["too-few-gpus"]
    nodes = situation("sglang", "none", sized(tmp_path / "u", 4), None, flags={"tp-size": "8", "nnodes": "2"})
    assert memory_fits(nodes, gpu_memory_bytes=(80 * GIB,) * 4).findings == ()
    (finding,) = memory_fits(nodes, gpu_memory_bytes=(80 * GIB,) * 3).findings
    assert finding.message.endswith("exceed the 3 GPUs of each of 2 nodes like this one")


@pytest.mark.parametrize(("version", "severity"), [("0.4.6", "warning"), ("0.5.23", None), (None, None)])
def test_b24_versions_that_did_not_count_the_draft(
    tmp_path: Path, version: str | None, severity: str | None
) -> None:
    launch = situation(
        "sglang", "draft_model", sized(tmp_path / "t", 8), sized(tmp_path / "d", 8), version=version
    )
    findings = draft_is_counted(launch).findings
    assert [f.severity for f in findings] == ([severity] if severity else [])
    if severity:
        assert "8.0 GiB" in findings[0].message


def test_b24_a_small_draft_is_only_a_note(tmp_path: Path) -> None:
    pair = PAIRS["drafts"]["H13-llama-3.1-8b-specforge"]
    draft = eagle3_head(tmp_path / "d", pair["config"])
    launch = situation("sglang", "eagle3", sized(tmp_path / "t", 8), draft, version="0.4.6")
    assert [f.severity for f in draft_is_counted(launch).findings] == ["note"]


def test_an_eagle3_head_has_the_size_of_the_published_file(tmp_path: Path) -> None:
    """A public training guide gives 811 MB for this head's model.safetensors."""
    pair = PAIRS["drafts"]["H13-llama-3.1-8b-specforge"]
    size = read_checkpoint(eagle3_head(tmp_path / "d", pair["config"])).weight_bytes
    assert size is not None and abs(size - 811e6) < 60e6
