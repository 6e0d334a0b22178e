"""What a killed worker leaves on its node is removed by the next one, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spectune.cluster.worker_folders import LEFT_AFTER_S, Scratch

PREFIX = "spectune-trial-"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def left_by_a_killed_process(temporary: Path) -> Path:
    code = f"""
import os, sys, tempfile
tempfile.tempdir = sys.argv[1]
from spectune.cluster.worker_folders import Scratch
scratch = Scratch({PREFIX!r})
(scratch.folder / "0001-x").mkdir()
(scratch.folder / "0001-x" / "server.log").write_text("a prompt")
print(scratch.folder, flush=True)
os.kill(os.getpid(), 9)
"""
    reply = subprocess.run(
        [sys.executable, "-c", code, str(temporary)], capture_output=True, text=True, check=False
    )
    assert reply.returncode == -9, reply.stderr
    return Path(reply.stdout.strip())


def age(folder: Path) -> None:
    then = time.time() - LEFT_AFTER_S - 60
    os.utime(folder / ".lock", (then, then))


def test_what_a_killed_process_left_is_removed_by_the_next(temporary: Path) -> None:
    left = left_by_a_killed_process(temporary)
    assert left.parent == temporary and (left / "0001-x" / "server.log").exists()
    young = Scratch(PREFIX)
    assert left.exists(), "a server of the killed worker may still write there"
    age(left)
    scratch = Scratch(PREFIX)
    assert not left.exists()
    assert young.folder.exists()
    for one in (young, scratch):
        one.remove()
    assert not list(temporary.iterdir())


def test_a_folder_of_a_living_process_is_left_however_old(temporary: Path) -> None:
    mine = Scratch(PREFIX)
    age(mine.folder)
    Scratch(PREFIX).remove()
    assert mine.folder.exists()


def test_what_is_not_a_workers_folder_is_left(temporary: Path) -> None:
    (temporary / f"{PREFIX}unlocked").mkdir()
    (temporary / "kept").mkdir()
    (temporary / "kept" / ".lock").touch()
    age(temporary / "kept")
    (temporary / f"{PREFIX}link").symlink_to(temporary / "kept")
    before = sorted(temporary.rglob("*"))
    Scratch(PREFIX).remove()
    assert sorted(temporary.rglob("*")) == before
