"""A study in other tools' formats, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, get_args

from spectune.analysis.words import one_line
from spectune.engines.registry import traits_for
from spectune.errors import BadInput
from spectune.exchange.exports import launch_forms
from spectune.exchange.exports.options import ExportOptions
from spectune.exchange.exports.serving import chosen_arm, serving_of
from spectune.exchange.exports.speculation_profile import speculation_profile
from spectune.exchange.exports.tables import COLUMNS, csv_text, rows_of, write_parquet
from spectune.exchange.whole_study import LoadedStudy
from spectune.report.vllm_result import vllm_bench_result

Form = Literal[
    "vllm-bench", "speculation-profile", "csv", "parquet", "command", "docker", "kubernetes", "slurm"
]
"""That are text or a file; MLflow is a server."""
FORMS: tuple[Form, ...] = get_args(Form)


def export_text(loaded: LoadedStudy, form: Form, options: ExportOptions) -> str:
    """Every form but Parquet, which is no text."""
    if form not in FORMS:
        raise BadInput(f"export: must be one of {', '.join(FORMS)}, got {form!r}")
    if form == "csv":
        arm_id = None if options.arm is None else loaded.find_arm(options.arm).arm_id
        rows = rows_of(loaded, options.rows, arm_id=arm_id)
        return csv_text((list(row.values()) for row in rows), list(COLUMNS[options.rows]))
    if form == "vllm-bench":
        return _vllm_bench(loaded, options)
    if form == "speculation-profile":
        return _json(speculation_profile(loaded, chosen_arm(loaded, options.arm)), indent=1)
    if form == "parquet":
        raise BadInput("export --as parquet: give a file with -o")
    return _launch(loaded, form, options)


def export_parquet(loaded: LoadedStudy, options: ExportOptions, path: Path) -> None:
    arm_id = None if options.arm is None else loaded.find_arm(options.arm).arm_id
    write_parquet(rows_of(loaded, options.rows, arm_id=arm_id), COLUMNS[options.rows], path)


def _json(value: object, *, indent: int | None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def _vllm_bench(loaded: LoadedStudy, options: ExportOptions) -> str:
    """One object for one launch at one load point, else a line each, as ``--append-result`` writes."""
    arm = chosen_arm(loaded, options.arm)
    results = [
        vllm_bench_result(trial, index, api=loaded.study.workload.api)
        for trial in loaded.trials
        if trial.arm_id == arm.arm_id and trial.status == "complete"
        for index in range(len(trial.loads))
    ]
    if not results:
        raise BadInput(f"{loaded.place}: {one_line(arm.name, limit=80)} has no complete trial")
    if len(results) == 1:
        return _json(results[0], indent=1)
    return "".join(_json(result, indent=None) for result in results)


def _launch(loaded: LoadedStudy, form: Form, options: ExportOptions) -> str:
    container = form in ("docker", "kubernetes")
    arm = chosen_arm(loaded, options.arm)
    host = options.host or ("127.0.0.1" if form == "command" else "0.0.0.0")  # noqa: S104
    serving = serving_of(
        loaded, arm, host=host, port=options.port, program=options.program, container=container
    )
    if form == "command":
        return launch_forms.bash_script(serving)
    if form == "slurm":
        return launch_forms.slurm_script(serving, time_limit=options.time_limit)
    if options.image is None:
        raise BadInput(
            f"export --as {form}: give the image that serves it with --image, "
            f"e.g. --image {_example(loaded, arm.engine)}"
        )
    if form == "docker":
        return launch_forms.docker_script(serving, image=options.image)
    return launch_forms.kubernetes_manifest(serving, image=options.image)


def _example(loaded: LoadedStudy, engine: str) -> str:
    version = loaded.summary.study.engine_versions[-1:] or ("VERSION",)
    return traits_for(engine).image.format(version=version[0])
