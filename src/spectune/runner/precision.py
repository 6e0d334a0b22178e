"""Launches beyond the plan, until speedups are known as well as the study asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spectune.analysis.arms import comparable_trials, view_point
from spectune.analysis.precision import MAX_LAUNCHES, half_width, known_within, repetitions_of
from spectune.analysis.words import percent
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import Trial, num_launches


def launch_for_precision(
    study: Study, trials: Sequence[Trial], *, among: Sequence[str] | None = None
) -> PlannedTrial | None:
    """The least known of the arms (``among``: their ids, default all), each new launch between two of the baseline.

    On a cluster the arm alone: there each node sees to its own baseline.

    ``None`` once every interval is narrow enough, the arm failed, or the
    number of launches is spent; and always where no precision is asked for.
    """
    if study.precision is None or spent(study, trials):
        return None
    counted = comparable_trials(study, trials)
    by_arm = view_point(study, counted, study.workload.loads[0]).by_arm
    wanted = math.log1p(study.precision)
    open_arms = []
    for arm_id, comparison in by_arm.items():
        launches = repetitions_of(trials, arm_id)
        if (among is None or arm_id in among) and launches < MAX_LAUNCHES and not _fails(trials, arm_id):
            half = half_width(comparison.speedup)
            open_arms += [(half, arm_id, launches)] if half > wanted else []
    if not open_arms:
        return None
    half, arm_id, launches = max(open_arms)
    reason = f"{study.arm(arm_id).name} {known_within(half)}, wanted {percent(study.precision)}"
    baseline = study.baseline.arm_id
    if study.cluster is None and trials[-1].arm_id != baseline:
        number = repetitions_of(trials, baseline)
        return PlannedTrial(arm_id=baseline, repetition=number, reason=f"{reason}; plain decoding around it")
    return PlannedTrial(arm_id=arm_id, repetition=launches, reason=reason)


def _fails(trials: Sequence[Trial], arm_id: str) -> bool:
    own = [t for t in trials if t.arm_id == arm_id and t.soak is None]
    return bool(own) and own[-1].status == "failed"


def spent(study: Study, trials: Sequence[Trial]) -> bool:
    """Whether the study's number of launches is reached."""
    return study.budget.is_spent(launches=num_launches(trials))
