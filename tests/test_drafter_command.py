"""``spectune drafter train`` and ``evaluate``, from arguments to words, JSON and exit codes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spectune.cli.drafter.args import add_drafter
from spectune.errors import BadInput

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from drafter_training import (  # noqa: E402
    draft_config,
    own_rows,
    random_draft,
    write_draft,
    write_rows,
    write_tiny_target,
)

from spectune.cli.drafter.commands import data_files, run_drafter, train_options  # noqa: E402
from spectune.drafter.target import load_target  # noqa: E402

pytestmark = pytest.mark.drafter


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_drafter(parser.add_subparsers(dest="command"))
    return parser.parse_args(["drafter", *words])


def test_the_arguments_import_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, spectune.cli.drafter.args\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("inputs")
    source = str(write_tiny_target(folder / "target"))
    target = load_target(source, layers=(1, 3, 5), dtype="float32", device="cpu")
    return source, str(write_rows(folder / "rows.jsonl", own_rows(target, 24)))


def train_words(inputs: tuple[str, str], out: Path, *more: str) -> list[str]:
    source, data = inputs
    words = ["train", "--target", source, "--data", data, "--out", str(out), "--layers", "1,3,5"]
    return [*words, "--draft-vocab-size", "48", "--dtype", "float32", "--max-steps", "6", *more]


def test_train_then_evaluate_ends_with_acceptance_counts(
    inputs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_drafter(parse(*train_words(inputs, tmp_path / "run", "--json"))) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["num_steps"] == 6
    assert result["floor_frac"] > 0
    assert "step 6/6, loss " in captured.err
    source, data = inputs
    words = ["evaluate", result["draft"], "--target", source, "--data", data, "--max-tokens", "12"]
    assert run_drafter(parse(*words, "--max-draft-tokens", "2", "--tree", "2,2,4", "--json")) == 0
    evaluation = json.loads(capsys.readouterr().out)
    assert [chain["num_draft_tokens"] for chain in evaluation["chains"]] == [1, 2]
    assert evaluation["chains"][1]["counts"]["num_drafts"] > 8
    assert evaluation["tree_shape"] == [2, 2, 4]
    assert run_drafter(parse(*words)) == 0
    assert "K = 6" in capsys.readouterr().out


def test_a_dry_run_states_the_size_of_the_cache_and_writes_nothing(
    inputs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_drafter(parse(*train_words(inputs, tmp_path / "run", "--dry-run", "--json"))) == 0
    document = json.loads(capsys.readouterr().out)
    # Four states of 32 float32 numbers, a float32 and an int32 for each token.
    assert document["feature_cache_bytes"] == document["num_tokens"] * (4 * 32 * 4 + 8)
    assert document["num_steps"] == 6
    assert not (tmp_path / "run").exists()


def test_recorded_answers_of_another_model_are_warned_of(
    inputs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, data = inputs
    foreign = [json.loads(line) for line in Path(data).read_text().splitlines()]
    for item in foreign:
        item["input_ids"] = [(3 * i + 5) % 60 + 3 for i in item["input_ids"]]
    other = write_rows(tmp_path / "other.jsonl", foreign)
    run_drafter(parse(*train_words(inputs, tmp_path / "run")))
    words = ["evaluate", str(tmp_path / "run" / "draft"), "--target", source, "--data", str(other)]
    run_drafter(parse(*words, "--answers", "recorded"))
    assert "of the recorded answer tokens are this target's most likely ones" in capsys.readouterr().err


def test_options_out_of_range_are_named(inputs: tuple[str, str], tmp_path: Path) -> None:
    words = train_words(
        inputs, tmp_path, "--batch-size", "6", "--micro-batch-size", "4", "--test-steps", "40"
    )
    with pytest.raises(BadInput, match="--test-steps: must be less than or equal to 16, got 40"):
        train_options(parse(*words))
    with pytest.raises(BadInput, match="batch_size 6 is not a multiple of micro_batch_size 4"):
        train_options(parse(*train_words(inputs, tmp_path, "--batch-size", "6", "--micro-batch-size", "4")))


@pytest.mark.parametrize(
    "words", [["--layers", "2;3"], ["--epochs", "0"], ["--batch-size", "-1"], ["--learning-rate", "x"]]
)
def test_malformed_arguments_end_with_exit_code_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("train", "--target", "t", "--data", "d", "--out", "o", *words)
    assert ended.value.code == 2


def test_a_data_sets_folder_stands_for_its_parts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no Parquet or JSONL file in it"):
        data_files([str(tmp_path)])
    (tmp_path / "parts").mkdir()
    for name in ("part-00001.parquet", "part-00000.parquet"):
        (tmp_path / "parts" / name).touch()
    assert [p.name for p in data_files([str(tmp_path)])] == ["part-00000.parquet", "part-00001.parquet"]


def test_drafter_alone_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_drafter(parse()) == 2
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("inspect", "data", "train", "evaluate", "export", "forecast"))


def test_an_evaluation_that_is_asked_to_end_leaves_no_rows_behind(
    inputs: tuple[str, str], tmp_path: Path
) -> None:
    source, data = inputs
    (tmp_path / "scratch").mkdir()
    draft = write_draft(tmp_path / "draft", random_draft(draft_config(Path(source))))
    command = [sys.executable, "-m", "spectune", "drafter", "evaluate", str(draft), "--target", source]
    process = subprocess.Popen(
        [*command, "--data", data, "--max-draft-tokens", "64"],
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = next(line for line in process.stderr if "the target answers" in line)
    assert any((tmp_path / "scratch").glob("spectune-rows-*/rows/tokens.i32")), line
    process.terminate()
    assert "ended by SIGTERM" in process.stderr.read()
    assert process.wait(60) == 130
    assert not any((tmp_path / "scratch").glob("spectune-rows-*"))
