"""``spectune check``: what is wrong with a study or a server command, before anything is launched."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from spectune.api.before_run import check_command, load_study
from spectune.check.check import CheckResult
from spectune.cli.findings_text import counts_of, print_findings, print_not_checked, printable
from spectune.cli.output import show_json
from spectune.errors import BadInput
from spectune.findings.catalogue import check_codes
from spectune.store.places import is_shared

_MAX_PASTED_CHARS = 1 << 20


def check_subject(args: argparse.Namespace) -> int:
    """1 if an error finding stands that is not allowed, else 0."""
    check_codes(args.allow)
    result = _checked(args)
    if args.json:
        show_json(document_text(result))
    else:
        print_result(Console(highlight=False, soft_wrap=True), result, allowed=args.allow)
    return 1 if result.errors(allowed=args.allow) else 0


def _checked(args: argparse.Namespace) -> CheckResult:
    words: Sequence[str] = args.subject
    how: dict[str, Any] = {"network": not args.offline, "engine_version": args.engine_version}
    if len(words) == 1 and (
        is_shared(words[0]) or Path(words[0]).exists() or words[0].endswith((".yaml", ".yml"))
    ):
        return load_study(words[0], overrides=args.overrides).check(**how)
    if args.overrides:
        raise BadInput("--set goes with a study file, not with a command")
    return check_command(words if len(words) > 1 else _pasted(words[0]), here=args.here, **how)


def _pasted(word: str) -> str:
    if word != "-":
        if not word.strip():
            raise BadInput("check: empty; give a study file, or a server command behind --")
        if len(word.split()) == 1 and ("/" in word or "." in word):
            raise BadInput(f"{word}: no such study file or study directory; a server command goes behind --")
        return word
    text = sys.stdin.read(_MAX_PASTED_CHARS + 1)
    if len(text) > _MAX_PASTED_CHARS:
        raise BadInput(f"-: more than {_MAX_PASTED_CHARS} characters; paste the server's command alone")
    return text


def document_text(result: CheckResult) -> str:
    return json.dumps(result.document(), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def print_result(console: Console, result: CheckResult, *, allowed: Sequence[str] = ()) -> None:
    """What was read, the findings, what was not checked, and a line that sums up."""
    for line in _facts_lines(result):
        console.print(Text(printable(line)))
    print_findings(console, result.findings)
    print_not_checked(console, result.not_checked)
    summary = counts_of(result.findings)
    stands = {f.code for f in result.findings if f.severity == "error"} & set(allowed)
    if stands:
        summary += f" (allowed: {', '.join(sorted(stands))})"
    if result.not_checked:
        summary += f", {len(result.not_checked)} not checked"
    console.print(Text("\n" + summary))


def _facts_lines(result: CheckResult) -> list[str]:
    facts = result.facts
    engine = facts["engine"]
    version = f" {engine['version']}" if engine["version"] else ""
    how = f" ({engine['how']})" if engine["how"] else ""
    launches = facts.get("launches", [])
    what = f"study {facts['study']}, {len(launches)} arms" if facts["study"] else "one command"
    lines = [f"{what}: {engine['name']}{version}{how}"]
    for model in facts.get("models", []):
        if model["kind"] == "absent":
            continue
        words = [", ".join(model["architectures"]) or model["model_type"] or "unknown architecture"]
        words += [f"{model['num_tensors']} tensors"] if model["num_tensors"] is not None else []
        lines.append(f"{model['reference']}: {', '.join(words)} ({model['bytes_read'] / 1e6:.1f} MB read)")
    return lines
