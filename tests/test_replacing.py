"""A folder that the user names keeps everything that spectune did not write."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_studies import study

from spectune.drafter.data.folder import lock as data_lock
from spectune.drafter.data.journal import Journal
from spectune.drafter.data.plan_records import Shards
from spectune.errors import BadInput
from spectune.report.write import write_reports
from spectune.store.replacing import check_made_anew, remove_files, replace_folder
from spectune.store.study_dir import StudyDir

MINE = "the user's own"
SOURCE = "question: q\n"


def filled(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(MINE, encoding="utf-8")
    return folder


def test_a_folder_is_replaced_by_one_that_holds_the_same_files(tmp_path: Path) -> None:
    place = filled(tmp_path / "draft", "config.json", "deep/model.bin")
    made = filled(tmp_path / "made", "config.json", "deep/model.bin", "more.json")
    (made / "config.json").write_text("new", encoding="utf-8")
    replace_folder(made, place)
    assert (place / "config.json").read_text(encoding="utf-8") == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]


def test_a_folder_with_one_more_file_is_left_as_it_is(tmp_path: Path) -> None:
    place = filled(tmp_path / "draft", "config.json", "deep/notes.md")
    made = filled(tmp_path / "made", "config.json", "deep/model.bin")
    with pytest.raises(BadInput, match=r"holds deep/notes\.md, which the new one does not have"):
        replace_folder(made, place)
    assert (place / "deep" / "notes.md").read_text(encoding="utf-8") == MINE
    assert (made / "deep" / "model.bin").exists()


def test_a_link_to_a_folder_is_not_followed_into_it(tmp_path: Path) -> None:
    elsewhere = filled(tmp_path / "elsewhere", "config.json")
    (tmp_path / "draft").symlink_to(elsewhere)
    with pytest.raises(BadInput, match="is no folder"):
        check_made_anew(filled(tmp_path / "made", "config.json"), tmp_path / "draft")
    assert (elsewhere / "config.json").read_text(encoding="utf-8") == MINE


def test_a_folder_with_something_of_the_users_outlives_its_files(tmp_path: Path) -> None:
    remove_files(filled(tmp_path / "step-1", "state.json"), ["state.json", "model.bin"])
    remove_files(filled(tmp_path / "step-2", "state.json", "notes.md"), ["state.json", "model.bin"])
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["step-2", "step-2/notes.md"]


@pytest.mark.parametrize("name", ["study.yaml", "report.md", "report.html", "report.json"])
def test_a_new_study_replaces_no_file_of_the_folder_it_is_put_in(tmp_path: Path, name: str) -> None:
    filled(tmp_path, name, "trials/notes.md")
    with pytest.raises(BadInput, match=f"holds {name}, which spectune did not write"):
        StudyDir.create(tmp_path, study=study(), source=SOURCE)
    assert (tmp_path / name).read_text(encoding="utf-8") == MINE
    assert not (tmp_path / "study.json").exists()


def test_a_study_may_lie_beside_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(SOURCE, encoding="utf-8")
    filled(tmp_path, "src/main.py")
    directory = StudyDir.create(tmp_path, study=study(), source=SOURCE)
    with directory.lock():
        write_reports(directory)
    assert (tmp_path / "src" / "main.py").read_text(encoding="utf-8") == MINE


def test_a_file_in_the_place_of_a_lock_is_not_emptied(tmp_path: Path) -> None:
    directory = StudyDir.create(tmp_path / "study", study=study(), source=SOURCE)
    filled(directory.path, "lock")
    with pytest.raises(BadInput, match="is no lock of spectune's"), directory.lock():
        pass
    assert (directory.path / "lock").read_text(encoding="utf-8") == MINE
    filled(tmp_path / "data", "lock")
    with pytest.raises(BadInput, match="is no lock of spectune's"), data_lock(tmp_path / "data"):
        pass
    assert (tmp_path / "data" / "lock").read_text(encoding="utf-8") == MINE


def test_reports_elsewhere_replace_reports_only(tmp_path: Path) -> None:
    directory = StudyDir.create(tmp_path / "study", study=study(), source=SOURCE)
    filled(tmp_path / "mine", "report.md")
    with pytest.raises(BadInput, match=r"holds report.md, which spectune did not write"):
        write_reports(directory, out=tmp_path / "mine")
    assert (tmp_path / "mine" / "report.md").read_text(encoding="utf-8") == MINE
    for _ in range(2):
        write_reports(directory, out=tmp_path / "new")


@pytest.mark.parametrize("name", ["prompts.jsonl", "parts/part-00000.parquet"])
def test_a_data_set_is_not_begun_among_files_of_the_same_names(tmp_path: Path, name: str) -> None:
    filled(tmp_path, name)
    with pytest.raises(BadInput, match="which spectune did not write"), data_lock(tmp_path):
        pass
    assert not (tmp_path / "lock").exists()


def test_only_leftovers_of_the_data_set_itself_are_removed(tmp_path: Path) -> None:
    ours = ("parts/.part-00001.parquet.77.tmp", ".prompts.jsonl.77.tmp")
    filled(tmp_path, *ours, ".mine.tmp", "parts/.mine.tmp")
    Journal.recover(tmp_path, shards=Shards(num_prompts=0, size=4))
    assert not any((tmp_path / name).exists() for name in ours)
    assert (tmp_path / ".mine.tmp").exists()
    assert (tmp_path / "parts" / ".mine.tmp").exists()
