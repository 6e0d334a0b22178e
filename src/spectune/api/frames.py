"""Flat rows as pandas data frames. pandas is imported when one is asked for, and not before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spectune.errors import BadInput
from spectune.exchange.comparison.compare import StudyComparison
from spectune.exchange.comparison.rows import COMPARISON_COLUMNS, comparison_rows
from spectune.exchange.exports.tables import Kind
from spectune.exchange.query import QueryResult

if TYPE_CHECKING:
    from pandas import DataFrame

_DTYPES: Mapping[Kind, str] = {str: "string", int: "Int64", float: "float64", bool: "boolean"}
"""Unknown is ``pandas.NA``; in a column of fractions it is NaN, which pandas takes for "missing"."""


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Kind]) -> DataFrame:
    """With every column and its own type, also where it is empty or wholly unknown."""
    pandas = _pandas()
    return pandas.DataFrame(
        {
            name: pandas.array([row[name] for row in rows], dtype=_DTYPES[kind])
            if kind is not float
            else pandas.Series([row[name] for row in rows], dtype="float64").to_numpy()
            for name, kind in columns.items()
        }
    )


def to_frame(found: StudyComparison | QueryResult) -> DataFrame:
    """The result of ``compare`` (a row per arm, load point and study) or of ``query`` as a data frame.

    Raises ``BadInput`` without pandas (extra ``frames``).
    """
    if isinstance(found, StudyComparison):
        return data_frame(comparison_rows(found), COMPARISON_COLUMNS)
    return _pandas().DataFrame.from_records(list(found.rows), columns=list(found.columns))


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise BadInput(
            "data frames need pandas: pip install 'spectune[frames]' (rows() gives the same without)"
        ) from error
    return pandas
