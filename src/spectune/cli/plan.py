"""``spectune plan``: what a study takes on so many nodes, before it is started."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spectune.analysis.words import count, one_line
from spectune.api.progress import duration
from spectune.cli.output import show_json
from spectune.cluster.capacity import CapacityPlan, nodes_of_lanes, plan_capacity
from spectune.domain.machine import Machine
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.errors import BadInput
from spectune.models.cluster_time import ClusterTime
from spectune.runner.plan import resolve_study
from spectune.store.opening import open_study, study_exists
from spectune.store.places import is_shared
from spectune.study_file.load import load_study_file

_LEVEL = 0.9


def plan_command(args: argparse.Namespace) -> int:
    study, trials = _study(args)
    recorded = None
    if args.source is not None:
        directory = open_study(args.source)
        _check_like(study, directory.read_study(), args.source)
        recorded = directory.read_trials()
        if not recorded:
            raise BadInput(f"--from {args.source}: no trial has ended there yet")
    plan = plan_capacity(
        study,
        trials,
        nodes=args.nodes,
        recorded=recorded,
        lost_frac=args.failures,
        repair_s=None if args.repair_min is None else 60.0 * args.repair_min,
        launch_s=args.launch_s,
        measure_s=args.measure_s,
        level=_LEVEL,
    )
    if args.json:
        show_json(json.dumps(_document(study, plan), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        _show(study, plan, args)
    return 1 if all(time.never is not None for time in plan.times) else 0


def _study(args: argparse.Namespace) -> tuple[Study, list[Trial]]:
    path = Path(args.study)
    if is_shared(args.study) or path.is_dir():
        if args.overrides or args.dir:
            raise BadInput("--set and --dir go with a study file, not with the directory of a study")
        directory = open_study(args.study)
        return directory.read_study(), directory.read_trials()
    if not path.exists():
        raise BadInput(f"{path}: no such study file or study directory")
    spec, _, document = load_study_file(path, overrides=args.overrides)
    unknown = Machine(
        hostname=spec.host, os="?", cpu=None, cores=None, memory_bytes=None, gpus=None, python="?"
    )
    study = resolve_study(spec, document, path=path.absolute(), machine=unknown)
    where = args.dir or str(Path("studies") / study.name)
    return study, open_study(where).read_trials() if study_exists(where) else []


def _check_like(study: Study, other: Study, place: str) -> None:
    """Times of another engine say nothing about this one's."""
    if study.engine.name != other.engine.name:
        raise BadInput(
            f"--from {place}: its launches are of {other.engine.name}, not of {study.engine.name}; give an earlier "
            "study of this engine, or --launch-s and --measure-s"
        )


def _document(study: Study, plan: CapacityPlan) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "study": study.name,
        "arm_launches": plan.arm_launches,
        "basis": plan.basis,
        "arm_launch_s": {
            "mean": plan.arm_launch_s.mean_s,
            "sd": plan.arm_launch_s.sd_s,
            "n": plan.arm_launch_s.n,
        },
        "baseline_launch_s": {
            "mean": plan.baseline_launch_s.mean_s,
            "sd": plan.baseline_launch_s.sd_s,
            "n": plan.baseline_launch_s.n,
        },
        "plans": [
            {
                "nodes": time.nodes,
                "lanes": time.lanes,
                "launches": time.launches,
                "lost": time.lost,
                "node_hours": time.node_hours,
                "finish_s": None if time.finish_s is None else time.finish_s.model_dump(mode="json"),
                "never": time.never,
            }
            for time in plan.times
        ],
    }


def _show(study: Study, plan: CapacityPlan, args: argparse.Namespace) -> None:
    console = Console(highlight=False, soft_wrap=True)
    per_arm, per_base = plan.arm_launch_s.mean_s, plan.baseline_launch_s.mean_s
    console.print(
        Text(
            f"study {one_line(study.name, limit=80)}: {count(plan.arm_launches, 'launch')} of "
            f"{count(plan.arms, 'arm')} to come, "
            f"{per_arm:.1f} s each, plain decoding {per_base:.1f} s"
        )
    )
    console.print(Text(f"from {one_line(plan.basis)}"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("nodes", "launches", "node hours", "finish", f"{_LEVEL:.0%} interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for time in plan.times:
        table.add_row(*_cells(time))
    console.print(table)
    for text in dict.fromkeys(time.never for time in plan.times if time.never is not None):
        console.print(Text(text))
    if args.failures:
        back = "never" if args.repair_min is None else f"after {args.repair_min:g} minutes"
        console.print(Text(f"with a node lost under {args.failures:.1%} of the launches, back {back}"))
    share, size = (study.cluster.trials_per_node if study.cluster else 1), study.nodes_per_server
    used = [(time, nodes_of_lanes(time.lanes, share=share, size=size)) for time in plan.times]
    idle = [f"of {time.nodes} nodes only {of} find work" for time, of in used if 0 < of < time.nodes]
    if idle:
        console.print(Text(idle[0]))


def _cells(time: ClusterTime) -> tuple[str, ...]:
    finish = time.finish_s
    hours = "-" if time.node_hours is None else f"{time.node_hours:.2f}"
    interval = "-"
    if finish is not None and finish.low is not None and finish.high is not None:
        interval = f"{duration(finish.low)} to {duration(finish.high)}"
    return (
        str(time.nodes),
        f"{time.launches:.0f}",
        hours,
        "never" if finish is None else duration(finish.value),
        interval,
    )
