"""From a planned study to its directory on disk: what is left is checked, and what is there must be the same study."""

from __future__ import annotations

import shlex
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spectune.api.blocking import run_interruptible
from spectune.api.results import StudyResults, open_study
from spectune.check.check import CheckResult, check_study, without_refused
from spectune.check.sources import Sources, exported_here, gpus_of
from spectune.cluster.machine import machine_of
from spectune.cluster.ray_cluster import cluster_called
from spectune.cluster.study import run_on_cluster
from spectune.domain.findings import Finding
from spectune.domain.machine import Machine
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.findings.catalogue import check_codes
from spectune.home import data_home
from spectune.hosts.choose import LOCAL, host_called
from spectune.hosts.machine_facts import read_machine
from spectune.runner.continues import check_continues, continued
from spectune.runner.events import Watcher
from spectune.runner.launch import ModelPaths
from spectune.runner.plan import resolve_study
from spectune.runner.quiet import Patience
from spectune.runner.schedule import StudyOutcome, is_finished, remaining
from spectune.runner.shared import check_same_kind
from spectune.runner.study import fetch_models, run_study
from spectune.store.opening import create_study, study_exists, work_on
from spectune.store.study_dir import StudyDir
from spectune.study_file.schema import StudySpec
from spectune.study_file.yaml_lines import Document


@dataclass(frozen=True)
class StudyFile:
    """A study file that was read; ``text`` is kept beside the records."""

    spec: StudySpec
    document: Document
    text: str
    path: Path


@dataclass(frozen=True)
class PreparedStudy:
    """A checked study. Unless it is ``refused``, its directory is on disk and it can be run."""

    path: Path
    checked: CheckResult | None
    """``None``: nothing is left to launch, or no check was wanted."""
    refused: tuple[Finding, ...] = ()
    """Error findings that nobody allowed."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Arms that a search goes without, and why, by name."""
    foreign_arms: tuple[str, ...] = ()
    """Arms with trials in the directory that the study file does not have."""
    retry_failed: bool = False

    def run(self, watcher: Watcher, *, patience: Patience | None = None) -> StudyResults:
        """Launches and measures what is left; see ``PlannedStudy.run``. Not for one that is ``refused``."""
        directory = work_on(str(self.path))
        study = directory.read_study()
        finished = is_finished(study, directory.read_trials(), retry_failed=self.retry_failed)
        on_cluster = study.cluster is not None and not finished
        outcome = run_interruptible(
            self._on_cluster(directory, study, watcher)
            if on_cluster
            else self._on_host(directory, study, watcher, finished=finished, patience=patience),
            on_signal=watcher.on_message,
            resume_hint=f"Resume with: spectune run {shlex.quote(directory.place)}{_kept_here(directory)}",
        )
        return replace(open_study(self.path), outcome=outcome)

    def _on_host(
        self,
        directory: StudyDir,
        study: Study,
        watcher: Watcher,
        *,
        finished: bool,
        patience: Patience | None,
    ) -> Coroutine[Any, Any, StudyOutcome]:
        models = ModelPaths({})
        if not finished:
            models = fetch_models(study, home=data_home(), on_fetch=watcher.on_fetch)
        return run_study(
            directory,
            models=models,
            watcher=watcher,
            host=host_called(LOCAL if finished else study.host, home=data_home()),
            retry_failed=self.retry_failed,
            findings=self._findings,
            patience=patience,
        )

    def _on_cluster(
        self, directory: StudyDir, study: Study, watcher: Watcher
    ) -> Coroutine[Any, Any, StudyOutcome]:
        return run_on_cluster(
            directory,
            cluster=cluster_called(study.host),
            watcher=watcher,
            retry_failed=self.retry_failed,
            findings=self._findings,
        )

    @property
    def _findings(self) -> Mapping[str, Sequence[Finding]]:
        return self.checked.by_arm if self.checked is not None else {}


def prepare_resume(path: Path, *, allow: Sequence[str], check: bool, retry_failed: bool) -> PreparedStudy:
    """The rest of a study from its directory alone."""
    check_codes(allow)
    directory = work_on(str(path))
    study = directory.read_study()
    if study.host == LOCAL and directory.is_seen_elsewhere(study.machine.hostname):
        _check_machine(directory, study, read_machine())
    checked = _check(study, directory.read_trials(), wanted=check, retry_failed=retry_failed)
    return PreparedStudy(path, checked, _refused(checked, allow), retry_failed=retry_failed)


def prepare_file(
    file: StudyFile, study: Study, where: Path, *, allow: Sequence[str], check: bool, retry_failed: bool
) -> PreparedStudy:
    """A new directory, or the one there with the file's plan; nothing is written if an error finding stands."""
    check_codes(allow)
    study = _on_its_machine(file, study)
    if not study_exists(str(where)):
        study, checked, left_out = _checked(study, [], wanted=check, retry_failed=retry_failed, allow=allow)
        if refused := _refused(checked, allow):
            return PreparedStudy(where, checked, refused, left_out)
        create_study(str(where), study=study, source=file.text)
        return PreparedStudy(where, checked, left_out=left_out, retry_failed=retry_failed)
    directory = work_on(str(where))
    with directory.lock():
        check_continues(directory, study)
        trials = directory.read_trials()
        _check_machine(directory, directory.read_study(), study.machine)
        study, checked, left_out = _checked(
            study, trials, wanted=check, retry_failed=retry_failed, allow=allow
        )
        if refused := _refused(checked, allow):
            return PreparedStudy(where, checked, refused, left_out)
        directory.extend(continued(directory.read_study(), study, trials), source=file.text)
    asked = {arm.arm_id for arm in study.arms}
    foreign = tuple(dict.fromkeys(t.arm.name for t in trials if t.arm_id not in asked))
    return PreparedStudy(where, checked, left_out=left_out, foreign_arms=foreign, retry_failed=retry_failed)


def _check_machine(directory: StudyDir, known: Study, here: Machine) -> None:
    """Where several machines see one directory, those that measure into it are of one kind."""
    seen = directory.is_seen_elsewhere(known.machine.hostname)
    if known.host == LOCAL and seen and directory.trial_paths():
        check_same_kind(known, here, place=directory.place)


def _kept_here(directory: StudyDir) -> str:
    if directory.place == str(directory.path):
        return ""
    return f" (what could not be written there is kept in {directory.path}, and brought over then)"


def _on_its_machine(file: StudyFile, study: Study) -> Study:
    """A host over ssh, or a cluster, says what it is; this machine has been looked at before."""
    if study.host == LOCAL:
        return study
    machine = run_interruptible(
        machine_of(study.host, settings=study.cluster),
        on_signal=lambda _: None,
        resume_hint="Nothing was started",
    )
    return resolve_study(file.spec, file.document, path=file.path, machine=machine)


def _check(study: Study, trials: Sequence[Trial], *, wanted: bool, retry_failed: bool) -> CheckResult | None:
    """What stands against the arms that are still to be launched; ``None``: none of them, or not wanted."""
    waiting = {planned.arm_id for planned in remaining(study, trials, retry_failed=retry_failed)}
    if study.search is not None and study.search_end is None:
        waiting |= {arm.arm_id for arm in study.arms} - {trial.arm_id for trial in trials}
    if not wanted or not waiting:
        return None
    sources = Sources(home=data_home(), files_here=study.host == LOCAL)
    arms = [arm for arm in study.arms if arm.arm_id in waiting]
    return check_study(study, sources, arms=arms, gpus=gpus_of(study), exported=exported_here())


def _checked(
    study: Study, trials: Sequence[Trial], *, wanted: bool, retry_failed: bool, allow: Sequence[str]
) -> tuple[Study, CheckResult | None, dict[str, str]]:
    """The study without the arms of its search that cannot be launched, and why not, by name."""
    checked = _check(study, trials, wanted=wanted, retry_failed=retry_failed)
    if checked is None:
        return study, None, {}
    before = set(study.pruned_arms)
    study, checked = without_refused(study, checked, allowed=allow)
    return study, checked, {n: why for n, why in study.pruned_arms.items() if n not in before}


def _refused(checked: CheckResult | None, allow: Sequence[str]) -> tuple[Finding, ...]:
    return () if checked is None else checked.errors(allowed=allow)
