"""Whether a study goes on with the trials that its directory holds: what every trial shares must not have changed."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.analysis.arms import comparable_trials, looks_at
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.errors import BadInput
from spectune.store.study_dir import StudyDir


def check_continues(directory: StudyDir, study: Study) -> None:
    """Raises ``BadInput`` unless ``study`` can go on in a directory that holds trials of an earlier form of it.

    Arms, repetitions and budget may change; what every trial shares may not.
    """
    trials = directory.read_trials()
    if not trials:
        return
    known = directory.read_study()
    check_same_workload(directory, study, trials)
    if known.baseline.arm_id != study.baseline.arm_id:
        was, now = known.baseline, study.baseline
        raise BadInput(
            f"{directory.path}: holds a study of {was.target} on {was.engine}, not of {now.target} on {now.engine}; "
            "give this one its own directory with --dir"
        )
    _check_same_kind(directory, study, trials)
    if known.host != study.host and (known.cluster is None or study.cluster is None):
        raise BadInput(
            f"{directory.path}: holds trials measured on {known.host}, not on {study.host}; "
            "give this host its own directory with --dir"
        )
    if known.nodes_per_server != study.nodes_per_server:
        raise BadInput(
            f"{directory.path}: holds trials made with `ray.nodes` {known.nodes_per_server}, not "
            f"{study.nodes_per_server}; they cannot be compared. Give this one its own directory with --dir"
        )
    ignored = {"ready_timeout_s", "stuck_after_s", "allow_busy_gpus"}
    before, after = known.engine.model_dump(exclude=ignored), study.engine.model_dump(exclude=ignored)
    changed = [f"engine.{key}" for key in before if before[key] != after[key]]
    if changed:
        raise BadInput(
            f"{directory.path}: its trials were measured with other settings of {', '.join(changed)}; "
            "they cannot be compared. Give the changed study its own directory with --dir"
        )


def continued(known: Study, study: Study, trials: Sequence[Trial]) -> Study:
    """``study`` as the rest of ``known``. More repetitions than before are a further look at what was measured.

    Whoever launches again until there is a verdict finds one by chance much more often than stated.
    """
    arms = [t.arm_id for t in comparable_trials(known, trials) if t.arm_id != known.baseline.arm_id]
    looked = bool(arms) and study.repetitions > known.repetitions
    return study.model_copy(
        update={
            "created_at": known.created_at,
            "noisy": known.noisy,
            "earlier_looks": looks_at(known, arms) if looked else known.earlier_looks,
        }
    )


def _check_same_kind(directory: StudyDir, study: Study, trials: Sequence[Trial]) -> None:
    """On a cluster a study stays on one kind of machine, also when most nodes are of another by now."""
    others = [t for t in trials if t.machine is not None and t.machine.kind != study.machine.kind]
    if study.cluster is not None and others and others[0].machine is not None:
        raise BadInput(
            f"{directory.path}: its trials were measured on nodes of another kind "
            f"({others[0].machine.kind_words}; most nodes are now {study.machine.kind_words}); they cannot be "
            "compared. Resume it by its directory to go on with such nodes, or give this one another with --dir"
        )


def check_same_workload(directory: StudyDir, study: Study, trials: Sequence[Trial]) -> None:
    wanted = study.workload.workload_hash
    others = [t for t in trials if t.workload_hash != wanted]
    if others:
        raise BadInput(
            f"{directory.path}: {len(others)} trials there were measured under another workload "
            f"({others[0].workload_hash}, now {wanted}); they cannot be compared. "
            "Give the changed study its own directory with --dir"
        )
