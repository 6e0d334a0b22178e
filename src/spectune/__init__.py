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
    from spectune.api.explained import explain_table
    from spectune.api.frames import to_frame
    from spectune.api.planned import PlannedStudy, Preview, check_command, load_study
    from spectune.api.prepared import PreparedStudy
    from spectune.api.results import StudyResults, open_study
    from spectune.api.together import compare, gate, import_results, list_studies, query
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
    from spectune.exchange.compare import StudyComparison
    from spectune.exchange.export_options import ExportOptions
    from spectune.exchange.gate import GateResult
    from spectune.exchange.imports.results import ArmHints
    from spectune.exchange.listing import ListedStudy
    from spectune.exchange.query import QueryResult
    from spectune.explain.records import Explanation
    from spectune.report.records import ArmSummary, StudySummary
    from spectune.runner.check import CheckResult
    from spectune.runner.events import Watcher
    from spectune.runner.schedule import StudyOutcome

_HOMES = {
    "api.explained": ("explain_table",),
    "api.frames": ("to_frame",),
    "api.planned": ("PlannedStudy", "Preview", "check_command", "load_study"),
    "api.prepared": ("PreparedStudy",),
    "api.results": ("StudyResults", "open_study"),
    "api.together": ("compare", "gate", "import_results", "list_studies", "query"),
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
    "exchange.compare": ("StudyComparison",),
    "exchange.export_options": ("ExportOptions",),
    "exchange.gate": ("GateResult",),
    "exchange.imports.results": ("ArmHints",),
    "exchange.listing": ("ListedStudy",),
    "exchange.query": ("QueryResult",),
    "explain.records": ("Explanation",),
    "report.records": ("ArmSummary", "StudySummary"),
    "runner.check": ("CheckResult",),
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
