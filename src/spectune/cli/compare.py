"""``spectune compare``."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console

from spectune.errors import BadInput
from spectune.exchange.compare import compare_studies
from spectune.exchange.compare_view import comparison_view
from spectune.exchange.loaded import load_studies


def compare_command(args: argparse.Namespace) -> int:
    if len(args.studies) < 2:
        raise BadInput("compare: give two or more study directories; the first is the reference")
    found = compare_studies(load_studies(args.studies), allowed=args.allow)
    if args.json:
        document = found.model_dump(mode="json")
        sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        Console(highlight=False).print(comparison_view(found))
    return 0 if found.num_ratios else 1
