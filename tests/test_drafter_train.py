"""Training: the same result whatever interrupts it, from a cache or on the fly, alone or in two processes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from drafter_training import own_rows, write_rows, write_tiny_target  # noqa: E402

from spectune.checkpoints.read import read_checkpoint  # noqa: E402
from spectune.drafter.config import read_draft_config  # noqa: E402
from spectune.drafter.model import load_draft  # noqa: E402
from spectune.drafter.target import find_decoder_layers, load_target  # noqa: E402
from spectune.drafter.train.options import StepReport, TrainOptions, TrainResult  # noqa: E402
from spectune.drafter.train.run_dir import RunDir  # noqa: E402
from spectune.drafter.train.trainer import Cadence, train  # noqa: E402
from spectune.errors import BadInput, EnvironmentFailed  # noqa: E402

pytestmark = pytest.mark.drafter

OPTIONS = TrainOptions(
    layers=(1, 3, 5),
    draft_vocab_size=48,
    num_test_steps=3,
    max_steps=30,
    batch_size=8,
    learning_rate=5e-3,
    dtype="float32",
    max_length=64,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("inputs")
    source = str(write_tiny_target(folder / "target"))
    target = load_target(source, layers=(1, 3, 5), dtype="float32", device="cpu")
    return {
        "target_source": source,
        "data": [write_rows(folder / "rows.jsonl", own_rows(target, 60))],
        "device": "cpu",
    }


def cadence(reports: list[StepReport] | None = None, *, save_every: int = 7) -> Cadence:
    return Cadence(
        report_every_steps=1,
        evaluate_every_steps=15,
        save_every_steps=save_every,
        on_report=(reports if reports is not None else []).append,
    )


@pytest.fixture(scope="module")
def undisturbed(inputs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainResult]:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    return out, train(OPTIONS, out=out, cadence=cadence(), **inputs)


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "progress.jsonl").read_text().splitlines()]


def test_the_loss_falls_and_the_draft_loads(
    undisturbed: tuple[Path, TrainResult], inputs: dict[str, Any]
) -> None:
    out, result = undisturbed
    seen = losses(out)
    assert len(seen) == 30
    assert seen[-1] < 0.9 * seen[0]
    assert seen[-1] == result.final_loss
    modes = {p.name: p.stat().st_mode for p in Path(result.draft).iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]  # readable by whoever reads the rest
    config = read_draft_config(Path(result.draft), target=read_checkpoint(inputs["target_source"]))
    assert config.layers == (1, 3, 5)
    load_draft(Path(result.draft), config)


def test_learning_eight_answers_by_heart_raises_their_acceptance_length(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    target = load_target(inputs["target_source"], layers=(1, 3, 5), dtype="float32", device="cpu")
    known = own_rows(target, 8, held_out=0)
    data = write_rows(tmp_path / "rows.jsonl", [*known, *({**item, "split": "held-out"} for item in known)])
    reports: list[StepReport] = []
    options = OPTIONS.model_copy(update={"max_steps": 120, "learning_rate": 1e-2})
    train(
        options, out=tmp_path / "run", cadence=cadence(reports, save_every=60), **{**inputs, "data": [data]}
    )
    lengths = [r.held_out_acceptance_length for r in reports if r.held_out_acceptance_length]
    assert lengths[0][2] < 1.5
    assert lengths[-1][2] > 2.5
    assert reports[-1].accuracy_per_step[2] > 0.5 > reports[0].accuracy_per_step[2]
    assert all(r.samples_per_s > 0 and r.tok_per_s > 0 for r in reports)


CHILD = """
import json, sys
from pathlib import Path
from spectune.drafter.train import features, run_dir
from spectune.drafter.train.options import TrainOptions
from spectune.drafter.train.trainer import Cadence, train

asked = json.loads(sys.argv[1])

def say(text):
    print(text, flush=True)
    if text == asked["stop_at"]:
        sys.stdin.read()  # until the test kills this process

def watch(module, what):
    write = module.write_tensors
    def watched(path, tensors):
        write(path, tensors)
        say(f"{what} {path.name}")
    module.write_tensors = watched

watch(features, "features")
watch(run_dir, "checkpoint")
if asked["largest_file_bytes"]:
    import resource
    def limit(_):
        resource.setrlimit(resource.RLIMIT_FSIZE, (asked["largest_file_bytes"], resource.RLIM_INFINITY))
else:
    def limit(_): pass
def report(r):
    if r.step == asked["limit_at_step"]:
        limit(r)
    say(f"step {r.step}")
look = Cadence(report_every_steps=1, evaluate_every_steps=15, save_every_steps=7, on_report=report)
result = train(
    TrainOptions.model_validate(asked["options"]), target_source=asked["target"], data=[Path(asked["data"])],
    out=Path(asked["out"]), device="cpu", cadence=look,
)
print("loss", result.final_loss)
"""


def start_child(
    inputs: dict[str, Any],
    out: Path,
    *,
    stop_at: str = "",
    environment: dict[str, str] | None = None,
    options: TrainOptions = OPTIONS,
    largest_file_bytes: int = 0,
    limit_at_step: int = 0,
) -> subprocess.Popen[str]:
    asked = {
        "options": options.model_dump(mode="json"),
        "target": inputs["target_source"],
        "data": str(inputs["data"][0]),
        "out": str(out),
        "stop_at": stop_at,
        "largest_file_bytes": largest_file_bytes,
        "limit_at_step": limit_at_step,
    }
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
    )


def kill_when_it_says(inputs: dict[str, Any], out: Path, what: str) -> None:
    child = start_child(inputs, out, stop_at=what)
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == what:
            break
    else:
        child.wait()
        raise AssertionError(f"it never said {what!r}: {child.stderr.read() if child.stderr else ''}")
    child.kill()
    child.communicate()
    assert child.returncode == -9


def test_killed_at_four_points_and_resumed_it_ends_with_the_same_loss(
    inputs: dict[str, Any], undisturbed: tuple[Path, TrainResult], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    for moment in (
        "features ends.safetensors",  # before the first shard of features
        "step 5",  # before the first checkpoint
        "checkpoint optimizer.safetensors",  # in the middle of the checkpoint of step 7
        "step 19",  # between two checkpoints
    ):
        kill_when_it_says(inputs, out, moment)
    result = train(OPTIONS, out=out, cadence=cadence(), **inputs)
    expected_out, expected = undisturbed
    assert result.final_loss == pytest.approx(expected.final_loss, abs=1e-3)
    # Every step is reported once, with the loss it has undisturbed, whatever was repeated.
    assert losses(out) == pytest.approx(losses(expected_out), abs=1e-3)


def test_features_made_on_the_fly_train_the_same_draft(
    inputs: dict[str, Any], undisturbed: tuple[Path, TrainResult], tmp_path: Path
) -> None:
    options = OPTIONS.model_copy(update={"features": "on-the-fly"})
    train(options, out=tmp_path / "run", cadence=cadence(), **inputs)
    assert losses(tmp_path / "run") == pytest.approx(losses(undisturbed[0]), abs=1e-4)


def test_accumulated_parts_train_the_same_draft(
    inputs: dict[str, Any], undisturbed: tuple[Path, TrainResult], tmp_path: Path
) -> None:
    options = OPTIONS.model_copy(update={"micro_batch_size": 2})
    train(options, out=tmp_path / "run", cadence=cadence(), **inputs)
    assert losses(tmp_path / "run") == pytest.approx(losses(undisturbed[0]), abs=1e-3)


@pytest.mark.parametrize("features", ["cache", "on-the-fly"])
def test_two_processes_train_the_same_draft(
    inputs: dict[str, Any], undisturbed: tuple[Path, TrainResult], tmp_path: Path, features: str
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = OPTIONS.model_copy(update={"features": features})
    children = [
        start_child(
            inputs,
            tmp_path / "run",
            options=options,
            environment={
                "WORLD_SIZE": "2",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
        )
        for rank in range(2)
    ]
    ends = [child.communicate(timeout=1500) for child in children]
    assert [child.returncode for child in children] == [0, 0], ends
    assert losses(tmp_path / "run") == pytest.approx(losses(undisturbed[0]), abs=1e-3)
    # A run begun by two can be ended by one: the checkpoint holds whole tensors.
    assert (tmp_path / "run" / "checkpoints" / "step-00000030" / "state.json").exists()


def test_bfloat16_trains_close_to_float32(
    inputs: dict[str, Any], undisturbed: tuple[Path, TrainResult], tmp_path: Path
) -> None:
    options = OPTIONS.model_copy(update={"dtype": "bfloat16"})
    result = train(options, out=tmp_path / "run", cadence=cadence(), **inputs)
    assert result.final_loss == pytest.approx(undisturbed[1].final_loss, rel=0.05)


def test_a_disk_that_fills_up_costs_no_more_than_the_steps_since_the_last_checkpoint(
    inputs: dict[str, Any], undisturbed: tuple[Path, TrainResult], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    child = start_child(inputs, out, largest_file_bytes=20_000, limit_at_step=10)
    _, errors = child.communicate(timeout=1500)
    assert child.returncode == 1
    assert "EnvironmentFailed" in errors
    assert f"{out}/draft" in errors, "the draft of step 14 is written before its checkpoint"
    assert "free space and run the same command again" in errors
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-00000007"]
    result = train(OPTIONS, out=out, cadence=cadence(), **inputs)
    assert result.final_loss == pytest.approx(undisturbed[1].final_loss, abs=1e-3)


def test_other_settings_in_the_same_folder_are_refused(inputs: dict[str, Any], tmp_path: Path) -> None:
    short = OPTIONS.model_copy(update={"max_steps": 2})
    train(short, out=tmp_path / "run", cadence=cadence(), **inputs)
    other = short.model_copy(update={"seed": 1})
    for has_ended in (True, False):
        assert (tmp_path / "run" / "result.json").exists() == has_ended
        with pytest.raises(BadInput, match=r"begun with other settings: options.seed was 0, now 1"):
            train(other, out=tmp_path / "run", cadence=cadence(), **inputs)
        (tmp_path / "run" / "result.json").unlink(missing_ok=True)


def test_a_run_killed_behind_its_last_checkpoint_still_gives_its_result(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    short = OPTIONS.model_copy(update={"max_steps": 2})
    result = train(short, out=tmp_path / "run", cadence=cadence(), **inputs)
    (tmp_path / "run" / "result.json").unlink()
    again = train(short, out=tmp_path / "run", cadence=cadence(), **inputs)
    assert again.final_loss == result.final_loss
    assert again.held_out_acceptance_length == result.held_out_acceptance_length
    assert again.train_s == pytest.approx(result.train_s)
    assert again.tok_per_s == pytest.approx(result.tok_per_s, rel=0.01)


def test_a_damaged_result_or_description_is_named(inputs: dict[str, Any], tmp_path: Path) -> None:
    short = OPTIONS.model_copy(update={"max_steps": 2})
    train(short, out=tmp_path / "run", cadence=cadence(), **inputs)
    (tmp_path / "run" / "result.json").write_text("{")
    with pytest.raises(BadInput, match=r"result.json: damaged.*; delete it"):
        train(short, out=tmp_path / "run", cadence=cadence(), **inputs)
    (tmp_path / "run" / "run.json").write_text("[1]")
    with pytest.raises(BadInput, match=r"run.json: not the description of a run; give another --out"):
        train(short, out=tmp_path / "run", cadence=cadence(), **inputs)


def test_a_damaged_checkpoint_is_named_with_what_to_do(inputs: dict[str, Any], tmp_path: Path) -> None:
    short = OPTIONS.model_copy(update={"max_steps": 14})
    train(short, out=tmp_path / "run", cadence=cadence(), **inputs)
    (tmp_path / "run" / "result.json").unlink()
    path = tmp_path / "run" / "checkpoints" / "step-00000014" / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(BadInput, match=r"optimizer.safetensors: damaged.*delete .*step-00000014 to go on"):
        train(short, out=tmp_path / "run", cadence=cadence(), **inputs)


def test_a_corrupt_feature_shard_is_named_and_made_again_once_deleted(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    kill_when_it_says(inputs, out, "step 5")
    shard = out / "features" / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(BadInput, match=r"shard-00000.safetensors: damaged feature shard.*delete it"):
        train(OPTIONS, out=out, cadence=cadence(), **inputs)
    shard.unlink()
    train(OPTIONS.model_copy(), out=out, cadence=cadence(), **inputs)
    assert shard.exists()


def test_a_cache_that_does_not_fit_the_disk_is_refused_before_the_target_runs(
    inputs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spectune.drafter.train import features

    monkeypatch.setattr(features, "_FREE_BYTES_LEFT", 10**18)
    with pytest.raises(
        EnvironmentFailed, match=r"needs [1-9][0-9.]* kB more, .*, and .* [kMGT]B are;.*on-the-fly"
    ):
        train(OPTIONS, out=tmp_path / "run", cadence=cadence(), **inputs)
    assert not list((tmp_path / "run" / "features").glob("*.safetensors"))


def test_a_run_that_has_ended_gives_its_result_again(
    inputs: dict[str, Any], undisturbed: tuple[Path, TrainResult]
) -> None:
    out, result = undisturbed
    assert train(OPTIONS, out=out, cadence=cadence(), **inputs) == result


def test_two_runs_in_one_folder_are_refused(inputs: dict[str, Any], tmp_path: Path) -> None:
    child = start_child(inputs, tmp_path / "run", stop_at="step 1")
    assert child.stdout is not None
    assert any(line.strip() == "step 1" for line in child.stdout)
    with pytest.raises(BadInput, match="another process trains in it"):
        train(OPTIONS, out=tmp_path / "run", cadence=cadence(), **inputs)
    child.kill()
    child.communicate()


def test_a_batch_that_cannot_be_dealt_is_refused(inputs: dict[str, Any]) -> None:
    options = OPTIONS.model_copy(update={"batch_size": 6, "micro_batch_size": 3})
    with pytest.raises(BadInput, match=r"cannot be dealt to 4 processes in parts of 3.*multiple of 12"):
        options.num_micro_batches(num_processes=4)


def test_a_target_without_decoder_layers_to_hook_is_refused() -> None:
    class Config:
        num_hidden_layers = 6

        def get_text_config(self) -> Config:
            return self

    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = Config()
            self.blocks = torch.nn.Sequential(torch.nn.Linear(2, 2))

    with pytest.raises(BadInput, match=r"expected one list of 6 decoder layers .* found none"):
        find_decoder_layers(Odd(), "odd")


def test_a_target_that_bends_its_logits_behind_the_head_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_target(tmp_path, kind="cohere", logit_scale=0.0625)
    with pytest.raises(BadInput, match="changes its logits behind the head"):
        load_target(str(folder), layers=(1, 3, 5), dtype="float32", device="cpu")


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "mistral", "gpt2"])
def test_targets_of_other_families_give_the_states_transformers_names(tmp_path: Path, kind: str) -> None:
    changes = {"n_embd": 32, "n_layer": 6, "n_head": 4, "n_positions": 256} if kind == "gpt2" else {}
    folder = write_tiny_target(tmp_path, kind=kind, **changes)
    target = load_target(str(folder), layers=(1, 3, 5), dtype="float32", device="cpu")
    tokens = torch.arange(3, 15)[None]
    features = target.features(tokens, torch.ones_like(tokens))
    with torch.no_grad():
        out = target.model(input_ids=tokens, output_hidden_states=True)
    expected = torch.cat([out.hidden_states[i] for i in (1, 3, 5)], dim=-1)
    torch.testing.assert_close(features.states_BLF, expected)
    torch.testing.assert_close(features.logsum_BL, out.logits.float().logsumexp(-1), rtol=1e-4, atol=1e-4)
    assert torch.equal(features.top_BL, out.logits.argmax(-1))


def test_a_folder_that_transformers_cannot_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(BadInput, match="transformers cannot load it as a causal language model"):
        load_target(str(tmp_path), layers=(1, 3, 5), dtype="float32", device="cpu")


def test_runs_on_some_of_the_rows_share_the_features_of_all(inputs: dict[str, Any], tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"max_steps": 2})
    notes: list[str] = []
    look = Cadence(on_note=notes.append)
    few = train(
        options.model_copy(update={"num_train_rows": 16}),
        out=tmp_path / "few",
        cache=tmp_path / "cache",
        cadence=look,
        **inputs,
    )
    made = (tmp_path / "cache" / "features" / "shard-00000.safetensors").stat()
    whole = train(options, out=tmp_path / "whole", cache=tmp_path / "cache", cadence=look, **inputs)
    assert few.num_train_rows == 16 < whole.num_train_rows
    assert few.num_answer_tokens < whole.num_answer_tokens
    assert sum("feature cache" in note for note in notes) == 1
    assert (tmp_path / "cache" / "features" / "shard-00000.safetensors").stat() == made
    assert not (tmp_path / "few" / "features").exists()


def test_a_run_that_goes_on_from_between_two_reports_ends_with_the_same_loss(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    """The loss told is a mean since the last report: a checkpoint in between must not shorten it."""

    class Stop(Exception):
        pass

    def stop_at(step: int) -> Callable[[StepReport], None]:
        def stop(report: StepReport) -> None:
            if report.step >= step:
                raise Stop

        return stop

    look = Cadence(report_every_steps=10, evaluate_every_steps=100, save_every_steps=7)
    options = OPTIONS.model_copy(update={"max_steps": 20})
    whole = train(options, out=tmp_path / "whole", cadence=look, **inputs)
    with pytest.raises(Stop):
        train(options, out=tmp_path / "cut", cadence=replace(look, on_report=stop_at(20)), **inputs)
    again = train(options, out=tmp_path / "cut", cadence=look, **inputs)
    assert again.final_loss == pytest.approx(whole.final_loss, rel=1e-6)
    assert losses(tmp_path / "cut") == pytest.approx(losses(tmp_path / "whole"), rel=1e-6)


def test_other_data_in_the_folder_of_a_run_are_refused_and_its_rows_stay(
    inputs: dict[str, Any], undisturbed: tuple[Path, TrainResult], tmp_path: Path
) -> None:
    out, _ = undisturbed
    kept = (out / "rows" / "tokens.i32").stat().st_ino
    other = tmp_path / "other.jsonl"
    other.write_text("".join(inputs["data"][0].read_text().splitlines(keepends=True)[:30]))
    with pytest.raises(
        BadInput, match=r"begun with other settings: rows was .*; give the data it began with"
    ):
        train(OPTIONS, out=out, **{**inputs, "data": [other]})
    assert (out / "rows" / "tokens.i32").stat().st_ino == kept


def test_a_folder_with_somebodys_draft_is_not_taken_for_a_run(inputs: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    with pytest.raises(BadInput, match=r"holds draft and no run.json: not a run"):
        train(OPTIONS, out=tmp_path, **inputs)
    assert [path.name for path in tmp_path.iterdir() if path.name != "lock"] == ["draft"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("features/cache.json", "[]", "cache.json: not the description of a cache; delete the folder"),
        ("features/cache.json", '{"made_from": null}', "cache.json: not the description of a cache"),
        ("features/ends.safetensors", "short", "ends.safetensors: damaged.*delete it, and it is made again"),
        ("checkpoints/step-00000014/state.json", '{"step": 3}', "state.json says step 3; delete it to go on"),
        ("checkpoints/step-00000014/optimizer.safetensors", None, "not a checkpoint of this run: exp_avg"),
    ],
)
def test_what_is_not_this_runs_own_is_named_and_what_to_do(
    name: str, content: str | None, message: str, inputs: dict[str, Any], tmp_path: Path
) -> None:
    options = OPTIONS.model_copy(update={"max_steps": 14})
    train(options, out=tmp_path / "run", cadence=cadence(), **inputs)
    (tmp_path / "run" / "result.json").unlink()
    file = tmp_path / "run" / name
    if content is None:
        file.write_bytes((file.parent / "model.safetensors").read_bytes())
    else:
        file.write_text(content)
    with pytest.raises(BadInput, match=message):
        train(options, out=tmp_path / "run", cadence=cadence(), **inputs)


def test_a_report_that_is_no_text_costs_no_run(inputs: dict[str, Any], tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"max_steps": 2})
    whole = train(options, out=tmp_path / "run", cadence=cadence(), **inputs)
    (tmp_path / "run" / "result.json").unlink()
    with (tmp_path / "run" / "progress.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\0\n{")
    assert train(options, out=tmp_path / "run", cadence=cadence(), **inputs).final_loss == whole.final_loss


def test_the_targets_ends_are_made_again_where_they_are_missing(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    options = OPTIONS.model_copy(update={"max_steps": 2})
    train(options, out=tmp_path / "run", cadence=cadence(), **inputs)
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "features" / "ends.safetensors").unlink()
    assert train(options, out=tmp_path / "run", cadence=cadence(), **inputs).num_steps == 2


def test_rows_longer_than_the_target_reads_are_refused(inputs: dict[str, Any], tmp_path: Path) -> None:
    short = str(write_tiny_target(tmp_path / "short", max_position_embeddings=16))
    with pytest.raises(BadInput, match=r"reads at most 16; give --max-length 16"):
        train(OPTIONS, out=tmp_path / "run", **{**inputs, "target_source": short})


def test_a_copy_of_a_checkpoint_and_notes_in_one_are_the_users(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    weights = {"w": torch.zeros(2)}
    run.save(1, model=weights, optimizer=weights)
    kept = tmp_path / "checkpoints" / "step-00000001-best"
    shutil.copytree(tmp_path / "checkpoints" / "step-00000001", kept)
    notes = tmp_path / "checkpoints" / "step-00000001" / "notes.md"
    notes.write_text("the best so far", encoding="utf-8")
    for step in (2, 3, 4):
        run.save(step, model=weights, optimizer=weights)
    assert [folder.name for folder in run.checkpoints()] == ["step-00000003", "step-00000004"]
    assert sorted(path.name for path in kept.iterdir()) == [
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    assert [path.name for path in notes.parent.iterdir()] == ["notes.md"]


def test_another_programs_run_json_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"wandb": 1}', encoding="utf-8")
    with pytest.raises(BadInput, match="not the description of a run"):
        RunDir(tmp_path).begin({"rows": "abc"})
    assert (tmp_path / "run.json").read_text(encoding="utf-8") == '{"wandb": 1}'
