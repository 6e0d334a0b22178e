"""Plain decoding comes first where a study goes on after a pause, so that no arm is set against one long before it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from spectune.analysis.words import seconds
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import Trial

FRESH_S = 120.0
"""A launch of plain decoding that ended last of all and no longer ago still stands beside the next arm."""


def why_baseline_first(study: Study, trials: Sequence[Trial], *, now: datetime) -> str | None:
    """Why a run begins with plain decoding; ``None``: its last launch has just ended, or there was none.

    ``trials``: of earlier runs, in their order; on a cluster those of one place.
    """
    measured = [t for t in trials if t.status == "complete" and t.soak is None]
    baselines = [t for t in measured if t.arm_id == study.baseline.arm_id]
    if not baselines:
        return None
    ago_s = _seconds_since(baselines[-1].ended_at, now)
    if baselines[-1] is measured[-1] and ago_s is not None and ago_s < FRESH_S:
        return None
    ago = "at an unknown time" if ago_s is None else f"{seconds(ago_s)} ago"
    return f"plain decoding first: the study goes on, and the last launch of it ended {ago}"


def baseline_before(
    study: Study, trials: Sequence[Trial], following: PlannedTrial, *, now: datetime
) -> PlannedTrial | None:
    """The launch of plain decoding to make before the first one of this run, if that is an arm's."""
    baseline = study.baseline.arm_id
    reason = None if following.arm_id == baseline else why_baseline_first(study, trials, now=now)
    if reason is None:
        return None
    return PlannedTrial(arm_id=baseline, repetition=unused_repetition(study, trials, baseline), reason=reason)


def unused_repetition(study: Study, trials: Sequence[Trial], arm_id: str) -> int:
    """The number of one more launch of an arm, beyond those planned and those made."""
    used = {planned.repetition for planned in study.plan if planned.arm_id == arm_id}
    return 1 + max(used | {t.repetition for t in trials if t.arm_id == arm_id}, default=-1)


def _seconds_since(ended_at: str, now: datetime) -> float | None:
    """``None`` for a time to come: the clock was changed."""
    ended = datetime.fromisoformat(ended_at)
    since_s = (now - (ended if ended.tzinfo else ended.replace(tzinfo=UTC))).total_seconds()
    return since_s if since_s >= 0 else None
