"""Every mistake of a study file comes out at once, each with its line and what would be right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spectune.cli.main import main
from spectune.domain.machine import Machine
from spectune.errors import BadInput, StudyFileError
from spectune.runner.plan import name_from, resolve_study
from spectune.study_file.load import apply_override, load_study_file, valid_keys

GOOD = """\
question: Which chain length is fastest?
engine: llamacpp
target: model.gguf
drafter: draft.gguf
arms:
  - {method: ngram, num_draft_tokens: 4}
  - {method: eagle3, num_draft_tokens: 3}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(tmp_path: Path, text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(StudyFileError) as caught:
        load_study_file(write(tmp_path, text))
    return [(p.line, p.where, p.message) for p in caught.value.problems]


def test_a_good_file_is_read(tmp_path: Path) -> None:
    spec, text, _ = load_study_file(write(tmp_path, GOOD))
    assert text == GOOD
    assert spec.engine.name == "llamacpp"
    assert [arm.method for arm in spec.arms] == ["ngram", "eagle3"]
    assert spec.target.for_format("gguf") == "model.gguf"


def test_five_mistakes_are_five_problems_with_their_lines(tmp_path: Path) -> None:
    text = """\
question: five mistakes
engine:
  name: vlm
  pyton: /usr/bin/python3
target: model.gguf
arms:
  - method: eagle3
    num_speculative_tokens: 3
    num_steps: 0
workload:
  concurrency: [1, zero]
"""
    found = problems_of(tmp_path, text)
    assert [(line, where) for line, where, _ in found] == [
        (3, "engine.name"),
        (4, "engine.pyton"),
        (8, "arms.0.num_speculative_tokens"),
        (9, "arms.0.num_steps"),
        (11, "workload.concurrency.1"),
    ]
    messages = [message for _, _, message in found]
    assert "'vlm'" in messages[0] and "llamacpp, sglang, vllm" in messages[0]
    assert "did you mean python?" in messages[1]
    assert "did you mean num_draft_tokens?" in messages[2]
    assert "got 0" in messages[3]
    assert "'zero'" in messages[4]


def test_unknown_keys_list_the_valid_ones(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, GOOD + "zzz: 1\n")
    assert problem[0] == 8
    for key in ("question", "engine", "target", "arms", "factors", "workload", "repetitions", "budget"):
        assert key in problem[2]


def test_missing_keys_are_named(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "engine: llamacpp\n")
    assert {where for _, where, _ in found} == {"question", "target"}
    assert all("is missing" in message for _, _, message in found)


def test_a_method_the_engine_does_not_know_lists_its_methods(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, GOOD.replace("eagle3", "eagel3"))
    assert problem[:2] == (7, "arms.1.method")
    assert "eagle3" in problem[2] and "llamacpp" in problem[2]


def test_arms_of_other_engines_may_use_their_methods(tmp_path: Path) -> None:
    text = GOOD + "  - {method: suffix, num_draft_tokens: 3, only_engines: [vllm]}\n"
    spec, _, _ = load_study_file(write(tmp_path, text))
    assert spec.arms[2].only_engines == ("vllm",)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("question: a\n\tengine: b\n", 2, "tabs"),
        ("question: [1, 2\nengine: b\n", 2, "expected"),
        ("question: a\nquestion: b\n", 2, "given twice (first on line 1)"),
        ("", 1, "is empty"),
        ("- a\n- b\n", 1, "must be a mapping"),
        ("a: &a [*a]\n", 1, "deep"),
        ("[" * 5000, None, "nested too deeply"),
        ("question: !!binary /////w==\n", 1, "not a plain value"),
        ("question: !!python/object/apply:os.system [ls]\n", 1, "not a plain value"),
    ],
)
def test_broken_yaml_is_one_clear_problem(tmp_path: Path, text: str, line: int | None, words: str) -> None:
    found = problems_of(tmp_path, text)
    assert found[0][0] == line
    assert words in found[0][2]


def test_an_alias_bomb_is_refused_quickly(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    found = problems_of(tmp_path, "\n".join(levels) + "\n")
    assert "more than" in found[0][2]


def test_a_binary_file_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(b"\xff\xfe\x00question")
    with pytest.raises(BadInput, match="not a text file"):
        load_study_file(path)


@pytest.mark.parametrize("command", ["check", "plan", "run", "explain --table"])
def test_a_device_without_an_end_is_bad_input(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "/dev/zero"]) == 2
    assert re.match(r"spectune: /dev/zero: more than \d+ bytes", capsys.readouterr().err)


def test_a_missing_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read it: No such file"):
        load_study_file(tmp_path / "none.yaml")


def test_overrides_replace_values_before_validation(tmp_path: Path) -> None:
    overrides = ["engine=vllm", "workload.max_tokens=32", "engine.python=/venv/bin/python", "engine.env.A=1"]
    spec, _, _ = load_study_file(write(tmp_path, GOOD), overrides=overrides)
    assert spec.engine.name == "vllm"
    assert spec.engine.python == "/venv/bin/python"
    assert spec.engine.env == {"A": "1"}
    assert spec.workload.max_tokens == 32


@pytest.mark.parametrize("override", ["engine", "=x", "a=[1", "a=" + "[" * 3000, "arms.7.topk=1", "arms.x=1"])
def test_a_malformed_override_is_bad_input(override: str) -> None:
    with pytest.raises(BadInput, match="--set"):
        apply_override({"arms": [{"method": "ngram"}]}, override)


def test_an_override_reaches_into_lists_and_takes_a_date_as_a_word() -> None:
    value = {"arms": [{"method": "ngram"}, {"method": "eagle3"}]}
    apply_override(value, "arms.1.num_draft_tokens=5")
    apply_override(value, "name=2026-13-45")
    assert value == {
        "arms": [{"method": "ngram"}, {"method": "eagle3", "num_draft_tokens": 5}],
        "name": "2026-13-45",
    }


@pytest.mark.parametrize(
    ("name", "expected"), [("a b<x>.yaml", "a-b-x"), ("...yaml", "study"), ("k25.yaml", "k25")]
)
def test_a_studys_default_name_is_never_a_path(name: str, expected: str) -> None:
    assert name_from(Path(name)) == expected


def test_no_prompts_is_a_problem_of_the_file(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, GOOD + "workload: {prompts: []}\n")
    assert problem[1] == "workload.prompts"


def test_one_way_to_start_an_engine(tmp_path: Path) -> None:
    text = GOOD.replace("engine: llamacpp", "engine: {name: llamacpp, python: /p, executable: llama-server}")
    (problem,) = problems_of(tmp_path, text)
    assert "give one of python, executable, command" in problem[2]


def test_factors_need_known_names_and_a_method(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("arms:")] + "factors: {num_draft_tokens: [1, 2], metod: [eagle3]}\n"
    (problem,) = problems_of(tmp_path, text)
    assert "unknown factor 'metod'" in problem[2]
    text = GOOD[: GOOD.index("arms:")] + "factors: {num_draft_tokens: [1, 2]}\n"
    (problem,) = problems_of(tmp_path, text)
    assert "factors need a method" in problem[2]


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ("method: [eagle3], flags.: [1]", "factor 'flags.' names nothing, e.g. flags.NAME"),
        ("method: [eagle3], request.: [1]", "factor 'request.' names nothing, e.g. request.NAME"),
        ("method: [eagle3], num_draft_tokens: [3, 3]", "'num_draft_tokens' has the value 3 twice"),
    ],
)
def test_a_factor_without_a_name_or_with_a_value_twice_is_named(
    tmp_path: Path, factors: str, words: str
) -> None:
    (problem,) = problems_of(tmp_path, GOOD[: GOOD.index("arms:")] + f"factors: {{{factors}}}\n")
    assert words in problem[2]


def test_a_value_that_no_arm_can_have_is_one_plain_problem(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("arms:")] + (
        "factors: {method: [eagle3], num_draft_tokens: [-1, 2], cuda_graphs: [true, false, maybe]}\n"
    )
    spec, _, document = load_study_file(write(tmp_path, text))
    machine = Machine(hostname="h", os="?", cpu=None, cores=None, memory_bytes=None, gpus=None, python="?")
    with pytest.raises(StudyFileError) as caught:
        resolve_study(spec, document, path=tmp_path / "study.yaml", machine=machine)
    assert sorted(p.message for p in caught.value.problems) == [
        "cuda_graphs: Input should be a valid boolean, unable to interpret input, got 'maybe'",
        "num_draft_tokens: Input should be greater than or equal to 1, got -1",
    ]


@pytest.mark.parametrize(
    ("where", "given"),
    [
        ("repetitions", "repetitions: yes"),
        ("precision", "precision: on"),
        ("margin", "margin: false"),
        ("soak_s", "soak_s: true"),
        ("budget.max_trials", "budget: {max_trials: true}"),
        ("budget.max_minutes", "budget: {max_minutes: on}"),
        ("workload.seed", "workload: {seed: no}"),
        ("workload.temperature", "workload: {temperature: off}"),
        ("workload.concurrency", "workload: {concurrency: [4, true]}"),
        ("workload.request_rate", "workload: {request_rate: yes}"),
        ("engines.vllm.ready_timeout_s", "engines: {vllm: {ready_timeout_s: yes}}"),
        ("ray.resources", "host: ray\nray: {resources: {H100: true}}"),
    ],
)
def test_truth_values_are_no_numbers(tmp_path: Path, where: str, given: str) -> None:
    (problem,) = problems_of(tmp_path, f"{GOOD}{given}\n")
    assert problem[1] == where
    assert problem[2].startswith("a number is wanted, got true or false; YAML reads yes, no, on and off")


@pytest.mark.parametrize("factor", ["num_draft_tokens", "num_steps", "topk"])
def test_truth_values_are_no_values_of_a_numeric_factor(tmp_path: Path, factor: str) -> None:
    (problem,) = problems_of(tmp_path, GOOD + f"  - {{method: mtp, {factor}: yes}}\n")
    assert problem[1] == f"arms.2.{factor}" and "a number is wanted" in problem[2]
    text = GOOD[: GOOD.index("arms:")] + f"factors: {{method: [eagle3], {factor}: [true, 2]}}\n"
    spec, _, document = load_study_file(write(tmp_path, text))
    machine = Machine(hostname="h", os="?", cpu=None, cores=None, memory_bytes=None, gpus=None, python="?")
    with pytest.raises(StudyFileError) as caught:
        resolve_study(spec, document, path=tmp_path / "study.yaml", machine=machine)
    assert any(p.message.startswith(f"{factor}: a number is wanted") for p in caught.value.problems)


def test_truth_values_stay_what_they_are_where_they_mean_something(tmp_path: Path) -> None:
    text = GOOD.replace(
        "num_draft_tokens: 4}", "num_draft_tokens: 4, cuda_graphs: no, flags: {a: true, b: 1}}"
    )
    spec, _, _ = load_study_file(write(tmp_path, text + "noise_floor: off\n"))
    assert spec.arms[0].cuda_graphs is False and spec.noise_floor is False
    assert spec.arms[0].flags == {"a": True, "b": 1} and spec.arms[0].flags["a"] is True


def test_a_load_point_given_twice_is_refused(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, GOOD + "workload: {concurrency: [1, 4, 1]}\n")
    assert problem[1:] == ("workload.concurrency", "1 is there twice; each load point is measured once")


def test_every_combination_has_a_name_of_its_own(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("arms:")].replace("llamacpp", "vllm") + (
        "factors: {method: [eagle3], drafter: [one/a, two/b], cuda_graphs: [true, null], flags.x-n: [1], "
        "flags.y-n: [1, 2]}\n"
    )
    spec, _, document = load_study_file(write(tmp_path, text))
    machine = Machine(hostname="h", os="?", cpu=None, cores=None, memory_bytes=None, gpus=None, python="?")
    study = resolve_study(spec, document, path=tmp_path / "study.yaml", machine=machine)
    names = [arm.name for arm in study.arms]
    assert names[:5] == [
        "baseline",
        "eagle3-n=1-n=1-a-graphs",
        "eagle3-n=1-n=2-a-graphs",
        "eagle3-n=1-n=1-a",
        "eagle3-n=1-n=2-a",
    ]
    assert len(set(names)) == len(names) == 9
    assert {arm.knobs.drafter for arm in study.arms[1:]} == {"one/a", "two/b"}


def test_combinations_that_still_share_a_name_are_numbered(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("arms:")] + f"factors: {{method: [ngram], flags.{'x' * 70}: [1, 2]}}\n"
    spec, _, document = load_study_file(write(tmp_path, text))
    machine = Machine(hostname="h", os="?", cpu=None, cores=None, memory_bytes=None, gpus=None, python="?")
    study = resolve_study(spec, document, path=tmp_path / "study.yaml", machine=machine)
    first, second = (arm.name for arm in study.arms[1:])
    assert first.startswith("ngram-xxx") and second == f"{first[:56]}-2"


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        (
            "method: eagle3, num_draft_tokens: 2, synthetic_acceptance_rates: [1.5, 0.2]",
            "less than or equal to 1",
        ),
        ("method: none, synthetic_acceptance_length: 2", "plain decoding drafts nothing to accept"),
        ("method: none, synthetic_acceptance_rates: [0.5]", "plain decoding drafts nothing to accept"),
    ],
)
def test_acceptance_that_cannot_be_imposed_is_refused(tmp_path: Path, arm: str, words: str) -> None:
    (problem,) = problems_of(tmp_path, GOOD[: GOOD.index("arms:")] + f"arms: [{{{arm}}}]\n")
    assert words in problem[2]


def test_valid_keys_follow_lists_and_optional_models() -> None:
    assert "num_draft_tokens" in valid_keys(("arms", 0))
    assert valid_keys(("arms", 0, "drafter")) == ["any", "gguf", "hf"]
    assert "python" in valid_keys(("engines", "vllm")) or valid_keys(("engines",))


def test_the_reference_is_made_from_the_schema_as_it_is() -> None:
    root = Path(__file__).parent.parent
    reply = subprocess.run([sys.executable, str(root / "tools" / "make_docs.py"), "--check"])
    assert reply.returncode == 0, "run tools/make_docs.py"
