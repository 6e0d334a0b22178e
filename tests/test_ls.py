"""What ``spectune ls`` says where there is nothing to list."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from exchange_studies import write_study
from report_studies import BASELINE, study

from spectune.cli.main import main


def test_an_empty_folder_is_told_on_standard_error_and_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"{tmp_path}: no study below it\n"


def test_an_empty_folder_is_an_empty_list_for_a_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema_version": 1, "studies": []}


def test_a_folder_that_is_not_there_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="setpriv is util-linux's")
def test_a_folder_that_another_user_closed_is_left_out(tmp_path: Path) -> None:
    """By a child without the right to override permissions, whoever runs the tests."""
    closed, mine = tmp_path / "closed", tmp_path / "mine"
    closed.mkdir()
    write_study(mine, study(BASELINE, num_prompts=2), [])
    closed.chmod(0)
    drop = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all") if os.geteuid() == 0 else ()
    found = subprocess.run(
        [*drop, sys.executable, "-m", "spectune", "ls", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    closed.chmod(0o700)
    assert (found.returncode, found.stderr) == (0, "")
    assert "mine" in found.stdout
