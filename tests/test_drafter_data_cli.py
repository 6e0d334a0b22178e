"""``drafter data``, ``inspect`` and ``export`` as commands: exit codes, JSON, and what they say."""

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path

import drafter_tiny as tiny
import pytest
from drafter_data_server import Script, vllm_like

from spectune.cli.drafter.commands import data_files
from spectune.cli.drafter.data import run_data_commands
from spectune.cli.drafter.data_args import add_data_commands
from spectune.cli.main import main
from spectune.drafter.extra import needed
from spectune.drafter.train.rows import prepare_rows
from spectune.errors import BadInput


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_data_commands(parser.add_subparsers(dest="drafter_command", required=True))
    return run_data_commands(parser.parse_args(list(arguments)))


def test_a_package_that_is_missing_names_the_extra() -> None:
    with pytest.raises(BadInput, match=r"this needs no_such_package .*pip install 'spectune\[drafter\]'"):
        needed("no_such_package")


@pytest.mark.drafter
def test_data_prints_a_manifest_and_exits_with_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow.parquet")
    with vllm_like(Script()) as server:
        out = str(tmp_path / "d")
        assert command("data", "--out", out, "--url", server.url + "/v1", "--generate", "12", "--json") == 0
    shown = capsys.readouterr()
    manifest = json.loads(shown.out)["manifest"]
    assert (manifest["num_rows"], manifest["complete"]) == (12, True)
    assert manifest["runs"][0]["begin"]["engine"] == "vllm"
    assert "12/12 prompts" in shown.err


@pytest.mark.drafter
def test_many_failures_are_a_bad_answer_and_words_say_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow.parquet")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("bad", "good", "fine")))
    with vllm_like(Script(fail_always="bad", empty="fine")) as server:
        assert (
            command("data", "--out", str(tmp_path / "d"), "--url", server.url, "--prompts", str(prompts)) == 1
        )
    text = capsys.readouterr().out
    assert "1 empty answers, 1 that failed twice" in text
    assert "failed: line-1: HTTP 500" in text


@pytest.mark.drafter
def test_answers_to_prompts_without_a_category_are_training_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("good", "fine")))
    out = tmp_path / "d"
    with vllm_like(Script()) as server:
        assert command("data", "--out", str(out), "--url", server.url, "--prompts", str(prompts)) == 0
    rows = prepare_rows(data_files([str(out)]), tmp_path / "rows", max_length=100, vocab_size=30_000)
    assert [rows.category(index) for index in range(len(rows))] == ["none", "none"]


@pytest.mark.parametrize(
    "words",
    [
        ["data", "--url", "http://127.0.0.1:9", "--generate", "2"],
        ["export", "draft", "--target", "target"],
        ["train", "--target", "target", "--data", "data"],
    ],
)
def test_an_empty_out_is_not_the_folder_the_command_runs_in(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["drafter", *words, "--out", ""])
    assert "--out: must be the path of a folder, got ''" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_request_that_cannot_be_sent_as_utf8_is_refused_before_anything_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "drafter",
        "data",
        "--url",
        "http://127.0.0.1:9",
        "--generate",
        "2",
        "--out",
        str(tmp_path / "d"),
    ]
    assert main([*words, "--extra-body", '{"stop": "\\ud800"}']) == 2
    assert "--extra-body: holds half of a surrogate pair" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_a_file_says_is_shown_and_not_obeyed_by_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b]0;title\x07Llama\x1b[2JForCausalLMEagle3\u202e"
    draft = tiny.write_draft(tmp_path / "draft", config=tiny.draft_config(architectures=[hostile]))
    main(["drafter", "inspect", str(draft)])
    main(["drafter", "inspect", "no\x1b[31msuch"])
    said = capsys.readouterr()
    assert "LlamaForCausalLMEagle3" in said.out and "nosuch" in said.err
    assert not any(mark in said.out + said.err for mark in ("\x1b", "\x07", "\u202e"))


_COMMAND = """
import argparse, sys
from spectune.cli.drafter.data import run_data_commands
from spectune.cli.drafter.data_args import add_data_commands
from spectune.errors import SpectuneError
parser = argparse.ArgumentParser()
add_data_commands(parser.add_subparsers(dest="drafter_command"))
try:
    sys.exit(run_data_commands(parser.parse_args()))
except SpectuneError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.mark.drafter
def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    arguments = ["data", "--out", str(tmp_path / "d"), "--generate", "80", "--concurrency", "4", "--json"]
    with vllm_like(Script(delay_s=0.1)) as server:
        command = [sys.executable, "-c", _COMMAND, *arguments, "--url", server.url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert server.wait_until_asked(12, timeout_s=60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "finished samples are kept" in said and "Run the same command again" in said
        before = sum(server.asked.values())
        server.delay_s = 0.0
        resumed = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert resumed.returncode == 0
        assert json.loads(resumed.stdout)["manifest"]["num_rows"] == 80
        assert sum(server.asked.values()) - before <= 80 - 12 + 4  # in flight at the signal were 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--generate", "3"], "--url: give the address"),
        (
            ["--url", "http://127.0.0.1:9", "--generate", "3", "--temperature", "hot"],
            "--temperature: 0 or numbers from 0.001",
        ),
        (
            ["--url", "http://127.0.0.1:9", "--generate", "3", "--temperature", "0,1e-5"],
            "--temperature: 0 or numbers from 0.001",
        ),
        (
            ["--url", "http://127.0.0.1:9", "--generate", "3", "--extra-body", "[1]"],
            "--extra-body: must be a JSON object",
        ),
        (
            ["--url", "http://127.0.0.1:9", "--generate", "3", "--extra-body", '{"messages": []}'],
            "messages: the prompts .--prompts, --generate",
        ),
        (
            ["--url", "http://127.0.0.1:9", "--generate", "3", "--extra-body", '{"temperature": 1}'],
            "temperature: --temperature",
        ),
        (
            ["--url", "http://127.0.0.1:9", "--generate", "3", "--extra-body", '{"seed": NaN}'],
            "NaN is no JSON number",
        ),
        (
            ["--url", "http://127.0.0.1:9", "--generate", "3", "--check-likelihood", "9"],
            "--check-likelihood needs --target FOLDER",
        ),
        (["--url", "http://127.0.0.1:9", "--generate", "3", "--top-p", "2"], "--top-p: above 0"),
        (
            ["--url", "http://127.0.0.1:9", "--generate", "3", "--tokenizer", "/nowhere"],
            "--tokenizer /nowhere: no such",
        ),
    ],
)
def test_wrong_arguments_are_one_clear_error(arguments: list[str], message: str, tmp_path: Path) -> None:
    if "--tokenizer" in arguments:
        pytest.importorskip("transformers")
    with pytest.raises(BadInput, match=message):
        command("data", "--out", str(tmp_path / "d"), *arguments)


@pytest.mark.drafter
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--held-out", "1"], "--held-out: must be at least 0"),
        (["--prompts", "/nowhere/p.jsonl"], "--prompts /nowhere/p.jsonl: cannot be read"),
        (["--generate", "5", "--categories", "poems"], "poems; valid are code"),
        (["--generate", "5", "--concurrency", "5000"], "--concurrency: must be from 1 to 4096"),
    ],
)
def test_wrong_requests_are_refused_before_the_server_is_asked(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow.parquet")
    with pytest.raises(BadInput, match=message):
        command(
            "data", "--out", str(tmp_path / "d"), "--url", "http://127.0.0.1:9", "--generate", "3", *arguments
        )


def test_export_and_inspect_agree_on_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft, target = tiny.write_draft(tmp_path / "draft"), tiny.write_target(tmp_path / "target")
    out = tmp_path / "out"
    assert command("export", str(draft), "--target", str(target), "--out", str(out), "--json") == 0
    exported = json.loads(capsys.readouterr().out)
    assert [form["form"] for form in exported["forms"]] == ["sglang", "vllm", "speculators"]
    assert command("inspect", str(out / "sglang"), "--target", str(target), "--json") == 0
    inspected = json.loads(capsys.readouterr().out)
    assert inspected["auxiliary_states"]["layer_inputs"] == exported["layer_inputs"] == [2, 6, 9]


def test_a_draft_no_engine_can_serve_is_a_bad_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = tiny.write_draft(tmp_path / "draft", ids_in_d2t=True)
    target = tiny.write_target(tmp_path / "target")
    assert command("inspect", str(draft), "--target", str(target)) == 1
    assert "its entries are target ids" in capsys.readouterr().out


@pytest.mark.parametrize("layers", ["2,2,9", "9,2", "a", ""])
def test_wrong_layers_are_refused(layers: str, tmp_path: Path) -> None:
    draft, target = tiny.write_draft(tmp_path / "draft"), tiny.write_target(tmp_path / "target")
    with pytest.raises(BadInput, match="--layers: different layer numbers"):
        command(
            "export", str(draft), "--target", str(target), "--out", str(tmp_path / "o"), f"--layers={layers}"
        )
