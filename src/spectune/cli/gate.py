"""``spectune gate``: one line and an exit code."""

from __future__ import annotations

import argparse
import json
import sys

from spectune.exchange.gate import gate
from spectune.exchange.loaded import load_studies
from spectune.report.words import one_line


def gate_command(args: argparse.Namespace) -> int:
    new, old = load_studies([args.study, args.against])
    figures = ("speed", "acceptance") if args.figures == "both" else (args.figures,)
    result = gate(
        new, old, max_slowdown=args.max_slowdown, alpha=args.error_rate, allowed=args.allow, figures=figures
    )
    if args.json:
        document = result.model_dump(mode="json")
        sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        sys.stdout.write(f"{one_line(result.line)}\n")
        for check in result.comparability.differences:
            sys.stderr.write(f"  {check.aspect}: {one_line(check.second)}, was {one_line(check.first)}\n")
        if result.arms_missing:
            sys.stderr.write(f"  not in this study: {one_line(', '.join(result.arms_missing))}\n")
    if not result.passed:
        return 1
    return 1 if args.require_answer and result.outcome == "cannot tell" else 0
