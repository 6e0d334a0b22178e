"""``spectune diagnose``: what is wrong, from logs, a running server or a study directory alone."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from spectune.analysis.summary import summarize
from spectune.cli.findings_text import counts_of, print_findings, print_not_checked, printable
from spectune.cli.output import show_json
from spectune.diagnose.facts import RunFacts
from spectune.diagnose.inputs import log_in_folder, logs_of_dead_ranks, read_log, read_stream, study_logs
from spectune.diagnose.judge import judge, verdict
from spectune.diagnose.live import server_facts
from spectune.diagnose.verdict import NotChecked, Verdict
from spectune.domain.findings import Finding
from spectune.errors import BadInput
from spectune.store.opening import open_study, study_exists
from spectune.store.places import is_shared
from spectune.store.study_dir import StudyDir
from spectune.transport import HttpClient

SCHEMA_VERSION = 1


def diagnose_command(args: argparse.Namespace) -> int:
    """1 if an error finding stands, else 0."""
    skipped = NotChecked()
    logs: list[tuple[RunFacts, ...]] = []
    studies: list[tuple[RunFacts, ...]] = []
    of_ranks: list[tuple[RunFacts, ...]] = []
    found: list[Finding] = []
    if args.inputs.count("-") > 1:
        raise BadInput("-: standard input can be read once")
    for given in args.inputs:
        if _is_study(given):
            runs, ranks, own = _read_study(open_study(given, whole=True), skipped)
            studies += runs
            of_ranks += ranks
            found += own
        else:
            logs.append(_read_input(given, args, skipped))
    silent = [given for given, runs in zip(_logs_of(args.inputs), logs, strict=True) if not runs]
    if silent:
        raise BadInput(
            f"{silent[0]}: no line of it is of a server's log that is known; check the path, or name the engine with "
            "--engine"
        )
    told = {(finding.code, finding.subject) for finding in found}
    found += (f for f in judge(studies, skipped, compared=False) if not _is_told(f, told))
    # of a rank's notes rank 0's log says the same, or they miss what a rank never says
    found += (f for f in judge(of_ranks, skipped, compared=False) if f.severity != "note")
    found += judge(logs, skipped)
    result = verdict(found, skipped)
    facts = [run for runs in (*studies, *of_ranks, *logs) for run in runs]
    if args.json:
        show_json(_json(result, facts))
    else:
        _print(result, facts)
    return 1 if any(finding.severity == "error" for finding in result.findings) else 0


def _logs_of(inputs: Sequence[str]) -> list[str]:
    """What is not a study directory."""
    return [given for given in inputs if not _is_study(given)]


def _is_study(given: str) -> bool:
    """An address in an object store can be nothing else."""
    return not given.startswith(("http://", "https://")) and (is_shared(given) or study_exists(given))


def _is_told(finding: Finding, told: set[tuple[str, str]]) -> bool:
    """Whether the report of the study says it of the arm already; it also compares the arms."""
    return (finding.code, finding.subject.partition(" (trial ")[0]) in told


def _read_input(given: str, args: argparse.Namespace, skipped: NotChecked) -> tuple[RunFacts, ...]:
    engine: str | None = args.engine
    if given == "-":
        return read_stream(sys.stdin.buffer, engine=engine, skipped=skipped)
    if given.startswith(("http://", "https://")):
        key = os.environ.get(args.api_key_env) or None
        return (asyncio.run(_ask(given, engine=engine, api_key=key, skipped=skipped)),)
    path = Path(given)
    if not path.exists():
        raise BadInput(f"{given}: no such file or directory; give a log, a base URL, a study directory, or -")
    log = log_in_folder(path) if path.is_dir() else path
    if log is None:
        raise BadInput(
            f"{given}: neither a study directory (no study.json) nor a trial's folder (no server.log); "
            "name the log files themselves"
        )
    return read_log(log, engine=engine, skipped=skipped)


def _read_study(
    directory: StudyDir, skipped: NotChecked
) -> tuple[list[tuple[RunFacts, ...]], list[tuple[RunFacts, ...]], list[Finding]]:
    """The facts of each trial's log, and of its ranks'; the report's own findings, and those over single requests."""
    trials = directory.read_trials()
    found = list(summarize(directory.read_study(), trials).findings)
    logs: list[tuple[RunFacts, ...]] = []
    for runs, own in study_logs(directory, skipped=skipped):
        found += own
        logs.append(runs)
    return logs, list(logs_of_dead_ranks(directory, trials, skipped=skipped)), found


async def _ask(url: str, *, engine: str | None, api_key: str | None, skipped: NotChecked) -> RunFacts:
    base = url.rstrip("/").removesuffix("/v1")
    async with HttpClient(base, api_key=api_key) as http:
        return await server_facts(http, engine=engine, skipped=skipped)


def _json(result: Verdict, facts: Sequence[RunFacts]) -> str:
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "facts": {"runs": [run.model_dump(mode="json") for run in facts]},
        "findings": [finding.model_dump(mode="json") for finding in result.findings],
        "not_checked": list(result.not_checked),
    }
    return json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def _print(result: Verdict, facts: Sequence[RunFacts]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for run in facts:
        console.print(Text(printable(_summary(run))))
    print_findings(console, result.findings)
    print_not_checked(console, result.not_checked)
    console.print(Text("\n" + counts_of(result.findings)))


def _summary(run: RunFacts) -> str:
    parts = [run.subject, f"{run.engine or 'unknown engine'} {run.version or ''}".strip()]
    if run.method is not None:
        parts.append(f"method {run.method}")
    acceptance = run.acceptance
    if acceptance is not None and acceptance.length is not None:
        parts.append(f"acceptance length {acceptance.length:.2f}")
    if run.speed.median_tok_per_s is not None:
        parts.append(f"median {run.speed.median_tok_per_s:.1f} tok/s in the log's lines")
    return ", ".join(parts)
