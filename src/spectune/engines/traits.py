"""The constants of an engine that any layer may ask for, in one record for each engine.

An engine's adapter carries its record as ``traits``; ``registry.traits_for`` finds it by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

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
    needs_drafter: frozenset[str] = frozenset()
    """The methods that need a draft of their own."""
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
