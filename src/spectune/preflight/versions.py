"""Which version of an engine a command would start, and how versions compare."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from spectune.engines.registry import traits_for
from spectune.preflight.flags.table import table_for
from spectune.preflight.situation import EngineVersion

ASK_TIMEOUT_S = 20.0
MAX_ANSWER_CHARS = 4000

_ASK = """
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        print(importlib.metadata.version(name))
        break
    except importlib.metadata.PackageNotFoundError:
        pass
"""
_NUMBERS = re.compile(r"(\d+(?:\.\d+)+)(?:[.-]?(post|rc|dev)(\d+))?")
_BUILD = re.compile(r"b?(\d{3,6})(?![\d.])")

Run = Callable[[Sequence[str]], str | None]
"""Runs an argument list for its output, within a time limit; ``None`` if it could not."""


def resolve_version(
    engine: str,
    *,
    python: str | None = None,
    executable: str | None = None,
    given: str | None = None,
    hint: str | None = None,
    run: Run | None = None,
) -> EngineVersion:
    """The installed version if it can be asked, else ``given`` (``--engine-version``), else an image tag's.

    Without any of them the rules of the newest version known here are used,
    and ``source`` says so. ``python`` and ``executable`` are started for the
    question: pass them only where running the user's own programs is meant.
    """
    installed = ask_installed(engine, python=python, executable=executable, run=run)
    if installed is not None:
        asked = python or executable
        differs = f"; --engine-version says {given}" if given and given != installed else ""
        return EngineVersion(installed, f"installed: asked of {asked}{differs}")
    if given:
        return EngineVersion(given, "--engine-version")
    if hint:
        return EngineVersion(hint, "tag of the container image")
    newest = table_for(engine).version
    return EngineVersion(
        None, f"unknown: the rules of {engine} {newest} are used (--engine-version names another)"
    )


def ask_installed(
    engine: str, *, python: str | None = None, executable: str | None = None, run: Run | None = None
) -> str | None:
    """The version that this interpreter or program has, or ``None`` if it does not say."""
    ask = run or run_bounded
    traits = traits_for(engine)
    if traits.program_version is not None and executable is not None:
        return traits.program_version(ask([executable, "--version"]) or "")
    interpreter = python or _interpreter_of(executable)
    if interpreter is None or not traits.distributions:
        return None
    answer = ask([interpreter, "-c", _ASK, *traits.distributions])
    lines = (answer or "").split()
    if not lines or not _NUMBERS.match(lines[0]):
        return None
    return traits.distribution_version.format(version=lines[0])


def _interpreter_of(script: str | None) -> str | None:
    """The interpreter in the first line of a console script (``.../bin/vllm``) given with its path."""
    if script is None or "/" not in script:
        return None
    try:
        with Path(script).open("rb") as file:
            first = file.readline(500)
    except OSError:
        return None
    words = first.decode("utf-8", "replace").removeprefix("#!").split() if first.startswith(b"#!") else []
    return words[0] if len(words) == 1 and "python" in words[0] else None


def run_bounded(argv: Sequence[str]) -> str | None:
    """Output and error output of a short program, read from ``/`` so that no file of the user is imported."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ASK_TIMEOUT_S,
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return done.stdout.decode("utf-8", "replace")[:MAX_ANSWER_CHARS]


def numbers_of(text: str) -> tuple[int, ...] | None:
    """``0.5.23.post1`` -> ``(0, 5, 23, 0, 1)``; a release candidate sorts before its release."""
    found = _NUMBERS.search(text)
    if found is None:
        build = _BUILD.match(text)
        return (int(build.group(1)),) if build else None
    numbers = [int(part) for part in found.group(1).split(".")]
    numbers += [0] * (3 - len(numbers))
    kind, count = found.group(2), int(found.group(3) or 0)
    return (*numbers, {"post": 0, "rc": -1, "dev": -2}.get(kind or "post", 0), count)


def is_older(text: str | None, than: str) -> bool | None:
    """``None``: unknown, or the two count differently (a build number against a release)."""
    ours, theirs = numbers_of(text) if text else None, numbers_of(than)
    if ours is None or theirs is None or (len(ours) == 1) != (len(theirs) == 1):
        return None
    if (text or "").startswith("xllamacpp") != than.startswith("xllamacpp"):
        return None
    return ours < theirs
