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
from rich.text import Text

from spectune.analysis.finding_kinds import PRECISION_NOT_REACHED
from spectune.analysis.words import count, listing, percent
from spectune.api.before_run import PlannedStudy, Preview, load_study
from spectune.api.progress import ProgressView, duration
from spectune.api.results import StudyResults
from spectune.api.run_folder import PreparedStudy
from spectune.cli.findings_text import print_findings, printable
from spectune.cli.output import said_if_slow, show_json
from spectune.domain.study import Study
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput
from spectune.report.terminal import study_tables
from spectune.runner.order import launches_of
from spectune.runner.quiet import Patience
from spectune.runner.schedule import remaining
from spectune.store.places import is_shared, text_of


def demo_command(args: argparse.Namespace) -> int:
    source = resources.files("spectune.demo") / "study.yaml"
    with resources.as_file(source) as path:
        return _run(args, load_study(path), _folder(args.dir), retry_failed=False)


def run_command(args: argparse.Namespace) -> int:
    if (is_shared(args.study) or Path(args.study).is_dir()) and (args.overrides or args.dir or args.host):
        raise BadInput(
            "--set, --dir and --host go with a study file, not with the directory of a study to resume"
        )
    overrides = [*args.overrides, *([f"host={args.host}"] if args.host else [])]
    planned = load_study(args.study, overrides=overrides)
    return _run(args, planned, _folder(args.dir), retry_failed=args.retry_failed)


def _folder(text: str | None) -> Path | None:
    if text == "":
        raise BadInput("--dir: is empty; name a folder, or leave it out for studies/NAME")
    return None if text is None else Path(text_of(text))


def _run(args: argparse.Namespace, planned: PlannedStudy, where: Path | None, *, retry_failed: bool) -> int:
    if args.dry_run:
        return _dry_run(planned.study, planned.preview(where), as_json=args.json)
    with said_if_slow(
        "checking the study against its engine, models and machine, before anything is launched"
    ):
        ready = planned.prepare(where, allow=args.allow, check=not args.no_check, retry_failed=retry_failed)
    _tell(args, ready)
    if ready.refused:
        return 1
    with ProgressView() as view:
        results = ready.run(view, patience=_patience(args, planned.study, view))
    return _report(args, results)


def _patience(args: argparse.Namespace, study: Study, view: ProgressView) -> Patience | None:
    """What to do on a noisy machine; ``None``: as the runner decides."""
    if args.noisy:
        return Patience(wait_s=0.0)
    simulated = adapter_for(study.engine.name).simulated
    return Patience(ask=view.ask) if view.can_ask and not simulated else None


def _tell(args: argparse.Namespace, ready: PreparedStudy) -> None:
    """What was found, once, and what stands against the launch."""
    for name, reason in ready.left_out.items():
        sys.stderr.write(f"left out: {printable(name)}: {printable(reason)}\n")
    if ready.checked is not None:
        _tell_findings(args, ready)
    if ready.foreign_arms:  # two files of one name share a directory
        arms = ", ".join(ready.foreign_arms)
        sys.stderr.write(
            f"note: {text_of(ready.path)} holds trials of arms that this file does not have ({arms}); "
            "they stay in the report. If it belongs to another study, give this one its own directory with --dir\n"
        )


def _tell_findings(args: argparse.Namespace, ready: PreparedStudy) -> None:
    assert ready.checked is not None
    errors = ready.refused
    console = Console(highlight=False, soft_wrap=True, stderr=args.json or not errors)
    if errors and args.json:
        _print_json(ready.checked.document())
    if ready.checked.findings:
        console.print(Text("check, before anything is launched:"))
        print_findings(console, ready.checked.findings)
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


def _report(args: argparse.Namespace, results: StudyResults) -> int:
    study, outcome = results.study, results.outcome
    assert outcome is not None
    if args.json:
        _print_json(results.summary.model_dump(mode="json"))
    else:
        console = Console(highlight=False)
        console.print(study_tables(results.summary))
        if outcome.new_trials == 0 and outcome.reason == "done":
            console.print("nothing left to do: every trial of the plan is finished")
        if study.search_end is not None:
            console.print(f"search ended: {study.search_end}", markup=False)
        if outcome.reason == "budget":
            left = launches_of(study, remaining(study, outcome.trials))
            where = (
                "before the search ended"
                if study.search is not None
                else f"with {count(left, 'launch')} left"
            )
            console.print(f"stopped by the budget {where}; raise it and run again to go on")
        short = [f.subject for f in results.summary.findings if f.code == PRECISION_NOT_REACHED.code]
        if short and study.precision is not None:
            console.print(
                f"the precision of {percent(study.precision)} was not reached for {printable(listing(short))} "
                "(see the findings above); raise the budget and run again to go on",
                markup=False,
            )
        if outcome.reason == "baseline failed":
            console.print("stopped: the baseline does not run, so nothing could be compared")
        console.print(f"report: {results.place}/report.html", soft_wrap=True, markup=False)
    return 1 if outcome.any_failed or outcome.reason == "baseline failed" else 0


def _dry_run(study: Study, preview: Preview, *, as_json: bool) -> int:
    if not as_json:
        _print_dry_run(study, preview)
        return 0
    commands = {
        arm.name: {
            "arm_id": arm.arm_id,
            "argv": list(preview.commands[arm.name].argv),
            "env": dict(preview.commands[arm.name].env),
        }
        for arm in study.arms
    }
    _print_json(
        {
            "schema_version": study.schema_version,
            "study": study.name,
            "commands": commands,
            "plan": list(preview.order),
            "search": study.search,
            "pruned_arms": study.pruned_arms,
            "launches": preview.launches,
            "estimated_s": preview.estimated_s,
            "basis": preview.basis,
        }
    )
    return 0


def _print_dry_run(study: Study, preview: Preview) -> None:
    out = sys.stdout
    out.write(f"study {study.name}: {study.question}\n\n")
    for arm in study.arms:
        command = preview.commands[arm.name]
        words = [f"{k}={shlex.quote(v)}" for k, v in command.env.items()]
        words += [shlex.quote(word) for word in command.argv]
        out.write(f"# {arm.name} ({arm.arm_id})\n{' '.join(words)}\n\n")
    out.write("ports are chosen at launch; built-in models are fetched once and their paths put in\n")
    for name, reason in study.pruned_arms.items():
        out.write(f"left out: {name}: {reason}\n")
    if study.search is None or study.search_end is not None:
        out.write(f"order of launches: {', '.join(preview.order) or 'nothing left to do'}\n")
    else:
        out.write(f"search: {study.search} asks for each next launch; of {len(study.arms)} arms, likely\n")
    out.write(
        f"{count(preview.launches, 'launch')}, about {duration(preview.estimated_s)} ({preview.basis})\n"
    )


def _print_json(value: Any) -> None:
    show_json(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
