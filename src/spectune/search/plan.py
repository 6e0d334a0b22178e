"""A search before it starts: the strategy by name, and what it will take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from spectune.domain.arm import Arm
from spectune.errors import BadInput
from spectune.models.arm_shape import id_of
from spectune.models.speed import DEFAULT_LAUNCH_LOG_SD
from spectune.search.grid import Grid
from spectune.search.one_factor import OneFactor
from spectune.search.predict import Predict
from spectune.search.protocol import (
    SINGLE_STREAM,
    UNLIMITED,
    Budget,
    LegalArm,
    Objective,
    PrunedArm,
    Strategy,
)

STRATEGIES = ("predict", "one-factor", "grid")
DEFAULT_STRATEGY = "predict"

_PREDICT_LAUNCHES = (3.0, 0.2)
"""Fixed, and for each neighbour of an arm and doubling of the number of arms: what ``predict`` took to its end on 289
drawn grids of 5 to 1,000 arms (least squares of benchmarks/search_launches.py: 3.01 and 0.205). It measures around its
winner whatever the grid's size; half of the estimates are within 13 % of what it took, nine in ten within 32 %."""
_ONE_FACTOR_LAUNCHES = (2.4, 0.5)
"""Fixed, and for each single change of an arm: the same of ``one-factor`` on 57 grids of 5 to 150 arms. It goes its own
way on each: half are within 40 %."""
_NUMBERS = ("num_steps", "topk", "num_draft_tokens")


def make_strategy(
    name: str,
    arms: Sequence[LegalArm],
    *,
    budget: Budget = UNLIMITED,
    objective: Objective = SINGLE_STREAM,
    margin: float = 0.02,
    repetitions: int = 1,
    launch_log_sd: float = DEFAULT_LAUNCH_LOG_SD,
) -> Strategy:
    """One of ``STRATEGIES``; ``BadInput`` for another name or without a baseline among the arms."""
    if not any(a.arm.is_baseline for a in arms):
        raise BadInput("search: the legal arms hold no baseline (method none); every speedup is against it")
    if name == "predict":
        return Predict(arms, budget, objective, margin=margin, launch_log_sd=launch_log_sd)
    if name == "one-factor":
        return OneFactor(arms, budget, objective)
    if name == "grid":
        return Grid(arms, repetitions, budget, objective)
    raise BadInput(f"search: unknown strategy {name!r}; valid: {', '.join(STRATEGIES)}")


@dataclass(frozen=True)
class SearchEstimate:
    """Before the start. ``likely`` is what such searches took, ``most`` what the budget and the arms allow.

    Arms that share a launch are measured one after another on it: ``trials`` are measurements.
    """

    launches_likely: int
    launches_most: int
    trials_likely: int
    minutes_likely: float
    minutes_most: float
    basis: str
    pruned: tuple[PrunedArm, ...] = ()

    def __str__(self) -> str:
        most = f", at most {self.launches_most} in {self.minutes_most:.0f}" if self.launches_most else ""
        shared = self.trials_likely > self.launches_likely
        on_them = f" for {self.trials_likely} measurements" if shared else ""
        likely = f"likely {self.launches_likely} launch{'es' * (self.launches_likely != 1)}{on_them}"
        return f"{likely} in {self.minutes_likely:.0f} min{most} ({self.basis})"


@dataclass(frozen=True)
class Repeats:
    """Launches beside the first of each arm: of plain decoding around the others, and of the winner."""

    noise_floor: bool = False
    baseline_every: int | None = None
    winner: int = 0

    def beside(self, launches: int) -> int:
        """So many, the first baseline among ``launches``."""
        if self.baseline_every is None:
            return self.noise_floor + self.winner
        others = max(0, launches - 1) + self.winner
        return self.noise_floor + self.winner + math.ceil(others / self.baseline_every)


NO_REPEATS = Repeats()


def estimate_search(
    name: str,
    arms: Sequence[LegalArm],
    *,
    budget: Budget = UNLIMITED,
    repetitions: int = 1,
    repeats: Repeats = NO_REPEATS,
    pruned: Sequence[PrunedArm] = (),
) -> SearchEstimate:
    """Launches and minutes; costs per arm are those given. Arms of one ``launch_key`` are one launch."""
    sizes = sorted(Counter(a.launch_key or id_of(a.arm) for a in arms).values(), reverse=True)
    blocks = repetitions if name == "grid" else 1
    if name in ("predict", "one-factor"):
        servers = {a.launch_key or id_of(a.arm): a.arm for a in reversed(arms)}
        launches = _to_the_end(name, list(servers.values()), requests=False)
        trials = _to_the_end(name, [a.arm for a in arms], requests=True)
        basis = "launches that such searches took on simulated engines"
    else:
        launches, trials = blocks * len(sizes), blocks * len(arms)
        basis = "every legal arm is launched"
    likely = _Extent.of(min(launches, blocks * len(sizes)), trials, sizes * blocks, repeats, budget)
    most = _Extent.of(blocks * len(sizes), blocks * len(arms), sizes * blocks, repeats, budget)
    launch_s = math.fsum(a.launch_s for a in arms) / max(1, len(arms))
    measure_s = math.fsum(a.measure_s for a in arms) / max(1, len(arms))
    cap = float("inf") if budget.minutes is None else budget.minutes
    each = f"{launch_s + measure_s:.0f} s for each"
    if len(sizes) < len(arms):
        each = f"{launch_s:.0f} s a launch, {measure_s:.0f} s an arm"
    return SearchEstimate(
        launches_likely=likely.launches,
        launches_most=most.launches,
        trials_likely=likely.trials,
        minutes_likely=min(cap, likely.minutes(launch_s, measure_s)),
        minutes_most=min(cap, most.minutes(launch_s, measure_s)),
        basis=f"{basis}; {each}",
        pruned=tuple(pruned),
    )


def _to_the_end(name: str, arms: Sequence[Arm], *, requests: bool) -> int:
    """Launches, or with ``requests`` measurements, until the strategy stops by itself; never more than arms."""
    others = [arm for arm in arms if not arm.is_baseline]
    if name == "predict":
        fixed, each = _PREDICT_LAUNCHES
        found = fixed + each * num_neighbours(others, requests=requests) * math.log2(max(2, len(arms)))
    else:
        fixed, each = _ONE_FACTOR_LAUNCHES
        found = fixed + each * num_changes(others, requests=requests)
    return min(len(arms), round(found))


def num_neighbours(arms: Sequence[Arm], *, requests: bool = True) -> int:
    """Of an arm in the middle of a grid: the next lower and higher number of each factor, and its other values."""
    values = _values_by_factor(arms, requests=requests)
    return sum(min(2, n - 1) if name in _NUMBERS else n - 1 for name, n in values.items())


def num_changes(arms: Sequence[Arm], *, requests: bool = True) -> int:
    """Of one factor of an arm, in a grid."""
    return sum(n - 1 for n in _values_by_factor(arms, requests=requests).values())


def _values_by_factor(arms: Sequence[Arm], *, requests: bool) -> dict[str, int]:
    """How many each has; a chain's length is one factor. Without ``requests``, those that need a launch."""
    values: dict[str, Counter[str]] = {}
    for arm in arms:
        knobs = arm.knobs
        tokens = knobs.num_draft_tokens or knobs.num_steps
        numbers = {
            "num_draft_tokens": tokens,
            "num_steps": knobs.num_steps or tokens,
            "topk": knobs.topk or 1,
        }
        for name, value in (arm.factors() | numbers).items():
            if requests or not name.startswith("request."):
                values.setdefault(name, Counter())[repr(value)] += 1
    if set(values.get("topk", ())) <= {"1"}:
        values.pop("num_steps", None)
    return {name: len(seen) + (seen.total() < len(arms)) for name, seen in values.items()}


@dataclass(frozen=True)
class _Extent:
    launches: int
    trials: int

    @classmethod
    def of(
        cls, launches: int, trials: int, sizes: Sequence[int], repeats: Repeats, budget: Budget
    ) -> _Extent:
        """With repeats, within the budget; no more trials than the launches' arms, which ``sizes`` counts."""
        beside = repeats.beside(launches)
        if budget.launches is not None and launches + beside > budget.launches:
            launches = max(1, launches - (launches + beside - budget.launches))
            beside = max(0, budget.launches - launches)
        trials = min(max(trials, launches), sum(sizes[:launches]))
        return cls(launches + beside, trials + beside)

    def minutes(self, launch_s: float, measure_s: float) -> float:
        return (self.launches * launch_s + self.trials * measure_s) / 60
