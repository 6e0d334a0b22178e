"""``drafter inspect``: what a draft is, from its headers, and what each engine makes of it."""

import json
from pathlib import Path

import drafter_tiny as tiny
import pytest

from spectune.cli.drafter_inspect import inspection_lines
from spectune.drafter.inspect import Inspection, inspect_draft
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
