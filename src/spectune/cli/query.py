"""``spectune query``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spectune.analysis.words import UNKNOWN, one_line
from spectune.api.several import query
from spectune.cli.output import show_document, show_json
from spectune.errors import BadInput
from spectune.exchange.exports.tables import csv_text
from spectune.exchange.query import COLUMNS, QueryResult


def query_command(args: argparse.Namespace) -> int:
    if args.columns:
        for view, columns in COLUMNS.items():
            sys.stdout.write(f"{view}\n")
            for column, meaning in columns.items():
                sys.stdout.write(f"  {column:20} {meaning}\n")
        return 0
    if args.sql is None:
        raise BadInput("query: give a SELECT statement; --columns lists what there is")
    result = query(args.sql, args.studies or ["studies"])
    if args.json:
        show_json(_json(result))
    elif args.csv:
        show_document(csv_text(result.rows, result.columns))
    else:
        _print(result)
    return 0


def _json(result: QueryResult) -> str:
    rows = [dict(zip(result.columns, map(_plain, row), strict=True)) for row in result.rows]
    document = {"schema_version": 1, "columns": list(result.columns), "rows": rows}
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """As JSON can hold it: other kinds, names that are no text, and fractions that are no number become text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _print(result: QueryResult) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in result.columns:
        table.add_column(Text(one_line(column, limit=60)), overflow="fold")
    for row in result.rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    Console(highlight=False).print(table)


def _shown(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:.6g}"
    return one_line(str(value), limit=400)
