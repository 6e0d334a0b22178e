"""spectune: find the fastest speculative decoding configuration of a real server, and say why.

::

    import spectune

    study = spectune.load_study("study.yaml")   # every mistake at once, with its line
    study.check().errors()                      # what is wrong with the launches, before one is made
    results = study.run(progress=True)          # launches, measures, stops, records; resumes
    results = spectune.open_study("studies/study")
    results.frame("arms")                       # pandas; also "trials", "prompts", "requests"
    results.explain().headline                  # what limits the speed

The command line is built on these functions. Names are loaded when they are
first used, so importing this costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from spectune.analysis.explain.records import Explanation
    from spectune.analysis.records import ArmSummary, StudySummary
    from spectune.api.before_run import PlannedStudy, Preview, check_command, load_study
    from spectune.api.explained import explain_table
    from spectune.api.frames import to_frame
    from spectune.api.results import StudyResults, open_study
    from spectune.api.run_folder import PreparedStudy
    from spectune.api.several import compare, gate, import_results, list_studies, query
    from spectune.check.check import CheckResult
    from spectune.domain.arm import Arm, Knobs
    from spectune.domain.findings import Finding
    from spectune.domain.interval import Interval
    from spectune.domain.study import Study
    from spectune.domain.trial import Trial
    from spectune.errors import (
        BadInput,
        CheckRefused,
        EnvironmentFailed,
        Interrupted,
        SpectuneError,
        StudyFileError,
    )
    from spectune.exchange.comparison.compare import StudyComparison
    from spectune.exchange.comparison.gate import GateResult
    from spectune.exchange.exports.options import ExportOptions
    from spectune.exchange.imports.results import ArmHints
    from spectune.exchange.listing import ListedStudy
    from spectune.exchange.query import QueryResult
    from spectune.runner.events import Watcher
    from spectune.runner.schedule import StudyOutcome

_HOMES = {
    "api.explained": ("explain_table",),
    "api.frames": ("to_frame",),
    "api.before_run": ("PlannedStudy", "Preview", "check_command", "load_study"),
    "api.run_folder": ("PreparedStudy",),
    "api.results": ("StudyResults", "open_study"),
    "api.several": ("compare", "gate", "import_results", "list_studies", "query"),
    "domain.arm": ("Arm", "Knobs"),
    "domain.findings": ("Finding",),
    "domain.interval": ("Interval",),
    "domain.study": ("Study",),
    "domain.trial": ("Trial",),
    "errors": (
        "BadInput",
        "CheckRefused",
        "EnvironmentFailed",
        "Interrupted",
        "SpectuneError",
        "StudyFileError",
    ),
    "exchange.comparison.compare": ("StudyComparison",),
    "exchange.exports.options": ("ExportOptions",),
    "exchange.comparison.gate": ("GateResult",),
    "exchange.imports.results": ("ArmHints",),
    "exchange.listing": ("ListedStudy",),
    "exchange.query": ("QueryResult",),
    "analysis.explain.records": ("Explanation",),
    "analysis.records": ("ArmSummary", "StudySummary"),
    "check.check": ("CheckResult",),
    "runner.events": ("Watcher",),
    "runner.schedule": ("StudyOutcome",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Arm",
    "ArmHints",
    "ArmSummary",
    "BadInput",
    "CheckRefused",
    "CheckResult",
    "EnvironmentFailed",
    "Explanation",
    "ExportOptions",
    "Finding",
    "GateResult",
    "Interrupted",
    "Interval",
    "Knobs",
    "ListedStudy",
    "PlannedStudy",
    "PreparedStudy",
    "Preview",
    "QueryResult",
    "SpectuneError",
    "Study",
    "StudyComparison",
    "StudyFileError",
    "StudyOutcome",
    "StudyResults",
    "StudySummary",
    "Trial",
    "Watcher",
    "__version__",
    "check_command",
    "compare",
    "explain_table",
    "gate",
    "import_results",
    "list_studies",
    "load_study",
    "open_study",
    "query",
    "to_frame",
]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'spectune' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"spectune.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
