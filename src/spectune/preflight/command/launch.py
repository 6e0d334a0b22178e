"""What stands in front of a server's own flags: wrappers, containers, interpreters."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spectune.engines.containers import PROGRAMS, SWITCHES, given_gpus
from spectune.engines.registry import launched_traits, traits_for
from spectune.engines.traits import CommandForms
from spectune.errors import BadInput
from spectune.hosts.supervisor import GPU_VARIABLES
from spectune.preflight.command.forms import KUBERNETES
from spectune.preflight.command.text import is_assignment, read_text, shown

_PYTHON = re.compile(r"(python|pypy)(\d(\.\d+)?)?(\.exe)?")
_PYTHON_WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})

_WRAPPERS: Mapping[str, frozenset[str]] = {
    "sudo": frozenset({"-u", "-g", "-C", "-D", "-h", "-p", "--user", "--group"}),
    "env": frozenset({"-u", "-C", "--unset", "--chdir"}),
    "nohup": frozenset(),
    "exec": frozenset({"-a"}),
    "time": frozenset({"-o", "-f"}),
    "setsid": frozenset(),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "numactl": frozenset({"-N", "-m", "-C", "-i", "-p", "-l"}),
    "taskset": frozenset(),
    "timeout": frozenset({"-s", "-k"}),
    "unbuffer": frozenset(),
    "proxychains4": frozenset(),
}
"""Programs that run the command behind them; of each, the options that take a word."""
_FIRST_WORD_IS_THEIRS = frozenset({"taskset", "timeout"})
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})

_CONTAINER_PROGRAMS = PROGRAMS | {KUBERNETES}


@dataclass(frozen=True)
class Container:
    """What a container's options say about the machine the server sees."""

    program: str
    image: str
    shm_size: str | None = None
    ipc: str | None = None
    network: str | None = None
    ports: tuple[str, ...] = ()
    """``HOST:CONTAINER``, as given."""
    env_files: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    gpus: tuple[str, ...] | None = None
    """The devices that it is given, by index or UUID; ``None``: perhaps all."""


@dataclass(frozen=True)
class Launch:
    """The server program and the words behind it."""

    engine: str
    program: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    """The interpreter named, if it is outside a container."""
    executable: str | None = None
    positional_model: bool = False
    """A word without a flag in front is the model."""
    container: Container | None = None
    version_hint: str | None = None
    """From the image's tag."""


def understood() -> str:
    """The commands that are understood, as a message names them."""
    forms = ", ".join(commands.shown for _, commands in _forms())
    return f"{forms}, and docker or podman run with an image of these"


def _forms() -> tuple[tuple[str, CommandForms], ...]:
    return tuple((traits.name, traits.command) for traits in launched_traits() if traits.command)


def find_launch(words: Sequence[str], env: Mapping[str, str], *, depth: int = 0) -> Launch | None:
    """The server that ``words`` would start, or ``None`` if they start none that is known."""
    rest = list(words)
    variables = dict(env)
    while rest:
        pair = is_assignment(rest[0])
        name = posixpath.basename(rest[0])
        if pair:
            variables[pair[0]] = pair[1]
            rest.pop(0)
        elif name in _WRAPPERS:
            rest = _after_wrapper(name, rest[1:], variables)
        elif name in _CONTAINER_PROGRAMS:
            return _container(name, rest[1:], variables)
        elif name in _SHELLS and depth < 3:
            return _inner_shell(rest[1:], variables, depth)
        else:
            return _program(rest, variables) or _later(rest, variables, depth)
    return None


def _after_wrapper(name: str, rest: list[str], variables: dict[str, str]) -> list[str]:
    with_value, options = _WRAPPERS[name], []
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        options.append(option)
        if option in with_value and rest:
            options.append(rest.pop(0))
        if option == "--":
            break
    _forget(name, options, variables)
    if name == "env":
        while rest and (pair := is_assignment(rest[0])):
            variables[pair[0]] = pair[1]
            rest.pop(0)
    elif name in _FIRST_WORD_IS_THEIRS and rest:
        rest.pop(0)
    return rest


def _forget(name: str, options: Sequence[str], variables: dict[str, str]) -> None:
    """Takes out what the wrapper does not hand on: `env -i`, `env -u NAME`, and sudo with its usual settings.

    Of sudo that is the choice of devices alone: other variables may be kept by the machine's own settings.
    """
    if name == "env":
        if {"-", "-i", "--ignore-environment"} & set(options):
            variables.clear()
        for option, value in zip(options, [*options[1:], ""], strict=True):
            gone = value if option in ("-u", "--unset") else option.removeprefix("--unset=")
            variables.pop(gone, None)
    elif name == "sudo" and not any(o.startswith(("-E", "--preserve-env")) for o in options):
        for variable in GPU_VARIABLES:
            variables.pop(variable, None)


def _inner_shell(rest: list[str], variables: dict[str, str], depth: int) -> Launch | None:
    """``bash -lc "vllm serve ..."``: the text behind ``-c`` is read like pasted text."""
    for position, word in enumerate(rest[:-1]):
        if word.startswith("-") and word.endswith("c") and not word.startswith("--"):
            for command in read_text(rest[position + 1]):
                found = find_launch(command.words, {**variables, **command.env}, depth=depth + 1)
                if found:
                    return found
    return None


def _later(rest: list[str], variables: dict[str, str], depth: int) -> Launch | None:
    """Behind a launcher that is not known word for word (``uv run``, ``srun``, ``nsys profile``)."""
    for position in range(1, min(len(rest), 40)):
        name = posixpath.basename(rest[position])
        if name in _CONTAINER_PROGRAMS and len(rest) > position + 1:
            return _container(name, rest[position + 1 :], variables)
        found = _program(rest[position:], variables)
        if found:
            return found
        if name in _SHELLS and depth < 3:
            return _inner_shell(rest[position + 1 :], variables, depth)
    return None


def _program(words: list[str], variables: dict[str, str]) -> Launch | None:
    name = posixpath.basename(words[0].replace("\\", "/"))
    rest = tuple(words[1:])
    path = shown(words[0])
    if _PYTHON.fullmatch(name):
        return _python(words, variables)
    name = name.removesuffix(".exe")
    for engine, commands in _forms():
        if name in commands.programs:
            return Launch(engine, name, rest, variables, executable=path)
        if rest[:1] and rest[0] in commands.subcommands.get(name, ()):
            return replace(
                _behind_subcommand(engine, f"{name} {rest[0]}", rest[1:], variables), executable=path
            )
    return None


def _behind_subcommand(
    engine: str, program: str, argv: tuple[str, ...], variables: Mapping[str, str]
) -> Launch:
    """``sglang serve MODEL ...``: its model is a first word without dashes, vLLM's any word."""
    traits = traits_for(engine)
    model_word = traits.command.model_word if traits.command else None
    if model_word == "first" and argv and not argv[0].startswith("-"):
        argv = (f"--{traits.target_flags[0]}", *argv)
    return Launch(engine, program, argv, variables, positional_model=model_word == "any")


def _python(words: list[str], variables: dict[str, str]) -> Launch | None:
    interpreter, rest = shown(words[0]), words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option = rest.pop(0)
        if option in _PYTHON_WITH_VALUE and rest:
            rest.pop(0)
        if option == "-c":
            return None
    if rest[:1] == ["-m"] and len(rest) > 1:
        return _module(interpreter, rest[1], tuple(rest[2:]), variables)
    for engine, commands in _forms() if rest else ():
        name = posixpath.basename(rest[0])
        if "/" in rest[0] and rest[1:2] and rest[1] in commands.subcommands.get(name, ()):
            found = _program(rest, variables)
            return replace(found, python=interpreter) if found else None
        if commands.scripts and rest[0].endswith(commands.scripts):
            return Launch(engine, rest[0], tuple(rest[1:]), variables, python=interpreter)
    return None


def _module(interpreter: str, module: str, argv: tuple[str, ...], variables: dict[str, str]) -> Launch | None:
    program = f"{interpreter} -m {module}"
    for engine, commands in _forms():
        if module in commands.modules:
            return Launch(engine, program, argv, variables, python=interpreter)
        if argv[:1] and argv[0] in commands.subcommands.get(module, ()):
            found = _behind_subcommand(engine, f"{program} {argv[0]}", argv[1:], variables)
            return replace(found, python=interpreter)
    return None


@dataclass
class _ContainerOptions:
    env: dict[str, str] = field(default_factory=dict)
    env_files: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)


def _container(program: str, words: Sequence[str], variables: Mapping[str, str]) -> Launch | None:
    """``run [options] IMAGE [command]``; variables of the host do not reach the server."""
    rest = list(words)
    while rest and rest[0] not in ("run", "exec"):
        word = rest.pop(0)
        if word in ("-H", "--host", "--context", "-c", "-f", "--file", "-p", "--project-name") and rest:
            rest.pop(0)
    if not rest:
        return None
    verb = rest.pop(0)
    options, behind_verb = _ContainerOptions(), list(rest)
    while rest and rest[0].startswith("-"):
        _container_option(rest, options, variables)
    if not rest:
        raise BadInput(f"command: {program} {verb} names no image; it must stand behind the options")
    image, command = rest[0], rest[1:]
    container = Container(
        program=program,
        image=shown(image),
        shm_size=options.others.get("--shm-size"),
        ipc=options.others.get("--ipc"),
        network=options.others.get("--network") or options.others.get("--net"),
        ports=tuple(options.ports),
        env_files=tuple(options.env_files),
        volumes=tuple(options.volumes),
        gpus=given_gpus(behind_verb[: len(behind_verb) - len(rest)]),
    )
    entrypoint = options.others.get("--entrypoint")
    if entrypoint:
        command = [*entrypoint.split(), *command]
    found = (find_launch(command, options.env) if command else None) or _entrypoint(
        image, command, options.env
    )
    if found is None:
        raise BadInput(
            f"command: {shown(image)} with {' '.join(map(shown, command[:6])) or 'no command'}: "
            f"no server that is known; understood: {understood()}"
        )
    return replace(
        found,
        container=container,
        python=None,
        executable=None,
        version_hint=_tag_version(image, found.engine),
    )


def _container_option(rest: list[str], options: _ContainerOptions, variables: Mapping[str, str]) -> None:
    word = rest.pop(0)
    name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
    if not equals:
        if name in SWITCHES or not rest:
            return
        glued = re.fullmatch(r"(-[epv])(.+)", name) if not name.startswith("--") else None
        if glued:
            name, value = glued.groups()
        else:
            value = rest.pop(0)
    if name in ("-e", "--env"):
        pair = is_assignment(value)
        if pair:
            options.env[pair[0]] = pair[1]
        elif value in variables:
            options.env[value] = variables[value]
    elif name == "--env-file":
        options.env_files.append(value)
    elif name in ("-p", "--publish"):
        options.ports.append(value)
    elif name in ("-v", "--volume", "--mount", "--volumes-from"):
        options.volumes.append(value)
    else:
        options.others[name] = value


def _entrypoint(image: str, command: Sequence[str], env: dict[str, str]) -> Launch | None:
    """The server that an image starts by itself."""
    name = image.rsplit("@", 1)[0].lower()
    path, _, tag = name.rpartition(":") if ":" in name.rsplit("/", 1)[-1] else (name, "", "")
    for engine, commands in _forms():
        found = commands.image_server(path, tag, tuple(command))
        if found is not None:
            program, argv = found
            return Launch(engine, program, argv, env, positional_model=commands.model_word == "any")
    return None


def _tag_version(image: str, engine: str) -> str | None:
    tag = image.rsplit("/", 1)[-1].partition(":")[2].partition("@")[0]
    commands = traits_for(engine).command
    return commands.tag_version(tag) if commands else None
