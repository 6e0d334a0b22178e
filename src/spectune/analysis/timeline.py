"""Where a study's wall time went: phases of its trials, spectune's own share, and pauses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from spectune.analysis.records import StudyTime, TrialTime
from spectune.domain.trial import PHASES, Trial

PAUSE_S = 30.0
"""A longer gap between two trials is a study that was stopped and resumed. It is reported as a pause
and is not spectune's own time; so is any gap in which a number is missing: an interrupted trial."""


def where_time_went(trials: Sequence[Trial]) -> StudyTime:
    """``trials`` in the order of their start. Times come from the trials' own clock readings."""
    rows: list[TrialTime] = []
    pauses: list[float] = []
    previous_end: datetime | None = None
    previous_number = 0
    for trial in trials:
        start, end = _instant(trial.started_at), _instant(trial.ended_at)
        gap_s = 0.0
        if previous_end is not None and start is not None:
            gap_s = max(0.0, (start - previous_end).total_seconds())
            if gap_s > PAUSE_S or trial.number > previous_number + 1:
                pauses.append(gap_s)
                gap_s = 0.0
        rows.append(_trial_time(trial, start=start, end=end, gap_s=gap_s))
        previous_end = end or previous_end
        previous_number = trial.number
    early = [trial.ended_early for trial in trials if trial.ended_early is not None]
    wall_s = math.fsum(row.wall_s + row.gap_before_s for row in rows)
    own_s = math.fsum(row.own_s + row.gap_before_s for row in rows)
    return StudyTime(
        wall_s=wall_s,
        phases_s=_sum_phases([row.phases_s for row in rows]),
        own_s=own_s,
        own_frac=own_s / wall_s if wall_s > 0 else None,
        num_pauses=len(pauses),
        pauses_s=math.fsum(pauses),
        num_ended_early=len(early),
        saved_s=math.fsum(end.saved_s for end in early if end.saved_s is not None),
        trials=tuple(rows),
    )


def _trial_time(trial: Trial, *, start: datetime | None, end: datetime | None, gap_s: float) -> TrialTime:
    phases_s = _sum_phases([trial.phases_s])
    explained_s = math.fsum(phases_s.values())
    wall_s = explained_s
    if start is not None and end is not None:
        wall_s = max(explained_s, (end - start).total_seconds())
    return TrialTime(
        trial_id=trial.trial_id,
        number=trial.number,
        name=trial.arm.name,
        wall_s=wall_s,
        phases_s=phases_s,
        own_s=wall_s - explained_s,
        gap_before_s=gap_s,
    )


def _sum_phases(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """In the order a trial goes through them; a phase this version does not know comes last."""
    names = [*PHASES, *sorted({name for part in parts for name in part} - set(PHASES))]
    sums = {name: math.fsum(max(0.0, part.get(name, 0.0)) for part in parts) for name in names}
    return {name: total for name, total in sums.items() if total > 0}


def _instant(text: str) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
