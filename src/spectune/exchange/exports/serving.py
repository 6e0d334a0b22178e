"""The command an arm was measured with, made ready to serve: host, port, secrets, devices and models."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from spectune.analysis.records import ArmSummary
from spectune.analysis.words import SIMULATED, one_line, times
from spectune.domain.arm import Arm
from spectune.domain.secrets import REDACTED
from spectune.domain.trial import Trial
from spectune.engines.flags import read_args
from spectune.engines.registry import traits_for
from spectune.errors import BadInput
from spectune.exchange.whole_study import LoadedStudy

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTAINER_PROGRAMS = frozenset(
    {"docker", "podman", "nerdctl", "apptainer", "singularity", "srun", "kubectl"}
)
_NOT_MOUNTED = ("/dev/", "/proc/", "/sys/", "/tmp/")
"""What lies there is mostly no model; one that the study names is mounted all the same."""


@dataclass(frozen=True)
class Word:
    """One argument: its text, and a variable whose value follows where a secret was left out of the record."""

    text: str
    secret: str | None = None

    @property
    def shell(self) -> str:
        if self.secret is None:
            return shlex.quote(self.text)
        quoted = shlex.quote(self.text) if self.text else ""
        return f'{quoted}"${{{self.secret}:?is not recorded, set it}}"'


@dataclass(frozen=True)
class Serving:
    """What it takes to serve one arm."""

    study: str
    arm: Arm
    program: str
    arguments: tuple[Word, ...]
    env: dict[str, str]
    """Without secrets."""
    secret_env: tuple[str, ...]
    """Variables that were set and are not recorded."""
    port: int
    num_gpus: int
    models: tuple[str, ...]
    """Absolute paths among the arguments."""
    notes: tuple[str, ...]
    """What was measured and what to know, one line each."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every variable that the user has to set."""
        words = (word.secret for word in self.arguments if word.secret is not None)
        return tuple(dict.fromkeys((*self.secret_env, *words)))

    @property
    def words(self) -> tuple[Word, ...]:
        return (Word(self.program), *self.arguments)


def chosen_arm(loaded: LoadedStudy, name: str | None) -> Arm:
    """The named one, else the study's best."""
    if name is not None:
        return loaded.find_arm(name)
    best = loaded.summary.best_arm_id
    if best is None:
        raise BadInput(
            f"{loaded.place}: no arm is known to be best yet (the baseline was not measured); name one with --arm"
        )
    return loaded.summary.arm(best).arm


def serving_of(
    loaded: LoadedStudy,
    arm: Arm,
    *,
    host: str,
    port: int,
    program: str | None = None,
    container: bool = False,
) -> Serving:
    """From the arm's last complete launch, or its last one.

    ``container``: the program's folder is that of an image, so only its name is kept.
    """
    trial = _launch(loaded, arm)
    if trial.ranks:
        nodes = " and ".join(rank.node for rank in trial.ranks)
        raise BadInput(
            f"{loaded.place}: {arm.name} is one server over the nodes {nodes}, which no form here can start; "
            "the report shows the command of each rank"
        )
    argv = list(trial.command)
    name = PurePosixPath(argv[0]).name
    if container and name in _CONTAINER_PROGRAMS:
        raise BadInput(
            f"{loaded.place}: {one_line(arm.name)} is started with {name} already; "
            "take --as command for its command line"
        )
    if container:
        argv[0] = program or ("python3" if name.startswith("python") else name)
    elif program:
        argv[0] = program
    if program and name.startswith("python") and not PurePosixPath(program).name.startswith("python"):
        argv = [argv[0], *_without_module(argv[1:])]
    words = _replace_address(argv[1:], host=host, port=port)
    named = {arm.target.rstrip("/"), (arm.knobs.drafter or "").rstrip("/")}
    paths = list(dict.fromkeys(_paths(words)))
    models = [path for path in paths if path in named or not path.startswith(_NOT_MOUNTED)]
    notes = list(_notes(loaded, arm, trial, argv))
    if container:
        notes += [f"not mounted: {one_line(path, limit=200)}" for path in paths if path not in models]
    return Serving(
        study=loaded.study.name,
        arm=arm,
        program=argv[0],
        arguments=tuple(_words(words)),
        env={k: v for k, v in trial.env.items() if v != REDACTED and _checked_name(k, loaded)},
        secret_env=tuple(k for k, v in trial.env.items() if v == REDACTED and _checked_name(k, loaded)),
        port=port,
        num_gpus=_num_gpus(loaded, arm.engine, argv),
        models=tuple(models),
        notes=tuple(notes),
    )


def _checked_name(name: str, loaded: LoadedStudy) -> bool:
    if not _VARIABLE.fullmatch(name):
        raise BadInput(f"{loaded.place}: the variable {name!r} has a name that no shell or manifest can set")
    return True


def _launch(loaded: LoadedStudy, arm: Arm) -> Trial:
    own = [t for t in loaded.trials if t.arm_id == arm.arm_id and t.command]
    complete = [t for t in own if t.status == "complete"]
    if complete or own:
        return (complete or own)[-1]
    if loaded.study.imported is not None:
        tool = loaded.study.imported.tool
        raise BadInput(
            f"{loaded.place}: the figures were imported from {tool}, which does not record the server's command"
        )
    raise BadInput(
        f"{loaded.place}: {one_line(arm.name)} was never launched, so its command is not recorded; "
        "run the study"
    )


def _replace_address(arguments: Sequence[str], *, host: str, port: int) -> list[str]:
    """``--host`` and ``--port`` with new values, in both spellings; added where they are missing."""
    wanted = {"--host": host, "--port": str(port)}
    found: list[str] = []
    missing = dict(wanted)
    skip = False
    for word in arguments:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif name in wanted:
            missing.pop(name, None)
            found += [f"{name}={wanted[name]}"] if equals else [name, wanted[name]]
            skip = not equals
        else:
            found.append(word)
    for name, value in missing.items():
        found += [name, value]
    return found


def _words(arguments: Sequence[str]) -> Iterator[Word]:
    before = ""
    for word in arguments:
        name, equals, value = word.rpartition("=")  # of --env=NAME=value, the last
        if word == REDACTED:
            yield Word("", _variable_of(before))
        elif equals and value == REDACTED:
            yield Word(f"{name}=", _variable_of(name.rpartition("=")[2]))
        else:
            yield Word(word)
        before = word


def _variable_of(flag: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", flag).strip("_").upper()
    return name if _VARIABLE.fullmatch(name) else "SERVER_SECRET"


def _num_gpus(loaded: LoadedStudy, engine: str, argv: Sequence[str]) -> int:
    """By the parallel flags; all there are for an engine without such flags; none on a machine without."""
    gpus = loaded.study.machine.gpus
    if gpus == ():
        return 0
    division = traits_for(engine).division(read_args(argv))
    if division is None:
        return len(gpus) if gpus else 0
    return division.devices


def _paths(arguments: Sequence[str]) -> Iterator[str]:
    """Absolute paths, also inside JSON values."""
    for word in arguments:
        _, equals, value = word.partition("=")
        for text in (word, value if equals else ""):
            if text.startswith("{"):
                yield from _paths_in_json(text)
            elif text.startswith("/") and len(text) > 1:
                yield text.rstrip("/")


def _paths_in_json(text: str) -> Iterator[str]:
    try:
        values: list[Any] = [json.loads(text)]
    except (json.JSONDecodeError, RecursionError):
        return
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str):
            yield from _paths([value] if not value.startswith("{") else [])


def _without_module(arguments: Sequence[str]) -> Sequence[str]:
    """Of ``python -u -m MODULE --flag``, what another program is given: the flags."""
    if "-m" not in arguments[:4]:
        return arguments
    return arguments[arguments.index("-m") + 2 :]


def _notes(loaded: LoadedStudy, arm: Arm, trial: Trial, argv: Sequence[str]) -> Iterator[str]:
    summary: ArmSummary = loaded.summary_of(arm)
    yield f"study {one_line(loaded.study.name, limit=80)}, arm {one_line(arm.name, limit=80)} ({arm.arm_id})"
    version = trial.server.version if trial.server else None
    yield f"measured with {arm.engine} {one_line(version or 'of unknown version', limit=60)}, {trial.started_at}"
    if trial.status != "complete":
        yield f"no whole measurement: that launch is recorded as {trial.status}"
    load = summary.first
    if summary.is_baseline:
        is_best = loaded.summary.best_arm_id == arm.arm_id
        yield f"plain decoding{': no arm is shown to be faster' if is_best else ''}"
    elif load is not None and load.speedup is not None:
        yield f"{times(load.speedup)} of plain decoding at {load.label}"
    if arm.request:
        fields = json.dumps(arm.request, sort_keys=True)
        yield f"its speed needs these fields in every request: {one_line(fields, limit=400)}"
    if trial.simulated:
        yield SIMULATED
    if "spectune.embedded.llama_server" in argv:
        yield "the embedded server: it needs spectune[demo] where it runs"


def shell_environment(serving: Serving) -> list[str]:
    """``export`` lines; a secret that is not set ends the script with a message."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in serving.env.items()]
    lines += [f': "${{{name}:?is not recorded, set it}}"' for name in serving.secret_env]
    lines += [f"export {name}" for name in serving.secret_env]
    return lines


def shell_command(words: Sequence[Word], *, before: Sequence[str] = ("exec",)) -> str:
    """One argument per line, a flag together with its value."""
    groups: list[list[str]] = [[*before, words[0].shell]]
    for word in words[1:]:
        starts = word.text.startswith("-") or (groups[-1][0].startswith("-") and len(groups[-1]) > 1)
        if starts:
            groups.append([word.shell])
        else:
            groups[-1].append(word.shell)
    return " \\\n  ".join(" ".join(group) for group in groups)
