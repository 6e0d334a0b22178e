"""``spectune import``: the name of the module avoids a word of the language."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.text import Text

from spectune.analysis.words import count, one_line
from spectune.api.several import import_results
from spectune.cli.output import show_json
from spectune.errors import BadInput
from spectune.exchange.imports.results import ArmHints
from spectune.report.terminal import study_tables


def import_command(args: argparse.Namespace) -> int:
    paths, names = _named(args.files)
    results = import_results(
        paths,
        args.dir,
        form=args.form,
        names=names,
        hints=ArmHints(method=args.method, drafter=args.drafter, engine=args.engine, target=args.target),
        baseline=args.baseline,
        run_is_launch=args.run_is_launch,
    )
    study, trials = results.study, results.trials
    imported = study.imported
    assert imported is not None
    if args.json:
        document = {
            "schema_version": 1,
            "study_dir": results.place,
            "tool": imported.tool,
            "arms": [arm.name for arm in study.arms],
            "num_trials": len(trials),
            "missing": list(imported.missing),
        }
        show_json(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        return 0
    console = Console(highlight=False)
    console.print(study_tables(results.summary))
    arms = count(len({t.arm_id for t in trials}), "arm")
    console.print(Text(f"imported {arms} of {imported.tool} into {one_line(results.place)}"))
    for missing in imported.missing:
        console.print(Text(f"  not in the files: {one_line(missing)}", style="dim"))
    return 0


def _named(files: list[str]) -> tuple[list[Path], dict[Path, str]]:
    """``NAME=FILE``; a file whose own name has an equals sign (a sweep's ``run=0.json``) is found as it is."""
    paths, names = [], {}
    for text in files:
        name, equals, rest = text.partition("=")
        path = Path(text)
        if equals and not path.exists() and name and rest:
            path = Path(rest)
            names[path] = name
        if path in paths:
            raise BadInput(f"{path}: is named twice")
        paths.append(path)
    return paths, names
