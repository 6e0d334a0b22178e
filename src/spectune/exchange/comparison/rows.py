"""A comparison of studies as flat rows: one per arm, load point and study."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spectune.domain.interval import Interval
from spectune.exchange.comparison.compare import StudyComparison
from spectune.exchange.exports.tables import Kind

_SPAN = ("", "_low", "_high")
COMPARISON_COLUMNS: dict[str, Kind] = {
    "arm": str,
    "load": str,
    "is_baseline": bool,
    "study_dir": str,
    "study": str,
    "is_reference": bool,
    **{f"e2e_tok_per_s{end}": float for end in _SPAN},
    **{f"speedup{end}": float for end in _SPAN},
    **{f"acceptance_length{end}": float for end in _SPAN},
    "basis": str,
    **{f"ratio{end}": float for end in _SPAN},
    **{f"acceptance_ratio{end}": float for end in _SPAN},
    "why_not": str,
}
"""``ratio`` is to the first study, of what ``basis`` names: tok/s or speedups."""


def comparison_rows(found: StudyComparison) -> list[dict[str, Any]]:
    """With every column of ``COMPARISON_COLUMNS``; a study without the arm has no row of it."""
    return [{column: row.get(column) for column in COMPARISON_COLUMNS} for row in _rows(found)]


def _rows(found: StudyComparison) -> Iterable[dict[str, Any]]:
    for row in found.rows:
        for place, (study, cell) in enumerate(zip(found.studies, row.cells, strict=True)):
            if cell is None:
                continue
            yield {
                "arm": row.arm,
                "load": row.load,
                "is_baseline": row.is_baseline,
                "study_dir": cell.study_dir,
                "study": study.name,
                "is_reference": place == 0,
                **_spread("e2e_tok_per_s", cell.e2e_tok_per_s),
                **_spread("speedup", cell.speedup),
                **_spread("acceptance_length", cell.acceptance_length),
                "basis": cell.basis,
                **_spread("ratio", cell.ratio),
                **_spread("acceptance_ratio", cell.acceptance_ratio),
                "why_not": cell.why_not,
            }


def _spread(name: str, interval: Interval | None) -> dict[str, Any]:
    if interval is None:
        return {}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
