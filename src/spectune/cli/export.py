"""``spectune export``."""

from __future__ import annotations

import argparse
import sys

from spectune.api.results import open_study
from spectune.exchange.exports import ExportOptions


def export_command(args: argparse.Namespace) -> int:
    options = ExportOptions(
        arm=args.arm,
        rows=args.rows,
        host=args.host,
        port=args.port,
        image=args.image,
        program=args.program,
        time_limit=args.time,
    )
    results = open_study(args.study)
    if args.output in (None, "-"):
        sys.stdout.write(results.export(args.form, options))
    else:
        results.write_export(args.form, args.output, options)
    return 0
