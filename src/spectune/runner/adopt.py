"""Whether a server that somebody else started is an arm: by what it answers, and by its own command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spectune.analysis.fault_findings import differing_knobs, same_model
from spectune.domain.arm import FACTORS, Arm, Knobs
from spectune.domain.study import Study
from spectune.engines.adapter import Command
from spectune.engines.flags import normalise
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput, LaunchRefused
from spectune.hosts.supervisor import port_owner
from spectune.preflight.command.arguments import FlagText
from spectune.preflight.command.reading import ReadCommand, read_command
from spectune.preflight.flags.speculative import speculation_of
from spectune.preflight.flags.table import table_for
from spectune.runner.launch import ModelPaths
from spectune.runner.plan import sample_launch
from spectune.server.detect import detect_engine, served_model
from spectune.server.probe import read_facts
from spectune.transport import HttpClient

_AS_ONE = ("speculative-config", "spec-method", "spec-model", "spec-tokens")
"""Flags that ``speculation_of`` reads into one mapping."""


@dataclass(frozen=True)
class Answers:
    """What a server says of itself over HTTP."""

    engine: str
    model: str
    knobs: Knobs | None
    """Its settings; a knob that it does not name is ``None`` here."""


async def check_is_arm(arm: Arm, study: Study, *, models: ModelPaths, port: int) -> None:
    """Raises ``LaunchRefused`` unless what answers on the port of this machine is what the arm asks for."""
    url = f"http://127.0.0.1:{port}"
    async with HttpClient(url) as http:
        engine = await detect_engine(http)
        model = await served_model(http)
        facts = await read_facts(http, adapter_for(arm.engine))
    launch = sample_launch(
        arm,
        study.engine,
        study.workload,
        target_path=models.target(arm),
        drafter_path=models.drafter(arm),
    )
    asked = adapter_for(arm.engine).command(launch)
    shared = study.engine.env
    own_env = {name: value for name, value in asked.env.items() if shared.get(name) != value}
    problems = differences(
        arm,
        target=models.target(arm),
        answers=Answers(engine, model, facts.effective),
        asked=Command(asked.argv, own_env),
        running=command_behind(port),
    )
    if problems:
        raise LaunchRefused(
            f"the server at {url} is not arm {arm.name}; it was left alone:\n"
            + "\n".join(f"  {problem}" for problem in problems)
        )


def differences(
    arm: Arm, *, target: str, answers: Answers, asked: Command, running: Command | None
) -> list[str]:
    """Why the server is not the arm. ``asked``: the arm's own command; ``running``: the server's, if it can be read."""
    problems = []
    if answers.engine != arm.engine:
        problems.append(f"it is {answers.engine}, not {arm.engine}")
    if not same_model(answers.model, target):
        problems.append(f"it serves {answers.model!r}, not {target!r}")
    ours, theirs = _read(asked), None if running is None else _read(running)
    known = answers.knobs
    if known is None and theirs is None:
        return [*problems, "it does not say with which settings it runs, and its command line cannot be read"]
    differing = {} if known is None else {name: more for name, *more in differing_knobs(arm.knobs, known)}
    wanted = arm.knobs if ours is None else ours.knobs
    for name in FACTORS:
        value = getattr(wanted, name)
        if value is None or name in differing:
            continue
        if ours is not None and theirs is not None:
            runs = getattr(theirs.knobs, name)
            if not _is_equal(value, runs):
                differing[name] = [value, runs]
        elif known is None or getattr(known, name) is None:
            problems.append(
                f"{name}: asked for {value!r}; the server does not say, nor can its command be read"
            )
    problems += [
        f"{name}: asked for {value!r}, {'runs ' + repr(runs) if runs is not None else 'its command does not set it'}"
        for name, (value, runs) in differing.items()
    ]
    if ours is not None and theirs is not None and not problems:
        problems += _differing_flags(arm, ours, theirs)
    if running is not None and theirs is not None:  # a process that gave itself a title wrote over both
        problems += [
            f"the variable {name} has another value there, or none"
            for name, value in asked.env.items()
            if running.env.get(name) != value
        ]
    return problems


def command_behind(port: int) -> Command | None:
    """Words and variables of the process that listens on the port; ``None``: it may not be looked at."""
    owner = port_owner(port)
    pid = None if owner is None else owner["pid"]
    if pid is None:
        return None
    try:
        argv = _strings(f"/proc/{pid}/cmdline")
        pairs = (word.partition("=") for word in _strings(f"/proc/{pid}/environ"))
    except OSError:
        return None
    return Command(tuple(argv), {name: value for name, _, value in pairs}) if any(argv) else None


def _strings(path: str) -> list[str]:
    return [os.fsdecode(part) for part in Path(path).read_bytes().split(b"\0")[:-1]]


def _read(command: Command) -> ReadCommand | None:
    """``None`` for a server whose flags have no table, and for words that start no known server."""
    if len(command.argv) < 2:
        return None  # a title that the process has given itself, which would be read as a pasted text
    try:
        return read_command(command.argv, env=command.env)
    except BadInput:
        return None


def _differing_flags(arm: Arm, ours: ReadCommand, theirs: ReadCommand) -> list[str]:
    """Of speculation, and of what the arm itself sets; the others may be what they are."""
    spellings = table_for(ours.engine).by_spelling
    own = {normalise(name) for name in arm.flags}
    own = {spellings[f"--{name}"].name if f"--{name}" in spellings else name for name in own}
    left, right = _settings(ours, own), _settings(theirs, own)
    return [
        f"--{name}: asked for {_shown(left.get(name))}, runs {_shown(right.get(name))}"
        for name in dict.fromkeys([*left, *right])
        if not _is_equal(left.get(name), right.get(name))
    ]


def _settings(command: ReadCommand, own: set[str]) -> dict[str, object]:
    flags: Mapping[str, FlagText] = command.flags
    found: dict[str, object] = {
        name: value
        for name, value in flags.items()
        if name not in _AS_ONE and (name.startswith("spec") or name in own)
    }
    together = speculation_of(flags) or {}
    return {**found, **{f"speculative-config.{key}": value for key, value in together.items()}}


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)


def _is_equal(ours: object, theirs: object) -> bool:
    if ours == theirs:
        return True
    try:
        return float(str(ours)) == float(str(theirs))
    except ValueError:
        return isinstance(ours, str) and isinstance(theirs, str) and _is_same_path(ours, theirs)


def _is_same_path(ours: str, theirs: str) -> bool:
    """Two files may have one name; where the command gives a whole path, it must be this one."""
    if Path(ours).is_absolute() and Path(theirs).is_absolute():
        return os.path.realpath(ours) == os.path.realpath(theirs)
    return same_model(ours, theirs)
