"""A study as it is stored: everything resolved, nothing left to defaults."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from spectune.domain.arm import Arm, FlagValue
from spectune.domain.machine import Machine
from spectune.domain.record import Record
from spectune.domain.trial import SCHEMA_VERSION
from spectune.domain.workload import Workload

LaunchOrder = Literal["interleaved", "abba"]
"""``abba``: baseline, arm, arm, baseline for each pair of an arm's repetitions."""


class PlannedTrial(Record):
    """One launch to make: the n-th repetition of an arm."""

    arm_id: str
    repetition: int
    reason: str | None = None
    """Why a search asked for it."""


class Budget(Record):
    """Limits of a study; reaching one ends it cleanly, to be resumed with a larger one."""

    max_trials: int | None = Field(default=None, ge=1)
    max_minutes: float | None = Field(default=None, gt=0)

    def is_spent(self, *, launches: int = 0, minutes: float = 0.0) -> bool:
        """Whether so many launches, or so many minutes, reach a limit."""
        if self.max_trials is not None and launches >= self.max_trials:
            return True
        return self.max_minutes is not None and minutes >= self.max_minutes


class ArmExpectation(Record):
    """What the user wrote they expect of an arm."""

    expect: Literal["faster", "slower", "same"] | None = None
    why: str | None = None


class EngineSettings(Record):
    """How the engine is started, as the study file says."""

    name: str
    python: str | None = None
    executable: str | None = None
    command: tuple[str, ...] = ()
    flags: dict[str, FlagValue] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    ready_timeout_s: float | None = Field(default=None, gt=0)
    stuck_after_s: float = Field(default=300.0, gt=0)
    allow_busy_gpus: bool = False


class ClusterSettings(Record):
    """What one trial asks each of its nodes of a cluster for, and how many nodes may be used."""

    nodes: int = Field(default=1, ge=1)
    """That one server spans."""
    gpus: float | None = Field(default=None, ge=0)
    cpus: float | None = Field(default=None, ge=0)
    resources: dict[str, float] = Field(default_factory=dict)
    trials_per_node: int = Field(default=1, ge=1)
    max_nodes: int | None = Field(default=None, ge=1)


class ImportedFile(Record):
    """One file that figures were read from."""

    name: str
    sha256: str


UnknownPart = Literal["machine", "prompts", "sampling", "loads"]


class Import(Record):
    """Where the figures of an imported study come from. spectune made no launch of it."""

    tool: str
    files: tuple[ImportedFile, ...]
    missing: tuple[str, ...] = ()
    """What the files do not say, in whole phrases."""
    unknown: tuple[UnknownPart, ...] = ()
    """Parts of this study that hold a placeholder, because no file says them."""


class Study(Record):
    """All that is needed to run or resume; ``arms[0]`` is the baseline."""

    schema_version: int = SCHEMA_VERSION
    name: str
    question: str
    created_at: str
    spectune_version: str
    machine: Machine
    """The one that serves; of a cluster, one of its nodes, which are all of this kind."""
    host: str = "local"
    cluster: ClusterSettings | None = None
    """Set where ``host`` is a cluster: the plan then holds the arms, and each node its own baseline launches."""
    lease_s: float = 30.0
    soak_s: float | None = None
    search: str | None = None
    """The strategy that chooses each next launch; ``None``: the plan below is all of it."""
    repetitions: int = 1
    baseline_every: int = 2
    order: LaunchOrder = "interleaved"
    noise_floor: bool = False
    """The baseline is launched twice before anything else."""
    noisy: str | None = None
    """What two equal launches of the baseline showed of a machine that was too noisy, as a sentence."""
    earlier_looks: int = 0
    """How often its figures were there before more repetitions were asked for: verdicts hold at all looks together."""
    precision: float | None = None
    """Launches go on until speedups are known so well; ``None``: ``repetitions`` decide."""
    engine: EngineSettings
    arms: tuple[Arm, ...]
    expectations: dict[str, ArmExpectation] = Field(default_factory=dict)
    """By arm id."""
    skipped_arms: tuple[str, ...] = ()
    """Arms of the file that are for other engines only."""
    plan: tuple[PlannedTrial, ...]
    """In a search, what was asked for so far."""
    pruned_arms: dict[str, str] = Field(default_factory=dict)
    """Combinations of factors that cannot be launched, and why, by name."""
    search_end: str | None = None
    """Why the search stopped, once it has."""
    workload: Workload
    warmup_requests: int | None
    """Before each load point; ``None``: ``workload.warmup_requests_at``."""
    budget: Budget = Budget()
    level: float = 0.95
    margin: float = 0.02
    imported: Import | None = None
    """Set where another tool measured."""

    @property
    def nodes_per_server(self) -> int:
        return 1 if self.cluster is None else self.cluster.nodes

    @property
    def baseline(self) -> Arm:
        return self.arms[0]

    def arm(self, arm_id: str) -> Arm:
        for arm in self.arms:
            if arm.arm_id == arm_id:
                return arm
        raise KeyError(arm_id)
