"""``drafter inspect``: what a draft is, from its headers, and what each engine makes of it."""

import json
from dataclasses import replace
from pathlib import Path

import drafter_tiny as tiny
import numpy as np
import pytest
from healthy.models import write_gguf

from spectune.checkpoints import finite
from spectune.checkpoints.read import read_checkpoint
from spectune.cli.drafter.inspect import inspection_lines
from spectune.drafter.inspect import Inspection, inspect_draft, inspect_facts
from spectune.errors import BadInput


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny.write_target(tmp_path / "target")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return tiny.write_draft(tmp_path / "draft")


def view(found: Inspection, engine: str, method: str):
    return next(v for v in found.engines if v.engine == engine and v.method == method)


def test_shapes_parameters_and_size_are_those_of_the_file(draft: Path, target: Path) -> None:
    found = inspect_draft(str(draft), target=str(target))
    parameters = sum(array.size for array in tiny.random_weights().values())
    assert found.method == "eagle3"
    assert found.num_parameters == parameters
    assert found.size_bytes == 2 * parameters + 8 * tiny.DRAFT_VOCAB + tiny.VOCAB
    assert found.dtypes == {"BF16": 13, "I64": 1, "BOOL": 1}
    assert (found.hidden_size, found.num_heads, found.num_kv_heads, found.head_dim) == (64, 4, 2, 16)
    assert (found.own_embeddings, found.own_head) == (False, True)


def test_three_states_and_the_layers_engines_will_take(draft: Path, target: Path) -> None:
    states = inspect_draft(str(draft), target=str(target)).auxiliary_states
    assert (states.count, states.width, states.layer_inputs) == (3, 64, (2, 6, 9))
    assert states.note == "not written: the engines' default"
    assert inspect_draft(str(draft)).auxiliary_states.layer_inputs is None


def test_ids_under_eagle_config_are_outputs(target: Path, tmp_path: Path) -> None:
    section = {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}
    draft = tiny.write_draft(tmp_path / "o", config=tiny.draft_config(eagle_config=section))
    states = inspect_draft(str(draft), target=str(target)).auxiliary_states
    assert (states.ids_as_written, states.layer_inputs) == ((1, 5, 8), (2, 6, 9))
    assert states.where == "eagle_config.eagle_aux_hidden_state_layer_ids"


def test_ids_in_both_places_are_named_and_those_at_the_top_level_are_inputs(
    target: Path, tmp_path: Path
) -> None:
    ids = "eagle_aux_hidden_state_layer_ids"
    config = tiny.draft_config(**{ids: [2, 6, 9], "eagle_config": {ids: [1, 5, 8]}})
    draft = tiny.write_draft(tmp_path / "b", config=config)
    found = inspect_draft(str(draft), target=str(target))
    states = found.auxiliary_states
    assert (states.ids_as_written, states.layer_inputs) == ((2, 6, 9), (2, 6, 9))
    assert states.where == f"{ids} and eagle_config.{ids}"
    assert (view(found, "sglang", "EAGLE3").verdict, view(found, "vllm", "eagle3").verdict) == (
        "fits",
        "fits",
    )
    assert not view(found, "vllm", "eagle3").findings


@pytest.mark.parametrize(("ids_in_d2t", "meaning"), [(False, "offsets"), (True, "ids")])
def test_what_the_map_holds_is_told_by_the_mask(ids_in_d2t: bool, meaning: str, tmp_path: Path) -> None:
    draft = tiny.write_draft(tmp_path / "d", ids_in_d2t=ids_in_d2t)
    vocabulary = inspect_draft(str(draft)).vocabulary
    assert (vocabulary.meaning, vocabulary.draft_size, vocabulary.entries) == (meaning, 288, 288)
    assert vocabulary.coverage_frac == pytest.approx(0.288)


def test_each_engine_is_told_with_the_right_method_and_with_the_wrong_one(draft: Path, target: Path) -> None:
    found = inspect_draft(str(draft), target=str(target))
    assert view(found, "sglang", "EAGLE3").verdict == "fits"
    assert view(found, "vllm", "eagle3").verdict == "fits"
    wrong = view(found, "sglang", "EAGLE")
    assert wrong.verdict == "fails" and not wrong.own_method
    assert [finding.code for finding in wrong.findings] == ["draft-algorithm-mismatch"]
    assert view(found, "llamacpp", "draft-eagle3").verdict == "other-form"


def test_a_map_of_ids_fails_in_the_engines_that_add_offsets(target: Path, tmp_path: Path) -> None:
    draft = tiny.write_draft(tmp_path / "d", ids_in_d2t=True)
    found = inspect_draft(str(draft), target=str(target))
    for engine, method in (("sglang", "EAGLE3"), ("vllm", "eagle3")):
        assert "draft-vocabulary-map" in {finding.code for finding in view(found, engine, method).findings}


def test_an_option_one_engine_ignores_is_a_doubt_there_only(target: Path, tmp_path: Path) -> None:
    draft = tiny.write_draft(tmp_path / "n", config=tiny.draft_config(norm_before_residual=True))
    found = inspect_draft(str(draft), target=str(target))
    assert view(found, "sglang", "EAGLE3").verdict == "doubts"
    assert view(found, "vllm", "eagle3").verdict == "fits"
    assert found.norm_options == {"norm_before_residual": True}


def test_the_words_name_what_matters(draft: Path, target: Path) -> None:
    text = "\n".join(inspection_lines(inspect_draft(str(draft), target=str(target))))
    assert "3 hidden states of 64 from the target: inputs of layers [2, 6, 9]" in text
    assert "288 of 1000 tokens (29%), d2t holds offsets" in text
    assert "SGLang with EAGLE: does not work" in text and "-> use --speculative-algorithm EAGLE3" in text
    assert "vLLM with eagle3: fits" in text


def test_layer_outputs_that_vllm_reads_right_are_told_without_a_contradiction(
    target: Path, tmp_path: Path
) -> None:
    config = tiny.draft_config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 5, 8]})
    draft = tiny.write_draft(tmp_path / "outputs", config=config)
    text = "\n".join(inspection_lines(inspect_draft(str(draft), target=str(target))))
    assert "takes its default, the inputs of layers [2, 6, 9], which is right here" in text
    assert "read the draft's layer outputs [1, 5, 8] as inputs" in text


def test_the_document_is_json_without_nan(draft: Path) -> None:
    body = json.loads(inspect_draft(str(draft)).model_dump_json())
    assert body["schema_version"] == 1 and body["method"] == "eagle3"


def test_pickle_alone_is_refused(tmp_path: Path) -> None:
    folder = tiny.write_target(tmp_path / "p", architectures=["LlamaForCausalLMEagle3"])
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(BadInput, match="pickle files can run code"):
        inspect_draft(str(folder))


def test_a_name_that_leads_nowhere_is_one_error() -> None:
    with pytest.raises(BadInput, match="no such file or folder"):
        inspect_draft("/nowhere/at/all")


def test_a_shard_cut_short_is_a_fault_that_every_engine_stumbles_over(draft: Path, target: Path) -> None:
    file = draft / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-64])
    found = inspect_draft(str(draft), target=str(target))
    assert found.faults and "cut short" in found.faults[0]
    assert view(found, "vllm", "eagle3").verdict == "fails"


def test_a_folder_without_weights_fits_no_engine(draft: Path, target: Path) -> None:
    (draft / "model.safetensors").unlink()
    found = inspect_draft(str(draft), target=str(target))
    own = {v.engine: v.verdict for v in found.engines if v.own_method}
    assert own == {"sglang": "fails", "vllm": "fails", "llamacpp": "other-form"}
    assert "no weight files beside config.json" in "\n".join(inspection_lines(found))


def test_weights_that_were_not_read_fit_no_engine_yet(draft: Path, target: Path) -> None:
    facts = replace(read_checkpoint(str(draft)), kind="hub", tensors=None, tensors_complete=False)
    found = inspect_facts(facts, target=read_checkpoint(str(target)), versions={})
    assert view(found, "vllm", "eagle3").verdict == "unknown"
    assert "vLLM with eagle3: not judged, its weights were not read" in inspection_lines(found)


@pytest.mark.parametrize(
    "name",
    [
        "norm.weight",
        "midlayer.hidden_norm.weight",
        "midlayer.self_attn.v_proj.weight",
        "midlayer.mlp.up_proj.weight",
    ],
)
def test_a_draft_without_one_of_its_parts_does_not_fit_and_it_is_named(
    name: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny, "SHAPES", {n: shape for n, shape in tiny.SHAPES.items() if n != name})
    found = inspect_draft(str(tiny.write_draft(tmp_path / "less")), target=str(target))
    for engine, method in (("sglang", "EAGLE3"), ("vllm", "eagle3")):
        judged = view(found, engine, method)
        assert judged.verdict == "fails"
        assert [f"the draft's files lack {name}"] == [
            f.message for f in judged.findings if f.severity == "error"
        ]


def test_values_that_are_not_finite_are_counted_by_tensor_and_fit_nowhere(
    target: Path, tmp_path: Path
) -> None:
    fusion, norm = np.zeros((64, 192), np.float32), np.ones(64, np.float32)
    fusion[3, 5], fusion[63, 191], norm[0] = np.nan, -np.inf, np.inf
    draft = tiny.write_draft(tmp_path / "nan", **{"fc.weight": fusion, "norm.weight": norm})
    found = inspect_draft(str(draft), target=str(target))
    assert found.not_finite == {"fc.weight": 2, "norm.weight": 1}
    for engine, method in (("sglang", "EAGLE3"), ("vllm", "eagle3")):
        assert view(found, engine, method).verdict == "fails"
    text = "\n".join(inspection_lines(found))
    assert "values     not finite: fc.weight (2), norm.weight (1)" in text
    assert "2 tensors of the draft hold values that are not finite: fc.weight (2), norm.weight (1)" in text


def test_a_healthy_draft_is_said_to_hold_finite_values(draft: Path) -> None:
    found = inspect_draft(str(draft))
    assert found.not_finite == {}
    assert "values     all finite" in "\n".join(inspection_lines(found))


@pytest.mark.parametrize(
    ("dtype", "bits", "broken"),
    [
        ("F32", b"\x00\x00\x80\x7f", b"\x01\x00\x80\xff"),
        ("F64", b"\x00\x00\x00\x00\x00\x00\xf0\x7f", b"\x00\x00\x00\x00\x00\x00\xf8\xff"),
        ("F16", b"\x00\x7c", b"\x01\xfc"),
        ("BF16", b"\x80\x7f", b"\xc0\xff"),
        ("F8_E4M3", b"\x7f", b"\xff"),
        ("F8_E5M2", b"\x7c", b"\xff"),
    ],
)
def test_both_kinds_of_values_are_found_in_every_type_wherever_they_lie(
    dtype: str, bits: bytes, broken: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bits by hand, of infinity and of a NaN; among them the first and the last value of several pieces."""
    monkeypatch.setattr(finite, "_PIECE_BYTES", 64)
    largest = {"F8_E4M3": b"\x7e", "F8_E5M2": b"\x7b"}.get(dtype, b"\x7f" * len(bits))
    largest = {"F16": b"\xff\x7b", "BF16": b"\x7f\x7f", "F32": b"\xff\xff\x7f\x7f"}.get(dtype, largest)
    if dtype == "F64":
        largest = b"\xff\xff\xff\xff\xff\xff\xef\x7f"
    folder = tiny.write_target(tmp_path / dtype)
    body = bits + largest * 98 + broken
    shape = (100,)
    tiny.save_safetensors(
        folder / "model.safetensors",
        {"a": (dtype, shape, body), "b": (dtype, shape, largest * 100), "c": ("I64", (1,), b"\xff" * 8)},
    )
    scan = finite.scan_weights(read_checkpoint(str(folder)))
    assert (scan.not_finite, scan.not_read) == ({"a": 2}, ())


def test_a_scale_that_is_not_finite_is_found_in_a_quantised_gguf(tmp_path: Path) -> None:
    """Two blocks of Q8_0: a half-precision scale and 32 bytes each; the second scale is a NaN."""
    blocks = b"\x00\x3c" + b"\xff" * 32 + b"\x01\x7e" + b"\xff" * 32
    path = write_gguf(
        tmp_path / "d.gguf", {"general.architecture": "eagle3"}, {"a": (8, (64,))}, data_bytes=68, data=blocks
    )
    found = inspect_draft(path)
    assert found.not_finite == {"a": 1}
    judged = view(found, "llamacpp", "draft-eagle3")
    assert judged.verdict == "fails"
    assert any("lack output_norm.weight, blk.0.attn_norm_2.weight" in f.message for f in judged.findings)


@pytest.mark.parametrize("layers", [[1, 3, 5], [2, 6, 9]])
def test_layers_that_no_engine_would_take_are_an_error_before_the_launch(
    layers: list[int], target: Path, tmp_path: Path
) -> None:
    """`drafter train --layers` writes them under a key of its own; engines take the inputs of 2, 6 and 9 of 12."""
    config = tiny.draft_config(spectune_layers_as_inputs=layers)
    found = inspect_draft(str(tiny.write_draft(tmp_path / "draft", config=config)), target=str(target))
    own = {view.engine: view for view in found.engines if view.own_method}
    for engine in ("sglang", "vllm"):
        messages = [finding.message for finding in own[engine].findings]
        if layers == [2, 6, 9]:
            assert (own[engine].verdict, messages) == ("fits", [])
        else:
            assert own[engine].verdict == "fails"
            assert (
                "inputs of layers [2, 6, 9], and the draft was trained on those of [1, 3, 5]" in messages[0]
            )
