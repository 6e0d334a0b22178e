"""``spectune gate``: one line and an exit code."""

from __future__ import annotations

import argparse
import json
import sys

from spectune.analysis.words import one_line
from spectune.api.several import gate
from spectune.cli.output import show_json


def gate_command(args: argparse.Namespace) -> int:
    figures = ("speed", "acceptance") if args.figures == "both" else (args.figures,)
    result = gate(
        args.study,
        against=args.against,
        max_slowdown_frac=args.max_slowdown,
        error_rate=args.error_rate,
        allow=args.allow,
        figures=figures,
        basis=args.basis,
    )
    if args.json:
        document = result.model_dump(mode="json")
        show_json(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        sys.stdout.write(f"{one_line(result.line)}\n")
        for check in result.comparability.differences:
            sys.stderr.write(f"  {check.aspect}: {one_line(check.second)}, was {one_line(check.first)}\n")
        for plain in result.plain_decoding:
            sys.stderr.write(
                f"  plain decoding at {plain.load}: {plain.ratio:.3f}x of before, told and not tested "
                "(--basis tok/s tests it)\n"
            )
        if result.arms_missing:
            sys.stderr.write(f"  not in this study: {one_line(', '.join(result.arms_missing))}\n")
    if not result.passed:
        return 1
    return 1 if args.require_answer and result.outcome == "cannot tell" else 0
