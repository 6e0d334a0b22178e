"""A process that appends trials to a study, wherever it lies; used by tests and by ``benchmarks/shared_record.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report_studies import BASELINE, load_result, request, trial

from spectune.domain.arm import Arm
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.store.opening import work_on


def one_trial(of: Study, arm: Arm, number: int, text: str, **changes: Any) -> Trial:
    """With one request, whose text tells who wrote it."""
    answer = request(of.workload.prompts[0], 60.0, text=text)
    return trial(of, arm, number, loads=(load_result([answer]),)).model_copy(update=changes)


def finished_by(place: str, copy: Path | None, name: str) -> int:
    """How many trials that writer finished, in the place or in its working copy."""
    trials = work_on(place, copy=copy).read_trials()
    return sum(r.text.endswith(f" of {name}") for t in trials for load in t.loads for r in load.requests)


def append_trials(
    place: str, copy: Path | None, name: str, count: int, gate: Any = None, start: int = 0
) -> None:
    """Each is whole in its place before the next begins."""
    directory = work_on(place, copy=copy)
    study = directory.read_study()
    if gate is not None:
        gate.wait(300)
    with directory.join():
        for i in range(start, count):
            number, folder = directory.new_trial(BASELINE.arm_id)
            made = one_trial(study, BASELINE, number, f"answer {i} of {name}", trial_id=folder.path.name)
            folder.write_plan({"schema_version": 1, "arm": made.arm.model_dump(mode="json")})
            for record in made.loads[0].requests:
                folder.append_request(0, record)
            folder.finish(made)
            directory.bring_over()
