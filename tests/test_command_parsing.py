"""Commands as people paste them: what is read, and what is refused."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.engines.registry import adapter_for
from spectune.errors import BadInput
from spectune.preflight.command.reading import read_command
from spectune.preflight.command.text import read_text
from spectune.preflight.flags.form import judge_form
from spectune.preflight.flags.rules import judge_flags
from spectune.preflight.flags.table import table_for
from spectune.preflight.versions import ask_installed, is_older, resolve_version, run_bounded


def form_codes(text: str) -> dict[str, str]:
    findings = judge_form(read_command(text)).findings
    return {
        finding.code: finding.severity for finding in findings if finding.code != "container-without-volume"
    }


# --- programs and wrappers ---


@pytest.mark.parametrize(
    ("text", "engine", "target"),
    [
        ("vllm serve Qwen/Qwen3-8B", "vllm", "Qwen/Qwen3-8B"),
        ("vllm serve --model Qwen/Qwen3-8B", "vllm", "Qwen/Qwen3-8B"),
        ("/opt/v/bin/vllm serve --port 1234 Qwen/Qwen3-8B", "vllm", "Qwen/Qwen3-8B"),
        ("python3 -m vllm.entrypoints.openai.api_server --model=a/b", "vllm", "a/b"),
        ("python -u -X dev -m sglang.launch_server --model-path a/b", "sglang", "a/b"),
        ("python3.11 -m sglang.launch_server --model a/b", "sglang", "a/b"),
        ("sglang serve --model-path a/b", "sglang", "a/b"),
        ("sglang serve a/b", "sglang", "a/b"),
        ("python -m vllm serve a/b", "vllm", "a/b"),
        ("llama-server -m x.gguf", "llamacpp", "x.gguf"),
        ("./build/bin/llama-server -hf ggml-org/gemma:Q4_K_M", "llamacpp", "ggml-org/gemma:Q4_K_M"),
        (r'"build\bin\llama-server.exe" -m x.gguf', "llamacpp", "x.gguf"),
        ("llama-cli -m x.gguf -md d.gguf", "llamacpp", "x.gguf"),
        ("CUDA_VISIBLE_DEVICES=0,1 nohup vllm serve a/b > log 2>&1 &", "vllm", "a/b"),
        ("sudo -E -u me env -u X FOO=1 numactl --cpunodebind=0 -m 0 vllm serve a/b", "vllm", "a/b"),
        ("timeout 60 taskset -c 0-7 nice -n 5 llama-server -m x.gguf", "llamacpp", "x.gguf"),
        ("uv run --with x vllm serve a/b", "vllm", "a/b"),
        ("srun --gpus 8 -N 1 python -m sglang.launch_server --model-path a/b", "sglang", "a/b"),
        ("bash -lc 'cd /x && vllm serve a/b --port 9000'", "vllm", "a/b"),
        ("vllm serve a/b | tee server.log", "vllm", "a/b"),
        ("$ vllm serve a/b", "vllm", "a/b"),
        ("pip install vllm\n# then\nvllm serve a/b\n", "vllm", "a/b"),
        ("export M=a/b\nvllm serve $M", "vllm", "a/b"),
        ("vllm serve ${MODEL:-a/b}", "vllm", "a/b"),
    ],
)
def test_a_server_is_found_behind_whatever_stands_before_it(text: str, engine: str, target: str) -> None:
    command = read_command(text)
    assert (command.engine, command.target) == (engine, target)


@pytest.mark.parametrize(
    ("text", "engine", "target", "hint"),
    [
        (
            "docker run --runtime nvidia --gpus all -v ~/.cache:/cache -p 8000:8000 --ipc=host "
            "vllm/vllm-openai:v0.11.0 --model a/b",
            "vllm",
            "a/b",
            "0.11.0",
        ),
        (
            "docker run --gpus all --shm-size 32g -p 30000:30000 --env 'HF_TOKEN=x' --ipc=host "
            "lmsysorg/sglang:v0.5.9-cu130 python3 -m sglang.launch_server --model-path a/b --host 0.0.0.0",
            "sglang",
            "a/b",
            "0.5.9",
        ),
        (
            "podman run -it --rm --device nvidia.com/gpu=all -p 8080:8080 ghcr.io/ggml-org/llama.cpp:server-cuda-b8407 "
            "-m /models/x.gguf --port 8080",
            "llamacpp",
            "/models/x.gguf",
            "b8407",
        ),
        ("docker run ghcr.io/ggml-org/llama.cpp:full --server -m x.gguf", "llamacpp", "x.gguf", None),
        ("docker run --entrypoint vllm x/y:z serve a/b", "vllm", "a/b", None),
        ("docker compose -f c.yml run --rm api vllm serve a/b", "vllm", "a/b", None),
        ("sudo docker run -d --name s -e A=1 vllm/vllm-openai:latest serve a/b", "vllm", "a/b", None),
    ],
)
def test_a_container_command_is_read_with_its_image(
    text: str, engine: str, target: str, hint: str | None
) -> None:
    command = read_command(text)
    assert (command.engine, command.target, command.version_hint) == (engine, target, hint)
    assert command.python is None
    assert command.container is not None


def test_variables_of_the_host_do_not_reach_a_container() -> None:
    text = "A=1 docker run -e B=2 -e A -eC=3 vllm/vllm-openai --model m"
    assert dict(read_command(text).env) == {"A": "1", "B": "2", "C": "3"}
    assert dict(read_command("A=1 docker run vllm/vllm-openai --model m").env) == {}


@pytest.mark.parametrize("text", ["", "# nothing", "ls -l", "python train.py", "vllm bench serve --model x"])
def test_an_unknown_program_is_refused_with_what_is_understood(text: str) -> None:
    with pytest.raises(BadInput, match="llama-server"):
        read_command(text)


def test_an_open_quote_is_refused_with_its_line() -> None:
    with pytest.raises(BadInput, match="line 2"):
        read_command('vllm serve a/b \\\n --speculative-config \'{"method": "ngram"}\n')


# --- words and values ---


def test_a_command_over_several_lines_with_comments_and_json() -> None:
    command = read_command(
        """
        # EAGLE-3
        export CUDA_VISIBLE_DEVICES=0
        VLLM_USE_V1=1 \\
        vllm serve meta/llama \\
          --tensor-parallel-size 2 \\
          --speculative-config '{
              "method": "eagle3", "model": "d/e",
              "num_speculative_tokens": 3}' \\
          --max-model-len=4096   # as trained
        """
    )
    assert command.target == "meta/llama"
    assert command.draft == "d/e"
    assert command.flags["max-model-len"] == "4096"
    assert command.flags["tensor-parallel-size"] == "2"
    assert (command.knobs.method, command.knobs.num_draft_tokens) == ("eagle3", 3)
    assert dict(command.env) == {"CUDA_VISIBLE_DEVICES": "0", "VLLM_USE_V1": "1"}


def test_an_argument_list_is_taken_as_it_is() -> None:
    command = read_command(["vllm", "serve", "a b", "--chat-template", "$x; rm -rf"])
    assert command.target == "a b"
    assert command.flags["chat-template"] == "$x; rm -rf"


def test_what_only_a_shell_knows_is_not_guessed() -> None:
    command = read_command("vllm serve $MODEL --port $(free-port) --tensor-parallel-size `nproc`")
    assert command.target is None
    assert command.flags["port"] is None
    assert command.flags["tensor-parallel-size"] is None
    assert len(command.not_read) == 3 - 1  # the model is positional and has no flag
    assert judge_form(command).findings == ()


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("--tp 4", "tp-size"),
        ("--tensor-parallel-size 4", "tp-size"),
        ("--speculative-algo EAGLE3", "speculative-algorithm"),
        ("--speculative-draft-model d", "speculative-draft-model-path"),
        ("--mem-frac 0.7", "mem-fraction-static"),
    ],
)
def test_sglang_flags_may_be_shortened_as_argparse_allows(written: str, canonical: str) -> None:
    command = read_command(f"sglang serve --model-path m {written}")
    assert command.flags[canonical] == written.split()[1]


def test_a_beginning_that_fits_several_flags_is_an_error() -> None:
    text = "sglang serve --model-path m --speculative-num 3"
    assert form_codes(text) == {"flag-ambiguous": "error"}


def test_vllm_takes_underscores_and_short_names() -> None:
    command = read_command("vllm serve m -tp 2 --max_model_len 4k --gpu_memory_utilization=0.8 -O3 -q fp8")
    assert command.flags["tensor-parallel-size"] == "2"
    assert command.flags["max-model-len"] == "4k"
    assert command.flags["gpu-memory-utilization"] == "0.8"
    assert command.flags["optimization-level"] == "3"
    assert command.flags["quantization"] == "fp8"


def test_vllm_switches_have_a_no_form() -> None:
    command = read_command("vllm serve m --no-async-scheduling --enforce-eager")
    assert command.flags["async-scheduling"] is False
    assert command.flags["enforce-eager"] is True


def test_dotted_keys_are_one_json_value() -> None:
    command = read_command(
        "vllm serve m --speculative-config.method eagle3 --speculative_config.model d/e "
        "--speculative-config.num_speculative_tokens=5"
    )
    assert (
        command.flags["speculative-config"]
        == '{"method": "eagle3", "model": "d/e", "num_speculative_tokens": 5}'
    )
    assert command.draft == "d/e"


def test_keys_in_two_spellings_do_not_add_up() -> None:
    # measured: vllm 0.32.0 answers "num_speculative_tokens was provided but without speculative model"
    text = "vllm serve m --speculative-config.method eagle3 --speculative-config.model d -sc.num_speculative_tokens 3"
    assert read_command(text).flags["speculative-config"] == '{"num_speculative_tokens": 3}'
    assert form_codes(text) == {"speculative-config-replaced": "warning"}


def test_llama_server_takes_the_word_behind_a_flag_even_with_a_dash() -> None:
    command = read_command("llama-server -m x.gguf -c -1 -ngl 99 -fa on --no-mmap -md d.gguf --ctx_size 4096")
    assert command.flags["ctx-size"] == "4096"
    assert command.flags["gpu-layers"] == "99"
    assert command.draft == "d.gguf"


def test_llama_server_knows_no_equals_sign() -> None:
    assert read_command("llama-server -m x.gguf --port=80").arguments.unknown == ["port="]


def test_llama_server_reads_variables_and_flags_win() -> None:
    command = read_command(
        "LLAMA_ARG_CTX_SIZE=1 LLAMA_ARG_SPEC_TYPE=draft-eagle3 llama-server -m x.gguf -c 2"
    )
    assert command.flags["ctx-size"] == "2"
    assert command.knobs.method == "eagle3"


def test_negative_numbers_are_values() -> None:
    command = read_command("sglang serve --model-path m --chunked-prefill-size -1 --mem-fraction-static .7")
    assert command.flags["chunked-prefill-size"] == "-1"
    assert command.flags["mem-fraction-static"] == ".7"


def test_flags_that_take_several_words() -> None:
    command = read_command("sglang serve --model-path m --cuda-graph-bs-decode 1 2 4 --tp 2")
    assert command.flags["cuda-graph-bs-decode"] == "1 2 4"
    assert command.flags["tp-size"] == "2"


def test_a_repeated_flag_keeps_its_last_value_and_is_reported() -> None:
    text = "vllm serve m --port 8000 --port 9000"
    assert read_command(text).flags["port"] == "9000"
    assert form_codes(text) == {"flag-repeated": "warning"}
    assert form_codes("vllm serve m --port 8000 --port 8000") == {"flag-repeated": "note"}


def test_a_repeated_secret_is_not_shown() -> None:
    text = "sglang serve --model-path m --admin-api-key s3cret --admin-api-key other"
    (finding,) = judge_form(read_command(text)).findings
    assert "s3cret" not in finding.model_dump_json()


def test_a_secret_is_not_shown_whatever_is_wrong() -> None:
    with pytest.raises(BadInput) as refused:
        read_command("HF_TOKEN=s3cret ./start.sh --api-key s3cret")
    assert "s3cret" not in str(refused.value)
    for text in (
        "vllm serve m\n  --api-key s3cret",
        "vllm serve m --hf-tokn s3cret --admin-key s3cret",
        "llama-server -m x.gguf --api-key s3cret --api-key=s3cret",
    ):
        command = read_command(text)
        situation = command.situation(resolve_version(command.engine))
        found = [*judge_form(command).findings, *judge_flags(situation).findings]
        assert "s3cret" not in "".join(finding.model_dump_json() for finding in found)
        assert "s3cret" not in "".join(judge_flags(situation).not_checked)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("vllm serve m --seed", "flag-value-missing"),
        ("vllm serve m --port --seed 1", "flag-value-missing"),
        ("sglang serve --model-path m stray", "word-without-flag"),
        ("vllm serve m --speculative-config {'method': 'ngram'}", "word-without-flag"),
        ("vllm serve m \u2014\u2014port 80", "typographic-characters"),
        ("vllm serve m --speculative-config \u2018{}\u2019", "typographic-characters"),
        ("vllm serve m \\\n --port 8000\n --seed 1", "line-continuation-missing"),
    ],
)
def test_faults_of_form_are_errors(text: str, code: str) -> None:
    assert form_codes(text)[code] == "error"


def test_flash_attention_without_a_value_is_a_warning_in_llama_cpp() -> None:
    assert form_codes("llama-server -m x.gguf -fa -ngl 99") == {"flag-value-missing": "warning"}


def test_llama_cli_is_no_server() -> None:
    assert form_codes("llama-cli -m x.gguf") == {"program-is-no-server": "note"}


def test_a_container_without_shared_memory_is_a_warning_with_tensor_parallelism() -> None:
    run = "docker run --gpus all {} vllm/vllm-openai:v0.11.0 --model m --tensor-parallel-size {}"
    assert form_codes(run.format("", 2)) == {"container-shared-memory": "warning"}
    assert form_codes(run.format("--shm-size 64m", 2)) == {"container-shared-memory": "warning"}
    assert form_codes(run.format("--shm-size=16g", 2)) == {}
    assert form_codes(run.format("--ipc=host", 8)) == {}
    assert form_codes(run.format("", 1)) == {}


def test_a_container_that_publishes_another_port_is_a_warning() -> None:
    run = "docker run -p {} lmsysorg/sglang sglang serve --model-path m --host {}"
    assert form_codes(run.format("8000:8000", "0.0.0.0")) == {"container-port-not-published": "warning"}
    assert form_codes(run.format("8000:30000", "0.0.0.0")) == {}
    assert form_codes(run.format("8000:30000", "127.0.0.1")) == {"container-listens-on-loopback": "warning"}


def test_c08_a_container_without_a_volume_compiles_again_at_every_start() -> None:
    run = "podman run --gpus all {} lmsysorg/sglang sglang serve --model-path Qwen/Qwen3.6-27B-FP8"
    (found,) = judge_form(read_command(run.format(""))).findings
    assert (found.code, found.severity) == ("container-without-volume", "note")
    assert judge_form(read_command(run.format("-v ~/.cache:/cache"))).findings == ()


# --- configuration files ---


def test_a_config_file_stands_before_the_flags(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "port: 9\ntensor_parallel_size: 2\nenforce-eager: true\nasync-scheduling: false\n"
        "speculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n"
    )
    command = read_command(["vllm", "serve", "a/b", "--config", str(file), "--port", "8000"])
    assert command.target == "a/b"
    assert command.flags["port"] == "8000"
    assert command.flags["tensor-parallel-size"] == "2"
    assert command.flags["enforce-eager"] is True
    assert command.flags["async-scheduling"] is False
    assert command.knobs.method == "ngram"


def test_a_config_file_that_is_not_here_is_not_checked() -> None:
    command = read_command("vllm serve a/b --config /nowhere/c.yaml")
    assert any("/nowhere/c.yaml" in reason for reason in command.not_read)


@pytest.mark.parametrize("content", ["- a\n- b\n", "{", "\t- x: [", "just words"])
def test_a_config_file_that_holds_no_flags_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(content)
    with pytest.raises(BadInput, match="--config"):
        read_command(["vllm", "serve", "a/b", "--config", str(file)])


# --- versions ---


def test_versions_compare_by_number() -> None:
    assert is_older("0.5.9", "0.5.23") is True
    assert is_older("0.5.23.post1", "0.5.23") is False
    assert is_older("0.5.23rc1", "0.5.23") is True
    assert is_older("0.4.5.post3", "0.5") is True
    assert is_older("b8407", "b10068") is True
    assert is_older("b8407", "0.5.23") is None
    assert is_older("nightly", "0.5.23") is None
    assert is_older(None, "0.5.23") is None


def test_the_installed_version_is_asked_of_the_very_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    import pydantic  # a distribution this interpreter has

    adapter = adapter_for("vllm")
    traits = replace(adapter.traits, distributions=("no-such-distribution", "pydantic"))
    monkeypatch.setattr(adapter, "traits", traits)
    assert ask_installed("vllm", python=sys.executable) == pydantic.VERSION


def test_an_interpreter_that_is_not_there_says_nothing() -> None:
    assert ask_installed("vllm", python="/nowhere/python") is None
    assert run_bounded(["/nowhere/python"]) is None


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("version: 8407 (abc1234)\nbuilt with cc", "b8407"),
        ("llama_server: xllamacpp 2026.10.11549", "xllamacpp 2026.10.11549"),
        ("command not found", None),
    ],
)
def test_llama_server_says_its_build(answer: str, version: str | None) -> None:
    assert ask_installed("llamacpp", executable="llama-server", run=lambda argv: answer) == version


def test_a_version_is_known_by_asking_then_by_flag_then_by_image_tag() -> None:
    asked = resolve_version("vllm", python="p", given="0.9.0", hint="0.8.0", run=lambda argv: "0.32.0\n")
    assert (asked.text, "0.9.0" in asked.source) == ("0.32.0", True)
    assert resolve_version("vllm", given="0.9.0", hint="0.8.0").text == "0.9.0"
    assert resolve_version("vllm", hint="0.8.0").text == "0.8.0"
    unknown = resolve_version("vllm")
    assert unknown.text is None
    assert "0.32.0" in unknown.source


# --- tables ---


@pytest.mark.parametrize("engine", ["sglang", "vllm", "llamacpp"])
def test_no_renamed_flag_is_still_in_the_table(engine: str) -> None:
    table = table_for(engine)
    assert not set(table.renamed) & set(table.flags)
    for renamed in table.renamed.values():
        assert renamed.new is None or renamed.new in table.flags


def test_the_sglang_table_is_that_of_its_help_text() -> None:
    table = table_for("sglang")
    # counted in the help text of sglang 0.5.23
    assert {"--speculative-num-steps", "--tp-size", "--dp-size", "--page-size"} <= set(table.by_spelling)
    assert "--cuda-graph-max-bs" not in table.by_spelling
    assert table.flags["speculative-algorithm"].choices is None
    assert table.flags["speculative-attention-mode"].choices == ("prefill", "decode")


# --- hostile text ---


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_text(text)
        read_command(text)
    except BadInput:
        pass


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=12), st.sampled_from(["vllm", "sglang", "llama-server"]))
def test_any_arguments_are_read(words: list[str], program: str) -> None:
    head = [program] if program == "llama-server" else [program, "serve"]
    command = read_command([*head, *words] if words else [*head, "m"])
    judge_form(command)
