"""Training data through a server of a study's own: launched, watched, and proven gone afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from spectune.domain.arm import Arm
from spectune.domain.secrets import redact_argv
from spectune.domain.study import Study
from spectune.domain.workload import LoadPoint
from spectune.drafter.data.request import OpenServer, Served
from spectune.engines.flags import normalise
from spectune.engines.registry import traits_for
from spectune.hosts.host import Host
from spectune.runner.launch import ModelPaths, serve_arm

_SHORT_PROMPT_TOKENS = 64


def for_streams(study: Study, num_streams: int, *, context_tokens: int | None = None) -> Study:
    """The same study with servers that hold so many requests at once.

    llama.cpp shares its context out among the requests, so a total that the study gives for its own load is
    scaled; ``context_tokens`` is for each of them, instead of what the study says.
    """
    was = max(64 if load.shape == "open" else load.streams for load in study.workload.loads)
    workload = study.workload.model_copy(update={"loads": (LoadPoint.closed(num_streams),)})
    flags = dict(study.engine.flags)
    if traits_for(study.engine.name).divides_context:
        for name, value in study.engine.flags.items():
            if normalise(name) == "ctx-size" and isinstance(value, int):
                flags[name] = -(-value // was) * num_streams
        if context_tokens is not None:
            flags = {name: value for name, value in flags.items() if normalise(name) != "ctx-size"}
            flags["ctx-size"] = context_tokens * num_streams
    engine = study.engine.model_copy(update={"flags": flags})
    return study.model_copy(update={"workload": workload, "engine": engine})


def server_of_arm(
    arm: Arm,
    study: Study,
    *,
    models: ModelPaths,
    host: Host,
    owner: str,
    logs: Path,
    answer_tokens: int,
    on_message: Callable[[str], None],
) -> OpenServer:
    """The arm's server for a data set; each start has a log of its own in ``logs``."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Served]:
        log_path = next_log(logs)
        on_message(f"starting the server of arm {arm.name}; its log: {log_path}")
        async with serve_arm(
            arm,
            study,
            models=models,
            host=host,
            owner=owner,
            log_path=log_path,
            on_message=on_message,
        ) as (handle, command):
            context = handle.facts.reported.get("n_ctx_slot")
            if isinstance(context, int) and context < answer_tokens + _SHORT_PROMPT_TOKENS:
                on_message(
                    f"warning: the server holds {context} tokens per request, prompt included, and answers may have "
                    f"{answer_tokens}: give more with --context, or fewer requests at once"
                )
            yield Served(
                handle.base_url,
                engine=arm.engine,
                model=handle.model,
                command=redact_argv(command.argv),
                died=handle.died,
            )
        on_message("the server is gone")

    return opened


def next_log(folder: Path, *, suffix: str = "") -> Path:
    """A file that is not there yet; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while any(folder.glob(f"{number:04d}*.log")):
        number += 1
    return folder / f"{number:04d}{suffix}.log"
