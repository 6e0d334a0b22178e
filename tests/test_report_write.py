"""Reports written from a study directory on disk."""

from __future__ import annotations

import json

import pytest
from report_realistic import realistic
from report_studies import BASELINE, failed, speculative, study, trial

from spectune.errors import BadInput, EnvironmentFailed
from spectune.report.write import write_reports
from spectune.store.study_dir import StudyDir


def store(path, of, trials) -> StudyDir:
    """``trials`` as the runner leaves them."""
    directory = StudyDir.create(path, study=of, source="question: made up\n")
    for one in trials:
        _, folder = directory.new_trial(one.arm_id)
        for index, load in enumerate(one.loads):
            for record in load.requests:
                folder.append_request(index, record)
        folder.finish(one)
    return StudyDir.open(path)


def test_three_files_appear_beside_the_study(tmp_path):
    of, trials = realistic()
    paths = write_reports(store(tmp_path / "study", of, trials))
    assert [path.name for path in paths] == ["report.md", "report.html", "report.json"]
    assert all(path.parent == tmp_path / "study" for path in paths)
    body = json.loads(paths[2].read_text(encoding="utf-8"))
    assert body["headline"] in " ".join(paths[0].read_text(encoding="utf-8").split())
    assert len(body["trials"]) == len(trials)


def test_figures_survive_the_way_over_the_disk(tmp_path):
    of = study(speculative("arm"))
    trials = [trial(of, BASELINE, 1, speeds=100.0), trial(of, of.arms[1], 2, speeds=125.0)]
    _, _, path = write_reports(store(tmp_path / "study", of, trials))
    body = json.loads(path.read_text(encoding="utf-8"))
    assert body["trials"][1]["speedup"]["value"] == pytest.approx(1.25)


def test_another_folder_is_made_and_the_study_left_alone(tmp_path):
    of = study(speculative("arm"))
    directory = store(tmp_path / "study", of, [failed(of, BASELINE, 1)])
    before = sorted(p.name for p in directory.path.iterdir())
    paths = write_reports(directory, out=tmp_path / "deep" / "out")
    assert all(path.exists() for path in paths)
    assert sorted(p.name for p in directory.path.iterdir()) == before


def test_an_empty_study_has_a_report(tmp_path):
    paths = write_reports(store(tmp_path / "study", study(speculative("arm")), []))
    assert "the baseline has not been measured" in paths[1].read_text(encoding="utf-8")


def test_no_half_written_file_is_left_beside_the_reports(tmp_path):
    write_reports(store(tmp_path / "study", study(speculative("arm")), []))
    assert [p.name for p in (tmp_path / "study").iterdir() if p.name.endswith(".tmp")] == []


def test_a_file_in_the_place_of_the_folder_is_the_users_mistake(tmp_path):
    directory = store(tmp_path / "study", study(speculative("arm")), [])
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(BadInput, match="is a file; give a folder"):
            write_reports(directory, out=out)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    directory = store(tmp_path / "study", study(speculative("arm")), [])
    with pytest.raises(EnvironmentFailed, match="cannot write the report"):
        write_reports(directory, out=tmp_path / ("x" * 300))
