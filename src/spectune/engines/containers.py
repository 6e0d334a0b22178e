"""Servers that a container program starts: the client's variables do not reach them by themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath

PROGRAMS = frozenset({"docker", "podman", "nerdctl"})
_VERBS = ("run", "exec")


def is_container(argv: Sequence[str]) -> bool:
    return bool(argv) and PurePath(argv[0]).name in PROGRAMS


def with_variables(prefix: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """``prefix`` with ``--env NAME`` for each variable: the client passes on its own value, so none is in the command.

    Another program's prefix, and a variable that it names itself, stay as they are.
    """
    words = list(prefix)
    verb = next((i for i, word in enumerate(words) if word in _VERBS), None)
    if not is_container(words) or verb is None:
        return words
    named = _named(words[verb + 1 :])
    passed = [word for name in env if name not in named for word in ("--env", name)]
    return [*words[: verb + 1], *passed, *words[verb + 1 :]]


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
