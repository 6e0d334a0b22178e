"""A server command as people paste it -> engine, flags, models and knobs. Nothing is ever run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from spectune.domain.arm import Knobs
from spectune.domain.machine import Machine
from spectune.domain.secrets import redact_argv
from spectune.engines.registry import adapter_for, traits_for
from spectune.errors import BadInput
from spectune.preflight.command.arguments import Arguments, FlagText, read_arguments
from spectune.preflight.command.config_file import config_words
from spectune.preflight.command.forms import commands_in
from spectune.preflight.command.launch import Container, Launch, find_launch, understood
from spectune.preflight.command.shell import SimpleCommand
from spectune.preflight.command.text import known, shown
from spectune.preflight.flags.speculative import guessed_method, speculation_of
from spectune.preflight.flags.table import FlagTable, table_for
from spectune.preflight.situation import EngineVersion, Situation


@dataclass(frozen=True)
class ReadCommand:
    """One server command, understood."""

    engine: str
    program: str
    """``vllm serve``, ``python3 -m sglang.launch_server``, ``llama-server``."""
    argv: tuple[str, ...]
    """The server's own words, a ``--config`` file's put in."""
    flags: Mapping[str, FlagText]
    env: Mapping[str, str]
    target: str | None
    """As written: a folder, a file or a hub id."""
    draft: str | None
    knobs: Knobs
    arguments: Arguments
    """Faults of form, for ``flags_form``."""
    python: str | None = None
    executable: str | None = None
    container: Container | None = None
    version_hint: str | None = None
    """A version in the image's tag."""
    lost_lines: tuple[str, ...] = ()
    """Lines of flags behind the command that a shell would not pass to it."""
    other_servers: tuple[str, ...] = ()
    """Further server commands in the same text, not read."""
    not_read: tuple[str, ...] = ()
    """What could not be looked at: files that are not here, variables of a shell."""

    def situation(
        self,
        version: EngineVersion,
        *,
        subject: str | None = None,
        target: Any = None,
        draft: Any = None,
        machine: Machine | None = None,
        max_concurrency: int | None = None,
        max_prompt_tokens: int | None = None,
        max_tokens: int | None = None,
    ) -> Situation:
        """What the rules look at."""
        return Situation(
            subject=subject or self.program,
            engine=self.engine,
            version=version,
            flags=self.flags,
            knobs=self.knobs,
            env=self.env,
            target=target,
            draft=draft,
            machine=machine,
            max_concurrency=max_concurrency,
            max_prompt_tokens=max_prompt_tokens,
            max_tokens=max_tokens,
        )


def read_command(
    words: Sequence[str] | str,
    *,
    env: Mapping[str, str] | None = None,
    engine_version: str | None = None,
    number: int = 0,
) -> ReadCommand:
    """A server command of ``words`` (an argument list, or one pasted text); ``number`` counts from 0 where a text
    holds several.

    Raises ``BadInput`` if no server that is known would be started.
    """
    commands = _commands(words)
    found: list[tuple[int, Launch]] = []
    refused: BadInput | None = None
    for position, command in enumerate(commands):
        try:
            launch = find_launch(command.words, {**(env or {}), **command.env})
        except BadInput as error:  # a container of something else beside the server's
            refused = refused or error
            continue
        if launch is not None:
            found.append((position, launch))
    if not found:
        raise refused or BadInput(_not_understood(commands))
    position, launch = found[number]
    read = _read_launch(launch, engine_version)
    return replace(
        read,
        lost_lines=_lost_lines(commands[position + 1 :]),
        other_servers=tuple(other.program for _, other in found if other is not launch),
    )


def _commands(words: Sequence[str] | str) -> tuple[SimpleCommand, ...]:
    if isinstance(words, str):
        return commands_in(words)
    if len(words) == 1:
        return commands_in(words[0])
    return (SimpleCommand(tuple(words)),)


def _lost_lines(commands: Sequence[SimpleCommand]) -> tuple[str, ...]:
    lost = []
    for command in commands:
        if not command.words[0].startswith("-"):
            break
        lost.append(" ".join(redact_argv([shown(word) for word in command.words])))
    return tuple(lost)


def _not_understood(commands: Sequence[SimpleCommand]) -> str:
    if not commands:
        return f"command: empty; give one of: {understood()}"
    first = " ".join(redact_argv([shown(word) for word in commands[0].words]))
    return (
        f"command: {first[:80]}{' ...' if len(first) > 80 else ''}: no server that is known; "
        f"understood: {understood()}"
    )


def _read_launch(launch: Launch, engine_version: str | None) -> ReadCommand:
    traits = traits_for(launch.engine)
    table = table_for(launch.engine, engine_version or launch.version_hint)
    not_read = [f"--env-file {name}: not read" for name in _env_files(launch)]
    argv = _with_config_file(list(launch.argv), table, not_read, vllm_serve=launch.positional_model)
    arguments = read_arguments(argv, table, positional_model=launch.positional_model)
    flags = dict(arguments.flags)
    if launch.positional_model and arguments.model is not None:
        flags["model"] = arguments.model
    env = {name: shown(value) for name, value in launch.env.items()}
    for variable, name in traits.variables.items():
        if variable in env:
            flags.setdefault(name, env[variable] if known(launch.env[variable]) else None)
    not_read += [
        f"{word}: filled in by a shell, so its flags are not checked" for word in arguments.open_words
    ]
    not_read += [f"--{name}: its value is a shell's ({name} not checked)" for name in _unresolved(flags)]
    speculation = speculation_of(flags) if launch.engine == "vllm" else None
    draft = first_text(flags, traits.draft_flags)
    if draft is None and speculation is not None and isinstance(speculation.get("model"), str):
        draft = speculation["model"]
    return ReadCommand(
        engine=launch.engine,
        program=launch.program,
        argv=tuple(map(shown, argv)),
        flags=flags,
        env=env,
        target=first_text(flags, traits.target_flags),
        draft=draft,
        knobs=read_knobs(launch.engine, flags),
        arguments=arguments,
        python=launch.python,
        executable=launch.executable,
        container=launch.container,
        version_hint=launch.version_hint,
        not_read=tuple(not_read),
    )


def _env_files(launch: Launch) -> tuple[str, ...]:
    return launch.container.env_files if launch.container else ()


def _unresolved(flags: Mapping[str, FlagText]) -> list[str]:
    return [name for name, value in flags.items() if value is None]


def _with_config_file(
    argv: list[str], table: FlagTable, not_read: list[str], *, vllm_serve: bool
) -> list[str]:
    """``argv`` with the words of its ``--config`` file in front, so that later ones win."""
    commands = traits_for(table.engine).command
    if commands is None or commands.config_file is None:
        return argv
    for position, word in enumerate(argv):
        name, equals, path = word.partition("=")
        if name != "--config" or (equals and commands.config_file == "word"):
            continue
        if not equals:
            path = argv[position + 1] if position + 1 < len(argv) else ""
        words = config_words(shown(path), table) if path else None
        if words is None:
            not_read.append(f"--config {shown(path)}: not on this machine, so its flags are not checked")
            return argv
        rest = argv[:position] + argv[position + (1 if equals else 2) :]
        model_first = vllm_serve and rest[:1] and not rest[0].startswith("-")
        return [*rest[:1], *words, *rest[1:]] if model_first else [*words, *rest]
    return argv


def first_text(flags: Mapping[str, FlagText], names: Sequence[str]) -> str | None:
    """The first of ``names`` that has a value."""
    return next((value for name in names if isinstance(value := flags.get(name), str)), None)


def read_knobs(engine: str, flags: Mapping[str, FlagText]) -> Knobs:
    """The flags in neutral words, through the engine's adapter. Numbers no engine could use are left out."""
    argv: list[str] = []
    for name, value in flags.items():
        if value is True:
            argv.append(f"--{name}")
        elif isinstance(value, str) and name != "speculative-config":
            too_small = name.startswith("spec") and value.lstrip("-").isdecimal() and int(value) < 1
            argv += [] if too_small else [f"--{name}={value}"]
    speculation = speculation_of(flags) if engine == "vllm" else None
    if speculation:
        speculation.setdefault("method", guessed_method(speculation) or "draft_model")
        argv.append(f"--speculative-config={json.dumps(speculation)}")
    try:
        return adapter_for(engine).read_flags(argv)
    except (ValidationError, TypeError, ValueError):
        return Knobs()  # the value itself is a finding of the rules
