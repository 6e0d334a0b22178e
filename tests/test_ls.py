"""What ``spectune ls`` says where there is nothing to list."""

import json
from pathlib import Path

import pytest

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
