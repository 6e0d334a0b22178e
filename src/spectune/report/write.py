"""Writes the reports of a study directory."""

from __future__ import annotations

import json
from pathlib import Path

from spectune.analysis.records import StudySummary
from spectune.analysis.summary import summarize
from spectune.errors import BadInput, EnvironmentFailed
from spectune.report.html import render_html
from spectune.report.markdown import render_markdown
from spectune.store.replacing import check_replaceable
from spectune.store.study_dir import StudyDir, write_atomically


def summary_json(summary: StudySummary) -> str:
    """What ``spectune report --json`` prints: strict JSON, unknown is null."""
    return json.dumps(summary.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_reports(
    study_dir: StudyDir, *, out: Path | None = None, summary: StudySummary | None = None
) -> list[Path]:
    """``report.md``, ``report.html`` and ``report.json``, each whole or not at all; beside the study by default.

    ``summary``: of what is on disk, where the caller has it; the trials are not read again then.
    """
    summary = summary or summarize(study_dir.read_study(), study_dir.read_trials())
    folder = study_dir.path if out is None else out
    texts = {
        "report.md": render_markdown(summary),
        "report.html": render_html(summary),
        "report.json": summary_json(summary),
    }
    try:
        _check_folder(folder)
        if out is not None:
            check_replaceable(str(out), out, names=texts, marks=["report.json", "study.json"])
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(folder / name, text)
    except OSError as error:
        raise EnvironmentFailed(f"{folder}: cannot write the report: {error.strerror or error}") from error
    if out is None:
        study_dir.publish(list(texts))
    return [folder / name for name in texts]


def _check_folder(folder: Path) -> None:
    there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    if there.exists() and not there.is_dir():
        what = "is a file" if there == folder else f"{there} is a file"
        raise BadInput(f"{folder}: {what}; give a folder for the reports")
