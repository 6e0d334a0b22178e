"""The study directory: nothing is lost, and nothing half-written passes as whole."""

import json
import multiprocessing
import os
import shutil
import tracemalloc
from pathlib import Path

import pytest
from report_realistic import realistic

from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.errors import BadInput
from spectune.exchange.listing import is_running, list_study
from spectune.store.progress import read_progress
from spectune.store.study_dir import StudyDir, read_trial, write_atomically


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[StudyDir, Study, list[Trial]]:
    study, trials = realistic()
    directory = StudyDir.create(tmp_path / "study", study=study, source="question: q\n")
    for trial in trials:
        _, folder = directory.new_trial(trial.arm_id)
        for index, load in enumerate(trial.loads):
            for request in load.requests:
                folder.append_request(index, request)
        folder.finish(trial)
    return directory, study, trials


def test_what_was_written_reads_back_equal(recorded: tuple[StudyDir, Study, list[Trial]]) -> None:
    directory, study, trials = recorded
    assert directory.read_study() == study
    assert directory.read_trials() == trials


def test_a_request_of_a_hundred_chunks_takes_three_kilobytes_of_memory(
    recorded: tuple[StudyDir, Study, list[Trial]],
) -> None:
    path = recorded[0].trial_paths()[0]
    line = json.loads((path / "requests.jsonl").read_text(encoding="utf-8").splitlines()[0])
    body = json.loads((path / "trial.json").read_text(encoding="utf-8"))
    body["loads"] = body["loads"][:1]
    body["loads"][0]["num_requests"] = 500
    (path / "trial.json").write_text(json.dumps(body))
    new = {"chunk_gaps_s": [n / 7 for n in range(100)], "token_ids": list(range(1000, 1128))}
    lines = [json.dumps({**line, **new, "load": 0, "text": f"{n:500}"}) for n in range(500)]
    (path / "requests.jsonl").write_text("\n".join(lines))
    read_trial(path)  # what is read once and kept, such as modules, is no request's
    tracemalloc.start()
    trial = read_trial(path)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert trial is not None
    assert list(trial.loads[0].requests[-1].chunk_gaps_s) == [n / 7 for n in range(100)]
    assert list(trial.loads[0].requests[-1].token_ids or ()) == list(range(1000, 1128))
    assert (
        held_bytes / 500 < 3600
    )  # 500 of text, 800 of gaps, 512 of ids, and the rest; as tuples it was 12,000


def test_what_a_server_says_of_a_request_takes_half_a_kilobyte_of_memory(
    recorded: tuple[StudyDir, Study, list[Trial]],
) -> None:
    """Nine figures, as of llama.cpp: with their names kept for each request it was 1,140 bytes."""
    path = recorded[0].trial_paths()[0]
    line = json.loads((path / "requests.jsonl").read_text(encoding="utf-8").splitlines()[0])
    body = json.loads((path / "trial.json").read_text(encoding="utf-8"))
    body["loads"] = body["loads"][:1]
    body["loads"][0]["num_requests"] = 500
    (path / "trial.json").write_text(json.dumps(body))
    held = []
    for timings in (None, {f"predicted_per_token_ms_{n}": n / 7 for n in range(9)}):
        lines = [json.dumps({**line, "load": 0, "server_timings": timings}) for _ in range(500)]
        (path / "requests.jsonl").write_text("\n".join(lines))
        read_trial(path)
        tracemalloc.start()
        trial = read_trial(path)
        held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert trial is not None and trial.loads[0].requests[-1].server_timings == timings
    assert (held[1] - held[0]) / 500 < 700


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chunk_gaps_s", ["0.1"]),
        ("chunk_gaps_s", "0.1"),
        ("chunk_gaps_s", [1e999]),
        ("chunk_gaps_s", [[0.1]]),
        ("token_ids", [2**31]),
        ("token_ids", [0.5]),
        ("token_ids", {"a": 1}),
    ],
)
def test_numbers_that_no_list_of_a_request_holds_are_a_damaged_record(
    field: str, value: object, recorded: tuple[StudyDir, Study, list[Trial]]
) -> None:
    path = recorded[0].trial_paths()[0]
    lines = (path / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), field: value})
    (path / "requests.jsonl").write_text("\n".join(lines))
    with pytest.raises(BadInput, match=f"requests.jsonl line 2: {field}: "):
        read_trial(path)


def test_a_trial_without_its_last_file_was_interrupted(recorded: tuple[StudyDir, Study, list[Trial]]) -> None:
    directory, _, trials = recorded
    path = directory.trial_paths()[1]
    (path / "trial.json").unlink()
    assert read_trial(path) is None
    assert len(directory.read_trials()) == len(trials) - 1
    number, _ = directory.new_trial("abcd1234")
    assert number == len(trials) + 1


def test_lost_request_records_of_an_ended_trial_are_noticed(
    recorded: tuple[StudyDir, Study, list[Trial]],
) -> None:
    directory, _, trials = recorded
    path = directory.trial_paths()[0] / "requests.jsonl"
    path.write_text(path.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    count = len(trials[0].loads[0].requests)
    with pytest.raises(BadInput, match=f"holds {count - 1} of {count} records"):
        directory.read_trials()


def test_a_copied_trial_is_no_second_launch(recorded: tuple[StudyDir, Study, list[Trial]]) -> None:
    directory, _, _ = recorded
    path = directory.trial_paths()[0]
    shutil.copytree(path, path.with_name(path.name + "-copy"))
    with pytest.raises(BadInput, match="is this folder a copy"):
        directory.read_trials()


def test_records_are_readable_with_a_json_reader_alone(recorded: tuple[StudyDir, Study, list[Trial]]) -> None:
    directory, _, trials = recorded
    body = json.loads((directory.trial_paths()[0] / "trial.json").read_text(encoding="utf-8"))
    assert body["schema_version"] == 1
    assert body["arm"]["knobs"]["method"] == trials[0].arm.knobs.method
    assert "requests" not in body["loads"][0]


@pytest.mark.parametrize(
    "damage",
    [b"{", b'{"schema_version": 1}', b"[]", b'{"schema_version": "x"}', b"\xff\xfe", b"[" * 100_000],
    ids=lambda d: repr(d[:24]),
)
def test_a_damaged_record_names_its_file(
    recorded: tuple[StudyDir, Study, list[Trial]], damage: bytes
) -> None:
    directory, _, _ = recorded
    path = directory.trial_paths()[0] / "trial.json"
    path.write_bytes(damage)
    with pytest.raises(BadInput, match=r"trial\.json"):
        directory.read_trials()


def test_a_value_that_no_record_holds_is_named_by_its_place(
    recorded: tuple[StudyDir, Study, list[Trial]],
) -> None:
    directory, _, _ = recorded
    path = directory.trial_paths()[0] / "trial.json"
    body = json.loads(path.read_text(encoding="utf-8"))
    body["number"] = "first"
    path.write_text(json.dumps(body), encoding="utf-8")
    with pytest.raises(
        BadInput, match=r"trial\.json: not a trial record of this version: number: "
    ) as raised:
        directory.read_trials()
    assert "http" not in str(raised.value)


def test_a_count_or_a_time_that_none_can_be_is_a_damaged_record(
    recorded: tuple[StudyDir, Study, list[Trial]],
) -> None:
    directory, _, trials = recorded
    path = directory.trial_paths()[0]
    good = (path / "trial.json").read_text(encoding="utf-8")
    for bad in (
        good.replace('"started_at": "', '"started_at": "x'),
        good.replace('"number": 1', f'"number": {10**30}'),
    ):
        assert bad != good
        (path / "trial.json").write_text(bad, encoding="utf-8")
        with pytest.raises(BadInput, match=r"trial\.json: not a trial record"):
            directory.read_trials()
    (path / "trial.json").write_text(good, encoding="utf-8")
    assert directory.read_trials() == trials
    requests = path / "requests.jsonl"
    text = requests.read_text(encoding="utf-8")
    requests.write_text(text.replace('"turn": 0', f'"turn": {10**30}', 1), encoding="utf-8")
    with pytest.raises(BadInput, match=r"requests\.jsonl holds \d+ of \d+ records"):
        directory.read_trials()


def test_a_newer_schema_says_update(recorded: tuple[StudyDir, Study, list[Trial]]) -> None:
    directory, _, _ = recorded
    path = directory.path / "study.json"
    body = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**body, "schema_version": 99}), encoding="utf-8")
    with pytest.raises(BadInput, match="update spectune"):
        directory.read_study()


def test_a_folder_that_is_no_study_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a study directory"):
        StudyDir.open(tmp_path)


def test_an_atomic_write_replaces_whole_files_and_leaves_no_others(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def _hold(path: Path, held: object, release: object) -> None:
    with StudyDir(path).lock():
        held.set()  # type: ignore[attr-defined]
        release.wait(20)  # type: ignore[attr-defined]


def test_the_lock_names_its_holder_and_dies_with_it(recorded: tuple[StudyDir, Study, list[Trial]]) -> None:
    directory, _, _ = recorded
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(directory.path, held, release))
    holder.start()
    assert held.wait(20)
    with pytest.raises(BadInput, match=f"pid {holder.pid}"), directory.lock():
        pass
    (directory.path / "lock").unlink()
    with pytest.raises(BadInput, match="another spectune"), directory.lock():
        pytest.fail("a deleted lock file let a second one in")
    holder.kill()
    holder.join()
    with directory.lock():
        pass


@pytest.mark.parametrize(
    "name", ["study.json", "trial.json", "requests.jsonl", "lock", "progress.json", "report.json"]
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_in_place_of_a_record_is_refused_at_once(
    name: str, kind: str, recorded: tuple[StudyDir, Study, list[Trial]]
) -> None:
    directory, _, _ = recorded
    in_trial = name in ("trial.json", "requests.jsonl", "progress.json")
    path = (directory.trial_paths()[0] if in_trial else directory.path) / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    if name == "study.json":
        with pytest.raises(BadInput, match="not a study record of this version"):
            directory.read_study()
    elif name in ("trial.json", "requests.jsonl"):
        with pytest.raises(BadInput, match="a pipe or a device"):
            directory.read_trials()
    assert read_progress(directory.trial_paths()[0]) is None
    assert not is_running(directory.path)
    assert list_study(directory.path).state in ("damaged", "unfinished", "done")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_in_place_of_the_lock_is_named(kind: str, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    {"pipe": lambda: os.mkfifo(lock), "device": lambda: lock.symlink_to("/dev/zero"), "folder": lock.mkdir}[
        kind
    ]()
    with (
        pytest.raises(BadInput, match=r"lock: is a folder, a pipe or a device.*move it away"),
        StudyDir(tmp_path).lock(),
    ):
        pass
    assert lock.exists()
