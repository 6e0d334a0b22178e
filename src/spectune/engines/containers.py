"""Servers that a container program starts: what the client's command must say, so that they are ours to end.

A launch gets a name and a label of its own, ``--init`` where the program has it by itself, and its variables by name.
The supervisor asks the same client about the containers that have this label, and touches no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from spectune.engines.adapter import Cause

PROGRAMS = frozenset({"docker", "podman", "nerdctl", "nvidia-docker", "docker-compose"})
SWITCHES = frozenset(
    {
        *("-d", "--detach", "-i", "--interactive", "-t", "--tty", "-it", "-ti", "-dit", "-itd", "-id", "-td"),
        *("--rm", "--privileged", "--init", "--read-only", "-P", "--publish-all", "--no-healthcheck"),
        *("--oom-kill-disable", "--sig-proxy", "-q", "--quiet", "--tls-verify", "--replace", "--no-hosts"),
        *("-T", "--no-TTY", "--no-deps", "--service-ports", "--build", "--use-aliases", "--remove-orphans"),
    }
)
"""Options of ``run`` and ``exec`` that stand alone; everything else that begins with a dash takes a word."""
LABEL = "spectune.server"
_VERBS = ("run", "exec")
_IN_FRONT = frozenset({"sudo", "env", "nice", "ionice", "nohup", "setsid", "time", "numactl", "taskset"})
_DETACHED = re.compile(r"--detach(=true)?|-[it]*d[it]*")
_CLIENTS_OWN = re.compile(
    r"DOCKER_\w+|CONTAINER_\w+|CONTAINERS_\w+|BUILDKIT_\w+|COMPOSE_\w+|PATH|HOME|LD_LIBRARY_PATH|XDG_RUNTIME_DIR"
)
"""Variables that speak to the client: a server inside gets them only from an option of the user's."""


@dataclass(frozen=True)
class ContainerCall:
    """A command that has a container program start a server."""

    client: tuple[str, ...]
    """The words that reach the same runtime again: the program, what stands in front, and its own options."""
    verb: str
    before: tuple[str, ...]
    """Everything up to the verb, and the verb."""
    options: tuple[tuple[str, ...], ...]
    """Each with its value, if that is a word of its own."""
    rest: tuple[str, ...]
    """The image, or the container, and the command inside."""

    @property
    def is_compose(self) -> bool:
        return any(PurePath(word).name in ("compose", "docker-compose") for word in self.before)

    @property
    def program(self) -> str:
        return next(PurePath(word).name for word in self.client if PurePath(word).name in PROGRAMS)

    def given(self, *names: str) -> list[tuple[str, ...]]:
        """The options of these names, as they stand."""
        return [option for option in self.options if option[0].partition("=")[0] in names]

    def argv(self, *, added: Sequence[str] = (), dropped: Sequence[str] = ()) -> list[str]:
        """The command with more options in front of the user's, and without those called ``dropped``."""
        gone = self.given(*dropped)
        kept = [word for option in self.options if option not in gone for word in option]
        return [*self.before, *added, *kept, *self.rest]


def container_call(argv: Sequence[str]) -> ContainerCall | None:
    """The words of ``argv`` by their part; ``None`` if no container program runs a server there."""
    words = list(argv)
    at = next((i for i, word in enumerate(words) if PurePath(word).name in PROGRAMS), len(words))
    verb = next((i for i, word in enumerate(words) if i > at and word in _VERBS), None)
    if verb is None or (at > 0 and PurePath(words[0]).name not in _IN_FRONT):
        return None
    program, own = words[at], words[at + 1 : verb]
    if PurePath(program).name == "docker-compose":
        program, own = program.removesuffix("-compose"), []
    elif "compose" in own:
        own = own[: own.index("compose")]
    client = (*words[:at], program, *(word for word in own if word != "container"))
    options, rest = _options(words[verb + 1 :])
    return ContainerCall(client, words[verb], tuple(words[: verb + 1]), options, tuple(rest))


def _options(words: Sequence[str]) -> tuple[tuple[tuple[str, ...], ...], list[str]]:
    """The leading options, each with its value, and what stands behind them."""
    options: list[tuple[str, ...]] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        glued = "=" in word if word.startswith("--") else re.fullmatch(r"-[epvl].+|-[itd]+", word) is not None
        alone = glued or word in SWITCHES or not rest
        options.append((word,) if alone else (word, rest.pop(0)))
    return tuple(options), rest


def is_container(argv: Sequence[str]) -> bool:
    """Whether a container program starts the server."""
    return container_call(argv) is not None


def why_not_ours(argv: Sequence[str]) -> str | None:
    """Why a container command cannot be a server that is watched and ended; ``None``: it can."""
    call = container_call(argv)
    if call is None:
        return None
    if any(_DETACHED.fullmatch(option[0]) for option in call.options):
        return (
            f"`{call.program} {call.verb} -d` returns at once, and nobody would watch the server: leave -d out "
            "(its output is kept in the log of the trial)"
        )
    restart = [
        word for option in call.given("--restart") for word in option if word not in ("--restart", "no")
    ]
    if restart and restart != ["--restart=no"]:
        return "--restart would start a server again that spectune has stopped: leave it out"
    return None


def with_variables(prefix: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """``prefix`` with ``--env NAME`` for each variable: the client passes on its own value, so none is in the command.

    Another program's prefix, and a variable that it names itself, stay as they are; so do variables of the client's.
    """
    call = container_call(prefix)
    if call is None:
        return list(prefix)
    named = _named([word for option in call.options for word in option])
    wanted = [name for name in env if name not in named and not _CLIENTS_OWN.fullmatch(name)]
    argv = call.argv(added=[word for name in wanted for word in ("--env", name)])
    if wanted and PurePath(argv[0]).name == "sudo":  # which hands on no variable that it is not told of
        argv.insert(1, f"--preserve-env={','.join(wanted)}")
    return argv


def owned(
    argv: Sequence[str], *, marker: str, carried: Sequence[str]
) -> tuple[list[str], dict[str, Any] | None]:
    """The command of a server that is known by ``marker``, and what its supervisor must know to ask for it.

    ``carried``: variables by which its processes are known. ``--rm`` is left out: the supervisor reads how the
    container ended, and then removes it.
    """
    argv = with_variables(argv, dict.fromkeys(carried, ""))
    call = container_call(argv)
    if call is None:
        return argv, None
    if call.verb == "exec":
        return argv, {"client": list(call.client), "label": None}
    label = f"{LABEL}={marker}"
    added = ["--name", f"spectune-{marker[:12]}", "--label", label]
    if call.program in ("docker", "nvidia-docker") and not call.is_compose and not call.given("--init"):
        added.append("--init")
    return call.argv(added=added, dropped=("--name", "--rm")), {"client": list(call.client), "label": label}


def variables_inside(argv: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """What reaches the server of the container command ``argv``, started with the variables ``env``."""
    given = {name: env.get(name) if value is None else value for name, value in _named(argv).items()}
    return {name: value for name, value in given.items() if value is not None}


def given_gpus(words: Sequence[str]) -> tuple[str, ...] | None:
    """The devices that the options among ``words`` give to the container, by index or UUID.

    ``None`` where they leave it open, or give all: a privileged container sees every device.
    """
    if any(word in ("--privileged", "--privileged=true") for word in words):
        return None
    asked = [_cdi_names(value) for value in _values(words, "--device") if value.startswith(_CDI)]
    asked += [_gpu_names(value) for value in _values(words, "--gpus")]
    if not asked:
        asked = [_names(value) for value in (_named(words).get("NVIDIA_VISIBLE_DEVICES"),) if value]
    if not asked or None in asked:
        return None
    return tuple(name for names in asked for name in names or ())


_CDI = "nvidia.com/gpu="
_MOST_DEVICES = 1024


def _cdi_names(value: str) -> tuple[str, ...] | None:
    return _names(value.removeprefix(_CDI))


def _gpu_names(value: str) -> tuple[str, ...] | None:
    """``all``, ``2``, ``device=1``, ``"device=0,2"`` and ``count=2,capabilities=utility``, as ``--gpus`` reads them."""
    names: list[str] = []
    for part in value.replace('"', "").replace("'", "").split(","):
        key, equals, named = part.strip().rpartition("=")
        if key == "device" or (not equals and names):
            names.append(named)
        elif key in ("", "count"):
            return tuple(map(str, range(min(int(named), _MOST_DEVICES)))) if named.isdecimal() else None
    return _names(",".join(names))


def _names(text: str) -> tuple[str, ...] | None:
    """A list of devices; ``None`` for words such as ``all``, and for parts of a device (``0:1``)."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    return names if names and all(_DEVICE.fullmatch(name) for name in names) else None


_DEVICE = re.compile(r"\d{1,4}|(GPU|MIG)-[\w-]+")


def _values(words: Sequence[str], option: str) -> list[str]:
    """What stands behind ``option``, as the next word or after ``=``."""
    behind = [after for word, after in pairwise(words) if word == option]
    return behind + [word.removeprefix(f"{option}=") for word in words if word.startswith(f"{option}=")]


def _named(words: Sequence[str]) -> dict[str, str | None]:
    """Variables that ``-e NAME``, ``-eNAME=VALUE`` or ``--env=NAME`` give, with their values where these are there."""
    glued = [
        word[2:] for word in words if word.startswith("-e") and not word.startswith("--") and word != "-e"
    ]
    found: dict[str, str | None] = {}
    for text in (*_values(words, "-e"), *_values(words, "--env"), *glued):
        name, equals, value = text.removeprefix("=").partition("=")
        found[name] = value if equals else None
    return found


_SAYS = r"^(?:docker|Error|Error response from daemon|ERRO\[\d+\]|invalid argument|Cannot connect)\b.*?"
"""How the clients of docker and podman begin their own complaints: a server's line does not count as one."""
_FAILURES: tuple[tuple[str, str], ...] = (
    (
        r"Cannot connect to the Docker daemon|failed to connect to the docker API|[Cc]annot connect to Podman",
        "start the daemon (`systemctl start docker`), or set DOCKER_HOST to the socket of the one that runs",
    ),
    (
        r"permission denied while trying to connect to the [Dd]ocker",
        "add yourself to the group docker, use rootless docker or podman, or write `sudo -n docker run ...`",
    ),
    (
        r"pull access denied|manifest unknown|manifest for \S+ not found|No such image|unable to copy from source"
        r"|initializing source docker://|did not resolve to an alias|unauthorized|lookup \S+ on \S+ no such host"
        r"|registry\S*/v2/",
        "the image is not here and could not be fetched: check its name and tag, log in (`docker login`), or pull it "
        "where there is a network",
    ),
    (
        r"could not select device driver|nvidia-container-cli|[Uu]nknown (?:or invalid )?runtime"
        r"|unresolvable CDI devices|nvidia\.com/gpu=\S+ is not an absolute path",
        "this daemon cannot hand out GPUs: install the NVIDIA Container Toolkit, `nvidia-ctk runtime configure`, and "
        "restart the daemon; for podman `nvidia-ctk cdi generate`",
    ),
    (
        r"container name \S+ is already in use|name \S+ is in use",
        "remove that container, or leave --name out: spectune gives each launch its own",
    ),
    (
        r"port is already allocated|address already in use",
        "another program holds the published port: end it, or leave -p out, since spectune publishes a free one",
    ),
    (
        r"[Nn]o space left on device",
        "the daemon's disk is full: `docker system df` says by what, `docker system prune` frees it",
    ),
    (
        r"executable file not found|no such file or directory: unknown",
        "the image has no such program: check the words behind the image's name",
    ),
    (r"permission denied: unknown", "the image's program may not be run: check the words behind its name"),
    (
        r"No such container|container \S+ is not running|no container with name",
        "`docker ps` lists the containers that run: start it, or correct its name",
    ),
    (
        r"unknown (?:shorthand )?flag|for \"[\w, -]+\" flag",
        "this version of the program does not take that option",
    ),
    (r"Error response from daemon", "the daemon's own log says more (`journalctl -u docker`)"),
)
_COMPILED = tuple((re.compile(_SAYS + f"(?:{pattern})"), remedy) for pattern, remedy in _FAILURES)


def failure_of_runtime(log_tail: Sequence[str]) -> Cause | None:
    """Why the container program itself could not start the server, in its own words; ``None``: it does not say so."""
    for line in map(str.strip, log_tail):
        for pattern, remedy in _COMPILED:
            if pattern.search(line):
                return Cause(message=line[:500], remedy=remedy)
    return None
