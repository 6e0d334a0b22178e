"""Published drafts beside their targets, through the whole of check: files, flags and their writing. No alarm."""

import json
from pathlib import Path
from typing import Any

import pytest
from check_running import alarms, check
from healthy.models import eagle3_head, make_model, write_gguf
from test_draft_fit_healthy import IDS_ONLY_SGLANG_READS

PAIRS = json.loads((Path(__file__).parent / "healthy" / "pairs.json").read_text())
SGLANG_METHODS = {"eagle3": "EAGLE3", "dflash": "DFLASH"}


def draft_of(folder: Path, name: str) -> tuple[str, str, dict[str, Any]]:
    pair = PAIRS["drafts"][name]
    target = make_model(folder / "target", PAIRS["targets"][pair["target"]])
    make = eagle3_head if pair.get("tensors", True) else make_model
    return target, make(folder / "draft", pair["config"]), pair


def on_sglang(folder: Path, name: str) -> list[str]:
    target, draft, pair = draft_of(folder, name)
    method = pair.get("method", "eagle3")
    words = ["sglang", "serve", "--model-path", target, "--speculative-algorithm", SGLANG_METHODS[method]]
    words += ["--speculative-draft-model-path", draft, "--trust-remote-code"]
    if method == "eagle3":
        words += ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", "4"]
    limit = pair["config"].get("max_position_embeddings")
    return [*words, "--context-length", str(limit)] if limit else words


def on_vllm(folder: Path, name: str) -> list[str]:
    target, draft, pair = draft_of(folder, name)
    method = pair.get("method", "eagle3")
    tokens = pair["config"].get("block_size", 4) - 1
    config = {"method": method, "model": draft, "num_speculative_tokens": tokens}
    return ["vllm", "serve", target, "--trust-remote-code", "--speculative-config", json.dumps(config)]


def plain_sglang(folder: Path, name: str) -> list[str]:
    target = make_model(folder / "target", PAIRS["targets"][name])
    return ["python3", "-m", "sglang.launch_server", "--model-path", target, "--tp", "8", "--port", "30000"]


def ngram_vllm(folder: Path, name: str) -> list[str]:
    target = make_model(folder / "target", PAIRS["targets"][name])
    config = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'
    return ["vllm", "serve", target, "-tp", "4", "--speculative-config", config]


def llamacpp(folder: Path, name: str) -> list[str]:
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 30,
        "llama.embedding_length": 576,
        "llama.context_length": 8192,
        "llama.attention.head_count": 9,
    }
    target = write_gguf(folder / "m.gguf", metadata)
    return ["llama-server", "-m", target, *name.split()]


INPUTS = [
    *((on_sglang, name) for name in PAIRS["drafts"]),
    *((on_vllm, name) for name in PAIRS["drafts"] if name not in IDS_ONLY_SGLANG_READS),
    *((plain_sglang, name) for name in PAIRS["targets"]),
    *((ngram_vllm, name) for name in PAIRS["targets"]),
    (llamacpp, "-c 8192 -np 2 -ngl 99"),
    (llamacpp, "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8"),
]


def test_there_are_at_least_forty_healthy_inputs_that_are_files_and_flags() -> None:
    assert len({(make.__name__, name) for make, name in INPUTS}) == len(INPUTS) >= 40


@pytest.mark.parametrize(("make", "name"), INPUTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_healthy_launch_is_read_and_gives_no_alarm(tmp_path: Path, make: Any, name: str) -> None:
    code, document = check("--", *make(tmp_path, name))
    assert (code, alarms(document)) == (0, [])
    models = document["facts"]["models"]
    assert models and all(model["kind"] in ("folder", "gguf") for model in models)
