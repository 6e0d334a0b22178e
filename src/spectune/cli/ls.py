"""``spectune ls``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spectune.analysis.words import UNKNOWN, one_line, times
from spectune.api.several import list_studies
from spectune.cli.output import say, show_json
from spectune.exchange.listing import ListedStudy, age_of
from spectune.store.places import is_shared, same_place


def ls_command(args: argparse.Namespace) -> int:
    found = list_studies(args.folder)
    if args.json:
        document = {"schema_version": 1, "studies": [s.model_dump(mode="json") for s in found]}
        show_json(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        return 0
    if not found:
        say(f"{args.folder}: no study below it")
        return 0
    console = Console(highlight=False)
    console.print(_table(found, root=args.folder))
    for line in _problems(found):
        console.print(line)
    return 0


def _table(found: Sequence[ListedStudy], *, root: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("study", overflow="fold", min_width=10, ratio=1)
    table.add_column("state", no_wrap=True)
    table.add_column("trials", justify="right", no_wrap=True)
    table.add_column("best arm", overflow="fold", min_width=8)
    table.add_column("speedup", no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True)
    now = datetime.now(UTC)
    for study in found:
        name = _name_below(root, study.study_dir)
        planned = "" if study.num_planned is None else f"/{study.num_planned}"
        cells = (
            one_line(name, limit=120),
            study.state + (", simulated" if study.simulated else ""),
            f"{study.num_trials}{planned}",
            one_line(study.best_arm, limit=60) if study.best_arm else UNKNOWN,
            times(study.speedup),
            age_of(study.last_change, now=now),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _name_below(root: str, place: str) -> str:
    if is_shared(root):
        return place.removeprefix(f"{same_place(root)}/")
    path = Path(place)
    return place if path == Path(root) else str(path.relative_to(root))


def _problems(found: Sequence[ListedStudy]) -> Iterable[Text]:
    for study in found:
        if study.problem is not None:
            yield Text(one_line(study.problem, limit=300), style="red")
