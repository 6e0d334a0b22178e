"""``spectune check``: what it reads, how it says it, and how it answers to bad input."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from check_running import alarms, check, codes
from healthy.models import eagle3_head, make_model

from spectune.check.check import CheckResult, check_command, check_study
from spectune.check.sources import Sources
from spectune.cli.main import main
from spectune.domain.machine import Machine
from spectune.errors import BadInput
from spectune.home import data_home
from spectune.hosts.facts import Gpu
from spectune.preflight.versions import ask_installed
from spectune.runner.plan import resolve_study
from spectune.store.study_dir import StudyDir
from spectune.study_file.load import load_study_file

PAIRS = json.loads((Path(__file__).parent / "healthy" / "pairs.json").read_text())
DEMO = Path(__file__).parent.parent / "src" / "spectune" / "demo" / "study.yaml"
STUDY = """\
question: Which chain is fastest?
engine: {{name: sglang, python: {python}, flags: {flags}}}
target: {target}
drafter: {draft}
arms:
  - {{name: k2, method: {method}, num_draft_tokens: 2}}
  - {{name: k3, method: {method}, num_draft_tokens: 3}}
  - {{name: ngram, method: ngram, num_draft_tokens: 4}}
workload: {{prompts: builtin, num_prompts: 2, max_tokens: 8, concurrency: [2]}}
"""
MACHINE = Machine(hostname="lab", os="Linux", cpu=None, cores=2, memory_bytes=None, gpus=(), python="3.11")


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    target = make_model(tmp_path / "target", PAIRS["targets"]["qwen3-8b"])
    return target, eagle3_head(tmp_path / "draft", PAIRS["drafts"]["H11-qwen3-8b"]["config"])


def study_file(folder: Path, models: tuple[str, str], *, method: str = "eagle3", flags: str = "{}") -> Path:
    path = folder / "study.yaml"
    target, draft = models
    text = STUDY.format(python=sys.executable, target=target, draft=draft, method=method, flags=flags)
    path.write_text(text, encoding="utf-8")
    return path


def checked(path: Path, *, gpus: tuple[Gpu, ...] | None = (), **options: Any) -> CheckResult:
    spec, _, document = load_study_file(path, overrides=options.pop("overrides", ()))
    study = resolve_study(spec, document, path=path, machine=MACHINE)
    sources = Sources(home=data_home(), network=False, files_here=study.host == "local")
    return check_study(study, sources, gpus=gpus, **options)


class TestAStudy:
    def test_a_sound_one_has_no_alarm_and_says_what_it_read(
        self, tmp_path: Path, models: tuple[str, str]
    ) -> None:
        code, document = check(str(study_file(tmp_path, models)), "--engine-version", "0.5.23")
        assert (code, alarms(document)) == (0, [])
        facts = document["facts"]
        assert [launch["name"] for launch in facts["launches"]] == ["baseline", "k2", "k3", "ngram"]
        assert facts["engine"] == {"name": "sglang", "version": "0.5.23", "how": "--engine-version"}
        assert {m["reference"]: m["kind"] for m in facts["models"]} == dict.fromkeys(models, "folder")
        assert facts["bytes_read"] == sum(m["bytes_read"] for m in facts["models"]) > 0
        assert facts["workload"]["max_concurrency"] == 2

    def test_what_holds_for_several_arms_is_said_once_with_their_names(
        self, tmp_path: Path, models: tuple[str, str]
    ) -> None:
        result = checked(study_file(tmp_path, models, method="eagle"))
        (error,) = result.errors()
        assert (error.code, error.subject) == ("draft-algorithm-mismatch", "k2 and k3")
        by_name = {launch["name"]: launch["arm_id"] for launch in result.facts["launches"]}
        holding = {arm_id for arm_id, found in result.by_arm.items() if error in found}
        assert holding == {by_name["k2"], by_name["k3"]}

    def test_what_could_not_be_checked_of_some_arms_names_them(
        self, tmp_path: Path, models: tuple[str, str]
    ) -> None:
        reasons = checked(study_file(tmp_path, models)).not_checked
        (base,) = [reason for reason in reasons if "declares no base model" in reason]
        assert base.endswith("(k2 and k3)")

    def test_a_secret_of_the_engines_settings_is_in_no_part_of_the_result(
        self, tmp_path: Path, models: tuple[str, str]
    ) -> None:
        spec, _, document = load_study_file(study_file(tmp_path, models))
        study = resolve_study(spec, document, path=tmp_path / "study.yaml", machine=MACHINE)
        engine = study.engine.model_copy(
            update={"flags": {"api-key": "sk-private"}, "env": {"HF_TOKEN": "hf_private"}}
        )
        sources = Sources(home=tmp_path, network=False, run=lambda argv: None)
        result = check_study(study.model_copy(update={"engine": engine}), sources, gpus=())
        assert "private" not in json.dumps(result.document())
        assert "api-key-set" in {f.code for f in result.findings}

    def test_a_study_directory_is_checked_as_it_stands(self, tmp_path: Path, models: tuple[str, str]) -> None:
        spec, _, document = load_study_file(study_file(tmp_path, models, method="eagle"))
        study = resolve_study(spec, document, path=tmp_path / "study.yaml", machine=MACHINE)
        StudyDir.create(tmp_path / "out", study=study, source="")
        code, found = check(str(tmp_path / "out"))
        assert code == 1 and codes(found, "error") == ["draft-algorithm-mismatch"]

    def test_only_the_arms_asked_for_are_judged(self, tmp_path: Path, models: tuple[str, str]) -> None:
        spec, _, document = load_study_file(study_file(tmp_path, models, method="eagle"))
        study = resolve_study(spec, document, path=tmp_path / "study.yaml", machine=MACHINE)
        sources = Sources(home=tmp_path, network=False)
        assert check_study(study, sources, arms=[study.baseline], gpus=()).errors() == ()

    def test_the_program_is_asked_for_its_version_once(self, tmp_path: Path, models: tuple[str, str]) -> None:
        asked: list[tuple[str, ...]] = []

        def run(argv: Any) -> str:
            asked.append(tuple(argv))
            return "0.5.23\n"

        spec, _, document = load_study_file(study_file(tmp_path, models))
        study = resolve_study(spec, document, path=tmp_path / "study.yaml", machine=MACHINE)
        result = check_study(study, Sources(home=tmp_path, network=False, run=run), gpus=())
        assert len(asked) == 1 and asked[0][0] == sys.executable
        assert result.facts["engine"]["version"] == "0.5.23"

    def test_the_gpus_that_the_servers_variables_leave_are_counted(
        self, tmp_path: Path, models: tuple[str, str]
    ) -> None:
        two = tuple(Gpu(i, f"GPU-{i}", "H100", "1", 0, 81_559, None) for i in range(2))
        path = study_file(tmp_path, models, flags="{tp-size: 2}")
        assert checked(path, gpus=two).errors() == ()
        one = checked(path, gpus=two, overrides=["engine.env={CUDA_VISIBLE_DEVICES: '1'}"])
        assert [f.code for f in one.errors()] == ["too-few-gpus"]

    def test_an_exported_variable_counts_and_the_servers_own_comes_first(
        self, tmp_path: Path, models: tuple[str, str]
    ) -> None:
        two = tuple(Gpu(i, f"GPU-{i}", "H100", "1", 0, 81_559, None) for i in range(2))
        path, exported = study_file(tmp_path, models, flags="{tp-size: 2}"), {"CUDA_VISIBLE_DEVICES": "1"}
        assert [f.code for f in checked(path, gpus=two, exported=exported).errors()] == ["too-few-gpus"]
        both = ["engine.env={CUDA_VISIBLE_DEVICES: '0,1'}"]
        assert checked(path, gpus=two, exported=exported, overrides=both).errors() == ()

    def test_another_host_leaves_paths_versions_and_memory_unchecked(
        self, tmp_path: Path, models: tuple[str, str]
    ) -> None:
        result = checked(study_file(tmp_path, models, method="eagle"), gpus=None, overrides=["host=me@gpu"])
        text = "\n".join(result.not_checked)
        assert "on the study's host, not on this machine" in text
        assert "engine version unknown" in text and "the GPUs' memory is not known" in text
        assert result.facts["bytes_read"] == 0 and result.facts["machine"] is None

    def test_a_folder_that_is_no_model_is_an_error(self, tmp_path: Path, models: tuple[str, str]) -> None:
        (tmp_path / "empty").mkdir()
        result = checked(study_file(tmp_path, (models[0], str(tmp_path / "empty"))))
        (error,) = result.errors()
        assert error.code == "model-not-readable" and "not a model folder" in error.message

    def test_an_engine_without_rules_is_said_to_be_unchecked(self, tmp_path: Path) -> None:
        path = tmp_path / "study.yaml"
        path.write_text(
            "question: q\nengine: fake\ntarget: t\narms:\n"
            "  - {method: ngram, num_draft_tokens: 2}\nworkload: {prompts: builtin, num_prompts: 1}\n"
        )
        code, document = check(str(path))
        assert code == 0 and document["findings"] == []
        assert document["not_checked"] == ["everything: there are no rules for the engine fake"]

    def test_the_demo_is_checked_within_a_second_of_processor_time(self) -> None:
        spec, _, document = load_study_file(DEMO)
        study = resolve_study(spec, document, path=DEMO, machine=MACHINE)
        sources = Sources(home=data_home(), network=False)
        began = time.process_time()
        result = check_study(study, sources, gpus=())
        assert time.process_time() - began < 1.0
        assert [f for f in result.findings if f.severity != "note"] == []
        assert str(result.facts["engine"]["version"]).startswith("xllamacpp ")

    @pytest.mark.parametrize("engine", ["llamacpp", "vllm", "sglang"])
    def test_the_demo_has_no_alarm_on_any_engine(self, engine: str) -> None:
        result = checked(DEMO, overrides=[f"engine={{name: {engine}, python: {sys.executable}}}"])
        assert [f for f in result.findings if f.severity != "note"] == []

    def test_built_in_models_that_are_not_here_are_not_fetched(self, tmp_path: Path) -> None:
        spec, _, document = load_study_file(DEMO)
        study = resolve_study(spec, document, path=DEMO, machine=MACHINE)
        result = check_study(study, Sources(home=tmp_path, network=False), gpus=())
        assert "built in, and not fetched yet" in "\n".join(result.not_checked)
        assert list(tmp_path.iterdir()) == []


class TestACommand:
    BAD = 'vllm serve d/m --speculative-config \'{"method":"eagle3","model":"d/e"}\' --api-key sk-private'

    def test_words_one_text_and_standard_input_say_the_same(self) -> None:
        words = ["sglang", "serve", "--model-path", "m", "--speculative-algorithm", "EAGLE3"]
        forms = [
            check("--", *words),
            check("--", " ".join(words)),
            check("-", stdin="$ " + " \\\n  ".join(words) + "\n"),
        ]
        assert {code for code, _ in forms} == {1}
        findings = [document["findings"] for _, document in forms]
        assert findings[0] == findings[1] == findings[2]
        assert "draft-missing" in codes(forms[0][1], "error")

    def test_a_secret_is_in_no_form_of_the_result(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = "HF_TOKEN=hf_private " + self.BAD
        assert main(["check", "--offline", "--json", "--", text]) == 1
        assert main(["check", "--offline", "--", text]) == 1
        shown = capsys.readouterr()
        assert "private" not in shown.out + shown.err

    def test_allowed_errors_do_not_fail(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check", "--offline", "--allow", "num-speculative-tokens-missing", "--", self.BAD]) == 0
        assert "allowed: num-speculative-tokens-missing" in capsys.readouterr().out

    def test_names_that_lead_nowhere_are_not_checked_and_no_failure(self) -> None:
        code, document = check("--", "vllm", "serve", "nobody/nothing")
        assert code == 0 and document["findings"] == []
        assert any("nobody/nothing" in reason for reason in document["not_checked"])

    def test_memory_is_judged_only_where_the_machine_is_meant(self, models: tuple[str, str]) -> None:
        words = ["vllm", "serve", models[0], "-tp", "8"]
        sources = Sources(home=data_home(), network=False, run=lambda argv: None)
        assert check_command(words, sources).errors() == ()
        one = (Gpu(0, "GPU-0", "H100", "1", 0, 81_559, None),)
        assert [f.code for f in check_command(words, sources, gpus=one).errors()] == ["too-few-gpus"]

    @pytest.mark.parametrize(
        ("front", "is_enough"),
        [
            ("", False),
            ("CUDA_VISIBLE_DEVICES=0,1 ", True),
            ("env -u CUDA_VISIBLE_DEVICES ", True),
            ("env -i PATH=/bin ", True),
            ("nohup nice -n 5 ", False),
            ("sudo ", True),  # the usual settings of sudo take the variable out
            ("sudo -E ", False),
            ("docker run --gpus all vllm/vllm-openai ", True),
            ("docker run --gpus device=0 vllm/vllm-openai ", False),
            ("docker run --gpus '\"device=0,1\"' vllm/vllm-openai ", True),
            ("sudo docker run --rm --gpus=1 vllm/vllm-openai ", False),
            ("docker run --gpus device=$GPU vllm/vllm-openai ", True),
            ("docker exec server ", True),
        ],
    )
    def test_the_devices_that_a_command_could_use_are_counted(
        self, models: tuple[str, str], front: str, is_enough: bool
    ) -> None:
        two = tuple(Gpu(i, f"GPU-{i}", "H100", "1", 0, 81_559, None) for i in range(2))
        result = check_command(
            f"{front}vllm serve {models[0]} -tp 2",
            Sources(home=data_home(), network=False, run=lambda argv: None),
            gpus=two,
            exported={"CUDA_VISIBLE_DEVICES": "1"},
        )
        assert [f.code for f in result.errors()] == ([] if is_enough else ["too-few-gpus"])

    def test_a_relative_program_of_a_pasted_text_is_not_started(self, tmp_path: Path) -> None:
        asked: list[Any] = []
        sources = Sources(home=tmp_path, network=False, run=asked.append)
        check_command("./bin/python -m vllm serve m", sources)
        assert asked == []

    def test_escape_sequences_of_a_name_reach_no_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        main(["check", "--offline", "--", "vllm serve 'm\x1b[31m/x' --enforce-eagar"])
        shown = capsys.readouterr().out
        assert "enforce-eager" in shown and "\x1b" not in shown

    def test_the_last_line_counts(self, capsys: pytest.CaptureFixture[str]) -> None:
        main(["check", "--offline", "--", self.BAD])
        assert capsys.readouterr().out.splitlines()[-1].startswith("1 error, 0 warnings, 1 note, ")


class TestBadInput:
    @pytest.mark.parametrize(
        ("args", "words"),
        [
            (["no-such-study.yaml"], "no-such-study.yaml"),
            (["studies/none"], "no such study file or study directory"),
            (["--", "make", "coffee"], "no server that is known"),
            (["--set", "a=b", "--", "vllm", "serve", "m"], "--set goes with a study file"),
            (["--allow", "draft-missin", "--", "vllm", "serve", "m"], "near: draft-missing"),
            (["--", "  "], "empty"),
        ],
    )
    def test_it_is_said_and_the_exit_code_is_2(
        self, args: list[str], words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["check", *args]) == 2
        assert words in capsys.readouterr().err

    def test_a_command_without_dashes_in_front_is_pointed_to_them(self) -> None:
        reply = subprocess.run(
            [sys.executable, "-m", "spectune", "check", "vllm", "serve", "m", "--port", "1"],
            capture_output=True,
            text=True,
        )
        assert reply.returncode == 2 and "spectune check [options] -- CMD" in reply.stderr


def test_the_embedded_launchers_interpreter_is_asked_for_its_package() -> None:
    assert ask_installed("llamacpp", python="p", run=lambda argv: "2026.10.11549\n") == (
        "xllamacpp 2026.10.11549"
    )
    assert ask_installed("llamacpp", python="p", run=lambda argv: "") is None


def test_refusals_are_bad_input() -> None:
    with pytest.raises(BadInput, match="no server that is known"):
        check_command("true", Sources(home=data_home(), network=False))
