"""Bad input, through the command line: one clear error with its exit code, no traceback, and nothing lost."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("pyarrow.parquet")

from drafter_data_server import Script, vllm_like  # noqa: E402
from drafter_training import (  # noqa: E402
    draft_config,
    own_rows,
    random_draft,
    row,
    write_draft,
    write_rows,
    write_tiny_target,
)

from spectune.cli.main import main  # noqa: E402
from spectune.drafter.files import write_tensors  # noqa: E402
from spectune.drafter.target import load_target  # noqa: E402

pytestmark = pytest.mark.drafter


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_target(tmp_path_factory.mktemp("tiny") / "target")


@pytest.fixture(scope="module")
def data(target: Path) -> Path:
    loaded = load_target(str(target), layers=(1, 3, 5), dtype="float32", device="cpu")
    return write_rows(target.parent / "rows.jsonl", own_rows(loaded, 24))


def train_words(target: Path, data: Path, out: Path) -> list[str]:
    words = ["drafter", "train", "--target", str(target), "--data", str(data), "--out", str(out)]
    return [*words, "--layers", "1,3,5", "--draft-vocab-size", "48", "--dtype", "float32", "--max-steps", "4"]


def evaluate_words(target: Path, data: Path, draft: Path) -> list[str]:
    return ["drafter", "evaluate", str(draft), "--target", str(target), "--data", str(data)]


def error_of(words: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 2) -> str:
    """The one message of a command that fails; ``main`` lets no exception through."""
    assert main(words) == code
    said = capsys.readouterr()
    assert said.out == ""
    messages = [line for line in said.err.splitlines() if line.startswith("spectune: ")]
    assert len(messages) == 1, said.err
    return said.err


def test_a_target_without_decoder_layers_names_what_is_missing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 6, "state_size": 4, "conv_kernel": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", **sizes))
    model.save_pretrained(tmp_path / "mamba")
    message = error_of(train_words(tmp_path / "mamba", data, tmp_path / "run"), capsys)
    assert str(tmp_path / "mamba") in message


def test_a_draft_of_other_shapes_names_the_tensor(
    target: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = write_tiny_target(tmp_path / "wide", hidden_size=64, intermediate_size=80)
    draft = write_draft(tmp_path / "draft", random_draft(draft_config(wide)))
    message = error_of(evaluate_words(target, data, draft), capsys)
    assert "64" in message and "32" in message


def test_a_draft_whose_tensors_contradict_its_configuration_names_one(
    target: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = write_draft(tmp_path / "draft", random_draft(draft_config(target)))
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    message = error_of(evaluate_words(target, data, draft), capsys)
    assert "mlp" in message


def test_what_is_not_known_of_a_model_says_why(
    target: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = write_draft(tmp_path / "draft", random_draft(draft_config(target)))
    config = json.loads((draft / "config.json").read_text())
    assert "no such file or folder" in error_of(evaluate_words(tmp_path / "nowhere", data, draft), capsys)
    (draft / "config.json").write_text(json.dumps({**config, "num_attention_heads": 0}))
    export = ["drafter", "export", str(draft), "--target", str(target), "--out", str(tmp_path / "out")]
    for words in (evaluate_words(target, data, draft), export):
        assert "num_attention_heads is 0, expected an integer of at least 1" in error_of(words, capsys)
    (draft / "config.json").unlink()
    for words in (evaluate_words(target, data, draft), export):
        assert "no config.json" in error_of(words, capsys)
    assert main(["drafter", "inspect", str(draft)]) == 1
    assert "SGLang with EAGLE3: does not work" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft_vocab_size": 39}, "lm_head has 40 rows, draft_vocab_size is 39"),
        (
            {"draft_vocab_size": None},
            "lm_head has 40 rows, and without draft_vocab_size vocab_size counts, 64",
        ),
        ({"vocab_size": 63}, "config.json: vocab_size is 63, expected 64 as of"),
        ({"intermediate_size": 96}, "mlp.gate_proj.weight is [48, 32], config.json asks for [96, 32]"),
        ({"num_hidden_layers": 2}, "lacks layers.1.*"),
        ({"rms_norm_eps": "small"}, "config.json: rms_norm_eps is 'small', expected a number above 0"),
        ({"rms_norm_eps": True}, "rms_norm_eps is True, expected a number above 0"),
        ({"rope_theta": -1e4}, "rope_theta is -10000.0, expected a number above 0"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 0}}, "rope_scaling.factor is 0, expected"),
        (
            {"num_key_value_heads": 3},
            "num_key_value_heads is 3, expected a divisor of num_attention_heads, 4",
        ),
        ({"attention_bias": "no"}, "attention_bias is 'no', expected true or false"),
        ({"attention_bias": True}, "lacks midlayer.self_attn.q_proj.bias"),
    ],
)
def test_a_draft_whose_configuration_cannot_be_used_is_one_error_everywhere(
    change: dict[str, Any],
    message: str,
    target: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    draft = write_draft(tmp_path / "draft", random_draft(draft_config(target)))
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, **change}))
    export = ["drafter", "export", str(draft), "--target", str(target), "--out", str(tmp_path / "out")]
    for words in (evaluate_words(target, data, draft), export):
        said = error_of(words, capsys)
        assert message in said and str(draft) in said
    assert not (tmp_path / "out").exists()
    assert main(["drafter", "inspect", str(draft), "--target", str(target)]) == 1
    assert ": fits" not in capsys.readouterr().out


def test_a_target_whose_configuration_cannot_be_used_is_one_error(
    target: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(target, broken)
    config = json.loads((target / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "rms_norm_eps": "small", "head_dim": 7}))
    for more in ([], ["--dry-run"]):
        said = error_of([*train_words(broken, data, tmp_path / "run"), *more], capsys)
        assert "2 problems" in said and "rms_norm_eps is 'small'" in said and "head_dim is 7" in said


def test_a_target_cut_short_is_named(
    target: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short"
    shutil.copytree(target, short)
    for size in (3000, 5):
        (short / "model.safetensors").write_bytes((target / "model.safetensors").read_bytes()[:size])
        message = error_of(train_words(short, data, tmp_path / "run"), capsys)
        assert f"{short}: damaged weights, or not safetensors" in message
    draft = write_draft(tmp_path / "draft", random_draft(draft_config(target)))
    (draft / "model.safetensors").write_bytes(b"short")
    export = ["drafter", "export", str(draft), "--target", str(target), "--out", str(tmp_path / "out")]
    assert "too short for a safetensors header" in error_of(export, capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tree", "0,1,1"], "tree 0,1,1: steps are from 1 to 64"),
        (["--tree", "2,99999999,4"], "top from 1 to 64"),
        (["--tree", "2,48,4"], "top 48 of a draft vocabulary of 40 tokens"),
        (["--max-draft-tokens", "1000000000"], "--max-draft-tokens: must be from 1 to 64, got 1000000000"),
    ],
)
def test_drafts_longer_or_wider_than_any_are_refused(
    words: list[str],
    message: str,
    target: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    draft = write_draft(tmp_path / "draft", random_draft(draft_config(target)))
    short = ["--num-prompts", "1", "--max-tokens", "4"]
    assert message in error_of([*evaluate_words(target, data, draft), *short, *words], capsys)


def test_a_server_of_something_else_is_told_from_one_that_lists_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Files(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    words = ["drafter", "data", "--out", str(tmp_path / "d"), "--generate", "2", "--url"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            message = error_of([*words, url], capsys, code=3)
            assert f"{url} answers /v1/models with status 404: is it the address" in message
            assert "'blah' is not known; valid: " in error_of([*words, url, "--engine", "blah"], capsys)
        finally:
            server.shutdown()
    assert "no server answers" in error_of([*words, url, "--engine", "vllm"], capsys, code=3)


@pytest.mark.parametrize(
    ("tensor", "change", "message"),
    [
        ("fc.weight", lambda x: x * float("nan"), "fc.weight holds numbers that are not finite"),
        ("fc.weight", lambda x: x.to(torch.int8), "quantised drafts"),
        ("d2t", lambda x: x.float(), "whole numbers"),
        ("norm.weight", None, "lacks norm.weight"),
    ],
)
def test_weights_that_no_draft_has_are_named(
    tensor: str,
    change: Any,
    message: str,
    target: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    draft = random_draft(draft_config(target))
    write_draft(tmp_path / "draft", draft)
    tensors = draft.state_dict()
    old = tensors.pop(tensor)
    write_tensors(
        tmp_path / "draft" / "model.safetensors",
        tensors if change is None else {**tensors, tensor: change(old)},
    )
    export = ["drafter", "export", str(tmp_path / "draft"), "--target", str(target), "--out"]
    assert message in error_of(evaluate_words(target, data, tmp_path / "draft"), capsys)
    assert message in error_of([*export, str(tmp_path / "out")], capsys)
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file_or_another_commands_folder_is_refused(
    target: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = write_draft(tmp_path / "draft", random_draft(draft_config(target)))
    export = ["drafter", "export", str(draft), "--target", str(target), "--out"]
    answers = ["drafter", "data", "--url", "http://127.0.0.1:9", "--generate", "2", "--out"]
    for out in (data, data / "below"):
        for words in (train_words(target, data, out), [*export, str(out)], [*answers, str(out)]):
            assert f"--out {out}: {data} is a file; give a folder" in error_of(words, capsys)
    run, answered = tmp_path / "run", tmp_path / "answered"
    for folder, mark in ((run, "run.json"), (answered, "plan.json")):
        folder.mkdir()
        (folder / mark).write_text("{}")
    assert "holds a training run" in error_of([*answers, str(run)], capsys)
    assert "holds a data set" in error_of(train_words(target, data, answered), capsys)
    assert [path.name for folder in (run, answered) for path in folder.iterdir()] == ["run.json", "plan.json"]


def test_answers_without_a_token_are_counted_and_named(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row([3, 4, 5], [6, 7, 2], name=f"p{n}") for n in range(10)]
    for number in (2, 7):
        rows[number]["loss_mask"] = [0] * 6
    file = write_rows(tmp_path / "rows.jsonl", rows)
    message = error_of(train_words(target, file, tmp_path / "run"), capsys)
    assert "2 rows have no answer token" in message and "row 3" in message and "row 8" in message


def test_a_server_that_never_says_anything_gives_a_bad_answer_and_no_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with vllm_like(Script(empty="")) as server:
        words = ["drafter", "data", "--out", str(tmp_path / "d"), "--url", server.url, "--generate", "6"]
        assert main(words) == 1
    assert "left out: 6 empty answers" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["folder", "file"])
def test_a_shard_with_one_changed_byte_is_found_before_training(
    given: str, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "d"
    with vllm_like(Script()) as server:
        words = ["drafter", "data", "--out", str(out), "--url", server.url, "--generate", "6"]
        assert main(words) == 0
    capsys.readouterr()
    shard = out / "parts" / "part-00000.parquet"
    body = bytearray(shard.read_bytes())
    body[len(body) // 3] ^= 1
    shard.write_bytes(body)
    message = error_of(train_words(target, out if given == "folder" else shard, tmp_path / "run"), capsys)
    assert "part-00000.parquet: is damaged: sha256" in message
    assert not (tmp_path / "run").exists()
    assert shard.read_bytes() == bytes(body)


def test_a_shard_cut_short_is_named(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"prompt_id": ["a"] * 100}), tmp_path / "rows.parquet")
    whole = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(whole[: len(whole) // 2])
    message = error_of(train_words(target, tmp_path / "rows.parquet", tmp_path / "run"), capsys)
    assert "rows.parquet: damaged Parquet file" in message


class _Trap:
    """Unpickled, it makes a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


def test_a_pickle_is_never_opened_wherever_it_is_given(
    target: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trap = tmp_path / "sprung"
    poison = pickle.dumps(_Trap(trap))
    (tmp_path / "rows.pkl").write_bytes(poison)
    message = error_of(train_words(target, tmp_path / "rows.pkl", tmp_path / "run"), capsys)
    assert "a pickle, which can run code when opened and is never read" in message
    draft = tmp_path / "draft"
    write_draft(draft, random_draft(draft_config(target)))
    (draft / "model.safetensors").unlink()
    (draft / "pytorch_model.bin").write_bytes(poison)
    assert "safetensors" in error_of(evaluate_words(target, data, draft), capsys)
    out = ["--target", str(target), "--out", str(tmp_path / "export")]
    assert "safetensors" in error_of(["drafter", "export", str(draft), *out], capsys)
    other = tmp_path / "target"
    other.mkdir()
    (other / "config.json").write_bytes((target / "config.json").read_bytes())
    (other / "pytorch_model.bin").write_bytes(poison)
    error_of(train_words(other, data, tmp_path / "run2"), capsys)
    assert not trap.exists()


def test_a_disk_that_is_full_while_the_rows_are_read_is_one_error(
    target: Path, data: Path, tmp_path: Path
) -> None:
    """The limit on file size ends a write as a full disk does: in its middle, with an OSError."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256)); "
        "from spectune.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = train_words(target, data, tmp_path / "run")
    failed = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert failed.returncode == 3
    assert "File too large" in failed.stderr and "Traceback" not in failed.stderr
    again = subprocess.run(
        [sys.executable, "-m", "spectune", *words], capture_output=True, text=True, timeout=200, check=False
    )
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--test-steps", "17"], "--test-steps: must be less than or equal to 16, got 17"),
        (["--draft-vocab-size", "1"], "--draft-vocab-size: must be greater than or equal to 2, got 1"),
        (["--batch-size", "7", "--micro-batch-size", "2"], "batch_size 7 is not a multiple of micro_batch"),
    ],
)
def test_an_option_out_of_range_is_named_by_its_flag_and_value(
    words: list[str],
    message: str,
    target: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert message in error_of([*train_words(target, data, tmp_path / "run"), *words], capsys)


def test_a_target_with_a_table_of_positions_is_not_asked_beyond_its_end(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = write_tiny_target(tmp_path / "gpt2", kind="gpt2", max_position_embeddings=16)
    draft = write_draft(tmp_path / "draft", random_draft(draft_config(short)))
    for words, remedy in (
        ([], "a smaller --max-tokens"),
        (["--answers", "recorded"], "give --max-length 16"),
    ):
        said = error_of([*evaluate_words(short, data, draft), *words], capsys)
        assert "reads at most 16 tokens" in said and remedy in said
    with pytest.raises(SystemExit):
        main([*evaluate_words(short, data, draft), "--temperature", "1e-300"])


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2 in the environment, without RANK, LOCAL_RANK"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two' in the environment, expected a whole number"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is '-1' in the environment"),
    ],
)
def test_what_is_left_of_a_torchrun_in_the_environment_is_named(
    environment: dict[str, str],
    message: str,
    target: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert message in error_of(train_words(target, data, tmp_path / "run"), capsys)


def test_a_dry_run_refuses_what_the_run_would(
    target: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*train_words(target, data, tmp_path / "run"), "--batch-size", "99"]
    said = [error_of([*words, *more], capsys).splitlines()[-1] for more in (["--dry-run"], [])]
    assert said[0] == said[1] and "fewer than one batch of 99" in said[0]


def test_a_row_that_is_all_answer_cannot_be_answered_again(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row([], [6, 7, 9, 2], name="bare", split="held-out"), row([3, 4], [6, 7, 2], name="p")]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    draft = write_draft(tmp_path / "draft", random_draft(draft_config(target)))
    message = error_of(evaluate_words(target, file, draft), capsys)
    assert "1 held-out rows have no token before their answer (bare)" in message
    assert main([*evaluate_words(target, file, draft), "--answers", "recorded"]) == 0


def test_a_data_set_under_way_is_not_taken_for_a_whole_one(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "d"
    words = ["drafter", "data", "--out", str(out), "--generate", "4", "--shard-size", "2", "--url"]
    with vllm_like(Script()) as server:
        assert main([*words, server.url]) == 0
    for number, done in ((1, 2), (0, 0)):
        for suffix in (".json", ".parquet"):
            (out / "parts" / f"part-0000{number}{suffix}").unlink()
        capsys.readouterr()
        said = error_of(train_words(target, out, tmp_path / f"run{done}"), capsys)
        assert f"finished files have {done} of its 4 prompts; the command that made it goes on" in said
        assert ("token id" in said) == (done > 0)  # beyond the note: of ids that this target lacks
    assert not (tmp_path / "run0").exists()


def test_a_damaged_shard_is_found_before_its_likelihood_is_asked(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "d"
    with vllm_like(Script()) as server:
        assert main(["drafter", "data", "--out", str(out), "--url", server.url, "--generate", "2"]) == 0
    capsys.readouterr()
    shard = out / "parts" / "part-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-20])
    words = ["drafter", "data", "--out", str(out), "--check-likelihood", "2", "--target", str(target)]
    assert "part-00000.parquet: is damaged: sha256" in error_of(words, capsys)
