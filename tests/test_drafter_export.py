"""Export: the same weights in every form, each with its engine's conventions, checked by other readers."""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import drafter_tiny as tiny
import numpy as np
import pytest

from spectune.drafter.export.gguf import encode_tensor
from spectune.drafter.export.writer import ExportReport, ExportRequest, export_draft
from spectune.drafter.inspect import inspect_draft
from spectune.drafter.weights import read_weights
from spectune.embedded.models import draft_folder, embedded_target_path
from spectune.errors import BadInput, EnvironmentFailed
from spectune.home import data_home

pytestmark = pytest.mark.drafter
LAYERS = (2, 6, 9)
"""Inputs of layers 2, L/2 and L-3 of a target of 12."""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny.write_target(tmp_path / "target")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return tiny.write_draft(tmp_path / "draft")


def export(draft: Path, target: Path, out: Path, *forms: str, **more) -> ExportReport:
    return export_draft(ExportRequest(str(draft), out, str(target), forms=forms or None, **more))


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def values_of(path: Path) -> dict[str, np.ndarray]:
    """By the package safetensors; bf16, which numpy lacks, by hand."""
    safetensors = pytest.importorskip("safetensors")
    found = {}
    for name, info in safetensors.deserialize((path / "model.safetensors").read_bytes()):
        codes = {"BF16": "<u2", "I64": "<i8", "BOOL": "?"}
        array = np.frombuffer(bytes(info["data"]), dtype=codes[info["dtype"]]).reshape(info["shape"])
        found[name] = (array.astype(np.uint32) << 16).view(np.float32) if info["dtype"] == "BF16" else array
    return found


# Safetensors forms


@pytest.mark.parametrize("form", ["sglang", "vllm", "speculators"])
def test_every_value_survives_and_offsets_lead_to_the_same_tokens(
    form: str, draft: Path, target: Path, tmp_path: Path
) -> None:
    export(draft, target, tmp_path / "out", form)
    values = values_of(tmp_path / "out" / form)
    for name, array in tiny.random_weights().items():
        own = name.replace("midlayer.", "layers.0.") if form == "speculators" else name
        assert np.array_equal(values.pop(own), array), name
    assert np.array_equal(values["d2t"] + np.arange(tiny.DRAFT_VOCAB), tiny.target_ids())
    assert np.array_equal(np.flatnonzero(values["t2d"]), tiny.target_ids())
    assert set(values) == {"d2t", "t2d"}


def test_one_folder_serves_sglang_and_both_runners_of_vllm(draft: Path, target: Path, tmp_path: Path) -> None:
    """SGLang reads outputs of layers under ``eagle_config``; vLLM inputs at the top level."""
    export(draft, target, tmp_path / "out")
    sglang, vllm = config_of(tmp_path / "out" / "sglang"), config_of(tmp_path / "out" / "vllm")
    assert sglang == vllm
    assert sglang["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 5, 8]
    assert sglang["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    assert sglang["architectures"] == ["LlamaForCausalLMEagle3"]
    assert inspect_draft(
        str(tmp_path / "out" / "vllm"), target=str(target)
    ).auxiliary_states.layer_inputs == (2, 6, 9)


def test_layers_other_than_the_drafts_own_are_told(draft: Path, target: Path, tmp_path: Path) -> None:
    assert not export(draft, target, tmp_path / "first", "vllm", layers=(1, 2, 3)).notes
    again = tmp_path / "first" / "vllm"
    assert not export(again, target, tmp_path / "same", "sglang", layers=(1, 2, 3)).notes
    (note,) = export(again, target, tmp_path / "other", "sglang", layers=LAYERS).notes
    assert note == "layers [2, 6, 9]: as given; the draft itself says [1, 2, 3]"


def test_a_deepseek_target_gets_inputs_under_sglang_which_adds_nothing_there(
    draft: Path, tmp_path: Path
) -> None:
    target = tiny.write_target(tmp_path / "deepseek", architectures=["DeepseekV3ForCausalLM"])
    export(draft, target, tmp_path / "out", "sglang", layers=(3, 6, 9))
    assert config_of(tmp_path / "out" / "sglang")["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [
        3,
        6,
        9,
    ]


def test_speculators_nests_the_layer_and_writes_what_has_another_default(
    draft: Path, target: Path, tmp_path: Path
) -> None:
    export(draft, target, tmp_path / "out", "speculators", verifier_name="org/model", num_draft_tokens=5)
    config = config_of(tmp_path / "out" / "speculators")
    assert config["speculators_model_type"] == "eagle3"
    assert config["norm_before_residual"] is False
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/model"
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    assert config["transformer_layer_config"]["hidden_size"] == tiny.HIDDEN
    assert config["transformer_layer_config"]["num_hidden_layers"] == 1


@pytest.mark.parametrize("form", ["sglang", "vllm", "speculators"])
def test_an_export_exported_again_is_the_same_draft(
    form: str, draft: Path, target: Path, tmp_path: Path
) -> None:
    export(draft, target, tmp_path / "one")
    again = export(tmp_path / "one" / form, target, tmp_path / "two")
    assert again.layer_inputs == LAYERS
    for other in ("sglang", "vllm", "speculators"):
        first, second = tmp_path / "one" / other, tmp_path / "two" / other
        assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def test_ids_in_the_source_become_offsets(target: Path, tmp_path: Path) -> None:
    wrong = tiny.write_draft(tmp_path / "ids", ids_in_d2t=True)
    export(wrong, target, tmp_path / "out", "vllm")
    values = values_of(tmp_path / "out" / "vllm")
    assert np.array_equal(values["d2t"] + np.arange(tiny.DRAFT_VOCAB), tiny.target_ids())


# GGUF


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("Q8_0", 1 / 254 + 1e-3), ("F16", 1e-3), ("BF16", 0.0), ("F32", 0.0)]
)
def test_gguf_read_by_its_own_package_is_the_same_draft(
    kind: str, tolerance: float, draft: Path, target: Path, tmp_path: Path
) -> None:
    gguf = pytest.importorskip("gguf")
    target_gguf = tiny.write_target_gguf(tmp_path / "target.gguf")
    export(draft, target, tmp_path / "out", "llamacpp", target_gguf=target_gguf, gguf_type=kind)
    reader = gguf.GGUFReader(tmp_path / "out" / f"draft-{kind.lower()}.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    weights = tiny.random_weights()
    names = {
        "fc.weight": "fc.weight",
        "output.weight": "lm_head.weight",
        "output_norm.weight": "norm.weight",
        "blk.0.attn_norm_2.weight": "midlayer.hidden_norm.weight",
        "blk.0.attn_norm.weight": "midlayer.input_layernorm.weight",
        "blk.0.ffn_norm.weight": "midlayer.post_attention_layernorm.weight",
        "blk.0.attn_v.weight": "midlayer.self_attn.v_proj.weight",
        "blk.0.attn_output.weight": "midlayer.self_attn.o_proj.weight",
        "blk.0.ffn_gate.weight": "midlayer.mlp.gate_proj.weight",
        "blk.0.ffn_up.weight": "midlayer.mlp.up_proj.weight",
        "blk.0.ffn_down.weight": "midlayer.mlp.down_proj.weight",
    }
    for name, own in names.items():
        got = gguf.dequantize(tensors[name].data, tensors[name].tensor_type).reshape(weights[own].shape)
        limit = tolerance * np.abs(weights[own]).max() if weights[own].ndim > 1 else 0.0
        assert np.abs(got - weights[own]).max() <= limit, name
    assert np.array_equal(tensors["d2t"].data, tiny.target_ids())
    assert len(tensors) == len(weights) + 1
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["general.architecture"] == "eagle3"
    assert fields["eagle3.target_layers"] == list(LAYERS)
    assert fields["eagle3.norm_before_residual"] is False
    assert fields["tokenizer.ggml.tokens"] == [f"token{number}" for number in range(tiny.VOCAB)]
    assert fields["tokenizer.chat_template"] == "{{ messages }}"


def test_rotary_halves_become_pairs(draft: Path, target: Path, tmp_path: Path) -> None:
    """Row by row: dimension i of a head's first half stands before its partner i of the second half."""
    gguf = pytest.importorskip("gguf")
    target_gguf = tiny.write_target_gguf(tmp_path / "target.gguf")
    export(draft, target, tmp_path / "out", "llamacpp", target_gguf=target_gguf, gguf_type="F32")
    tensors = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "out" / "draft-f32.gguf").tensors}
    for part, heads in (("q", tiny.HEADS), ("k", tiny.KV_HEADS)):
        own = tiny.random_weights()[f"midlayer.self_attn.{part}_proj.weight"]
        wanted = []
        for head in range(heads):
            begin = head * tiny.HEAD_DIM
            for i in range(tiny.HEAD_DIM // 2):
                wanted += [own[begin + i], own[begin + tiny.HEAD_DIM // 2 + i]]
        assert np.array_equal(tensors[f"blk.0.attn_{part}.weight"].reshape(own.shape), np.stack(wanted))


@pytest.mark.parametrize("kind", ["Q8_0", "F16", "BF16"])
def test_encoding_is_that_of_the_gguf_package_to_the_byte(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    values = np.random.default_rng(3).normal(size=(64, 96), scale=0.3).astype(np.float32)
    values[0, :32] = 0
    values[1, :4] = (0.5, -0.5, 127.0, -127.0)
    wanted = gguf.quantize(values, getattr(gguf.GGMLQuantizationType, kind))
    assert encode_tensor(values, kind).data == wanted.tobytes()


def test_the_shipped_draft_exports_to_the_gguf_that_ships_beside_it(target: Path, tmp_path: Path) -> None:
    """That file was made by llama.cpp's own converter, or by this export; tensors must agree to the byte."""
    gguf = pytest.importorskip("gguf")
    shipped, target_gguf = draft_folder(), embedded_target_path(data_home())
    if not (shipped / "draft-q8_0.gguf").is_file() or not target_gguf.is_file():
        pytest.skip("needs the shipped draft and the embedded target")
    export_draft(
        ExportRequest(
            str(shipped), tmp_path / "out", str(target_gguf), target_gguf=target_gguf, forms=("llamacpp",)
        )
    )
    ours = gguf.GGUFReader(tmp_path / "out" / "draft-q8_0.gguf")
    theirs = gguf.GGUFReader(shipped / "draft-q8_0.gguf")
    own = {tensor.name: tensor for tensor in ours.tensors}
    assert set(own) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        assert own[tensor.name].tensor_type == tensor.tensor_type
        assert np.array_equal(np.asarray(own[tensor.name].data), np.asarray(tensor.data)), tensor.name
    for key, field in theirs.fields.items():
        if key.startswith(("eagle3.", "tokenizer.", "general.file_type", "general.quantization_version")):
            assert ours.fields[key].contents() == field.contents(), key


@pytest.mark.embedded
def test_llamacpp_loads_the_exported_file_and_keeps_some_of_its_drafts(tmp_path: Path) -> None:
    target_gguf = embedded_target_path(data_home())
    if not target_gguf.is_file() or not (draft_folder() / "config.json").is_file():
        pytest.skip("needs the shipped draft and the embedded target")
    export_draft(
        ExportRequest(
            str(draft_folder()), tmp_path, str(target_gguf), target_gguf=target_gguf, forms=("llamacpp",)
        )
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(
            sys.executable,
            "-m",
            "spectune.embedded.llama_server",
            "-m",
            str(target_gguf),
            "-t",
            "1",
            "-c",
            "1024",
        ),
        *("-md", str(tmp_path / "draft-q8_0.gguf"), "--spec-type", "draft-eagle3", "--spec-draft-n-max", "3"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        timings = _ask(server, f"http://127.0.0.1:{port}", tmp_path / "log")
    finally:
        server.terminate()
        server.wait(30)
    assert timings["predicted_n"] == 48
    # A dead draft of this shape keeps none; measured here 0.16 of those drafted.
    assert timings["draft_n_accepted"] >= 5


def _ask(server: subprocess.Popen, url: str, log: Path) -> dict:
    body = {
        "messages": [{"role": "user", "content": "Explain how bread is made."}],
        "max_tokens": 48,
        "temperature": 0,
    }
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    deadline = time.monotonic() + 90
    while not re.search(rb"listening on", log.read_bytes()):
        assert server.poll() is None, log.read_text(errors="replace")[-2000:]
        assert time.monotonic() < deadline, "it did not start in time"
        time.sleep(0.1)
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)["timings"]


# Bad input


def test_pickle_is_refused_and_never_opened(target: Path, tmp_path: Path) -> None:
    folder = tiny.write_target(tmp_path / "pickle", architectures=["LlamaForCausalLMEagle3"])
    mark = tmp_path / "ran"
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.")
    with pytest.raises(
        BadInput, match=r"pickle files can run code.*convert the weights to safetensors first"
    ):
        export(folder, target, tmp_path / "out")
    assert not mark.exists()


def test_a_draft_for_another_width_is_refused(draft: Path, tmp_path: Path) -> None:
    other = tiny.write_target(tmp_path / "other", hidden_size=80)
    with pytest.raises(BadInput, match="no whole number of states of 80"):
        export(draft, other, tmp_path / "out")


def test_a_norm_that_sglang_does_not_know_is_refused_there_and_kept_for_vllm(
    target: Path, tmp_path: Path
) -> None:
    draft = tiny.write_draft(tmp_path / "norm", config=tiny.draft_config(norm_before_residual=True))
    with pytest.raises(
        BadInput, match=r"sglang: the engine would not serve(.|\n)*ignores norm_before_residual"
    ):
        export(draft, target, tmp_path / "out", "sglang")
    assert list((tmp_path / "out").iterdir()) == []
    export(draft, target, tmp_path / "out", "vllm", "speculators")
    assert config_of(tmp_path / "out" / "vllm")["norm_before_residual"] is True
    assert config_of(tmp_path / "out" / "speculators")["norm_before_residual"] is True


def test_a_tensor_that_llamacpp_has_no_place_for_is_refused(target: Path, tmp_path: Path) -> None:
    draft = tiny.write_draft(
        tmp_path / "more", **{"midlayer.self_attn.q_norm.weight": np.ones(16, np.float32)}
    )
    target_gguf = tiny.write_target_gguf(tmp_path / "target.gguf")
    with pytest.raises(BadInput, match=r"llama.cpp has no place for midlayer.self_attn.q_norm.weight"):
        export(draft, target, tmp_path / "out", "llamacpp", target_gguf=target_gguf)


@pytest.mark.parametrize(
    ("section", "key"), [("self_attn.q_proj", "attention_bias"), ("mlp.up_proj", "mlp_bias")]
)
def test_biases_are_exported_only_if_the_configuration_announces_them(
    section: str, key: str, target: Path, tmp_path: Path
) -> None:
    """Engines drop biases of a layer that they build without."""
    parts = (
        ["q_proj", "k_proj", "v_proj"] if key == "attention_bias" else ["gate_proj", "up_proj", "down_proj"]
    )
    place = section.partition(".")[0]
    biases = {
        f"midlayer.{place}.{part}.bias": np.ones(
            tiny.SHAPES[f"midlayer.{place}.{part}.weight"][0], np.float32
        )
        for part in parts
    }
    silent = tiny.write_draft(tmp_path / "silent", config=tiny.draft_config(**{key: False}), **biases)
    with pytest.raises(BadInput, match=rf"{key} is not true, and the draft has .*midlayer.{section}.bias"):
        export(silent, target, tmp_path / "out", "vllm")
    assert not (tmp_path / "out").exists()
    said = tiny.write_draft(tmp_path / "said", config=tiny.draft_config(**{key: True}), **biases)
    export(said, target, tmp_path / "out", "vllm")
    assert config_of(tmp_path / "out" / "vllm")[key] is True
    assert f"midlayer.{section}.bias" in values_of(tmp_path / "out" / "vllm")


def test_a_target_without_its_configuration_is_refused(draft: Path, target: Path, tmp_path: Path) -> None:
    """Weights alone do not say of how many layers and tokens they are."""
    (target / "config.json").unlink()
    tiny.save_safetensors(target / "model.safetensors", {"model.norm.weight": ("BF16", (64,), b"\0" * 128)})
    with pytest.raises(BadInput, match=r"--target .*target: no config.json.*give a folder with config.json"):
        export(draft, target, tmp_path / "out", "vllm")
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_replaced_only_when_asked(draft: Path, target: Path, tmp_path: Path) -> None:
    export(draft, target, tmp_path / "out", "vllm")
    with pytest.raises(BadInput, match="exists; give --force"):
        export(draft, target, tmp_path / "out", "vllm")
    export(draft, target, tmp_path / "out", "vllm", force=True)
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == [
        "config.json",
        "model.safetensors",
        "vllm",
    ]
    notes = tmp_path / "out" / "vllm" / "notes.md"
    notes.touch()
    with pytest.raises(BadInput, match=r"holds notes\.md"):
        export(draft, target, tmp_path / "out", "vllm", force=True)
    assert notes.exists()


def test_a_cut_source_is_one_error(draft: Path, target: Path, tmp_path: Path) -> None:
    file = draft / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadInput, match="cut short, 100 bytes"):
        export(draft, target, tmp_path / "out")


def test_no_room_is_one_error_and_nothing_half_written(draft: Path, target: Path, tmp_path: Path) -> None:
    """A file-size limit ends the write in its middle, as a full disk does."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from pathlib import Path\n"
        "from spectune.drafter.export.writer import ExportRequest, export_draft\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "export_draft(ExportRequest(sys.argv[1], Path(sys.argv[3]), sys.argv[2], forms=('vllm',)))"
    )
    command = [sys.executable, "-c", code, str(draft), str(target), str(tmp_path / "out")]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (
        EnvironmentFailed.__name__ in failed.stderr
        and "could not be written: File too large" in failed.stderr
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_gguf_without_the_targets_tokenizer_says_what_is_missing(
    draft: Path, target: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="needs --target-gguf"):
        export(draft, target, tmp_path / "out", "llamacpp")
    assert "llama.cpp: not made" in " ".join(export(draft, target, tmp_path / "out").notes)


def test_weights_are_mapped_and_not_copied(draft: Path) -> None:
    assert all(weight.data.base is not None for weight in read_weights(draft).values())


def test_a_form_that_cannot_be_made_leaves_the_others_unmade(target: Path, tmp_path: Path) -> None:
    """vLLM would take it; that SGLang does not is said before anything is in place, so the command can be repeated."""
    draft = tiny.write_draft(tmp_path / "norm", config=tiny.draft_config(norm_before_residual=True))
    with pytest.raises(BadInput, match="sglang: the engine would not serve"):
        export(draft, target, tmp_path / "out", "vllm", "sglang")
    assert list((tmp_path / "out").iterdir()) == []
    export(draft, target, tmp_path / "out", "speculators")
    with pytest.raises(BadInput, match="speculators: exists"):
        export(draft, target, tmp_path / "out", "vllm", "speculators")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["speculators"]


def test_a_folder_that_no_export_has_made_is_never_replaced(
    draft: Path, target: Path, tmp_path: Path
) -> None:
    """The engine's own source may lie there under the engine's name."""
    (tmp_path / "out" / "vllm").mkdir(parents=True)
    (tmp_path / "out" / "vllm" / "setup.py").write_text("mine")
    with pytest.raises(BadInput, match="vllm: not an exported draft, so it is not replaced"):
        export(draft, target, tmp_path / "out", "vllm", force=True)
    assert (tmp_path / "out" / "vllm" / "setup.py").read_text() == "mine"


def test_an_empty_choice_of_forms_is_refused(draft: Path, target: Path, tmp_path: Path) -> None:
    request = ExportRequest(str(draft), tmp_path / "out", str(target), forms=())
    with pytest.raises(BadInput, match="--for: names nothing; valid are sglang, vllm, speculators, llamacpp"):
        export_draft(request)
