"""A search before it starts: the strategy by name, and what it will take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spectune.domain.cost_model import DEFAULT_LAUNCH_LOG_SD
from spectune.domain.prediction_shape import shape_of
from spectune.errors import BadInput
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

_CHAIN_SHARE, _CHAIN_LEAST = 0.57, 4
_TREE_SHARE, _TREE_LEAST = 0.10, 10
"""Launches ``predict`` took on the simulated surfaces of benchmarks/search_regret.py without a budget."""


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
    """Before the start. ``likely`` is what such searches took, ``most`` what the budget and the arms allow."""

    launches_likely: int
    launches_most: int
    minutes_likely: float
    minutes_most: float
    basis: str
    pruned: tuple[PrunedArm, ...] = ()

    def __str__(self) -> str:
        most = f", at most {self.launches_most} in {self.minutes_most:.0f}" if self.launches_most else ""
        return f"likely {self.launches_likely} launches in {self.minutes_likely:.0f} min{most} ({self.basis})"


def estimate_search(
    name: str,
    arms: Sequence[LegalArm],
    *,
    budget: Budget = UNLIMITED,
    repetitions: int = 1,
    pruned: Sequence[PrunedArm] = (),
) -> SearchEstimate:
    """Launches and minutes; costs per arm are those given."""
    count = len(arms)
    everything = count * repetitions if name == "grid" else count
    most = everything if budget.launches is None else min(everything, budget.launches)
    mean_s = sum(a.total_s for a in arms) / count if count else 0.0
    chains = all(shape_of(a.arm).topk == 1 for a in arms)
    if name == "predict":
        share, least = (_CHAIN_SHARE, _CHAIN_LEAST) if chains else (_TREE_SHARE, _TREE_LEAST)
        likely = min(most, max(least, round(share * count)))
        basis = "launches that such searches took on simulated engines"
    elif name == "one-factor":
        likely, basis = min(most, 10), "one-factor searches end when no single change is left"
    else:
        likely, basis = most, "every legal arm is launched"
    cap = float("inf") if budget.minutes is None else budget.minutes
    return SearchEstimate(
        launches_likely=likely,
        launches_most=most,
        minutes_likely=min(cap, likely * mean_s / 60),
        minutes_most=min(cap, most * mean_s / 60),
        basis=f"{basis}; {mean_s:.0f} s for each",
        pruned=tuple(pruned),
    )
