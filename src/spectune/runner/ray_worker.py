"""What a process that Ray started on a node does before it starts servers there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from spectune.domain.study import Study
from spectune.embedded.models import data_home, resolve_model
from spectune.engines.registry import adapter_for
from spectune.runner.launch import ModelPaths

_GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


def undo_variables_of_ray() -> None:
    """Ray tells its workers how many threads to use; a server started by hand is not told, and neither is ours."""
    name = "OMP_NUM_THREADS"
    if name not in os.environ:
        return
    try:
        given = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return
    if not any(entry.startswith(f"{name}=".encode()) for entry in given):
        del os.environ[name]


def undo_niceness_of_ray() -> str | None:
    """Ray's workers, and what they start, give way to everything else on the node unless it is told not to.

    To be called in the thread that starts servers, since niceness is a thread's. Returns what to tell where it may
    not be undone.
    """
    usual = os.getpriority(os.PRIO_PROCESS, os.getppid())
    own = os.getpriority(os.PRIO_PROCESS, 0)
    if own > usual:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, usual)
        except PermissionError:
            return (
                f"servers run at niceness {own} here: other work on the node goes before them; start its Ray with "
                "RAY_worker_niceness=0"
            )
    return None


def on_these_gpus(study: Study) -> Study:
    """The GPUs that Ray gave this worker, written down where a check of the launch and the record see them."""
    devices = os.environ.get(_GPU_VARIABLE)
    if not devices or _GPU_VARIABLE in study.engine.env:
        return study
    engine = study.engine.model_copy(update={"env": {_GPU_VARIABLE: devices, **study.engine.env}})
    return study.model_copy(update={"engine": engine})


async def models_here(study: Study) -> ModelPaths:
    """The models of the study's arms on this node; built-in ones are fetched."""
    model_format = adapter_for(study.engine.name).model_format
    references = {arm.target for arm in study.arms}
    references |= {arm.knobs.drafter for arm in study.arms if arm.knobs.drafter is not None}
    paths = {}
    for reference in sorted(references):
        paths[reference] = await asyncio.to_thread(
            resolve_model, reference, model_format=model_format, home=data_home()
        )
    return ModelPaths(paths)
