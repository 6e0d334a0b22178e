"""``spectune check``: what is wrong with a study or a server command, before anything is launched."""

from __future__ import annotations

import argparse
import json
import re
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
from spectune.store.record_file import read_file

_MAX_PASTED_BYTES = 1 << 20
_NO_STUDY = re.compile(r"^(?:services|apiVersion|kind|models)[ \t]*:|^\s*\[", re.MULTILINE)


def check_subject(args: argparse.Namespace) -> int:
    """1 if an error finding stands that is not allowed, else 0."""
    check_codes(args.allow)
    result = _checked(args)
    if args.json:
        show_json(document_text(result))
    else:
        console = Console(highlight=False, soft_wrap=True)
        print_result(console, result, allowed=args.allow, everything=args.all)
        for number, further in enumerate(result.further, 2):
            console.print(Text(f"\n--- server {number} of {1 + len(result.further)} in this text"))
            print_result(console, further, allowed=args.allow, everything=args.all)
    return 1 if result.errors(allowed=args.allow) else 0


def _checked(args: argparse.Namespace) -> CheckResult:
    words: Sequence[str] = args.subject
    how: dict[str, Any] = {"network": not args.offline, "engine_version": args.engine_version}
    text = _text_of(words[0]) if len(words) == 1 else None
    is_study = text is None and len(words) == 1
    if is_study:
        return load_study(words[0], overrides=args.overrides).check(**how)
    if args.overrides:
        raise BadInput("--set goes with a study file, not with a command")
    return check_command(words if text is None else text, here=args.here, **how)


def _text_of(word: str) -> str | None:
    """The text with the commands: the word itself, standard input, or a file that is no study; ``None``: a study."""
    path = Path(word)
    if word != "-" and not is_shared(word) and _is_file(path) and _holds_commands(path):
        text = read_file(path, limit=_MAX_PASTED_BYTES)
        return text.partition("\n")[2] if text.startswith("#!") else text
    if word != "-" and (is_shared(word) or _is_there(path) or word.endswith((".yaml", ".yml"))):
        return None
    return _pasted(word)


def _holds_commands(path: Path) -> bool:
    """A script, a unit, a page; of YAML, what has no ``arms`` and is a compose file or a manifest."""
    if path.suffix not in (".yaml", ".yml", ".json", ""):
        return True
    try:
        text = read_file(path, limit=_MAX_PASTED_BYTES)
    except (OSError, ValueError):
        return False
    return path.suffix == "" or bool(_NO_STUDY.search(text))


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a text too long for a path is a command
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _pasted(word: str) -> str:
    if word != "-":
        if not word.strip():
            raise BadInput("check: empty; give a study file, or a server command behind --")
        if len(word.split()) == 1 and ("/" in word or "." in word):
            raise BadInput(f"{word}: no such study file or study directory; a server command goes behind --")
        return word
    text = sys.stdin.read(_MAX_PASTED_BYTES + 1)
    if len(text) > _MAX_PASTED_BYTES:
        raise BadInput(f"-: more than {_MAX_PASTED_BYTES} characters; paste the server's command alone")
    return text


def document_text(result: CheckResult) -> str:
    return json.dumps(result.document(), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def print_result(
    console: Console, result: CheckResult, *, allowed: Sequence[str] = (), everything: bool = False
) -> None:
    """What was read, the findings, and a line that sums up; notes and what was not checked with ``everything``."""
    for line in _facts_lines(result):
        console.print(Text(printable(line)))
    shown = [finding for finding in result.findings if everything or finding.severity != "note"]
    print_findings(console, shown)
    if everything:
        print_not_checked(console, result.not_checked)
    summary = counts_of(result.findings)
    stands = {f.code for f in result.findings if f.severity == "error"} & set(allowed)
    if stands:
        summary += f" (allowed: {', '.join(sorted(stands))})"
    if result.not_checked:
        summary += f", {len(result.not_checked)} not checked"
    if len(shown) < len(result.findings) or (result.not_checked and not everything):
        summary += " (--all shows them)"
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
