"""``spectune import``: the name of the module avoids a word of the language."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.errors import BadInput, EnvironmentFailed
from spectune.exchange.imports.read import read_results
from spectune.exchange.imports.results import ArmHints, assemble
from spectune.report.summary import summarize
from spectune.report.terminal import study_tables
from spectune.report.vllm_result import vllm_bench_result
from spectune.report.words import count, one_line
from spectune.report.write import write_reports
from spectune.store.study_dir import StudyDir, TrialDir


def import_command(args: argparse.Namespace) -> int:
    target = Path(args.dir)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput(f"--dir {target}: exists and is not empty; name a new directory")
    paths, names = _named(args.files)
    hints = ArmHints(method=args.method, drafter=args.drafter, engine=args.engine, target=args.target)
    results = read_results(paths, names=names, form=args.form, hints=hints)
    study, trials = assemble(
        results, name=target.name, baseline=args.baseline, run_is_launch=args.run_is_launch
    )
    _write(target, study, trials)
    summary = summarize(study, trials)
    if args.json:
        document = {
            "schema_version": 1,
            "study_dir": str(target),
            "tool": results.tool,
            "arms": [arm.name for arm in study.arms],
            "num_trials": len(trials),
            "missing": [] if study.imported is None else list(study.imported.missing),
        }
        sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        return 0
    console = Console(highlight=False)
    console.print(study_tables(summary))
    console.print(
        Text(
            f"imported {count(len({t.arm_id for t in trials}), 'arm')} of {results.tool} into {one_line(str(target))}"
        )
    )
    for missing in study.imported.missing if study.imported else ():
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


def _write(target: Path, study: Study, trials: list[Trial]) -> None:
    assert study.imported is not None
    files = "".join(f"#   {one_line(f.name, limit=200)} {f.sha256}\n" for f in study.imported.files)
    source = f"# Imported from {study.imported.tool}; there is nothing here to run.\n{files}"
    directory = StudyDir.create(target, study=study, source=source)
    try:
        for trial in trials:
            folder = TrialDir(directory.trials_path / trial.trial_id)
            folder.path.mkdir(parents=True)
            folder.replace_requests([load.requests for load in trial.loads])
            if trial.loads and any(load.requests for load in trial.loads):
                folder.write_result(vllm_bench_result(trial, 0))
            folder.finish(trial)
    except OSError as error:
        raise EnvironmentFailed(f"{target}: cannot write the study: {error.strerror or error}") from error
    write_reports(directory)
