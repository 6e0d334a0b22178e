"""Runs ``spectune check`` in this process and reads its document."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from typing import Any

from spectune.cli.main import main


def check(*args: str, stdin: str | None = None) -> tuple[int, dict[str, Any]]:
    """Exit code and document of ``spectune check --json --offline``."""
    output, before = io.StringIO(), sys.stdin
    if stdin is not None:
        sys.stdin = io.StringIO(stdin)
    try:
        with redirect_stdout(output):
            code = main(["check", "--json", "--offline", *args])
    finally:
        sys.stdin = before
    return code, json.loads(output.getvalue())


def alarms(document: dict[str, Any]) -> list[str]:
    """Errors and warnings, in words."""
    return [
        f"{f['severity']}: {f['code']}: {f['subject']}: {f['message']}"
        for f in document["findings"]
        if f["severity"] != "note"
    ]


def codes(document: dict[str, Any], severity: str | None = None) -> list[str]:
    return [f["code"] for f in document["findings"] if severity in (None, f["severity"])]
