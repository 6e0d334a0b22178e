"""The record of one trial: an arm measured on one launch of its server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from pydantic import Field

from spectune.domain.arm import Arm, Knobs
from spectune.domain.findings import Finding
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.machine import Machine
from spectune.domain.measurement import LoadResult
from spectune.domain.record import Record, SafeArgv, SafeEnv, SafeFields, SafeText

SCHEMA_VERSION = 1

TrialStatus = Literal["complete", "failed", "pruned"]
Phase = Literal[
    "launch", "load", "cache", "compile", "capture", "warm-up", "settle", "measure", "soak", "stop"
]
PHASES: tuple[Phase, ...] = get_args(Phase)


class ServerFacts(Record):
    """What the server says about itself; ``effective`` are its settings in neutral words."""

    engine: str
    version: str | None = None
    model: str | None = None
    effective: Knobs | None = None
    reported: SafeFields = Field(default_factory=dict)
    """The server's own report, as it gave it."""
    acceptance_length: float | None = None
    """The server's own mean since its cache was last emptied, where it has one."""


class Failure(Record):
    """Why a trial failed."""

    phase: str
    cause: SafeText
    remedy: SafeText | None = None
    exit_code: int | None = None
    log_tail: tuple[SafeText, ...] = ()
    rank: int | None = None
    """Of a server over several nodes: the part that ended, and whose log this is."""
    node: str | None = None
    """That part's."""


class StopProof(Record):
    """How a server was stopped, and what showed that nothing of it is left. It exists only when nothing was."""

    took_s: float
    killed: tuple[int, ...] = ()
    """Pids that did not end on SIGTERM."""
    no_child_left: bool | None = None
    """Said by the kernel to a subreaper; ``None`` where there is none (another system, or a killed supervisor)."""
    ports_closed: tuple[int, ...] = ()
    ports_taken: tuple[str, ...] = ()
    """Its ports on which a stranger listens by now."""
    segments_seen: int | None = None
    """What the server had open in /dev/shm that was not there before it."""
    segments_removed: tuple[str, ...] = ()
    """Shared-memory segments that it had left behind."""
    segments_left: tuple[str, ...] = ()
    """What stays of it in /dev/shm, and why it was not removed."""
    containers_gone: tuple[str, ...] = ()
    """Ids that the container runtime no longer knows: those of its own."""
    gpu: str = "not asked"
    """``no GPU``, or the memory in use on each before and after."""


class RankRecord(Record):
    """One node's part of a server over several nodes."""

    rank: int
    """0: the part that answers requests."""
    node: str
    command: SafeArgv
    env: SafeEnv = Field(default_factory=dict)
    """Variables set for it; secrets are replaced."""
    log: str
    """Name of its log in the trial's folder."""
    phases_s: dict[str, float] = Field(default_factory=dict)
    ended: SafeText | None = None
    """How it ended before anybody stopped it; ``None``: it did not."""
    stop: StopProof | None = None


class SoakResult(Record):
    """The best arm under load for a long time; it ended early if ``ran_s`` is less than ``asked_s``."""

    asked_s: float
    ran_s: float
    num_requests: int
    num_failed: int
    first_tok_per_s: float | None
    """All output tokens per second, in the first quarter of the time."""
    last_tok_per_s: float | None
    """The same, in the last quarter."""


class EarlyEnd(Record):
    """Why an arm's prompts were not all asked, and what that saved.

    ``worse``: the trial is ``pruned`` and not compared. ``enough``: it is
    complete, its ratio to plain decoding known as well as the search needs it.
    """

    verdict: Literal["worse", "enough"]
    reason: str
    num_prompts: int
    """Asked, of ``of_prompts``, at the first load point."""
    of_prompts: int
    saved_s: float | None = None
    """Of measuring, estimated: what the prompts left took plain decoding, over the arm's ratio to it."""


class Trial(Record):
    """Complete, failed (with cause) or pruned; never changed once written."""

    schema_version: int = SCHEMA_VERSION
    trial_id: str
    number: int
    arm: Arm
    arm_id: str
    repetition: int
    workload_hash: str
    status: TrialStatus
    hypothesis: Hypothesis
    command: SafeArgv
    env: SafeEnv = Field(default_factory=dict)
    """Variables set for the server; secrets are replaced."""
    ranks: tuple[RankRecord, ...] = ()
    """Of a server over several nodes, all of them; ``command`` and ``env`` are then those of the first."""
    started_at: str
    """UTC, ISO 8601."""
    ended_at: str
    phases_s: dict[str, float] = Field(default_factory=dict)
    server: ServerFacts | None = None
    node: str | None = None
    """Of a cluster, by name: where it was measured, ``a+b`` for a server over both; ``None``: the study's one host."""
    machine: Machine | None = None
    """The node's; ``None``: the study's."""
    launch: int | None = None
    """Number of the trial that started its server; see ``launch_number``."""
    stop: StopProof | None = None
    """``None`` also where the next trial of the launch took the server over: the last one holds the proof."""
    reattached: bool = False
    """The server had been started by an earlier run of this study; its start-up phases were not seen."""
    relaunches: tuple[SafeText, ...] = ()
    """Why earlier launches of this trial were given up, for reasons that are not the arm's."""
    failure: Failure | None = None
    pruned: str | None = None
    """Why it was stopped early, with the bound that decided it; status ``pruned``."""
    ended_early: EarlyEnd | None = None
    """Set for every trial that did not need all prompts; ``None`` also in records of older versions."""
    loads: tuple[LoadResult, ...] = ()
    soak: SoakResult | None = None
    """Set for the one trial that is not compared: the long run of the best arm."""
    findings: tuple[Finding, ...] = ()
    simulated: bool = False
    """True for the scripted fake engine: never a measurement."""

    @property
    def place(self) -> str:
        """Equal for trials of one node: only these share what the node itself is off by."""
        return self.node or ""

    @property
    def launch_number(self) -> int:
        """The same for trials that shared a server; records of older versions never do."""
        return self.number if self.launch is None else self.launch


def num_launches(trials: Iterable[Trial]) -> int:
    """Servers that were started for these trials."""
    return len({trial.launch_number for trial in trials})
