"""What a strategy is asked, and what it answers.

A strategy holds no state of its own between questions: the same history gives
the same answer, so a search resumes from its record alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spectune.domain.arm import Arm
from spectune.models.arm_shape import id_of, launch_of
from spectune.models.observation import Observation
from spectune.statistics.estimate import LogEstimate


@dataclass(frozen=True)
class LegalArm:
    """An arm that passed the checks, and what measuring it takes."""

    arm: Arm
    launch_s: float = 60.0
    measure_s: float = 0.0
    launch_key: str | None = None
    """Arms of one key are measured under one launch: the engine changes between them without a restart."""
    imposed: bool = False
    """Its acceptance is imposed: measured once for what its steps cost, and never the winner."""

    @property
    def total_s(self) -> float:
        return self.launch_s + self.measure_s


@dataclass(frozen=True)
class PrunedArm:
    """An arm that check refused, with the reason."""

    arm: Arm
    reason: str


@dataclass(frozen=True)
class History:
    """Everything measured so far, in order. ``failed`` maps arm ids to causes."""

    observations: tuple[Observation, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    elapsed_s: float = 0.0
    running_key: str | None = None
    """``launch_key`` of the server that is still up."""

    @property
    def launches(self) -> int:
        return len({(o.launch, launch_of(o.arm)) for o in self.observations}) + len(self.failed)

    def runs(self, legal: LegalArm) -> bool:
        """Whether the arm can be measured without a launch."""
        return legal.launch_key is not None and legal.launch_key == self.running_key

    @property
    def measured(self) -> frozenset[str]:
        """Arms with a result, which one of imposed acceptance never is."""
        return frozenset(id_of(o.arm) for o in self.observations if not o.synthetic)

    @property
    def stopped(self) -> frozenset[str]:
        """Arms that a launch showed to be clearly worse before it was through: none of them is the winner."""
        return frozenset(id_of(o.arm) for o in self.observations if o.stopped)

    @property
    def ended(self) -> frozenset[str]:
        """Arms that need no further launch: measured, imposed ones too, or failed."""
        return frozenset(id_of(o.arm) for o in self.observations) | frozenset(self.failed)


@dataclass(frozen=True)
class Objective:
    """What "fastest" means: the geometric mean of speeds at these concurrencies."""

    concurrencies: tuple[int, ...] = (1,)

    def measured(self, history: History) -> dict[str, float]:
        """By arm id, over its launches; arms that were stopped, or not measured at every concurrency, are left out.

        Where a speedup over the baseline around it is known, it counts, and not
        the bare speed, which drifts with the machine.
        """
        plain: dict[int, list[float]] = {}
        for o in history.observations:
            if o.arm.is_baseline:
                plain.setdefault(o.concurrency, []).append(math.log(o.tok_per_s))
        logs: dict[tuple[str, int], list[float]] = {}
        for o in history.observations:
            if not o.synthetic:
                log, base = math.log(o.tok_per_s), plain.get(o.concurrency)
                if o.speedup is not None and base:
                    log = math.fsum(base) / len(base) + math.log(o.speedup)
                logs.setdefault((id_of(o.arm), o.concurrency), []).append(log)
        found = {}
        for arm_id in history.measured - history.stopped:
            parts = [logs.get((arm_id, c)) for c in self.concurrencies]
            if all(parts):
                means = [math.fsum(p) / len(p) for p in parts if p]
                found[arm_id] = math.exp(math.fsum(means) / len(means))
        return found


@dataclass(frozen=True)
class Budget:
    """Whichever ends first; ``None`` is no limit. The baseline counts as a launch."""

    launches: int | None = None
    minutes: float | None = None

    def spent(self, history: History) -> str | None:
        """The sentence that says why, once it is spent."""
        if self.launches is not None and history.launches >= self.launches:
            return f"the budget of {self.launches} launches is spent"
        if self.minutes is not None and history.elapsed_s >= 60 * self.minutes:
            return f"the budget of {self.minutes:g} minutes is spent"
        return None

    def within(self, arms: Sequence[LegalArm], history: History) -> list[LegalArm]:
        """Those that it still pays for: where only launches are spent, the arms of the one that is running."""
        if self.minutes is not None and history.elapsed_s >= 60 * self.minutes:
            return []
        if self.launches is None or history.launches < self.launches:
            return list(arms)
        return [legal for legal in arms if history.runs(legal)]

    def left(self, history: History) -> int | None:
        return None if self.launches is None else max(0, self.launches - history.launches)


UNLIMITED = Budget()
SINGLE_STREAM = Objective()


@dataclass(frozen=True)
class Ask:
    """The arm to measure next, why, and what is expected of it (tok/s at the objective)."""

    arm: Arm
    reason: str
    prediction: LogEstimate | None = None


@dataclass(frozen=True)
class Stop:
    """The search is over; ``best`` is the arm it recommends."""

    reason: str
    best: Arm | None


class Strategy(Protocol):
    """One way to search. ``ask`` is pure: the record decides."""

    @property
    def name(self) -> str: ...

    def ask(self, history: History) -> Ask | Stop: ...


def best_measured(
    arms: Sequence[LegalArm], history: History, objective: Objective
) -> tuple[Arm, float] | None:
    """The fastest arm as measured; the earlier of equals."""
    speeds = objective.measured(history)
    known = [(legal.arm, speeds[id_of(legal.arm)]) for legal in arms if id_of(legal.arm) in speeds]
    return max(known, key=lambda pair: pair[1]) if known else None


BASELINE_FAILED = "the baseline failed: nothing can be compared"
ALL_ENDED = "every legal arm was launched"


def imposed_next(arms: Sequence[LegalArm], history: History) -> Ask | None:
    """The first arm of imposed acceptance that was not launched. None of them can win, so no gain ever asks for one."""
    ended = history.ended
    arm = next((a.arm for a in arms if a.imposed and id_of(a.arm) not in ended), None)
    if arm is None:
        return None
    return Ask(arm, "its acceptance is imposed: what its steps cost enters the model, its speed is no result")


def split_baseline(arms: Sequence[LegalArm]) -> tuple[LegalArm, list[LegalArm]]:
    """The baseline (the first arm without speculation) and the rest; ``ValueError`` without one."""
    baseline = next((a for a in arms if a.arm.is_baseline), None)
    if baseline is None:
        raise ValueError("a search needs the baseline arm among its legal arms")
    return baseline, [a for a in arms if a is not baseline]
