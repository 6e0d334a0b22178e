"""What spectune knows about an engine: argv out, text in. No I/O here.

An adapter is a module-level singleton; ``adapter_for`` finds it by name.
Adding an engine is adding a module with a class of this shape and one line in
``registry.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm, FlagValue, Knobs
from spectune.domain.measurement import ServerCounters
from spectune.domain.trial import ServerFacts
from spectune.domain.workload import Sampling
from spectune.engines.traits import EngineTraits

ModelFormat = Literal["gguf", "hf"]


@dataclass(frozen=True)
class EngineSetup:
    """How one engine is started on this machine, from the study file."""

    name: str
    python: str | None = None
    """Interpreter of the engine's own environment; the adapter adds ``-m module``."""
    executable: str | None = None
    """A server program, e.g. ``llama-server``."""
    command: tuple[str, ...] = ()
    """A prefix given in full, e.g. a container command; used as it is."""
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rank:
    """Which part of a server over several nodes is started; rank 0 is the one that answers requests."""

    number: int
    of: int
    address: str
    """Of its own node, as the other nodes reach it."""
    head: str
    """The same of rank 0's node."""
    head_port: int
    """There: where the ranks find each other."""

    @property
    def meeting_point(self) -> str:
        head = f"[{self.head}]" if ":" in self.head else self.head
        return f"{head}:{self.head_port}"


@dataclass(frozen=True)
class Launch:
    """One server to start."""

    arm: Arm
    setup: EngineSetup
    host: str
    port: int
    target_path: str
    drafter_path: str | None
    max_concurrency: int
    """The most requests the workload keeps in flight."""
    rank: Rank | None = None
    """``None``: the whole server runs on one node."""


@dataclass(frozen=True)
class Command:
    """An argument list (never a shell string) and the variables to set beside the inherited ones."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    listens: bool = True
    """Whether something answers at the launch's port; most ranks above 0 answer nobody."""


@dataclass(frozen=True)
class HttpCall:
    """A request the engine offers for some purpose, e.g. flushing its prefix cache."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    advice: str = ""
    """What the user can do where it fails and its purpose matters."""


@dataclass(frozen=True)
class Cause:
    """Why a server died, in the log's own words, and what to do."""

    message: str
    remedy: str | None = None


@dataclass(frozen=True)
class FinalFields:
    """What an engine's last streamed chunks say beyond the OpenAI fields."""

    acceptance: AcceptanceCounts | None = None
    cached_tokens: int | None = None
    server_timings: dict[str, Any] | None = None


class EngineAdapter(Protocol):
    """Stateless knowledge of one engine."""

    name: str
    traits: EngineTraits
    methods: tuple[str, ...]
    """Values of ``method`` it accepts, in the engine's own or neutral words."""
    model_format: ModelFormat
    """``gguf`` or ``hf``: which form of a two-form model it loads."""
    ready_timeout_s: float
    settle_s: float
    """How long after its first answer a server must still be whole before it counts as ready."""
    metrics_path: str
    info_paths: tuple[str, ...]
    """GET paths whose JSON bodies ``read_facts`` understands; a missing one is skipped."""
    simulated: bool
    salt_field: str | None
    """A field of a request's body: prompts with different values share nothing in the prefix cache."""
    optional_flags: Mapping[str, str | None]
    """Flags that ``command`` adds to measure better, and that the server can do without; by name, the first version
    that knows each, where that is known."""
    one_node_reason: str | None
    """Why its servers cannot span several nodes; ``None``: they can."""

    def command(self, launch: Launch) -> Command:
        """The full command; raises ``BadInput`` for knobs the engine cannot express."""
        ...

    def read_flags(self, argv: Sequence[str]) -> Knobs:
        """Neutral knobs of a command line of this engine: the way back of ``command``."""
        ...

    def phase_of(self, line: str) -> str | None:
        """The start-up phase that begins with this log line: one of ``trial.PHASES``, or ``None``."""
        ...

    def version_in(self, line: str) -> str | None:
        """The engine's version, if this log line names it: for engines that do not report it over HTTP."""
        ...

    def cause_of_death(self, log_tail: Sequence[str]) -> Cause | None:
        """The reason in the last log lines, if it is a known one."""
        ...

    def request_fields(self, sampling: Sampling) -> dict[str, Any]:
        """Body fields beyond the OpenAI ones: cache switches, acceptance details, ``ignore_eos``."""
        ...

    def read_final(self, payloads: Sequence[Mapping[str, Any]]) -> FinalFields:
        """Engine fields of one response: ``payloads`` are its parsed chunks that carry no text."""
        ...

    def read_counters(self, metrics_text: str) -> ServerCounters:
        """Process-wide counters from the Prometheus text at ``metrics_path``."""
        ...

    def read_facts(self, bodies: Mapping[str, Any]) -> ServerFacts:
        """Facts from the bodies of ``info_paths``, by path."""
        ...

    def flush_call(self) -> HttpCall | None:
        """The call that empties the prefix cache, if there is one."""
        ...

    def tokenize_call(self, text: str, model: str | None) -> HttpCall | None:
        """The call that turns text into token ids, if there is one."""
        ...

    def read_tokens(self, body: Any) -> tuple[int, ...] | None:
        """Token ids from the reply to ``tokenize_call``."""
        ...
