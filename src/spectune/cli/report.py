"""``spectune report``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from spectune.report.summary import summarize
from spectune.report.terminal import study_tables
from spectune.report.write import write_reports
from spectune.store.study_dir import StudyDir


def report_command(args: argparse.Namespace) -> int:
    directory = StudyDir.open(Path(args.study_dir))
    paths = write_reports(directory, out=None if args.out is None else Path(args.out))
    summary = summarize(directory.read_study(), directory.read_trials())
    if args.json:
        document = summary.model_dump(mode="json")
        sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        return 0
    console = Console(highlight=False)
    console.print(study_tables(summary))
    for path in paths:
        console.print(str(path), markup=False, soft_wrap=True)
    return 0
