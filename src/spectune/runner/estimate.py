"""How long a study will take, and on what ground that is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from spectune.domain.study import Study
from spectune.domain.trial import Trial

_ASSUMED_LAUNCH_S = {"llamacpp": 3.0, "vllm": 100.0, "sglang": 60.0}
"""Seen with a 135M model on two processor cores; large models take minutes."""
_ASSUMED_TOK_PER_S = 50.0


@dataclass(frozen=True)
class Estimate:
    """``seconds`` for ``launches``; ``basis`` says where it comes from."""

    launches: int
    seconds: float
    basis: str


def estimate(study: Study, trials: Sequence[Trial], *, remaining: int) -> Estimate:
    """From this study's own trials if there are any, else from stated assumptions."""
    seen = [sum(t.phases_s.values()) for t in trials if t.status == "complete" and t.phases_s]
    if seen:
        basis = f"the median of {len(seen)} finished trials: {median(seen):.0f} s each"
        return Estimate(remaining, remaining * median(seen), basis)
    launch_s = _ASSUMED_LAUNCH_S.get(study.engine.name, 60.0)
    workload = study.workload
    requests = workload.requests_per_load or len(workload.prompts)
    seconds = launch_s
    for load in workload.loads:
        in_flight = load.concurrency or 1
        tokens = requests * workload.sampling.max_tokens / in_flight
        warm_up = study.warmup_requests * workload.sampling.max_tokens / in_flight
        seconds += (tokens + warm_up) / _ASSUMED_TOK_PER_S
    basis = (
        f"assumptions, until a trial is measured: {launch_s:.0f} s per launch, "
        f"{_ASSUMED_TOK_PER_S:.0f} tok/s per request"
    )
    return Estimate(remaining, remaining * seconds, basis)
