"""Files that lie, break off or are made to harm: one clear message or a note, never a crash, bounded memory."""

import contextlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from healthy.models import make_model, situation, write_gguf, write_safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spectune.checkpoints.read import read_checkpoint
from spectune.errors import BadInput
from spectune.preflight.draft.rules import RULES
from spectune.preflight.memory.estimate import estimate
from spectune.preflight.memory.fit import memory_fits
from spectune.preflight.rules import judge

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def shard(folder: Path, content: bytes) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(content)
    return str(folder)


def header(value: Any, *, length: int | None = None, data: bytes = b"") -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x01",
        header({}, length=2**63),
        header({}, length=500),
        header(b"[" * 100_000),
        header(b"not json"),
        header(b"\xff\xfe{}"),
        header(b"[1, 2]"),
        header(b'{"a": ' + b"9" * 5000 + b"}"),
        header({"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 9]}}, data=b"123456789"),
        header({"a": {"dtype": "BF16", "shape": [-4], "data_offsets": [0, 8]}}, data=b"12345678"),
        header({"a": {"dtype": 5, "shape": "x", "data_offsets": None}}),
        header({"a": {"dtype": "BF16", "shape": [10**30], "data_offsets": [0, 2 * 10**30]}}),
        header({"d2t": {"dtype": "I64", "shape": [0], "data_offsets": [10**30, 10**30]}}),
        header({"d2t": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}, data=b"12345678"),
        header({"a": 5, "b": None, "__metadata__": 7}),
    ],
)
def test_a_lying_shard_header_is_a_fault_or_a_note(tmp_path: Path, content: bytes) -> None:
    facts = read_checkpoint(shard(tmp_path / "m", content))
    assert facts.faults or facts.not_read
    assert facts.hidden_size == 8  # the configuration is read all the same


def test_a_header_that_claims_more_than_the_file_holds_is_damage(tmp_path: Path) -> None:
    for number, length in enumerate((500, 20_000_000, 2**63)):
        facts = read_checkpoint(shard(tmp_path / str(number), header({}, length=length)))
        assert facts.faults and str(length) in facts.faults[0]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b'"text"', b"1" * 5000, b"NaN"]
)
def test_a_configuration_that_is_none_is_bad_input_with_its_file(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_bytes(content)
    with pytest.raises(BadInput, match=r"config\.json"):
        read_checkpoint(str(folder))


def test_wrong_types_in_a_configuration_are_notes_with_key_and_value(tmp_path: Path) -> None:
    config = {
        "hidden_size": "wide",
        "num_hidden_layers": -3,
        "num_attention_heads": 2.5,
        "vocab_size": True,
        "architectures": "LlamaForCausalLM",
        "eagle_config": ["x"],
        "rope_scaling": "yarn",
        "quantization_config": 7,
        "layer_types": [1, 2],
        "max_position_embeddings": 10**400,
        "rope_theta": float("inf"),
        "text_config": "x",
    }
    facts = read_checkpoint(make_model(tmp_path / "m", config))
    notes = "\n".join(facts.not_read)
    for key in ("hidden_size is 'wide'", "num_hidden_layers is -3", "vocab_size is True", "architectures is"):
        assert key in notes
    assert facts.hidden_size is None and facts.architectures == ()


def test_a_link_that_leads_to_itself_and_links_to_nowhere_are_not_followed_for_ever(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(BadInput):
        read_checkpoint(str(loop))
    folder = Path(make_model(tmp_path / "m", CONFIG))
    (folder / "self").symlink_to(folder)
    (folder / "model.safetensors").symlink_to(folder / "model.safetensors")
    (folder / "tokenizer.json").symlink_to("/no/such/file")
    assert read_checkpoint(str(folder)).hidden_size == 8


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "README.md", "config.json"])
def test_pipes_are_never_opened(tmp_path: Path, name: str) -> None:
    folder = Path(make_model(tmp_path / "m", None if name == "config.json" else CONFIG))
    os.mkfifo(folder / name)
    with contextlib.suppress(BadInput):
        read_checkpoint(str(folder))
    with pytest.raises(BadInput, match="neither a file nor a folder"):
        read_checkpoint(str(folder / name))


def test_a_file_nobody_may_read_is_a_message(tmp_path: Path) -> None:
    folder = Path(make_model(tmp_path / "m", CONFIG, {"a": ("BF16", (4,))}))
    (folder / "config.json").chmod(0)
    if os.access(folder / "config.json", os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(BadInput, match="Permission denied"):
        read_checkpoint(str(folder))


def test_a_yaml_bomb_in_a_card_is_harmless(tmp_path: Path) -> None:
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    card = f"---\na0: &a0 [x]\n{levels}base_model: *a11\n---\n"
    assert read_checkpoint(make_model(tmp_path / "m", CONFIG, readme=card)).hidden_size == 8


def gguf_bytes(tmp_path: Path) -> bytes:
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "tokenizer.ggml.tokens": ["a", "b"] * 600,
    }
    path = write_gguf(tmp_path / "whole.gguf", metadata, {"a": (0, (4, 4))}, data_bytes=64)
    return Path(path).read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF",
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60),
        b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
        b"GGUF" + struct.pack(">IQQ", 3, 0, 1),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**50),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 5),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77),
        b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<I", 4_000_000),
    ],
)
def test_a_lying_gguf_is_bad_input_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"m\.gguf"):
        read_checkpoint(str(path))


def test_a_gguf_cut_in_its_weights_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(tmp_path)[:-10])
    assert "10 bytes" in read_checkpoint(str(path)).faults[0]


@FUZZ
@given(data=st.data())
def test_a_gguf_with_any_bytes_changed_or_cut_never_crashes(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(gguf_bytes(tmp_path))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 400))] = data.draw(st.integers(0, 255))
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(BadInput):
        judge_alone(read_checkpoint(str(path)))


@FUZZ
@given(data=st.data())
def test_a_safetensors_file_with_any_bytes_changed_or_cut_never_crashes(
    tmp_path: Path, data: st.DataObject
) -> None:
    whole = tmp_path / "whole.safetensors"
    write_safetensors(whole, {"fc.weight": ("BF16", (8, 24)), "d2t": ("I64", (6,)), "t2d": ("BOOL", (9,))})
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, min(300, len(content) - 1)))] = data.draw(st.integers(0, 255))
    folder = shard(tmp_path / "m", bytes(content[: data.draw(st.integers(0, len(content)))]))
    judge_alone(read_checkpoint(folder))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
KEYS = (
    "architectures",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "draft_vocab_size",
    "eagle_config",
    "dflash_config",
    "block_size",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "max_position_embeddings",
    "quantization_config",
    "text_config",
    "transformer_layer_config",
    "speculators_config",
    "speculators_model_type",
    "num_nextn_predict_layers",
    "target_hidden_size",
    "num_target_layers",
    "kv_lora_rank",
    "eagle_aux_hidden_state_layer_ids",
    "norm_before_residual",
    "full_attention_interval",
    "hybrid_override_pattern",
    "linear_attn_config",
    "base_model",
    "model_type",
    "torch_dtype",
    "num_aux_hidden_states",
)
METHODS = ("eagle", "eagle3", "mtp", "draft_model", "dflash", "dspark")


def judge_alone(facts: Any) -> None:
    """All rules over these facts as target and as draft."""
    for engine in ("sglang", "vllm", "llamacpp"):
        for method in METHODS:
            launch = situation(engine, method, facts, facts, num_draft_tokens=3)
            judge(launch, RULES)
            memory_fits(launch, gpu_memory_bytes=(2**30,))
            estimate(launch).described()


@FUZZ
@given(
    target=st.dictionaries(st.sampled_from(KEYS), JSON), draft=st.dictionaries(st.sampled_from(KEYS), JSON)
)
def test_any_configuration_at_all_is_read_and_judged(
    tmp_path: Path, target: dict[str, Any], draft: dict[str, Any]
) -> None:
    facts = []
    for name, config in (("target", target), ("draft", draft)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        facts.append(read_checkpoint(str(tmp_path / name)))
    for engine in ("sglang", "vllm", "llamacpp"):
        for method in METHODS:
            launch = situation(engine, method, facts[0], facts[1], num_draft_tokens=3)
            judge(launch, RULES)
            memory_fits(launch, gpu_memory_bytes=(2**30,))


@pytest.mark.parametrize("kind", ["header", "config", "tokenizer", "gguf"])
def test_huge_metadata_is_refused_within_bounded_memory(tmp_path: Path, kind: str) -> None:
    """Each file claims or holds gigabytes; the reader may use some hundred megabytes of address space."""
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    source = folder
    if kind == "header":
        with (folder / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", 3 * 2**30))
            file.truncate(4 * 2**30)
    elif kind == "gguf":
        source = folder / "m.gguf"
        with source.open("wb") as file:
            file.write(
                b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 4_000_000)
            )
            file.truncate(4 * 2**30)
    else:
        name = "config.json" if kind == "config" else "tokenizer.json"
        with (folder / name).open("wb") as file:
            file.write(b'{"vocab": {')
            file.truncate(4 * 2**30)
    code = (
        "import resource, sys\n"
        "from spectune.checkpoints.read import read_checkpoint\n"
        "from spectune.errors import BadInput\n"
        "resource.setrlimit(resource.RLIMIT_AS, (900 << 20, 900 << 20))\n"
        "try:\n    print(read_checkpoint(sys.argv[1]).not_read)\n"
        "except BadInput as error:\n    print('BadInput', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(source)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-800:]
    assert "bytes" in done.stdout or "MB" in done.stdout or "BadInput" in done.stdout or kind == "gguf"


def test_what_passes_the_budget_is_a_note_and_the_configuration_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(make_model(tmp_path / "m", CONFIG, {"a": ("BF16", (4,))}))
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {f"t{n}": n for n in range(9000)}}})
    )
    monkeypatch.setattr("spectune.checkpoints.reading.MAX_CHECKPOINT_BYTES", 50_000)
    facts = read_checkpoint(str(folder))
    assert facts.hidden_size == 8 and facts.tensors_complete and facts.bytes_read < 50_000
    assert any("tokenizer.json" in note and "per model" in note for note in facts.not_read)


def test_halves_of_surrogate_pairs_are_replaced_and_whole_pairs_kept(tmp_path: Path) -> None:
    tensor = {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}
    folder = shard(
        tmp_path / "m", header(b'{"\\udfff": ' + json.dumps(tensor).encode() + b"}", data=b"12345678")
    )
    config = '{"architectures": ["\\ud800", "\\ud83d\\ude00"], "model_type": "\\ud800"}'
    (tmp_path / "m" / "config.json").write_text(config)
    facts = read_checkpoint(folder)
    assert facts.architectures == ("\ufffd", "\U0001f600")
    assert (facts.model_type, list(facts.tensors or ())) == ("\ufffd", ["\ufffd"])
