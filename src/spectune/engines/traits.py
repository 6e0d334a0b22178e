"""The constants of an engine that any layer may ask for, in one record for each engine.

An engine's adapter carries its record as ``traits``; ``registry.traits_for`` finds it by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

_MAX_DIGITS = 6
"""A longer number is no size of a server."""


@dataclass(frozen=True)
class Division:
    """How many parts a server has of each kind."""

    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    """Whole copies of the model, each on devices of its own."""
    context: int = 1
    """Ranks that share the tokens of one prompt, each on devices of its own."""
    attention: int = 1
    """Data parallel attention groups; they share the devices of the tensor parallel ranks."""

    @property
    def devices(self) -> int:
        return prod((self.tensor, self.pipeline, self.replicas, self.context))


@dataclass(frozen=True)
class ParallelFlags:
    """The flags that divide a server, without dashes, by every name that the engine takes."""

    tensor: tuple[str, ...]
    pipeline: tuple[str, ...]
    replicas: tuple[str, ...]
    context: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    shared: str | None = None
    """A switch that turns ``replicas`` into ``attention``."""

    def division(self, flags: Mapping[str, object]) -> Division:
        """The parts that these flags ask for; where a size is given twice, the later one counts."""
        replicas, attention = _size(flags, self.replicas), _size(flags, self.attention)
        if self.shared is not None and flags.get(self.shared) not in (None, False):
            replicas, attention = 1, max(attention, replicas)
        return Division(
            tensor=_size(flags, self.tensor),
            pipeline=_size(flags, self.pipeline),
            replicas=replicas,
            context=_size(flags, self.context),
            attention=attention,
        )


_RELEASE = re.compile(r"(?:^|-)v?(\d+\.\d+(?:\.\d+)?(?:[.-]?(?:post|rc)\d+)?)(?:-|$)")
Words = tuple[str, ...]


@dataclass(frozen=True)
class CommandForms:
    """How people start an engine's server."""

    shown: str
    """The usual forms, as a message names them."""
    modules: Words = ()
    """What stands behind ``python -m``."""
    programs: Words = ()
    """Programs that are the server."""
    subcommands: Mapping[str, Words] = field(default_factory=dict)
    """Programs and modules that take one of these words first."""
    scripts: Words = ()
    """Ends of the paths of scripts that an interpreter runs."""
    model_word: Literal["any", "first"] | None = None
    """Behind a subcommand: which word without dashes is the model."""
    image_server: Callable[[str, str, Words], tuple[str, Words] | None] = lambda path, tag, words: None
    """The program and its words that an image starts by itself, from the image's path, its tag and the words given."""
    tag_version: Callable[[str], str | None] = lambda tag: (
        found[1] if (found := _RELEASE.search(tag)) else None
    )
    """The engine's version from an image's tag."""
    config_file: Literal["word", "equals"] | None = None
    """``--config FILE`` holds further flags; ``equals``: also as ``--config=FILE``."""


@dataclass(frozen=True)
class EngineTraits:
    """What is constant about one engine."""

    name: str
    title: str
    """The engine's name as its makers write it."""
    port: int
    """Where its server listens if no port is given."""
    host: str = "0.0.0.0"  # noqa: S104
    """The address it listens on if none is given."""
    image: str = "REGISTRY/IMAGE:TAG"
    """A container image that people take; ``{version}`` stands for the engine's version."""
    launch_s: float = 60.0
    """How long a start takes before one was measured: seen with a 135M model on two processor cores."""
    methods: Mapping[str, str] = field(default_factory=dict)
    """Ways to draft, as ``Knobs.method`` names them, and the engine's own word for each."""
    method_flag: str = ""
    """What asks for a method, ``{word}`` being the engine's own."""
    needs_drafter: frozenset[str] = frozenset()
    """The methods that need a draft of their own."""
    target_flags: Words = ()
    """The flags that name the model, without dashes; the first one given counts."""
    draft_flags: Words = ()
    """The flags that name a draft of its own."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that are read as flags; a flag on the command line wins."""
    command: CommandForms | None = None
    """``None``: its servers are not started by a command."""
    distributions: Words = ()
    """Names under which a build is installed as a Python package, the usual one first."""
    distribution_version: str = "{version}"
    """A package's version as the engine's."""
    program_version: Callable[[str], str | None] | None = None
    """The version in what the program prints for ``--version``; ``None``: it is not asked for."""
    answers: tuple[str, Words] | None = None
    """A path of its server, and keys of the JSON there of which no other engine gives any."""
    token_id_fields: Mapping[str, bool] = field(default_factory=dict)
    """Fields of a request that ask for the answer's token ids."""
    divides_context: bool = False
    """Whether requests in flight share the context that the server was started with."""
    parallel: ParallelFlags | None = None
    """``None``: it has no such flags, and takes every device that it sees."""

    def division(self, flags: Mapping[str, object]) -> Division | None:
        """The parts of a server with these flags; ``None`` where the flags do not say."""
        return None if self.parallel is None else self.parallel.division(flags)


def _size(flags: Mapping[str, object], names: tuple[str, ...]) -> int:
    """The last of the flags with one of these names; 1 if there is none that a server could use."""
    value: object = 1
    for name, given in flags.items():
        if name in names:
            value = given
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1
