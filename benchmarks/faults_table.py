"""The rows of the fault table: what a fault is, what was expected, what was seen.

A module of faults is a set of functions with ``@fault(...)``; ``faults.py``
imports every module ``faults_*.py`` that it lists, and ``faults_ssh.py`` where
there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from faults_place import Place

Server = Literal["fake", "llama.cpp", "none"]


class Unexpected(Exception):
    """Something else was seen than was expected; the message says what."""


@dataclass(frozen=True)
class Seen:
    """What a fault showed. ``noticed_s``: from the fault to our knowing of it, by one clock of the machine."""

    words: str
    noticed_s: float | None = None
    is_death: bool = False
    """Whether ``noticed_s`` is the time to notice that a server is dead."""
    ready_lag_s: tuple[float, ...] = ()
    """From the server's own time of readiness to our knowing of it."""


@dataclass(frozen=True)
class Fault:
    """One row: ``play`` brings the fault about and returns what was seen, or raises ``Unexpected``."""

    name: str
    title: str
    expected: str
    server: Server
    is_timed: bool
    """Nothing else runs meanwhile."""
    limit_s: float
    play: Callable[[Place], Seen]


@dataclass(frozen=True)
class Row:
    """One fault as it went."""

    name: str
    title: str
    expected: str
    server: str
    as_expected: bool
    seen: str
    took_s: float
    noticed_s: float | None = None
    is_death: bool = False
    ready_lag_s: tuple[float, ...] = ()
    left: tuple[str, ...] = field(default=())


FAULTS: dict[str, Fault] = {}


def fault(
    title: str, *, expected: str, server: Server = "fake", is_timed: bool = False, limit_s: float = 180.0
) -> Callable[[Callable[[Place], Seen]], Callable[[Place], Seen]]:
    """Registers a function under its own name, with dashes."""

    def register(play: Callable[[Place], Seen]) -> Callable[[Place], Seen]:
        name = play.__name__.replace("_", "-")
        if name in FAULTS:
            raise ValueError(f"two faults are called {name}")
        FAULTS[name] = Fault(name, title, expected, server, is_timed, limit_s, play)
        return play

    return register


def expect(holds: bool, otherwise: str) -> None:
    """Raises ``Unexpected`` with what was seen instead."""
    if not holds:
        raise Unexpected(otherwise)
