"""``spectune drafter data --study``: the server that answers is one of a study's own arms."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from spectune.api.blocking import run_interruptible
from spectune.cluster.data_server import for_streams, server_of_arm
from spectune.cluster.machine import machine_of
from spectune.cluster.ray_cluster import cluster_called
from spectune.cluster.ray_data import check_ray_data
from spectune.cluster.replicas import MAX_REPLICAS, ReplicaPlan, through_replicas
from spectune.domain.study import Study
from spectune.drafter.data.manifest import Manifest
from spectune.drafter.data.regenerate import DataRun, make_data_set, regenerate_from
from spectune.drafter.data.request import DataRequest
from spectune.engines.registry import traits_for
from spectune.errors import BadInput
from spectune.home import data_home
from spectune.hosts.choose import LOCAL, host_called, is_cluster
from spectune.runner.launch import arm_called
from spectune.runner.plan import resolve_study
from spectune.runner.study import fetch_models
from spectune.study_file.load import load_study_file

_STREAMS = 16
"""Requests in flight if not given, where the server reserves the context of each of them."""


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
    _check_replicas(args.replicas, spec.host)
    # Of a cluster, this node stands for the others: no speed is compared.
    host_name = LOCAL if is_cluster(spec.host) else spec.host
    machine = run_interruptible(machine_of(host_name), on_signal=say, resume_hint="Nothing was started")
    study = resolve_study(spec, document, path=path.absolute(), machine=machine)
    arm = arm_called(study, args.arm)
    study = study.model_copy(update={"arms": (arm,)})
    if args.concurrency is None and traits_for(study.engine.name).divides_context:
        request = dataclasses.replace(request, concurrency=_STREAMS)
    study = for_streams(study, request.concurrency, context_tokens=args.context)
    options = {"target_name": arm.target, **options}
    if args.replicas is None:
        work = _one_server(study, request, say, **options)
    else:
        work = _replicas(study, request, args, **options)
    return run_interruptible(
        work,
        on_signal=interrupted,
        resume_hint=f"Run the same command again to go on with {args.out}",
    )


def _one_server(
    study: Study, request: DataRequest, say: Callable[[str], None], **options: Any
) -> Coroutine[Any, Any, Manifest]:
    models = fetch_models(study, home=data_home(), on_fetch=lambda *_: None)
    open_server = server_of_arm(
        study.arms[0],
        study,
        models=models,
        host=host_called(study.host, home=data_home()),
        owner=str(request.out.resolve()),
        logs=request.out / "servers",
        answer_tokens=request.prompts.sampling.max_tokens,
        on_message=say,
    )
    return regenerate_from(open_server, request, **options)


def _replicas(
    study: Study,
    request: DataRequest,
    args: argparse.Namespace,
    *,
    encoder: None,
    target_name: str,
    **options: Any,
) -> Coroutine[Any, Any, Manifest]:
    check_ray_data(study.host)
    plan = ReplicaPlan(
        study,
        count=args.replicas,
        tokenizer=args.tokenizer,
        template_kwargs=args.template_kwargs or "{}",
        target_name=target_name,
    )

    async def answer(run: DataRun) -> None:
        await through_replicas(run, plan, cluster=cluster_called(study.host))

    return make_data_set(request, answer, **options)


def _check_replicas(count: int | None, host: str) -> None:
    """Raises ``BadInput``."""
    if count is None:
        if is_cluster(host):
            raise BadInput(f"host {host}: say how many of its nodes' servers answer at once: --replicas N")
        return
    if count > MAX_REPLICAS:
        raise BadInput(f"--replicas: must be from 1 to {MAX_REPLICAS}, got {count}")
    if not is_cluster(host):
        raise BadInput(
            f"--replicas: they run on the nodes of a Ray cluster, and the study says `host: {host}`; give "
            "`--set host=ray`, or leave --replicas out for one server"
        )
