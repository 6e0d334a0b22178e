"""``spectune drafter data --study``: the server that answers is one of a study's own arms."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spectune.api.blocking import run_interruptible
from spectune.drafter.data.manifest import Manifest
from spectune.drafter.data.regenerate import regenerate_from
from spectune.drafter.data.request import DataRequest
from spectune.embedded.models import data_home
from spectune.hosts.choose import host_called
from spectune.runner.drafter_data import for_streams, server_of_arm
from spectune.runner.launch import arm_called
from spectune.runner.machine import machine_of
from spectune.runner.plan import resolve_study
from spectune.runner.study import fetch_models
from spectune.study_file.load import load_study_file

_STREAMS = {"llamacpp": 16}
"""Requests in flight if not given: llama.cpp reserves the context of each of them."""


def data_through_study(
    args: argparse.Namespace,
    request: DataRequest,
    *,
    say: Callable[[str], None],
    interrupted: Callable[[str], None],
    **options: Any,
) -> Manifest:
    """Starts the arm's server if anything is missing, has it answer, and proves it gone."""
    path = Path(args.study)
    spec, _, document = load_study_file(path, overrides=args.overrides)
    machine = run_interruptible(machine_of(spec.host), on_signal=say, resume_hint="Nothing was started")
    study = resolve_study(spec, document, path=path.absolute(), machine=machine)
    arm = arm_called(study, args.arm)
    study = study.model_copy(update={"arms": (arm,)})
    if args.concurrency is None:
        request = dataclasses.replace(
            request, concurrency=_STREAMS.get(study.engine.name, request.concurrency)
        )
    study = for_streams(study, request.concurrency, context_tokens=args.context)
    models = fetch_models(study, home=data_home(), on_fetch=lambda *_: None)
    open_server = server_of_arm(
        arm,
        study,
        models=models,
        host=host_called(study.host, home=data_home()),
        out=request.out,
        answer_tokens=request.prompts.sampling.max_tokens,
        on_message=say,
    )
    return run_interruptible(
        regenerate_from(open_server, request, **{"target_name": arm.target, **options}),
        on_signal=interrupted,
        resume_hint=f"Run the same command again to go on with {args.out}",
    )
