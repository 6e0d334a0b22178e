"""``spectune explain``: of a study's directory, or of a table of figures with no server at all."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from spectune.cli.drafter_forecast import forecast_lines, parse_point
from spectune.domain.cost_model import machine_ceiling_tok_per_s
from spectune.drafter.forecast_forms import DataPoint
from spectune.errors import BadInput
from spectune.explain.explanation import explain
from spectune.explain.records import Explanation
from spectune.explain.table import read_table
from spectune.explain.terminal import explanation_view
from spectune.report.summary import summarize
from spectune.store.study_dir import StudyDir

MAX_TABLE_BYTES = 4_000_000


def explain_command(args: argparse.Namespace) -> int:
    ceiling = _ceiling(args)
    if (args.study_dir is None) == (args.table is None):
        raise BadInput("explain: give either a study directory or --table ROWS.csv")
    if args.table is not None:
        table = read_table(_read(Path(args.table)), path=args.table)
        found = explain(table.rows, assumptions=table.assumptions, machine_ceiling_tok_per_s=ceiling)
    else:
        directory = StudyDir.open(Path(args.study_dir))
        found = _explain_directory(directory, place=args.study_dir, machine_ceiling=ceiling)
    if args.point:
        found = _with_training(found, tuple(parse_point("--point", text) for text in args.point))
    if args.json:
        document = found.model_dump(mode="json")
        sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        Console(highlight=False).print(explanation_view(found))
    return 0


def _explain_directory(directory: StudyDir, *, place: str, machine_ceiling: float | None) -> Explanation:
    summary = summarize(
        directory.read_study(), directory.read_trials(), machine_ceiling_tok_per_s=machine_ceiling
    )
    if summary.explanation is not None:
        return summary.explanation
    if not summary.baseline.loads:
        raise BadInput(f"{place}: no complete trial of the baseline; run the study first")
    raise BadInput(f"{place}: no complete trial beside the baseline; there is nothing to explain yet")


def _with_training(found: Explanation, points: tuple[DataPoint, ...]) -> Explanation:
    """With what more data would buy the fastest arm that drafts, at its step's cost, and the advice that follows."""
    from spectune.drafter.forecast import make_forecast  # numpy: only for those who ask
    from spectune.drafter.forecast_records import ForecastRequest, SpeedFacts

    lowest = min(row.concurrency for row in found.rows)
    drafting = [
        r for r in found.rows if r.concurrency == lowest and not r.is_baseline and r.step_cost_s is not None
    ]
    if not drafting:
        raise BadInput(
            "--point: no arm here has a known acceptance length, so nothing says what a better one brings"
        )
    row = max(drafting, key=lambda r: r.e2e_tok_per_s)
    assert row.step_cost_s is not None
    depth = None
    if row.perfect_acceptance_tok_per_s is not None and row.loss_shares is not None:
        depth = max(1, round(row.perfect_acceptance_tok_per_s * row.step_cost_s) - 1)
    speed = SpeedFacts(found.baseline_tok_per_s[str(lowest)], row.step_cost_s)
    report = make_forecast(ForecastRequest(points=points, depth=depth, speed=speed))
    lines = tuple(line for line in forecast_lines(report) if not line.startswith(("form ", "assumed: ")))
    actions = tuple(
        a.model_copy(
            update={"why": f"{a.why}; by the data sizes measured: {report.advice}, {report.because}"}
        )
        if a.kind == "train"
        else a
        for a in found.next
    )
    return found.model_copy(update={"training": (f"for {row.arm}: {lines[0]}", *lines[1:]), "next": actions})


def _read(path: Path) -> str:
    if path.is_dir():
        raise BadInput(f"{path}: is a directory; --table takes a CSV file")
    if not path.exists():
        raise BadInput(f"{path}: no such file")
    if path.stat().st_size > MAX_TABLE_BYTES:
        raise BadInput(f"{path}: {path.stat().st_size} bytes; at most {MAX_TABLE_BYTES}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 text (byte {error.start}); save it as CSV in UTF-8") from error


def _ceiling(args: argparse.Namespace) -> float | None:
    weights, bandwidth = args.weights_gib, args.bandwidth_gib_s
    if weights is None and bandwidth is None:
        return None
    if weights is None or bandwidth is None or weights <= 0 or bandwidth <= 0:
        raise BadInput(
            "--weights-gib and --bandwidth-gib-s: both are needed for the machine's ceiling, above 0"
        )
    return machine_ceiling_tok_per_s(bytes_per_step=weights, bandwidth_bytes_per_s=bandwidth)
