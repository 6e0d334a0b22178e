"""``spectune explain``: of a study's directory, or of a table of figures with no server at all."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from spectune.analysis.explain.records import Explanation
from spectune.analysis.explain.terminal import explanation_view
from spectune.api.explained import explain_table
from spectune.api.results import open_study
from spectune.cli.drafter.forecast import forecast_lines, parse_point
from spectune.cli.output import show_json
from spectune.drafter.forecast.forms import DataPoint
from spectune.errors import BadInput


def explain_command(args: argparse.Namespace) -> int:
    ceiling = {"weights_gib": args.weights_gib, "bandwidth_gib_s": args.bandwidth_gib_s}
    if (args.study_dir is None) == (args.table is None):
        raise BadInput("explain: give either a study directory or --table ROWS.csv")
    if args.table is not None:
        found = explain_table(args.table, **ceiling)
    else:
        found = open_study(args.study_dir).explain(**ceiling)
    if args.point:
        found = _with_training(found, tuple(parse_point("--point", text) for text in args.point))
    if args.json:
        document = found.model_dump(mode="json")
        show_json(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        Console(highlight=False).print(explanation_view(found), crop=False)
    return 0


def _with_training(found: Explanation, points: tuple[DataPoint, ...]) -> Explanation:
    """With what more data would buy the fastest arm that drafts, at its step's cost, and the advice that follows."""
    from spectune.drafter.forecast.curve import make_forecast  # numpy: only for those who ask
    from spectune.drafter.forecast.records import ForecastRequest, SpeedFacts

    first = found.first_concurrency
    drafting = [
        r for r in found.rows if r.concurrency == first and r.has_drafter and r.step_cost_s is not None
    ]
    if not drafting:
        raise BadInput(
            "--point: no arm here has a drafter to train and a known acceptance length, so nothing says what a better "
            "one brings"
        )
    row = max(drafting, key=lambda r: r.e2e_tok_per_s)
    assert row.step_cost_s is not None
    depth = None if row.most_tokens_per_pass is None else max(1, round(row.most_tokens_per_pass) - 1)
    speed = SpeedFacts(found.baseline_tok_per_s[str(first)], row.step_cost_s, row.first_token_s)
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
