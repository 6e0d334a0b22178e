"""``spectune run`` and ``spectune demo``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console

from spectune.cli.interrupt import run_interruptible
from spectune.cli.live import ProgressView, duration
from spectune.domain.machine import Machine
from spectune.domain.secrets import redact_argv
from spectune.domain.study import Study
from spectune.embedded.models import data_home
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput
from spectune.hosts.choose import host_called
from spectune.report.summary import summarize
from spectune.report.terminal import study_tables
from spectune.runner.estimate import Estimate, estimate
from spectune.runner.machine import machine_of
from spectune.runner.plan import resolve_study, sample_launch
from spectune.runner.study import StudyOutcome, check_continues, fetch_models, remaining, run_study
from spectune.runner.trial import ModelPaths
from spectune.store.study_dir import StudyDir
from spectune.study_file.load import load_study_file


def demo_command(args: argparse.Namespace) -> int:
    source = resources.files("spectune.demo") / "study.yaml"
    with resources.as_file(source) as path:
        return _run(args, Path(path), _folder(args.dir), overrides=[], retry_failed=False)


def run_command(args: argparse.Namespace) -> int:
    given = Path(args.study)
    if given.is_dir():
        if args.overrides or args.dir or args.host:
            raise BadInput(
                "--set, --dir and --host go with a study file, not with the directory of a study to resume"
            )
        return _resume(args, given)
    if not given.exists():
        raise BadInput(f"{given}: no such study file or study directory")
    overrides = [*args.overrides, *([f"host={args.host}"] if args.host else [])]
    return _run(args, given, _folder(args.dir), overrides=overrides, retry_failed=args.retry_failed)


def _folder(text: str | None) -> Path | None:
    if text == "":
        raise BadInput("--dir: is empty; name a folder, or leave it out for studies/NAME")
    return None if text is None else Path(text)


def _resume(args: argparse.Namespace, path: Path) -> int:
    directory = StudyDir.open(path)
    study = directory.read_study()
    if args.dry_run:
        return _dry_run(study, directory, as_json=args.json)
    return _execute(args, directory, retry_failed=args.retry_failed)


def _run(
    args: argparse.Namespace,
    path: Path,
    where: Path | None,
    *,
    overrides: list[str],
    retry_failed: bool,
) -> int:
    spec, text, document = load_study_file(path, overrides=overrides)
    text = "".join(f"# --set {override}\n" for override in overrides) + text
    study = resolve_study(spec, document, path=path.absolute(), machine=_machine(spec.host))
    where = where or Path("studies") / study.name
    if args.dry_run:
        directory = StudyDir.open(where) if StudyDir.exists(where) else None
        return _dry_run(study, directory, as_json=args.json)
    if StudyDir.exists(where):
        directory = StudyDir.open(where)
        with directory.lock():
            check_continues(directory, study)
            created_at = directory.read_study().created_at
            directory.extend(study.model_copy(update={"created_at": created_at}), source=text)
    else:
        directory = StudyDir.create(where, study=study, source=text)
    return _execute(args, directory, retry_failed=retry_failed)


def _machine(host_name: str) -> Machine:
    return run_interruptible(
        machine_of(host_name), on_signal=lambda _: None, resume_hint="Nothing was started"
    )


def _execute(args: argparse.Namespace, directory: StudyDir, *, retry_failed: bool) -> int:
    study = directory.read_study()
    view = ProgressView()
    with view:
        models = ModelPaths({})
        if remaining(study, directory.read_trials(), retry_failed=retry_failed):
            models = fetch_models(study, home=data_home(), on_fetch=view.on_fetch)
        outcome = run_interruptible(
            run_study(
                directory,
                models=models,
                watcher=view,
                host=host_called(study.host, home=data_home()),
                retry_failed=retry_failed,
            ),
            on_signal=view.on_message,
            resume_hint=f"Resume with: spectune run {shlex.quote(str(directory.path))}",
        )
    return _report(args, directory, outcome)


def _report(args: argparse.Namespace, directory: StudyDir, outcome: StudyOutcome) -> int:
    study = directory.read_study()
    summary = summarize(study, list(outcome.trials))
    if args.json:
        _print_json(summary.model_dump(mode="json"))
    else:
        console = Console(highlight=False)
        console.print(study_tables(summary))
        if outcome.new_trials == 0 and outcome.reason == "done":
            console.print("nothing left to do: every trial of the plan is finished")
        if outcome.reason == "budget":
            left = len(remaining(study, outcome.trials))
            console.print(f"stopped by the budget with {left} launches left; raise it and run again to go on")
        if outcome.reason == "baseline failed":
            console.print("stopped: the baseline does not run, so nothing could be compared")
        console.print(f"report: {directory.path / 'report.html'}", soft_wrap=True, markup=False)
    return 1 if outcome.any_failed or outcome.reason == "baseline failed" else 0


def _dry_run(study: Study, directory: StudyDir | None, *, as_json: bool) -> int:
    trials = directory.read_trials() if directory is not None else []
    todo = remaining(study, trials)
    expected = estimate(study, trials, remaining=len(todo))
    adapter = adapter_for(study.engine.name)
    commands: dict[str, dict[str, Any]] = {}
    for arm in study.arms:
        command = adapter.command(sample_launch(arm, study.engine, study.workload))
        commands[arm.name] = {
            "arm_id": arm.arm_id,
            "argv": list(redact_argv(command.argv)),
            "env": dict(command.env),
        }
    plan = [study.arm(p.arm_id).name for p in todo]
    if as_json:
        _print_json(
            {
                "schema_version": study.schema_version,
                "study": study.name,
                "commands": commands,
                "plan": plan,
                "launches": expected.launches,
                "estimated_s": expected.seconds,
                "basis": expected.basis,
            }
        )
    else:
        _print_dry_run(study, commands, plan, expected)
    return 0


def _print_dry_run(
    study: Study, commands: dict[str, dict[str, Any]], plan: list[str], expected: Estimate
) -> None:
    out = sys.stdout
    out.write(f"study {study.name}: {study.question}\n\n")
    for name, command in commands.items():
        words = [f"{k}={shlex.quote(v)}" for k, v in command["env"].items()]
        words += [shlex.quote(word) for word in command["argv"]]
        out.write(f"# {name} ({command['arm_id']})\n{' '.join(words)}\n\n")
    out.write("ports are chosen at launch; built-in models are fetched once and their paths put in\n")
    out.write(f"order of launches: {', '.join(plan) or 'nothing left to do'}\n")
    out.write(f"{expected.launches} launches, about {duration(expected.seconds)} ({expected.basis})\n")


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
