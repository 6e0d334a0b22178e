"""``spectune explain``: of a study's directory, or of a table of figures with no server at all."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from spectune.domain.cost_model import machine_ceiling_tok_per_s
from spectune.domain.interval import Interval
from spectune.domain.prediction_observation import Observation
from spectune.domain.prediction_shape import shape_of
from spectune.errors import BadInput
from spectune.explain.explanation import explain
from spectune.explain.measured import MeasuredRow, log_sd_of
from spectune.explain.records import Explanation
from spectune.explain.table import read_table
from spectune.explain.terminal import explanation_view
from spectune.report.records import ArmSummary, LoadSummary, StudySummary
from spectune.report.summary import summarize
from spectune.store.study_dir import StudyDir

MAX_TABLE_BYTES = 4_000_000


def explain_command(args: argparse.Namespace) -> int:
    ceiling = _ceiling(args)
    if (args.study_dir is None) == (args.table is None):
        raise BadInput("explain: give either a study directory or --table ROWS.csv")
    if args.table is not None:
        table = read_table(_read(Path(args.table)), path=args.table)
        found = explain(table.rows, assumptions=table.assumptions, machine_ceiling_tok_per_s=ceiling)
    else:
        directory = StudyDir.open(Path(args.study_dir))
        summary = summarize(directory.read_study(), directory.read_trials())
        found = explain_study(summary, place=args.study_dir, machine_ceiling=ceiling)
    if args.json:
        document = found.model_dump(mode="json")
        sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        Console(highlight=False).print(explanation_view(found))
    return 0


def explain_study(summary: StudySummary, *, place: str, machine_ceiling: float | None = None) -> Explanation:
    """The explanation of a study's summary; ``BadInput`` while it has no baseline or nothing beside it."""
    rows = measured_rows(summary)
    if not any(row.is_baseline for row in rows):
        raise BadInput(f"{place}: no complete trial of the baseline; run the study first")
    if all(row.is_baseline for row in rows):
        raise BadInput(f"{place}: no complete trial beside the baseline; there is nothing to explain yet")
    return explain(
        rows,
        predictions=list(_predictions(summary)),
        winning_command=_winning_command(summary),
        machine_ceiling_tok_per_s=machine_ceiling,
        margin=summary.study.margin,
    )


def measured_rows(summary: StudySummary) -> list[MeasuredRow]:
    """Every arm at every closed load point where the baseline was measured too."""
    with_baseline = {
        load.load.concurrency or 1 for load in summary.baseline.loads if load.load.shape != "open"
    }
    rows = []
    for arm in summary.arms:
        for load in arm.loads:
            if load.load.shape == "open" or (load.load.concurrency or 1) not in with_baseline:
                continue
            row = _row(arm, load)
            if row is not None:
                rows.append(row)
    return rows


def _row(arm: ArmSummary, load: LoadSummary) -> MeasuredRow | None:
    if load.e2e_tok_per_s is None:
        return None
    skips = load.verify_step_frac is not None and load.verify_step_frac < 0.98
    length = load.tokens_per_decode_step if skips else None
    observation = Observation(
        arm=arm.arm,
        tok_per_s=load.e2e_tok_per_s.value,
        speedup=load.speedup.value if load.speedup else None,
        acceptance=None if arm.is_baseline else load.acceptance_counts,
        concurrency=load.load.concurrency or 1,
        log_sd=log_sd_of(load.speedup or load.e2e_tok_per_s),
        length=length,
        length_log_sd=log_sd_of(load.acceptance_length),
    )
    shape = shape_of(arm.arm)
    return MeasuredRow(
        arm.name, observation, None if arm.is_baseline else load.acceptance_length, depth=shape.steps or None
    )


def _predictions(summary: StudySummary) -> Iterator[tuple[str, Interval, float]]:
    for trial in summary.trials:
        predicted = trial.hypothesis.predicted_tok_per_s
        if predicted is not None and trial.e2e_tok_per_s is not None:
            yield trial.name, predicted, trial.e2e_tok_per_s.value


def _winning_command(summary: StudySummary) -> str | None:
    for trial in summary.trials:
        if trial.arm_id == summary.best_arm_id and trial.status == "complete":
            return shlex.join(trial.command)
    return None


def _read(path: Path) -> str:
    if path.is_dir():
        raise BadInput(f"{path}: is a directory; --table takes a CSV file")
    if not path.exists():
        raise BadInput(f"{path}: no such file")
    if path.stat().st_size > MAX_TABLE_BYTES:
        raise BadInput(f"{path}: {path.stat().st_size} bytes; at most {MAX_TABLE_BYTES}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 text (byte {error.start}); save it as CSV in UTF-8") from error


def _ceiling(args: argparse.Namespace) -> float | None:
    weights, bandwidth = args.weights_gib, args.bandwidth_gib_s
    if weights is None and bandwidth is None:
        return None
    if weights is None or bandwidth is None or weights <= 0 or bandwidth <= 0:
        raise BadInput(
            "--weights-gib and --bandwidth-gib-s: both are needed for the machine's ceiling, above 0"
        )
    return machine_ceiling_tok_per_s(bytes_per_step=weights, bandwidth_bytes_per_s=bandwidth)
