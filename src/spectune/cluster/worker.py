"""What a process that Ray started on a node does before it starts servers there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path

from spectune.domain.study import Study
from spectune.embedded.models import resolve_model
from spectune.engines.registry import adapter_for
from spectune.home import data_home
from spectune.hosts.host import Host
from spectune.runner.launch import ModelPaths
from spectune.server.lifecycle import end_server

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


def gpus_given(study: Study) -> dict[str, str]:
    """The variable with the GPUs that Ray gave this worker; empty if there are none, or the study says which."""
    devices = os.environ.get(_GPU_VARIABLE)
    return {} if not devices or _GPU_VARIABLE in study.engine.env else {_GPU_VARIABLE: devices}


def on_these_gpus(study: Study) -> Study:
    """The GPUs that Ray gave this worker, written down where a check of the launch and the record see them."""
    engine = study.engine.model_copy(update={"env": {**gpus_given(study), **study.engine.env}})
    return study.model_copy(update={"engine": engine})


def owner_of(study: str, place: str, node_id: str) -> str:
    """The owner's mark of servers that a lane of this study has on a node."""
    return f"{study}#{place}#{node_id}"


async def end_servers_of_the_dead(
    host: Host,
    *,
    study: str,
    node_id: str,
    places: Collection[str],
    alive: Collection[str],
    say: Callable[[str], None],
) -> None:
    """Stops the study's servers here whose worker is gone: its node is not alive, or its place is no more."""
    await host.reconnect()
    for status in await host.servers():
        place, of_node = _place_in(status.owner, study=study)
        if of_node is None:
            continue
        if of_node not in alive:
            say(f"stopping a server of a node that died here (pid {status.leader_pid})")
            await end_server(host, status)
        elif of_node == node_id and place not in places:
            say(f"stopping a server that an earlier run left (pid {status.leader_pid})")
            await end_server(host, status)


def _place_in(owner: str | None, *, study: str) -> tuple[str | None, str | None]:
    """The place and the node's id in the owner's mark of a server of ``study``; ``None`` twice for another's."""
    if owner is None or not owner.startswith(f"{study}#"):
        return None, None
    place, _, node_id = owner.removeprefix(f"{study}#").rpartition("#")
    return place, node_id


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
