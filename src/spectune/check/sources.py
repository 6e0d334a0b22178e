"""What a check reads: models by their headers, and versions asked of programs; each once, however many arms name it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spectune.checkpoints.facts import CheckpointFacts
from spectune.checkpoints.hub import HUB_ID
from spectune.checkpoints.read import read_checkpoint
from spectune.domain.study import Study
from spectune.embedded.models import DRAFT, TARGET, embedded_target_path, resolve_model
from spectune.engines.adapter import ModelFormat
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput
from spectune.findings.catalogue import finding_kind
from spectune.hosts.choose import LOCAL
from spectune.hosts.facts import Gpu, read_host_facts
from spectune.hosts.supervisor import GPU_VARIABLES, host_facts
from spectune.preflight.command.reading import ReadCommand
from spectune.preflight.rules import Judgement
from spectune.preflight.situation import EngineVersion
from spectune.preflight.versions import Run, resolve_version, run_bounded

NOT_A_MODEL = finding_kind("model-not-readable")
PROGRAM_MISSING = finding_kind("program-missing")
MODEL_MISSING = finding_kind("model-missing")


def missing(
    argv: Sequence[str], models: Mapping[str, str | None], *, subject: str, model_format: ModelFormat
) -> Judgement:
    """What a launch on this machine names and does not have: its program, its model files (by role)."""
    found = []
    if argv and shutil.which(argv[0]) is None:
        found.append(
            PROGRAM_MISSING.found(subject, f"{argv[0]}: no such program", evidence=[("command", argv[0])])
        )
    for role, path in models.items():
        if path is None or path == TARGET or Path(path).expanduser().exists():
            continue
        if model_format == "gguf" or path.startswith(("/", ".", "~")):
            found.append(
                MODEL_MISSING.found(subject, f"{role} {path}: no such file", evidence=[(role, path)])
            )
    return Judgement(findings=tuple(found))


@dataclass
class Sources:
    """Where facts come from. ``files_here``: paths of the command are paths of this machine."""

    home: Path
    network: bool = True
    files_here: bool = True
    run: Run = run_bounded
    models: dict[str, CheckpointFacts] = field(default_factory=dict)
    """All that was read, by reference."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """References that exist and are no models, with the reason."""
    _versions: dict[tuple[str, str | None, str | None], EngineVersion] = field(default_factory=dict)

    def model(self, reference: str | None, *, engine: str, in_container: bool) -> CheckpointFacts | None:
        """Facts of a model; of kind ``absent`` where nothing could be looked at; ``None`` if none is named."""
        if reference is None:
            return None
        if reference not in self.models:
            self.models[reference] = self._read(reference, engine=engine, in_container=in_container)
        return self.models[reference]

    def _read(self, reference: str, *, engine: str, in_container: bool) -> CheckpointFacts:
        if reference in (TARGET, DRAFT):
            return _absent(reference, "built in, and not fetched yet")
        is_path = not HUB_ID.fullmatch(reference) or reference.endswith(".gguf")
        if not self.files_here and is_path:
            return _absent(reference, "on the study's host, not on this machine")
        if adapter_for(engine).model_format == "gguf" and not Path(reference).expanduser().exists():
            return _absent(reference, "no such file on this machine (GGUF files are read from disk only)")
        try:
            return read_checkpoint(reference, network=self.network)
        except BadInput as error:
            reason = str(error).removeprefix(f"{reference}: ")
            if not in_container and os.access(Path(reference).expanduser(), os.R_OK):
                self.unreadable[reference] = reason
            return _absent(reference, reason)

    def version(self, read: ReadCommand, *, given: str | None, from_paste: bool) -> EngineVersion:
        """The version that the command would start; its program is asked once, within a time limit."""
        python, executable = read.python, read.executable
        if not self.files_here:
            python = executable = None
        elif from_paste:
            python, executable = _on_path(python), _on_path(executable)
        key = (read.engine, python, executable)
        if key not in self._versions:
            self._versions[key] = resolve_version(
                read.engine,
                python=python,
                executable=executable,
                given=given,
                hint=read.version_hint,
                run=self.run,
            )
        return self._versions[key]

    def facts(self) -> list[dict[str, Any]]:
        """What was read of each model, for people and scripts."""
        return [_model_facts(name, facts) for name, facts in sorted(self.models.items())]


def read_gpus() -> tuple[Gpu, ...] | None:
    """This machine's GPUs with their memory; ``None``: they could not be asked."""
    return read_host_facts(host_facts({"gpus": True})).gpus


def exported_here() -> dict[str, str]:
    """This process's variables that choose devices, as a server started here would inherit them."""
    return {name: os.environ[name] for name in GPU_VARIABLES if name in os.environ}


def gpus_of(study: Study) -> tuple[Gpu, ...] | None:
    """The GPUs of the study's host with their memory, where that costs nothing: ``None`` over ssh."""
    if study.host != LOCAL:
        return None
    return () if study.machine.gpus == () else read_gpus()


def known_path(reference: str | None, *, model_format: ModelFormat, home: Path) -> str | None:
    """``reference`` as the engine will get it, if that is known without fetching; else as it is written."""
    if reference is None:
        return None
    if reference == TARGET and model_format == "gguf":
        path = embedded_target_path(home)
        return str(path) if path.is_file() else reference
    try:
        return resolve_model(reference, model_format=model_format, home=home)
    except BadInput:
        return reference


def _on_path(program: str | None) -> str | None:
    """The absolute path of a program of a pasted command; a relative one is not started for a question."""
    if program is None or os.path.isabs(program):  # noqa: PTH117
        return program
    return shutil.which(program) if os.sep not in program else None


def _absent(reference: str, reason: str) -> CheckpointFacts:
    return CheckpointFacts(source=reference, kind="absent", not_read=(f"{reference}: {reason}",))


def _model_facts(reference: str, facts: CheckpointFacts) -> dict[str, Any]:
    tensors = facts.tensors
    return {
        "reference": reference,
        "kind": facts.kind,
        "format": None if facts.kind == "absent" else facts.format,
        "architectures": list(facts.architectures),
        "model_type": facts.model_type,
        "num_layers": facts.num_layers,
        "hidden_size": facts.hidden_size,
        "num_tensors": None if tensors is None else len(tensors),
        "num_tensor_files": None if tensors is None else len({info.file for info in tensors.values()}),
        "weights_bytes": facts.weight_bytes,
        "bytes_read": facts.bytes_read,
        "fetched": facts.fetched,
        "not_read": list(facts.not_read),
    }
