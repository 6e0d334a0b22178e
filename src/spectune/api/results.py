"""What a study measured: records, tables, explanation, reports and other tools' formats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from spectune.analysis.explain.records import Explanation
from spectune.analysis.records import ArmSummary, StudySummary
from spectune.api.explained import machine_ceiling
from spectune.api.frames import data_frame
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.errors import BadInput, EnvironmentFailed
from spectune.exchange.exports.formats import Form, export_parquet, export_text
from spectune.exchange.exports.options import ExportOptions, Rows
from spectune.exchange.exports.tables import COLUMNS, Row, rows_of
from spectune.exchange.whole_study import LoadedStudy, load_study
from spectune.report.text import as_text
from spectune.report.write import write_reports
from spectune.runner.schedule import StudyOutcome
from spectune.store.opening import open_study as open_directory
from spectune.store.study_dir import check_output_file, write_atomically

if TYPE_CHECKING:
    from pandas import DataFrame

SCRIPTS = ("command", "docker", "slurm")
"""Exports that are programs."""


@dataclass(frozen=True)
class StudyResults:
    """A study directory as it was when it was opened; ``open_study`` and ``PlannedStudy.run`` make it."""

    path: Path
    """Where it lies; of a study in an object store see ``place``."""
    loaded: LoadedStudy
    """The records, as they were read."""
    outcome: StudyOutcome | None = None
    """How the run ended that these are the results of; ``None`` if the directory was opened."""

    def __repr__(self) -> str:
        return f"StudyResults({self.place!r}, {len(self.trials)} trials)"

    @property
    def place(self) -> str:
        """Where the study lies: a folder, or ``s3://BUCKET/PATH``."""
        return self.loaded.place

    @property
    def study(self) -> Study:
        """What was asked: arms, workload, machine."""
        return self.loaded.study

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every ended trial with all its requests, in the order of their start; failed and pruned ones too."""
        return self.loaded.trials

    @cached_property
    def summary(self) -> StudySummary:
        """All that the report says, as data: what ``spectune report --json`` prints."""
        return self.loaded.summary

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        return self.summary.headline

    @property
    def best_arm(self) -> ArmSummary | None:
        """The fastest arm that is FASTER than plain decoding, else the baseline; ``None`` before that is measured."""
        best = self.summary.best_arm_id
        return None if best is None else self.summary.arm(best)

    def table(self, *, width: int = 100) -> str:
        """The table of arms with findings and answer, as ``spectune report`` prints it, ``width`` characters wide."""
        from spectune.report.terminal import study_tables

        return as_text(study_tables(self.summary), width=width)

    def rows(self, what: Rows = "arms", *, arm: str | None = None) -> list[Row]:
        """Flat rows, unknown is ``None``: ``arms`` (one per load point), ``trials``, ``prompts`` or ``requests``.

        Units are in the columns' names; ``arm`` keeps one arm's rows, by name or id (``BadInput`` if there is none).
        """
        if what not in COLUMNS:
            raise BadInput(f"rows: must be one of {', '.join(COLUMNS)}, got {what!r}")
        arm_id = None if arm is None else self.loaded.find_arm(arm).arm_id
        return rows_of(self.loaded, what, arm_id=arm_id)

    def frame(self, what: Rows = "arms", *, arm: str | None = None) -> DataFrame:
        """The same as a pandas data frame with stated types. ``BadInput`` without pandas (extra ``frames``)."""
        return data_frame(self.rows(what, arm=arm), COLUMNS[what])

    def explain(
        self, *, weights_gib: float | None = None, bandwidth_gib_s: float | None = None
    ) -> Explanation:
        """What a verify step costs, what limits each arm, which acceptance length breaks even, and what to do next.

        ``weights_gib`` (read per step) with ``bandwidth_gib_s`` (of memory) gives the machine's ceiling in tok/s.
        ``BadInput`` before the baseline and one arm beside it are measured.
        """
        ceiling = machine_ceiling(weights_gib, bandwidth_gib_s)
        summary = self.summary if ceiling is None else self.loaded.summary_with(machine_ceiling=ceiling)
        if summary.explanation is not None:
            return summary.explanation
        place = self.loaded.place
        if not summary.baseline.loads:
            raise BadInput(f"{place}: no complete trial of the baseline; run the study first")
        raise BadInput(f"{place}: no complete trial beside the baseline; there is nothing to explain yet")

    def write_report(self, out: str | Path | None = None) -> list[Path]:
        """Writes ``report.md``, ``report.html`` and ``report.json`` of what is on disk now; their paths.

        ``out``: a folder, the study's own where ``None``. ``BadInput`` if it is a file, ``EnvironmentFailed`` if it
        cannot be written.
        """
        return write_reports(open_directory(str(self.path)), out=None if out is None else Path(out))

    def export(self, form: Form, options: ExportOptions | None = None) -> str:
        """The study, or the command of its best arm, in another tool's format; see ``spectune export``.

        ``BadInput`` if the study does not hold what the format needs. Parquet is no text: see ``write_export``.
        """
        text = export_text(self.loaded, form, options or ExportOptions())
        return text.encode("utf-8", "replace").decode("utf-8")

    def write_export(self, form: Form, path: str | Path, options: ExportOptions | None = None) -> None:
        """The same into a file, whole or not at all; scripts are made executable.

        ``BadInput`` where ``path`` can be no file: it is a folder, or in none.
        """
        said, path = str(path) or "''", Path(path)
        try:
            check_output_file(said, path)
            if form == "parquet":
                export_parquet(self.loaded, options or ExportOptions(), path)
                return
            write_atomically(path, self.export(form, options))
            if form in SCRIPTS:
                path.chmod(path.stat().st_mode | 0o111)
        except OSError as error:
            raise EnvironmentFailed(f"{path}: {error.strerror or error}") from error


def open_study(path: str | Path) -> StudyResults:
    """The results in a study directory, also of one that is not finished or runs now: read once, as they are.

    Raises ``BadInput`` if it is none, or is damaged, or of a newer spectune.
    """
    return StudyResults(Path(path), load_study(str(path)))
