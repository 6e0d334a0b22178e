"""Files and listings that hold server commands: compose, Kubernetes, systemd, Dockerfiles, lists of words, llama-swap.

Each is turned into the words of the commands in it; what a file leaves to its environment is marked as a shell's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from spectune.domain.yaml_values import NotYaml, guarded
from spectune.preflight.command.shell import SimpleCommand
from spectune.preflight.command.shell_words import UNRESOLVED
from spectune.preflight.command.text import MAX_CHARS, read_text

KUBERNETES = "kubernetes"
"""Stands where a container's program does: the manifest says more about the machine than is read here."""

_DOCUMENT = re.compile(
    r"^(?:apiVersion|services|models|kind|version|name|spec)[ \t]*:|^\s*[\[{]", re.MULTILINE
)
_LIST = re.compile(r"\s*(?:[A-Za-z_][\w.]*\s*=\s*)?(\[.*\]|\(.*\))\s*", re.DOTALL)
_DOCKERFILE = re.compile(r"^\s*FROM\s+\S+", re.MULTILINE)
_INSTRUCTION = re.compile(r"^[ \t]*(FROM|ENV|ENTRYPOINT|CMD)[ \t]+((?:\\\n|[^\n])*)", re.MULTILINE)
_UNIT = re.compile(r"^(ExecStart|Environment)=[-@:+!]*((?:\\\n|[^\n])*)", re.MULTILINE)
_IN_COMPOSE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_OF_KUBERNETES = re.compile(r"\$\((\w+)\)")
_MAX_NODES = 20_000


def commands_in(text: str) -> tuple[SimpleCommand, ...]:
    """The commands of a pasted text or file. Raises ``BadInput`` as ``read_text`` does."""
    if len(text) <= MAX_CHARS:
        for form in _FORMS:
            found = tuple(form(text))
            if found:
                return found
    return read_text(text)


def _process(text: str) -> Iterator[SimpleCommand]:
    """``/proc/PID/cmdline``."""
    words = tuple(text.strip("\0\n").split("\0"))
    if len(words) > 1:
        yield SimpleCommand(words)


def _words(text: str) -> Iterator[SimpleCommand]:
    """A list of words as Python and JSON write it, also one that a name is given to."""
    found = _LIST.fullmatch(text)
    if found is None:
        return
    try:
        value = ast.literal_eval(found[1])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(word, str | int | float) for word in value)
    ):
        yield SimpleCommand(tuple(map(str, value)))


def _dockerfile(text: str) -> Iterator[SimpleCommand]:
    if not _DOCKERFILE.search(text):
        return
    image, env, parts = "", {}, {"ENTRYPOINT": [], "CMD": []}  # type: ignore[var-annotated]
    for instruction, rest in _INSTRUCTION.findall(text):
        rest = rest.replace("\\\n", " ").strip()
        if instruction == "FROM":
            image = rest.split()[0]
        elif instruction == "ENV":
            for command in read_text(rest if "=" in rest else rest.replace(" ", "=", 1)):
                env |= command.env
            env |= dict(re.findall(r"(\w+)=(\S+)", rest))
        else:
            listed = next(_words(rest), None)
            parts[instruction] = list(listed.words) if listed else ["sh", "-c", rest]
    if parts["ENTRYPOINT"] or parts["CMD"]:
        yield _in_container(
            "docker", image, parts["ENTRYPOINT"], parts["CMD"], env=env, options=["-v", "/:/"]
        )


def _unit(text: str) -> Iterator[SimpleCommand]:
    """A systemd unit."""
    lines = _UNIT.findall(text)
    env: dict[str, str] = {}
    for key, rest in lines:
        for command in read_text(rest) if key == "Environment" else ():
            env |= dict(word.split("=", 1) for word in command.words if "=" in word)
        if key == "Environment":
            env |= dict(pair for pair in re.findall(r'"?(\w+)=([^"\n]*)"?', rest))
    for key, rest in lines:
        if key == "ExecStart":
            for command in read_text(rest):
                yield SimpleCommand(command.words, {**env, **command.env})


def _document(text: str) -> Iterator[SimpleCommand]:
    if not _DOCUMENT.search(text):
        return
    try:
        documents = guarded(lambda: list(yaml.safe_load_all(text)))
    except NotYaml:
        return
    for value in documents:
        yield from _of_value(value)


def _of_value(value: Any) -> Iterator[SimpleCommand]:
    waiting, seen = [value], 0
    while waiting and seen < _MAX_NODES:
        seen += 1
        node = waiting.pop()
        if isinstance(node, list):
            waiting += reversed(node[:_MAX_NODES])
        if not isinstance(node, Mapping):
            continue
        services, models, containers = node.get("services"), node.get("models"), node.get("containers")
        if isinstance(services, Mapping):
            for service in services.values():
                yield from _service(service)
        elif isinstance(models, Mapping):
            for model in models.values():
                if isinstance(model, Mapping) and isinstance(model.get("cmd"), str):
                    yield from read_text(_one_line(model["cmd"]))
        elif isinstance(containers, list):
            for container in containers:
                yield from _kubernetes(container)
        elif isinstance(node.get("Config"), Mapping):
            yield from _inspected(node)
        else:
            waiting += reversed([inner for inner in node.values() if isinstance(inner, list | dict)])


def _one_line(text: str) -> str:
    """llama-swap joins the lines of a command, with or without a backslash."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return " ".join(re.sub(r"\\[ \t]*$", "", line) for line in kept)


def _service(service: Any) -> Iterator[SimpleCommand]:
    """One service of a compose file."""
    if not isinstance(service, Mapping) or not isinstance(service.get("image"), str):
        return
    options = [*_options(service.get("ports"), "-p"), *_options(service.get("volumes"), "-v")]
    for key, option in (("shm_size", "--shm-size"), ("ipc", "--ipc"), ("network_mode", "--network")):
        if isinstance(service.get(key), str | int):
            options += [option, str(service[key])]
    for name in _texts(service.get("env_file")):
        options += ["--env-file", name]
    yield _in_container(
        "docker",
        _interpolated(service["image"]),
        [_interpolated(word) for word in _texts(service.get("entrypoint"))],
        [_interpolated(word) for word in _texts(service.get("command"))],
        env={name: _interpolated(value) for name, value in _pairs(service.get("environment")).items()},
        options=options,
    )


def _options(value: Any, option: str) -> list[str]:
    """Ports and volumes, in the short form and in the long one."""
    words = []
    for item in value if isinstance(value, list) else []:
        if isinstance(item, Mapping):
            outside = item.get("published", item.get("source"))
            item = f"{outside}:{item.get('target')}" if outside else item.get("target")
        words += [option, _interpolated(str(item))]
    return words


def _kubernetes(container: Any) -> Iterator[SimpleCommand]:
    if not isinstance(container, Mapping) or not isinstance(container.get("image"), str):
        return
    env = {
        str(item["name"]): str(item["value"]) if "value" in item else UNRESOLVED + str(item["name"])
        for item in container.get("env") or []
        if isinstance(item, Mapping) and "name" in item
    }

    def filled(words: list[str]) -> list[str]:
        return [_OF_KUBERNETES.sub(lambda found: env.get(found[1], UNRESOLVED + found[0]), w) for w in words]

    yield _in_container(
        KUBERNETES,
        container["image"],
        filled(_texts(container.get("command"))),
        filled(_texts(container.get("args"))),
        env=env,
    )


def _inspected(node: Mapping[str, Any]) -> Iterator[SimpleCommand]:
    """What ``docker inspect`` says of a container."""
    config, host = node["Config"], node.get("HostConfig")
    host = host if isinstance(host, Mapping) else {}
    if not isinstance(config.get("Image"), str):
        return
    options = [word for bind in _texts(host.get("Binds")) for word in ("-v", bind)] or ["-v", "/:/"]
    for key, option in (("ShmSize", "--shm-size"), ("IpcMode", "--ipc"), ("NetworkMode", "--network")):
        if host.get(key):
            options += [option, str(host[key])]
    words = (_texts(config.get("Entrypoint")), _texts(config.get("Cmd")))
    yield _in_container("docker", config["Image"], *words, env=_pairs(config.get("Env")), options=options)


def _in_container(
    program: str,
    image: str,
    entrypoint: list[str],
    command: list[str],
    *,
    env: Mapping[str, str],
    options: list[str] | None = None,
) -> SimpleCommand:
    words = [program, "run", *(options or [])]
    for name, value in env.items():
        words += ["-e", f"{name}={value}"]
    if entrypoint:
        words += ["--entrypoint", entrypoint[0]]
    return SimpleCommand((*words, image, *entrypoint[1:], *command))


def _texts(value: Any) -> list[str]:
    """A list of words, or a text that a shell would split."""
    if isinstance(value, str):
        read = read_text(value.replace("\n", " "))
        return [word for command in read for word in command.words]
    return (
        [str(item) for item in value if isinstance(item, str | int | float)]
        if isinstance(value, list)
        else []
    )


def _pairs(value: Any) -> dict[str, str]:
    """Variables, as a mapping or as ``NAME=value``; one without a value is the caller's."""
    if isinstance(value, Mapping):
        return {str(name): "" if item is None else str(item) for name, item in value.items()}
    texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    return dict(text.split("=", 1) for text in texts if "=" in text)


def _interpolated(text: str) -> str:
    def put(found: re.Match[str]) -> str:
        return found[2] if found[2] is not None else UNRESOLVED + found[0]

    return _IN_COMPOSE.sub(put, text.replace("$$", "$")) if "$" in text else text


_FORMS: tuple[Callable[[str], Iterator[SimpleCommand]], ...] = (
    _process,
    _words,
    _dockerfile,
    _unit,
    _document,
)
