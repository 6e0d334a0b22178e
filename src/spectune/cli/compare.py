"""``spectune compare``."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from spectune.api.several import compare
from spectune.cli.output import show_json
from spectune.exchange.comparison.view import comparison_view


def compare_command(args: argparse.Namespace) -> int:
    found = compare(args.studies, allow=args.allow)
    if args.json:
        document = found.model_dump(mode="json")
        show_json(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        Console(highlight=False).print(comparison_view(found))
    return 0 if found.num_ratios else 1
