"""``spectune run`` and ``spectune demo``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from spectune.cli.check import gpus_of
from spectune.cli.findings_text import print_findings, printable
from spectune.cli.interrupt import run_interruptible
from spectune.cli.live import ProgressView, duration
from spectune.domain.machine import Machine
from spectune.domain.secrets import redact_argv
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.embedded.models import data_home
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput
from spectune.hosts.choose import LOCAL, host_called
from spectune.report.summary import summarize
from spectune.report.terminal import study_tables
from spectune.runner.check import CheckResult, check_study, without_refused
from spectune.runner.check_sources import Sources
from spectune.runner.estimate import Estimate, estimate
from spectune.runner.finding_kinds import check_codes
from spectune.runner.launch import ModelPaths
from spectune.runner.machine import machine_of
from spectune.runner.order import launches_of
from spectune.runner.plan import resolve_study, sample_launch
from spectune.runner.search import search_estimate
from spectune.runner.study import (
    StudyOutcome,
    check_continues,
    fetch_models,
    is_finished,
    remaining,
    run_study,
)
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
    checked = _check(args, study, directory.read_trials(), retry_failed=args.retry_failed)
    if _refused(args, checked):
        return 1
    return _execute(args, directory, retry_failed=args.retry_failed, checked=checked)


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
    if not StudyDir.exists(where):
        study, checked = _checked(args, study, [], retry_failed=retry_failed)
        if _refused(args, checked):
            return 1
        directory = StudyDir.create(where, study=study, source=text)
    else:
        directory = StudyDir.open(where)
        with directory.lock():
            check_continues(directory, study)
            study, checked = _checked(args, study, directory.read_trials(), retry_failed=retry_failed)
            if _refused(args, checked):
                return 1
            _tell_foreign(directory, study)
            created_at = directory.read_study().created_at
            directory.extend(study.model_copy(update={"created_at": created_at}), source=text)
    return _execute(args, directory, retry_failed=retry_failed, checked=checked)


def _tell_foreign(directory: StudyDir, study: Study) -> None:
    """Two files of one name share a directory: arms that only the other one has are not passed off as asked for."""
    asked = {arm.arm_id for arm in study.arms}
    foreign = dict.fromkeys(t.arm.name for t in directory.read_trials() if t.arm_id not in asked)
    if foreign:
        sys.stderr.write(
            f"note: {directory.path} holds trials of arms that this file does not have ({', '.join(foreign)}); they "
            "stay in the report. If it belongs to another study, give this one its own directory with --dir\n"
        )


def _check(
    args: argparse.Namespace, study: Study, trials: Sequence[Trial], *, retry_failed: bool
) -> CheckResult | None:
    """What stands against the arms that are still to be launched; ``None``: none of them, or not wanted."""
    check_codes(args.allow)
    waiting = {planned.arm_id for planned in remaining(study, trials, retry_failed=retry_failed)}
    if study.search is not None and study.search_end is None:
        waiting |= {arm.arm_id for arm in study.arms} - {trial.arm_id for trial in trials}
    if args.no_check or not waiting:
        return None
    sources = Sources(home=data_home(), files_here=study.host == LOCAL)
    arms = [arm for arm in study.arms if arm.arm_id in waiting]
    return check_study(study, sources, arms=arms, gpus=gpus_of(study))


def _checked(
    args: argparse.Namespace, study: Study, trials: Sequence[Trial], *, retry_failed: bool
) -> tuple[Study, CheckResult | None]:
    """The study without the arms of its search that cannot be launched, which are named."""
    checked = _check(args, study, trials, retry_failed=retry_failed)
    if checked is None:
        return study, None
    before = set(study.pruned_arms)
    study, checked = without_refused(study, checked, allowed=args.allow)
    for name, reason in study.pruned_arms.items():
        if name not in before:
            sys.stderr.write(f"left out: {printable(name)}: {printable(reason)}\n")
    return study, checked


def _refused(args: argparse.Namespace, checked: CheckResult | None) -> bool:
    """Shows what was found, once; whether it forbids the launch."""
    if checked is None:
        return False
    errors = checked.errors(allowed=args.allow)
    console = Console(highlight=False, soft_wrap=True, stderr=args.json or not errors)
    if errors and args.json:
        _print_json(checked.document())
    if checked.findings:
        console.print(Text("check, before anything is launched:"))
        print_findings(console, checked.findings)
        console.print()
    if errors:
        codes = " ".join(f"--allow {code}" for code in dict.fromkeys(f.code for f in errors))
        subjects = "; ".join(dict.fromkeys(printable(f.subject) for f in errors))
        console.print(
            Text(
                f"nothing was launched: {len(errors)} {'error' if len(errors) == 1 else 'errors'} in {subjects}\n"
                f"change the study, or run it all the same with {codes}, or without check: --no-check"
            )
        )
    return bool(errors)


def _machine(host_name: str) -> Machine:
    return run_interruptible(
        machine_of(host_name), on_signal=lambda _: None, resume_hint="Nothing was started"
    )


def _execute(
    args: argparse.Namespace, directory: StudyDir, *, retry_failed: bool, checked: CheckResult | None
) -> int:
    study = directory.read_study()
    view = ProgressView()
    with view:
        models = ModelPaths({})
        if not is_finished(study, directory.read_trials(), retry_failed=retry_failed):
            models = fetch_models(study, home=data_home(), on_fetch=view.on_fetch)
        outcome = run_interruptible(
            run_study(
                directory,
                models=models,
                watcher=view,
                host=host_called(study.host, home=data_home()),
                retry_failed=retry_failed,
                findings=checked.by_arm if checked is not None else {},
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
        if study.search_end is not None:
            console.print(f"search ended: {study.search_end}", markup=False)
        if outcome.reason == "budget":
            left = launches_of(study, remaining(study, outcome.trials))
            console.print(f"stopped by the budget with {left} launches left; raise it and run again to go on")
        if outcome.reason == "baseline failed":
            console.print("stopped: the baseline does not run, so nothing could be compared")
        console.print(f"report: {directory.path / 'report.html'}", soft_wrap=True, markup=False)
    return 1 if outcome.any_failed or outcome.reason == "baseline failed" else 0


def _dry_run(study: Study, directory: StudyDir | None, *, as_json: bool) -> int:
    trials = directory.read_trials() if directory is not None else []
    todo = remaining(study, trials)
    launches, measured = launches_of(study, todo), len(todo)
    if study.search is not None and study.search_end is None:
        launches = max(launches, search_estimate(study, trials).launches_likely - len(trials))
        measured = launches
    expected = estimate(study, trials, remaining=measured, launches=launches)
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
                "search": study.search,
                "pruned_arms": study.pruned_arms,
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
    for name, reason in study.pruned_arms.items():
        out.write(f"left out: {name}: {reason}\n")
    if study.search is None or study.search_end is not None:
        out.write(f"order of launches: {', '.join(plan) or 'nothing left to do'}\n")
    else:
        out.write(f"search: {study.search} asks for each next launch; of {len(study.arms)} arms, likely\n")
    out.write(f"{expected.launches} launches, about {duration(expected.seconds)} ({expected.basis})\n")


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
