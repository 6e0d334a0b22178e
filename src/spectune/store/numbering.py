"""One order for the trials of several writers."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.domain.trial import Trial


def _session_of(trial: Trial) -> str:
    """Of a study in an object store: who made the trial, and in which run; else empty."""
    parts = trial.trial_id.split("-")
    return parts[2] if len(parts) > 2 else ""


def numbered_apart(trials: Sequence[Trial]) -> list[Trial]:
    """The same trials, unless writers that could not hear each other gave one number twice.

    Then each session's trials stand together, in the order in which the
    sessions began, so that a trial's neighbours are those of its own machine.
    Records are never changed for it: the order is made by whoever reads.
    """
    if len({trial.number for trial in trials}) == len(trials):
        return list(trials)
    began: dict[str, str] = {}
    for trial in trials:
        session = _session_of(trial)
        began[session] = min(began.get(session, trial.started_at), trial.started_at)
    ordered = sorted(trials, key=lambda t: (began[_session_of(t)], _session_of(t), t.number, t.started_at))
    new = {trial.trial_id: place for place, trial in enumerate(ordered, start=1)}
    return [
        trial.model_copy(update={"number": new[trial.trial_id], "launch": new.get(_launcher(trial, ordered))})
        for trial in ordered
    ]


def _launcher(trial: Trial, trials: Sequence[Trial]) -> str:
    """Id of the trial that started this one's server: of its own session, else the last before it."""
    if trial.launch_number == trial.number:
        return trial.trial_id
    could = [t for t in trials if t.number == trial.launch_number and t.started_at <= trial.started_at]
    own = [t for t in could if _session_of(t) == _session_of(trial)]
    found = max(own or could, key=lambda t: t.started_at, default=None)
    return trial.trial_id if found is None else found.trial_id
