"""Several studies at once: list, compare, gate, query; and results of other tools as a study."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from spectune.analysis.words import one_line
from spectune.api.results import StudyResults, open_study
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.errors import BadInput, EnvironmentFailed
from spectune.exchange.comparison.compare import StudyComparison, compare_studies
from spectune.exchange.comparison.gate import GateResult
from spectune.exchange.comparison.gate import gate as judge_fall
from spectune.exchange.comparison.pairing import Basis
from spectune.exchange.imports.read import FORMATS, read_results
from spectune.exchange.imports.reading import well_formed
from spectune.exchange.imports.results import ArmHints, assemble
from spectune.exchange.listing import ListedStudy, places_below
from spectune.exchange.listing import list_studies as list_below
from spectune.exchange.query import QueryResult, run_query
from spectune.exchange.whole_study import LoadedStudy, load_studies
from spectune.report.vllm_result import vllm_bench_result
from spectune.report.write import write_reports
from spectune.store.opening import create_study, study_exists
from spectune.store.places import is_shared, text_of
from spectune.store.study_dir import TrialDir

Place = str | Path | StudyResults
"""A study directory, or the results of one."""


def list_studies(folder: str | Path = "studies") -> list[ListedStudy]:
    """The studies below a folder, newest first; a damaged one is listed with its problem.

    Raises ``BadInput`` if there is no such folder.
    """
    return list_below(text_of(folder))


def compare(studies: Sequence[Place], *, allow: Sequence[str] = ()) -> StudyComparison:
    """The same arms of two or more studies side by side; the first is the reference. ``to_frame`` makes a table of it.

    Ratios are of tok/s where machine, prompts and sampling allow that, else of speedups, else absent with the reason.
    ``allow``: aspects that may differ, e.g. ``("version",)``. Raises ``BadInput`` for fewer than two.
    """
    if isinstance(studies, str) or len(studies) < 2:
        raise BadInput("compare: give two or more study directories; the first is the reference")
    return compare_studies(_loaded(studies), allowed=allow)


def gate(
    study: Place,
    *,
    against: Place,
    max_slowdown_frac: float,
    error_rate: float = 0.05,
    allow: Sequence[str] = (),
    figures: Sequence[str] = ("speed", "acceptance"),
    basis: Basis | None = None,
) -> GateResult:
    """Whether speed or acceptance length fell by more than ``max_slowdown_frac`` (0.03 is 3 %) against another study.

    Noise fails it with a chance of ``error_rate`` at most. ``basis``: of speed, ``None`` tests speedups where both
    studies have plain decoding and tok/s where not. Raises ``BadInput`` where the two cannot be compared.
    """
    if not 0 <= max_slowdown_frac < 1:
        raise BadInput(
            f"gate: max_slowdown_frac: must be a share from 0 to below 1, got {max_slowdown_frac!r}"
        )
    if not 0 < error_rate <= 0.5:
        raise BadInput(f"gate: error_rate: must be a share above 0 and at most 0.5, got {error_rate!r}")
    if not figures or not set(figures) <= {"speed", "acceptance"}:
        raise BadInput(f"gate: figures: must be some of speed and acceptance, got {figures!r}")
    if basis not in (None, "speedup", "tok/s"):
        raise BadInput(f"gate: basis: must be speedup, tok/s or None, got {basis!r}")
    new, old = _loaded([study, against])
    return judge_fall(
        new,
        old,
        max_slowdown=max_slowdown_frac,
        alpha=error_rate,
        allowed=allow,
        figures=figures,
        basis=basis,
    )


def query(sql: str, places: Sequence[str | Path] = ("studies",)) -> QueryResult:
    """One SELECT over the records of studies, as they lie. ``to_frame`` makes a data frame of the result.

    ``places``: study directories, or folders of them. Views and columns: ``spectune query --columns``.
    Raises ``BadInput`` for SQL that is wrong or would change anything, and without DuckDB (extra ``query``).
    """
    found: list[str] = []
    for place in map(str, (places,) if isinstance(places, str | Path) else places):
        below = [text_of(place)] if study_exists(place) else places_below(place)
        if not below:
            raise BadInput(f"{place}: no study in it or below it")
        found += [p for p in below if p not in found]
    return run_query(sql, found)


def import_results(
    files: Sequence[str | Path],
    directory: str | Path,
    *,
    form: str = "auto",
    names: Mapping[Path, str] | None = None,
    hints: ArmHints | None = None,
    baseline: str | None = None,
    run_is_launch: bool = False,
) -> StudyResults:
    """Makes a study directory of other tools' result files; see ``spectune import``.

    ``names``: of arms, by file, where the file has none. ``directory`` must be new or empty.
    Raises ``BadInput`` for files of no known tool, or that disagree in what a study has one of.
    """
    target = Path(directory)
    if is_shared(str(target)):
        if study_exists(str(target)):
            raise BadInput(f"{text_of(target)}: holds a study; name a new place")
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput(f"{target}: exists and is not empty; name a new directory")
    paths = [Path(file) for file in files]
    if not paths:
        raise BadInput("import: give one file or more")
    if form not in ("auto", *FORMATS):
        raise BadInput(f"import: form: must be auto or one of {', '.join(FORMATS)}, got {form!r}")
    name = target.name if is_shared(str(target)) else target.resolve().name
    said = {
        field: None if text is None else well_formed(text)
        for field, text in dataclasses.asdict(hints or ArmHints()).items()
    }
    results = read_results(paths, names=names or {}, form=form, hints=ArmHints(**said))
    study, trials = assemble(results, name=well_formed(name), baseline=baseline, run_is_launch=run_is_launch)
    _write(target, study, trials)
    return open_study(target)


def _loaded(places: Sequence[Place]) -> list[LoadedStudy]:
    """Each once; what was opened before is not read again."""
    opened = {str(p.path): p.loaded for p in places if isinstance(p, StudyResults)}
    names = [str(p.path) if isinstance(p, StudyResults) else str(p) for p in places]
    return load_studies(names, opened=opened)


def _write(target: Path, study: Study, trials: Sequence[Trial]) -> None:
    """All of it or nothing: a folder gets its ``study.json`` last, from a hidden one inside it."""
    if is_shared(str(target)):
        _write_files(str(target), study, trials)
        return
    made = [folder for folder in (target, *target.parents) if not folder.exists()]
    stage = target / ".import"
    try:
        _write_files(str(stage), study, trials)
        for path in sorted(stage.iterdir(), key=lambda path: path.name == "study.json"):
            path.rename(target / path.name)
        stage.rmdir()
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        with suppress(OSError):
            for folder in made:
                folder.rmdir()
        raise


def _write_files(place: str, study: Study, trials: Sequence[Trial]) -> None:
    assert study.imported is not None
    files = "".join(f"#   {one_line(f.name, limit=200)} {f.sha256}\n" for f in study.imported.files)
    source = f"# Imported from {study.imported.tool}; there is nothing here to run.\n{files}"
    directory = create_study(place, study=study, source=source)
    try:
        with directory.lock():
            for trial in trials:
                folder = TrialDir(directory.trials_path / trial.trial_id)
                folder.path.mkdir(parents=True)
                folder.replace_requests([load.requests for load in trial.loads])
                if trial.loads and any(load.requests for load in trial.loads):
                    folder.write_result(vllm_bench_result(trial, 0))
                folder.finish(trial)
            write_reports(directory)
    except OSError as error:
        raise EnvironmentFailed(f"{place}: cannot write the study: {error.strerror or error}") from error
