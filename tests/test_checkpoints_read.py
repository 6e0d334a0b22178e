"""What the readers make of whole, honest model files."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from healthy.models import eagle3_head, make_model, maps, write_gguf, write_safetensors

from spectune.checkpoints.facts import DeclaredBase
from spectune.checkpoints.read import read_checkpoint
from spectune.errors import BadInput

PACKAGE = Path(__file__).parent.parent / "src" / "spectune"
DRAFT = PACKAGE / "embedded" / "drafts" / "smollm2-135m-eagle3"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}


def test_the_shipped_draft_reads_as_its_readme_describes_it() -> None:
    facts = read_checkpoint(str(DRAFT))
    assert facts.architectures == ("LlamaForCausalLMEagle3",)
    assert (facts.hidden_size, facts.draft_vocab_size, facts.vocab_size) == (576, 8192, 49152)
    fc = facts.tensor("fc.weight")
    assert fc is not None and (fc.shape, fc.dtype) == ((576, 1728), "BF16")
    parameters = 9_808_128  # from the README; d2t and t2d are no parameters
    maps_bytes = 8192 * 8 + 49152
    assert facts.weight_bytes == parameters * 2 + maps_bytes
    assert facts.d2t is not None and facts.t2d is not None
    assert facts.d2t.target_ids_hash == facts.t2d.true_ids_hash
    assert facts.t2d.num_true == 8192
    assert facts.not_read == () and facts.faults == ()
    assert facts.bytes_read < 300_000


def test_the_shipped_gguf_draft_holds_the_same_in_llamacpps_words() -> None:
    folder, gguf = read_checkpoint(str(DRAFT)), read_checkpoint(str(DRAFT / "draft-q8_0.gguf"))
    assert (gguf.kind, gguf.model_type) == ("gguf", "eagle3")
    assert gguf.aux_layers is not None and gguf.aux_layers.ids == (2, 15, 27)
    fc = gguf.tensor("fc.weight")
    assert fc is not None and (fc.shape, fc.dtype) == ((576, 1728), "Q8_0")
    assert gguf.norm_options == {"norm_before_residual": False, "norm_before_fc": False}
    assert gguf.d2t is not None and folder.d2t is not None
    # llama.cpp's converter stores ids where safetensors hold offsets.
    assert gguf.d2t.plain_ids_hash == folder.d2t.target_ids_hash
    assert gguf.tokenizer is not None
    assert (gguf.tokenizer.num_tokens, gguf.tokenizer.pre, gguf.tokenizer.eos) == (49152, "smollm", 2)


def test_a_sharded_model_is_one_set_of_tensors(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        name = f"model-{number:05d}-of-00003.safetensors"
        write_safetensors(tmp_path / name, {f"model.layers.{number}.weight": ("BF16", (4, 4))})
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    facts = read_checkpoint(str(tmp_path))
    assert sorted(facts.tensors or {}) == [f"model.layers.{n}.weight" for n in (1, 2, 3)]
    assert facts.tensors_complete and facts.weight_bytes == 3 * 32


def test_only_the_shards_that_the_index_names_belong_to_the_model(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "weights_a.safetensors", {"a": ("BF16", (4,))})
    write_safetensors(tmp_path / "adapter.safetensors", {"b": ("BF16", (4,))})
    index = {"weight_map": {"a": "weights_a.safetensors", "c": "weights_c.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    facts = read_checkpoint(str(tmp_path))
    assert set(facts.tensors or {}) == {"a"}
    assert not facts.tensors_complete and facts.weight_bytes is None
    assert "weights_c.safetensors" in facts.faults[0]


def test_a_missing_numbered_shard_is_a_fault_without_any_index(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {"a": ("BF16", (4,))})
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert "model-00002-of-00002.safetensors" in read_checkpoint(str(tmp_path)).faults[0]


def test_pickle_files_are_named_and_never_opened(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", LLAMA)
    os.mkfifo(tmp_path / "m" / "training_state.pt")  # opening it would block for ever
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    facts = read_checkpoint(folder)
    assert facts.tensors is None and facts.has_tensor("lm_head.weight") is None
    assert any("pytorch_model.bin" in note and "pickle" in note for note in facts.not_read)


def test_speculators_configurations_are_read_through_their_layer(tmp_path: Path) -> None:
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 50,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 46, 90],
        "transformer_layer_config": {k: v for k, v in LLAMA.items() if k != "architectures"},
        "speculators_config": {"verifier": {"name_or_path": "Qwen/Qwen3-235B-A22B"}},
    }
    facts = read_checkpoint(make_model(tmp_path / "m", config))
    assert (facts.format, facts.speculators_algorithm) == ("speculators", "eagle3")
    assert (facts.hidden_size, facts.num_layers, facts.draft_vocab_size) == (64, 2, 50)
    assert facts.aux_layers is not None and facts.aux_layers.ids == (1, 46, 90)
    assert facts.norm_options == {"norm_before_residual": True}
    where = "config.json: speculators_config.verifier.name_or_path"
    assert facts.base_models == (DeclaredBase("Qwen/Qwen3-235B-A22B", where),)


def test_multimodal_configurations_are_read_through_their_language_model(tmp_path: Path) -> None:
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": LLAMA,
        "vision_config": {"hidden_size": 9},
    }
    facts = read_checkpoint(make_model(tmp_path / "m", config))
    assert facts.architectures == ("KimiK25ForConditionalGeneration",)
    assert facts.hidden_size == 64


@pytest.mark.parametrize(
    ("extra", "attention"),
    [
        ({"layer_types": ["linear_attention", "full_attention"] * 4}, [1, 3, 5, 7]),
        ({"full_attention_interval": 4}, [3, 7]),
        ({"model_type": "qwen3_next"}, [3, 7]),
        ({"hybrid_override_pattern": "M-M*M-M*"}, [3, 7]),
        ({"linear_attn_config": {"full_attn_layers": [4, 8]}}, [3, 7]),
    ],
    ids=["list", "interval", "qwen3-next", "nemotron-h", "kimi-linear"],
)
def test_hybrid_models_name_their_attention_layers(
    tmp_path: Path, extra: dict[str, Any], attention: list[int]
) -> None:
    facts = read_checkpoint(make_model(tmp_path / "m", {**LLAMA, "num_hidden_layers": 8, **extra}))
    assert [i for i, kind in enumerate(facts.layer_types or ()) if kind == "full_attention"] == attention


@pytest.mark.parametrize(
    ("file", "section", "method", "exclude"),
    [
        (
            "config.json",
            {"quant_method": "compressed-tensors", "ignore": ["lm_head"]},
            "compressed-tensors",
            ("lm_head",),
        ),
        ("config.json", {"quant_method": "quark", "exclude": ["a", "b"]}, "quark", ("a", "b")),
        ("config.json", {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["x"]}, "awq", ("x",)),
        (
            "hf_quant_config.json",
            {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["mtp*"]}},
            "nvfp4",
            ("mtp*",),
        ),
        ("quantize_config.json", {"bits": 4, "group_size": 128}, None, ()),
    ],
)
def test_quantisation_is_found_wherever_quantisers_write_it(
    tmp_path: Path, file: str, section: dict[str, Any], method: str | None, exclude: tuple[str, ...]
) -> None:
    config = {**LLAMA, "quantization_config": section} if file == "config.json" else LLAMA
    folder = make_model(tmp_path / "m", config)
    if file != "config.json":
        Path(folder, file).write_text(json.dumps(section))
    found = read_checkpoint(folder).quantization
    assert found is not None and (found.method, found.exclude, found.where) == (method, exclude, file)


def test_the_card_declares_base_and_relation(tmp_path: Path) -> None:
    card = "---\nbase_model:\n- org/base\n- org/other\nbase_model_relation: quantized\n---\n# text\n"
    facts = read_checkpoint(make_model(tmp_path / "m", LLAMA, readme=card))
    assert [base.name for base in facts.base_models] == ["org/base", "org/other"]
    assert all("quantized" in base.where for base in facts.base_models)


def _tokenizer(
    folder: str, vocab: dict[str, int], added: list[dict[str, Any]], *, indent: int | None = None
) -> None:
    merges = [[a, b] for a in vocab for b in ("x", "y")]
    content = {"added_tokens": added, "model": {"type": "BPE", "vocab": vocab, "merges": merges}}
    Path(folder, "tokenizer.json").write_text(json.dumps(content, indent=indent))


def test_the_vocabulary_hash_is_of_tokens_and_ids_not_of_the_files_bytes(tmp_path: Path) -> None:
    vocab = {"vocab": 0, "added_tokens": 1, "a": 2}  # tokens that look like the keys searched for
    added = [{"id": 3, "content": "<eos>", "special": True}]
    folders = [make_model(tmp_path / name, LLAMA) for name in ("a", "b", "c")]
    _tokenizer(folders[0], vocab, added)
    _tokenizer(folders[1], dict(reversed(vocab.items())), added, indent=2)
    _tokenizer(folders[2], {**vocab, "b": 4}, added)
    first, same, other = (read_checkpoint(folder).tokenizer for folder in folders)
    assert first is not None and same is not None and other is not None
    assert first.vocab_hash == same.vocab_hash != other.vocab_hash
    assert first.num_tokens == 4 and first.added_tokens == ((3, "<eos>"),)


def test_a_chat_template_is_the_same_in_either_place(tmp_path: Path) -> None:
    one, two = make_model(tmp_path / "a", LLAMA), make_model(tmp_path / "b", LLAMA)
    Path(one, "chat_template.jinja").write_text("{{ messages }}\n")
    Path(two, "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{{ messages }}", "eos_token": "</s>"})
    )
    first, second = read_checkpoint(one).tokenizer, read_checkpoint(two).tokenizer
    assert first is not None and second is not None
    assert first.chat_template_hash == second.chat_template_hash is not None
    assert second.eos == "</s>"


def test_a_split_gguf_is_one_model(tmp_path: Path) -> None:
    metadata = {"general.architecture": "llama", "llama.block_count": 1}
    for number in (1, 2):
        tensors = {f"blk.{number}.weight": (1, (2, 4))}
        write_gguf(tmp_path / f"m-{number:05d}-of-00002.gguf", metadata, tensors, data_bytes=16)
    facts = read_checkpoint(str(tmp_path / "m-00001-of-00002.gguf"))
    assert set(facts.tensors or {}) == {"blk.1.weight", "blk.2.weight"} and facts.weight_bytes == 32
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    assert "m-00002-of-00002.gguf" in read_checkpoint(str(tmp_path / "m-00001-of-00002.gguf")).faults[0]


def test_values_of_a_gguf_map_are_read(tmp_path: Path) -> None:
    data = maps(20, 100, as_ids=True)["d2t"]
    path = write_gguf(
        tmp_path / "d.gguf",
        {"general.architecture": "eagle3"},
        {"d2t": (27, (20,))},
        data_bytes=160,
        data=data,
    )
    d2t = read_checkpoint(path).d2t
    assert d2t is not None and (d2t.length, d2t.lowest, d2t.num_distinct_as_ids) == (20, 0, 20)


def test_paths_are_taken_from_the_given_folder_and_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eagle3_head(tmp_path / "drafts" / "head", {**LLAMA, "draft_vocab_size": 50})
    monkeypatch.setenv("HOME", str(tmp_path))
    for source, base in (("drafts/head", tmp_path), ("~/drafts/head", None)):
        facts = read_checkpoint(source, base_dir=base)
        assert (facts.kind, facts.source, facts.hidden_size) == ("folder", source, 64)


@pytest.mark.parametrize(
    "source", ["/no/such/model", "./nowhere", "no-such-name", "a/b/c", "~nobody-here/x", "", "x\0y"]
)
def test_a_name_that_leads_nowhere_is_absent_and_says_so(tmp_path: Path, source: str) -> None:
    facts = read_checkpoint(source, base_dir=tmp_path / "empty", network=False)
    assert facts.kind == "absent" and facts.not_read and facts.tensors is None


def test_a_folder_of_ggufs_asks_for_one_of_them(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        write_gguf(tmp_path / name, {"general.architecture": "llama"})
    with pytest.raises(BadInput, match=r"a\.gguf, b\.gguf"):
        read_checkpoint(str(tmp_path))


def test_d2t_is_read_by_its_range_alone(tmp_path: Path) -> None:
    """A head of 1 GB in a sparse file: some kilobytes are read."""
    tensors: dict[str, Any] = {"lm_head.weight": ("BF16", (1000, 500_000)), "d2t": ("I64", (10,))}
    values = {"d2t": struct.pack("<10q", *range(0, 20, 2))}
    facts = read_checkpoint(make_model(tmp_path / "m", LLAMA, tensors, values=values))
    assert facts.d2t is not None and facts.d2t.highest == 18 and facts.bytes_read < 10_000


def test_prediction_layers_are_known_by_name_or_by_their_place_behind_the_last_layer(tmp_path: Path) -> None:
    names = [
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.20.mlp.up_proj.weight",
        "mtp.fc.weight",
        "model.mtp.layers.0.q_proj.weight",
        "model.attempt.weight",
        "x.eh_proj.weight",
        "model.mtp_layers.0.q_proj.weight",
    ]
    tensors: dict[str, Any] = dict.fromkeys(names, ("BF16", (4,)))
    config = {**LLAMA, "num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    facts = read_checkpoint(make_model(tmp_path / "m", config, tensors))
    assert facts.prediction_tensors == {names[1], names[3], names[4], names[6], names[7]}
