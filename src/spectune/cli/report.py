"""``spectune report``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from spectune.api.results import open_study
from spectune.cli.output import show_json
from spectune.errors import BadInput
from spectune.report.terminal import study_tables
from spectune.report.write import write_reports
from spectune.store.opening import open_study as open_directory


def report_command(args: argparse.Namespace) -> int:
    if args.out == "":
        raise BadInput("--out: is empty; name a folder, or leave it out for the study's own")
    results = open_study(args.study_dir)
    summary = results.summary
    out = None if args.out is None else Path(args.out)
    paths = write_reports(open_directory(str(results.path)), out=out, summary=summary)
    if args.json:
        document = summary.model_dump(mode="json")
        show_json(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        return 0
    console = Console(highlight=False)
    console.print(study_tables(summary))
    for path in paths:
        shown = str(path) if args.out is not None else f"{results.place}/{path.name}"
        console.print(shown, markup=False, soft_wrap=True)
    return 0
