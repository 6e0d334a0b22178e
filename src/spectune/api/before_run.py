"""A study before it runs: load, check, preview, run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from spectune.api.progress import ProgressView, Quiet
from spectune.api.results import StudyResults
from spectune.api.run_folder import PreparedStudy, StudyFile, prepare_file, prepare_resume
from spectune.check.check import CheckResult, check_study
from spectune.check.check import check_command as check_launch
from spectune.check.sources import Sources, exported_here, gpus_of, read_gpus
from spectune.domain.arm import Arm
from spectune.domain.machine import Machine
from spectune.domain.secrets import redact_argv, redact_env
from spectune.domain.study import Study
from spectune.domain.trial import num_launches
from spectune.engines.adapter import Command
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput, CheckRefused
from spectune.home import data_home
from spectune.hosts.choose import LOCAL
from spectune.hosts.machine_facts import read_machine
from spectune.runner.estimate import estimate
from spectune.runner.events import Watcher
from spectune.runner.order import launches_of
from spectune.runner.plan import resolve_study, sample_launch
from spectune.runner.schedule import remaining
from spectune.runner.search import search_estimate
from spectune.store.opening import open_study, study_exists
from spectune.store.places import is_shared, place_of, text_of
from spectune.study_file.load import apply_override, load_study_file, parse_study
from spectune.study_file.yaml_lines import Document, read_yaml

Overrides = Mapping[str, Any] | Sequence[str]


@dataclass(frozen=True)
class Preview:
    """What ``run`` would do now, given what is measured already."""

    commands: Mapping[str, Command]
    """By the arm's name; secrets are replaced, ports are chosen at launch."""
    order: tuple[str, ...]
    """Names of arms in the order of their launches; a search knows its first ones only."""
    launches: int
    """Servers to start; of a search, what such searches take."""
    estimated_s: float
    basis: str
    """Where the estimate comes from."""


class PlannedStudy:
    """A study to check, preview and run. ``load_study`` makes it; nothing is started before ``run``."""

    def __init__(self, study: Study, *, directory: Path, file: StudyFile | None) -> None:
        self._study = study
        self._file = file
        self.directory = directory
        """Where the records go unless ``run`` is told otherwise: ``studies/NAME``, or the directory to resume."""

    def __repr__(self) -> str:
        return f"PlannedStudy({self._study.name!r}, {len(self._study.arms)} arms, {str(self.directory)!r})"

    @property
    def study(self) -> Study:
        """Every arm, prompt and launch written out. A host over ssh is not asked about its machine before ``run``."""
        return self._study if self._file is not None else open_study(str(self.directory)).read_study()

    def check(self, *, network: bool = True, engine_version: str | None = None) -> CheckResult:
        """What stands against the launches: findings, and what could not be checked. Nothing is launched.

        Of models, headers and small files are read; ``network=False`` takes hub models from the local cache alone.
        ``engine_version`` is for engines that cannot be asked.
        """
        study = self.study
        sources = Sources(home=data_home(), network=network, files_here=study.host == LOCAL)
        return check_study(
            study, sources, gpus=gpus_of(study), exported=exported_here(), engine_version=engine_version
        )

    def preview(self, directory: str | Path | None = None) -> Preview:
        """The commands, their order and the time they will take. Starts nothing, writes nothing."""
        study, where = self.study, self.directory if directory is None else Path(directory)
        trials = open_study(str(where)).read_trials() if study_exists(str(where)) else []
        todo = remaining(study, trials)
        launches, measured = launches_of(study, todo), len(todo)
        ends: list[str] = []
        if study.search is not None and study.search_end is None:
            likely = search_estimate(study, trials)
            launches = max(launches, likely.launches_likely - num_launches(trials))
            measured = max(measured, likely.trials_likely - len(trials))
        left = launches
        if study.budget.max_trials is not None:
            left = min(launches, max(0, study.budget.max_trials - num_launches(trials)))
        if left < launches:
            launches, measured = left, math.ceil(measured * left / launches)
            ends.append(f"ended by budget.max_trials: {study.budget.max_trials}")
        expected = estimate(study, trials, remaining=measured, launches=launches)
        seconds, minutes = expected.seconds, study.budget.max_minutes
        if minutes is not None and seconds > minutes * 60:
            seconds = minutes * 60
            ends.append(f"ended by budget.max_minutes: {minutes:g}, before the last launch")
        names = {arm.arm_id: arm.name for arm in study.arms}
        return Preview(
            commands={arm.name: _command(study, arm) for arm in study.arms},
            order=tuple(names[planned.arm_id] for planned in todo),
            launches=expected.launches,
            estimated_s=seconds,
            basis="; ".join([expected.basis, *ends]),
        )

    def prepare(
        self,
        directory: str | Path | None = None,
        *,
        allow: Sequence[str] = (),
        check: bool = True,
        retry_failed: bool = False,
    ) -> PreparedStudy:
        """The first half of ``run``: checks the arms that are left, and writes the directory unless that refuses.

        Arguments and errors are those of ``run``; errors that stand are in ``refused`` instead of being raised.
        """
        if self._file is None:
            if directory is not None and Path(directory) != self.directory:
                raise BadInput(
                    f"{directory}: a study that is resumed stays in its directory, {self.directory}"
                )
            return prepare_resume(self.directory, allow=allow, check=check, retry_failed=retry_failed)
        where = self.directory if directory is None else Path(directory)
        return prepare_file(
            self._file, self._study, where, allow=allow, check=check, retry_failed=retry_failed
        )

    def run(
        self,
        directory: str | Path | None = None,
        *,
        progress: bool | Watcher = False,
        allow: Sequence[str] = (),
        check: bool = True,
        retry_failed: bool = False,
    ) -> StudyResults:
        """Launches and measures what is left of the plan, and writes the reports; the results of all of it.

        Blocks, also where an event loop runs (a notebook). Every finished trial is on disk before the next begins:
        interrupted, it goes on where it was with the same call, and a finished study starts nothing.

        ``progress``: ``True`` tells on standard error, or any ``Watcher``. ``allow``: codes of error findings that may
        stand. ``check=False`` launches without a check. ``retry_failed`` measures failed arms again.

        Raises ``CheckRefused`` if an error finding stands (nothing was launched), ``BadInput`` if the directory holds
        another study, ``EnvironmentFailed`` if the machine is not fit or a stop could not be proven, ``Interrupted``
        after Ctrl-C. A failed arm is a result and raises nothing: see ``StudyResults.outcome``.
        """
        ready = self.prepare(directory, allow=allow, check=check, retry_failed=retry_failed)
        if ready.refused:
            raise CheckRefused(ready.refused)
        if not isinstance(progress, bool):
            return ready.run(progress)
        if not progress:
            return ready.run(Quiet())
        with ProgressView() as view:
            return ready.run(view)


def load_study(source: str | Path | Mapping[str, Any], *, overrides: Overrides = ()) -> PlannedStudy:
    """A study from a study file, from the same keys as a mapping, or from the directory of a study to resume.

    ``overrides``: ``{"workload.max_tokens": 64}``, or texts ``"workload.max_tokens=64"``. Names of files are relative
    to the study file; those of a mapping, which needs a ``name``, to the current folder.

    Raises ``StudyFileError`` with every mistake and its line, ``BadInput`` if there is no such file.
    """
    settings = _as_texts(overrides)
    if isinstance(source, Mapping):
        return _planned(_from_mapping(source, settings))
    place_of(str(source))  # what looks like an address and is none is told as such
    path = Path(source)
    if is_shared(str(path)) or path.is_dir():
        if settings:
            raise BadInput(
                f"{text_of(path)}: overrides go with a study file, not with the directory of a study to resume"
            )
        return PlannedStudy(open_study(str(path)).read_study(), directory=path, file=None)
    if not path.exists():
        raise BadInput(f"{path}: no such study file or study directory")
    spec, text, document = load_study_file(path, overrides=settings)
    return _planned(StudyFile(spec, document, _with_settings(text, settings), path.absolute()))


def _from_mapping(source: Mapping[str, Any], settings: Sequence[str]) -> StudyFile:
    if not isinstance(source.get("name"), str):
        raise BadInput("study: a study from a mapping needs a name, e.g. {'name': 'first-try', ...}")
    try:
        text = yaml.safe_dump(_plain(source), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise BadInput(f"study: holds what a study file cannot: {error}") from error
    document = Document(read_yaml(text, name="study").value, {})  # lines of a text that nobody has seen
    for setting in settings:
        apply_override(document.value, setting)
    spec = parse_study(document, name="study")
    return StudyFile(spec, document, _with_settings(text, settings), Path.cwd() / "study.yaml")


def _plain(value: Any) -> Any:
    """Paths as text and tuples as lists, which YAML has no words for."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def _as_texts(overrides: Overrides) -> list[str]:
    if isinstance(overrides, str):
        raise BadInput(f"overrides: give a list of texts or a mapping, not the text {overrides!r}")
    if not isinstance(overrides, Mapping):
        return list(overrides)
    try:
        return [
            f"{key}={json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)}"
            for key, value in overrides.items()
        ]
    except (TypeError, ValueError) as error:
        raise BadInput(f"overrides: hold what a study file cannot: {error}") from error


def _with_settings(text: str, settings: Sequence[str]) -> str:
    lines = [setting.replace("\n", "\\n") for setting in settings]
    return "".join(f"# --set {line}\n" for line in lines) + text


def _planned(file: StudyFile) -> PlannedStudy:
    local = file.spec.host == LOCAL
    machine = read_machine() if local else _unknown_machine(file.spec.host)
    study = resolve_study(file.spec, file.document, path=file.path, machine=machine)
    return PlannedStudy(study, directory=Path("studies") / study.name, file=file)


def _unknown_machine(host: str) -> Machine:
    """A host that is not asked for a check; ``check_study`` does not look at it."""
    return Machine(hostname=host, os="?", cpu=None, cores=None, memory_bytes=None, gpus=None, python="?")


def _command(study: Study, arm: Arm) -> Command:
    launch = sample_launch(arm, study.engine, study.workload, nodes=study.nodes_per_server)
    command = adapter_for(study.engine.name).command(launch)
    return replace(command, argv=redact_argv(command.argv), env=redact_env(command.env))


def check_command(
    command: str | Sequence[str],
    *,
    here: bool = False,
    network: bool = True,
    engine_version: str | None = None,
) -> CheckResult:
    """Findings on one server command, as pasted text or an argument list. Nothing is launched.

    ``here`` judges it against this machine's GPUs. Raises ``BadInput`` if it starts no server that is known.
    """
    return check_launch(
        command,
        Sources(home=data_home(), network=network),
        machine=read_machine() if here else None,
        gpus=read_gpus() if here else None,
        exported=exported_here() if here else None,
        engine_version=engine_version,
    )
