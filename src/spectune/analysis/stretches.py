"""Stretches of a study without a pause: an arm is never set against plain decoding from the other side of one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from spectune.domain.trial import Trial

PAUSE_S = 600.0
"""Nothing was measured at a place for longer: the machine may be another one since."""


def stretch_places(trials: Sequence[Trial], baseline_id: str) -> dict[str, str]:
    """By trial id: the place, and which stretch there. ``trials`` are results in the order of their start.

    A stretch whose arms have no plain decoding of their own is joined to the one before it, the first to the next.
    """
    found: dict[str, str] = {}
    for place in dict.fromkeys(t.place for t in trials):
        own = [t for t in trials if t.place == place]
        for number, stretch in enumerate(_joined(_stretches(own), baseline_id)):
            found |= {t.trial_id: place if number == 0 else f"{place} after pause {number}" for t in stretch}
    return found


def _stretches(trials: Sequence[Trial]) -> list[list[Trial]]:
    found: list[list[Trial]] = []
    for trial in trials:
        if not found or _gap_s(found[-1][-1], trial) > PAUSE_S:
            found.append([])
        found[-1].append(trial)
    return found


def _joined(stretches: Sequence[list[Trial]], baseline_id: str) -> list[list[Trial]]:
    found: list[list[Trial]] = []
    for stretch in stretches:
        alone = all(t.arm_id != baseline_id for t in stretch)
        first_is_alone = len(found) == 1 and all(t.arm_id != baseline_id for t in found[0])
        if found and (alone or first_is_alone):
            found[-1] += stretch
        else:
            found.append(list(stretch))
    return found


def _gap_s(before: Trial, after: Trial) -> float:
    """0 for times that overlap or cannot be read: they say nothing of a pause."""
    try:
        ended, began = (_instant(text) for text in (before.ended_at, after.started_at))
    except ValueError:
        return 0.0
    return max(0.0, (began - ended).total_seconds())


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
