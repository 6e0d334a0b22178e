"""Several writers on one study in a folder that they share, and the order in which their trials are read."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
from pathlib import Path

import pytest
from appending import append_trials, one_trial
from exchange_studies import drawn
from report_studies import BASELINE

from spectune.cli.main import main
from spectune.domain.machine import Machine
from spectune.errors import BadInput
from spectune.exchange.listing import is_running
from spectune.runner.shared import check_same_kind
from spectune.store.numbering import numbered_apart
from spectune.store.places import Bucket, place_of, same_place, text_of
from spectune.store.study_dir import StudyDir

EACH = 25


def test_two_processes_lose_no_trial_and_give_no_number_twice(tmp_path: Path) -> None:
    place = str(tmp_path / "study")
    StudyDir.create(Path(place), study=drawn(random.Random(1)).study, source="question: q\n")
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(2)
    workers = [context.Process(target=append_trials, args=(place, None, name, EACH, gate)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(400)
        assert worker.exitcode == 0
    trials = StudyDir.open(Path(place)).read_trials()
    wanted = {f"answer {i} of {name}" for name in "ab" for i in range(EACH)}
    assert sorted(r.text for t in trials for r in t.loads[0].requests) == sorted(wanted)
    assert [t.number for t in trials] == list(range(1, 2 * EACH + 1))


def test_a_number_given_twice_is_told_apart_by_session_and_launches_stay_whole() -> None:
    """Two machines that could not hear each other both went on from trial 2; a's trial 4 used the server of its 3."""
    made = drawn(random.Random(1)).study

    def trial(name: str, number: int, minute: int, launch: int | None = None) -> object:
        at = f"2026-11-30T10:{minute:02d}:00.000+00:00"
        return one_trial(made, BASELINE, number, name, trial_id=name, started_at=at, launch=launch)

    a = [trial("0003-abcd1234-aaaaaa", 3, 10), trial("0004-abcd1234-aaaaaa", 4, 20, launch=3)]
    b = [trial("0003-abcd1234-bbbbbb", 3, 11), trial("0004-abcd1234-bbbbbb", 4, 12)]
    first = [trial("0001-abcd1234-cccccc", 1, 1), trial("0002-abcd1234-cccccc", 2, 2)]
    found = numbered_apart([*first, *a, *b])  # type: ignore[list-item]
    assert [(t.number, t.trial_id[-2:], t.launch_number) for t in found] == [
        (1, "cc", 1),
        (2, "cc", 2),
        (3, "aa", 3),
        (4, "aa", 3),
        (5, "bb", 5),
        (6, "bb", 6),
    ]


def test_numbers_that_are_apart_are_left_alone() -> None:
    trials = list(drawn(random.Random(1)).trials)
    assert numbered_apart(trials) == trials


def test_a_lock_of_another_machine_is_named_with_it(tmp_path: Path) -> None:
    directory = StudyDir.create(tmp_path / "s", study=drawn(random.Random(1)).study, source="")
    with directory.lock():
        assert (tmp_path / "s" / "lock").read_text() == f"{os.getpid()} {socket.gethostname()}"
        (tmp_path / "s" / "lock").write_text("4242 node-7")
        with pytest.raises(BadInput, match="pid 4242 on node-7"), StudyDir(tmp_path / "s").lock():
            pass
        assert is_running(tmp_path / "s")
    assert not is_running(tmp_path / "s")


def test_a_machine_of_another_kind_does_not_go_on_with_the_study() -> None:
    made = drawn(random.Random(1)).study
    same = made.machine.model_copy(update={"hostname": "lab-4", "os": "Linux 6.9"})
    check_same_kind(made, same, place="s3://b/s")
    for change in ({"cpu": "EPYC 9654"}, {"gpus": ("H200",)}, {"cores": 64}):
        other = Machine.model_validate({**same.model_dump(), **change})
        with pytest.raises(BadInput, match=r"lab-3 .* lab-4 .*spectune compare"):
            check_same_kind(made, other, place="s3://b/s")


class TestPlaces:
    def test_addresses_and_folders(self, tmp_path: Path) -> None:
        assert place_of("s3://bucket/a//b/") == Bucket("bucket", "a/b")
        assert same_place("S3://bucket/a/b/") == same_place("s3a://bucket/a/b")
        assert place_of(str(tmp_path)) == tmp_path
        assert text_of(Path("s3://bucket/a")) == "s3://bucket/a"
        assert place_of("./s3:folder") == Path("s3:folder")

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("gs://bucket/x", "gs:// is not known here"),
            ("s3:bucket/x", "two slashes"),
            ("s3://", "no name of a bucket"),
            ("s3://b@d/x", "no name of a bucket"),
            ("s3://bucket/../x", "cannot be part of a path"),
            ("s3://bucket/a*/x", "cannot be part of a path"),
        ],
    )
    def test_what_is_no_place_is_told(
        self, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for command in (
            ["report", text],
            ["explain", text],
            ["ls", text],
            ["compare", text, text],
            ["gate", text, "--against", text],
            ["query", "SELECT 1", text],
            ["export", text, "--as", "csv"],
            ["diagnose", text],
            ["demo", "--dir", text],
            ["run", text],
        ):
            assert main(command) == 2, command
            assert words in capsys.readouterr().err, command
