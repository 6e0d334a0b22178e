"""The folder of one training run.

::

    RUN/
      lock                held while a process trains
      run.json            options, target, fingerprint of the rows: a resumed run must agree
      rows/ features/     see ``rows`` and ``features``; elsewhere where runs share them
      progress.jsonl      one ``StepReport`` a line
      checkpoints/step-00000120/
        model.safetensors       float32 parameters and the vocabulary map
        optimizer.safetensors   first and second moments, by parameter name
        state.json              step; its presence means the checkpoint is whole
      draft/              config.json and model.safetensors (bf16), written with each checkpoint
      result.json         ``TrainResult``; its presence means the run has ended
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from spectune.drafter.files import disk_failure, write_tensors
from spectune.drafter.train.features import read_tensors
from spectune.drafter.train.options import StepReport, TrainResult
from spectune.errors import BadInput, EnvironmentFailed
from spectune.store.replacing import remove_files, replace_folder
from spectune.store.study_dir import write_atomically

_KEPT_CHECKPOINTS = 2
_OURS = ("checkpoints", "draft", "result.json", "progress.jsonl")
"""What is written into a run only after its ``run.json``."""
_STEP = re.compile(r"step-\d{8}")
_SHOWN = 60


@dataclass(frozen=True)
class Checkpoint:
    """Everything that training goes on from. The order of rows follows from the step alone."""

    folder: Path
    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]

    def check_fits(
        self, shapes: Mapping[str, tuple[int, ...]], *, moments: tuple[str, ...], num_steps: int
    ) -> None:
        """Raises ``BadInput`` for files that are whole, and not of a run over parameters of these shapes."""
        of_moments = {f"{moment}.{name}": shape for name, shape in shapes.items() for moment in moments}
        problems = [
            f"{name} is missing or of another shape"
            for there, wanted in ((self.model, shapes), (self.optimizer, of_moments))
            for name, shape in wanted.items()
            if name not in there or tuple(there[name].shape) != shape
        ]
        problems += [f"it is of step {self.step}, the last is {num_steps}"] if self.step > num_steps else []
        if problems:
            raise BadInput(
                f"{self.folder}: not a checkpoint of this run: {problems[0]}; delete it to go on from the one before"
            )


@dataclass(frozen=True)
class RunDir:
    path: Path

    @contextmanager
    def held(self, *, by_this_process: bool) -> Iterator[None]:
        """One run at a time; the lock goes with the process, however it ends. Raises ``BadInput``."""
        if not by_this_process:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BadInput(
                    f"{self.path}: another process trains in it; wait, or give another --out"
                ) from error
            yield

    def begin(self, description: dict[str, Any]) -> None:
        """Records what the run is, or checks that it is the same one. Raises ``BadInput``.

        Before the first checkpoint there is nothing to keep apart, and a first try may have failed.
        """
        self.check(description)
        if self._has_begun():
            return
        self.path.mkdir(parents=True, exist_ok=True)
        _write_text(self.path / "run.json", json.dumps(description, indent=1) + "\n")

    def check(self, description: dict[str, Any]) -> None:
        """Raises ``BadInput`` if a begun run is another one, as far as ``description`` goes."""
        file = self.path / "run.json"
        if not file.exists() and (foreign := [x for x in _OURS if (self.path / x).exists()]):
            raise BadInput(
                f"{self.path}: holds {foreign[0]} and no run.json: not a run, so nothing of it is replaced; give "
                "another --out"
            )
        if not file.exists():
            return
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise BadInput(f"{file}: not JSON: {error}; give another --out") from error
        if not isinstance(before, dict) or not before.keys() & description.keys():
            raise BadInput(f"{file}: not the description of a run; give another --out")
        if not self._has_begun():
            return
        # Only what has been recorded counts: an option added by a later version has its default.
        changed = _differences({key: before[key] for key in description if key in before}, description)
        if changed:
            raise BadInput(
                f"{self.path}: begun with other settings: {'; '.join(changed)}; give another --out"
            )

    def _has_begun(self) -> bool:
        is_worth_keeping = self.checkpoints() or (self.path / "result.json").exists()
        return (self.path / "run.json").exists() and bool(is_worth_keeping)

    def begun_rows(self) -> str | None:
        """Fingerprint of the rows that a begun run goes on with; ``begin`` tells what else is wrong."""
        if not self._has_begun():
            return None
        try:
            return str(json.loads((self.path / "run.json").read_text(encoding="utf-8"))["rows"])
        except (ValueError, KeyError, TypeError):
            return None

    def append_report(self, report: StepReport) -> None:
        with (self.path / "progress.jsonl").open("a", encoding="utf-8") as file:
            file.write(report.model_dump_json() + "\n")

    def reports(self) -> list[StepReport]:
        """Of all starts of the run, in order; lines that are no report are passed over."""
        file = self.path / "progress.jsonl"
        found = []
        for line in _lines(file) if file.exists() else ():
            with suppress(ValueError):
                found.append(StepReport.model_validate_json(line))
        return found

    def forget_reports_after(self, step: int) -> None:
        """Drops the lines of steps that a kill undid, and a torn last line."""
        file = self.path / "progress.jsonl"
        if file.exists():
            lines = [line for line in _lines(file) if _step_of(line) <= step]
            _write_text(file, "".join(line + "\n" for line in lines))

    def checkpoints(self) -> list[Path]:
        """Whole ones, oldest first."""
        folder = self.path / "checkpoints"
        found = folder.glob("step-*/state.json") if folder.is_dir() else ()
        return sorted(file.parent for file in found if _STEP.fullmatch(file.parent.name))

    def save(self, step: int, *, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        """Whole or not at all; older ones beyond the last few go only afterwards."""
        final = self.path / "checkpoints" / f"step-{step:08d}"
        scratch = final.with_name(f".{final.name}.part")
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            scratch.mkdir(parents=True)
            write_tensors(scratch / "model.safetensors", model)
            write_tensors(scratch / "optimizer.safetensors", optimizer)
            write_atomically(scratch / "state.json", json.dumps({"step": step}) + "\n")
            replace_folder(scratch, final)
            _flush_folder(final.parent)
        except (OSError, EnvironmentFailed) as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise disk_failure(final, error) if isinstance(error, OSError) else error from error
        for old in self.checkpoints()[:-_KEPT_CHECKPOINTS]:
            remove_files(old, ("state.json", "model.safetensors", "optimizer.safetensors"))

    def load_last(self) -> Checkpoint | None:
        """The newest checkpoint; ``None``: there is none yet. Raises ``BadInput`` for a damaged one."""
        found = self.checkpoints()
        if not found:
            return None
        folder = found[-1]
        try:
            step = int(json.loads((folder / "state.json").read_text(encoding="utf-8"))["step"])
            model = read_tensors(folder / "model.safetensors")
            optimizer = read_tensors(folder / "optimizer.safetensors")
            if folder.name != f"step-{step:08d}":
                raise ValueError(f"state.json says step {step}")
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise BadInput(
                f"{folder}: damaged checkpoint: {error}; delete it to go on from the one before"
            ) from error
        except BadInput as error:
            raise BadInput(f"{error}; delete {folder} to go on from the checkpoint before") from error
        return Checkpoint(folder, step, model, optimizer)

    @property
    def draft(self) -> Path:
        """The folder that SGLang and vLLM load."""
        return self.path / "draft"

    def write_draft(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.draft.mkdir(exist_ok=True)
        write_tensors(self.draft / "model.safetensors", tensors)
        _write_text(self.draft / "config.json", json.dumps(config, indent=1) + "\n")

    def write_result(self, result: TrainResult) -> None:
        _write_text(self.path / "result.json", result.model_dump_json(indent=1) + "\n")

    def result(self) -> TrainResult | None:
        """Of a run that has ended. Raises ``BadInput`` for a damaged one."""
        file = self.path / "result.json"
        if not file.exists():
            return None
        try:
            return TrainResult.model_validate_json(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise BadInput(
                f"{file}: damaged, not the result of a run; delete it, and the same command makes it again from the "
                "last checkpoint"
            ) from error


def _differences(before: dict[str, Any], now: dict[str, Any], place: str = "") -> list[str]:
    found = []
    for key, old in before.items():
        new = now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, f"{place}{key}.")
        elif json.loads(json.dumps(new)) != old:
            found.append(f"{place}{key} was {_short(old, new)}, now {_short(new, old)}")
    return found


def _short(value: Any, other: Any) -> str:
    """Of a long text the part where it begins to differ."""
    text = str(value)
    if len(text) <= _SHOWN:
        return text
    pairs = enumerate(zip(text, str(other), strict=False))
    begin = max(0, next((i for i, (a, b) in pairs if a != b), len(text) - _SHOWN) - _SHOWN // 3)
    piece = text[begin : begin + _SHOWN]
    return f"{'...' if begin else ''}{piece}{'...' if begin + _SHOWN < len(text) else ''}"


def _lines(path: Path) -> list[str]:
    """Whatever a kill or a disk has left of them."""
    return path.read_text(encoding="utf-8", errors="replace").split("\n")


def _step_of(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _write_text(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise disk_failure(path, error) from error


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
