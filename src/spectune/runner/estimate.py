"""How long a study will take, and on what ground that is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.domain.workload import warmup_requests_at
from spectune.engines.registry import traits_for

_ASSUMED_TOK_PER_S = 50.0
_MEASURING = ("warm-up", "measure")
"""Phases that an arm costs also where its server is running."""


@dataclass(frozen=True)
class Estimate:
    """``seconds`` for ``launches``; ``basis`` says where it comes from."""

    launches: int
    seconds: float
    basis: str


@dataclass(frozen=True)
class TrialCost:
    """Seconds of a launch, its stop included, and of measuring one arm on it."""

    launch_s: float
    measure_s: float
    basis: str


def estimate(
    study: Study, trials: Sequence[Trial], *, remaining: int, launches: int | None = None
) -> Estimate:
    """For so many remaining trials, on a launch each unless ``launches`` says how many."""
    launches = remaining if launches is None else launches
    cost = cost_of_trial(study, trials)
    return Estimate(launches, launches * cost.launch_s + remaining * cost.measure_s, cost.basis)


def cost_of_trial(study: Study, trials: Sequence[Trial]) -> TrialCost:
    """From this study's own trials if there are any, else from stated assumptions."""
    seen = [t for t in trials if t.status == "complete" and t.soak is None and t.phases_s]
    whole = [t for t in seen if t.launch_number == t.number]
    if whole:
        launch_s = median(sum(s for name, s in t.phases_s.items() if name not in _MEASURING) for t in whole)
        measure_s = median(sum(t.phases_s.get(name, 0.0) for name in _MEASURING) for t in seen)
        basis = f"the median of {len(seen)} finished trials: {launch_s + measure_s:.0f} s each"
        return TrialCost(launch_s, measure_s, basis)
    launch_s = traits_for(study.engine.name).launch_s
    workload = study.workload
    seconds = 0.0
    for load in workload.loads:
        in_flight = load.streams
        requests = workload.requests_at(load) + warmup_requests_at(load, study.warmup_requests)
        seconds += requests * workload.sampling.max_tokens / in_flight / _ASSUMED_TOK_PER_S
    basis = (
        f"assumptions, until a trial is measured: {launch_s:.0f} s per launch, "
        f"{_ASSUMED_TOK_PER_S:.0f} tok/s per request"
    )
    return TrialCost(launch_s, seconds, basis)
