"""YAML that makes PyYAML itself fail is a mistake with a place, wherever it is read."""

import time
from pathlib import Path

import pytest

from spectune.checkpoints.reading import LocalFiles
from spectune.checkpoints.readme import read_bases
from spectune.cli.main import main
from spectune.domain.yaml_values import NotYaml, yaml_values
from spectune.errors import BadInput, StudyFileError
from spectune.exchange.imports.read import read_results
from spectune.exchange.imports.results import ArmHints
from spectune.preflight.command.config_file import config_words
from spectune.preflight.flags.table import table_for
from spectune.study_file.load import load_study_file
from spectune.study_file.yaml_lines import read_yaml

GOOD = "question: q\nengine: llamacpp\ntarget: m.gguf\narms:\n  - {method: ngram, num_draft_tokens: 4}\n"

FAILS_IN_PYYAML = {
    "a truth that is none": "!!bool maybe",
    "an empty integer": "!!int ''",
    "an empty float": "!!float ''",
    "5,000 digits": "9" * 5000,
    "a character beyond Unicode": '"\\U00110000"',
    "a character beyond 32 bits": '"\\UFFFFFFFF"',
    "5,000 hexadecimal digits": "0x" + "f" * 5000,
    "a list that is a word": "!!str [1]",
}


@pytest.mark.parametrize("value", FAILS_IN_PYYAML.values(), ids=FAILS_IN_PYYAML)
class TestAValueThatCannotBeRead:
    def test_is_a_problem_of_the_study_file(self, value: str, tmp_path: Path) -> None:
        file = tmp_path / "study.yaml"
        file.write_text(f"{GOOD}repetitions: {value}\n")
        with pytest.raises(StudyFileError, match="1 problem"):
            load_study_file(file)

    def test_is_a_mistake_of_set(
        self, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "study.yaml"
        file.write_text(GOOD)
        assert main(["plan", str(file), "--set", f"repetitions={value}"]) == 2
        said = capsys.readouterr().err
        assert "--set repetitions=" in said and len(said) < 400

    def test_leaves_a_model_without_what_its_card_declares(self, value: str, tmp_path: Path) -> None:
        (tmp_path / "README.md").write_text(f"---\nbase_model: a/b\nx: {value}\n---\n")
        assert {base.name for base in read_bases(LocalFiles(tmp_path))} <= {"a/b"}

    def test_is_a_mistake_of_a_file_of_flags(self, value: str, tmp_path: Path) -> None:
        file = tmp_path / "flags.yaml"
        file.write_text(f"port: {value}\n")
        try:
            config_words(str(file), table_for("vllm"))
        except BadInput as error:
            assert str(error).startswith(f"--config {file}: ")

    def test_is_a_mistake_of_a_result_to_import(self, value: str, tmp_path: Path) -> None:
        file = tmp_path / "golden.yaml"
        file.write_text(f"m:\n  thinking_on:\n    3: {value}\n")
        with pytest.raises(BadInput):
            read_results([file], names={}, form="auto", hints=ArmHints())


def test_a_fault_keeps_its_line() -> None:
    with pytest.raises(StudyFileError) as caught:
        read_yaml("a: 1\nb: !!bool maybe\n", name="f")
    assert [(p.line, p.where) for p in caught.value.problems] == [(2, "b")]


def test_half_of_a_character_is_refused_where_no_file_could_hold_it() -> None:
    with pytest.raises(StudyFileError):
        read_yaml('a: "\\ud800"', name="f")


@pytest.mark.parametrize("text", ["1:30", "22:22", "190:20:30.15", "1:" * 400 + "1."])
def test_what_yaml_counts_in_sixties_is_a_word(text: str) -> None:
    assert read_yaml(f"a: {text}", name="f").value == {"a": text}


def test_sixties_beyond_a_float_are_no_traceback() -> None:
    with pytest.raises(NotYaml):
        yaml_values("a: " + "1:" * 400 + "1.5")


def test_many_mistakes_are_counted_fifty_listed_and_the_valid_keys_said_once(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(GOOD + "".join(f"k{i}: 1\n" for i in range(900)))
    with pytest.raises(StudyFileError) as caught:
        load_study_file(file)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith(": 900 problems")
    assert len(lines) == 52 and lines[-1] == "  and 850 more"
    assert "k49" in lines[50]
    assert [("valid here" in line) for line in lines[1:51]] == [True, *[False] * 49]


@pytest.mark.parametrize("place", ["", "workload:\n", "engine:\n"], ids=["top", "workload", "engine"])
def test_fifty_thousand_keys_are_one_short_mistake_said_at_once(place: str, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(place + "".join(f"{' ' if place else ''}k{i}: 1\n" for i in range(50_000)))
    started = time.process_time()
    with pytest.raises(StudyFileError) as caught:
        load_study_file(file)
    assert time.process_time() - started < 1
    assert len(str(caught.value)) < 300
    assert f"line {1000 + bool(place)}: YAML: more than 1000 keys in one mapping" in str(caught.value)


def test_a_long_list_is_no_mistake() -> None:
    text = "prompts:\n" + "- {id: a, text: b}\n" * 2000
    assert len(read_yaml(text, name="x").value["prompts"]) == 2000


def test_a_place_beyond_every_list_is_a_mistake_of_set(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(GOOD)
    with pytest.raises(BadInput, match="no place in a list of 1"):
        load_study_file(file, overrides=["arms." + "9" * 5000 + ".method=ngram"])
