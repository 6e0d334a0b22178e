"""A study as flat rows for spreadsheets and data frames: arms, trials, prompts or requests; CSV and Parquet of them."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from spectune.analysis.records import ArmSummary, LoadSummary
from spectune.analysis.words import visible
from spectune.domain.interval import Interval
from spectune.errors import BadInput
from spectune.exchange.exports.options import Rows
from spectune.exchange.exports.prompt_rows import prompt_rows
from spectune.exchange.whole_study import LoadedStudy

Kind = type[str] | type[int] | type[float] | type[bool]
Row = dict[str, Any]

_ARM: dict[str, Kind] = {
    "study": str,
    "arm": str,
    "arm_id": str,
    "is_baseline": bool,
    "engine": str,
    "target": str,
    "method": str,
    "drafter": str,
    "num_steps": int,
    "topk": int,
    "num_draft_tokens": int,
    "cuda_graphs": bool,
}
_SPAN = ("", "_low", "_high")
COLUMNS: dict[Rows, dict[str, Kind]] = {
    "arms": {
        **_ARM,
        "status": str,
        "num_trials": int,
        "load": str,
        "concurrency": int,
        "request_rate": float,
        "num_requests": int,
        "num_failed_requests": int,
        **{f"e2e_tok_per_s{end}": float for end in _SPAN},
        **{f"decode_tok_per_s{end}": float for end in _SPAN},
        "output_tok_per_s": float,
        **{f"speedup{end}": float for end in _SPAN},
        "verdict": str,
        **{f"acceptance_length{end}": float for end in _SPAN},
        "acceptance_rate": float,
        "parity_frac": float,
        "median_ttft_s": float,
        "p99_ttft_s": float,
        "median_tpot_s": float,
        "p99_tpot_s": float,
        "break_even_acceptance_length": float,
        "simulated": bool,
        "imported_from": str,
    },
    "trials": {
        **_ARM,
        "trial_id": str,
        "number": int,
        "repetition": int,
        "status": str,
        "cause": str,
        "started_at": str,
        "ended_at": str,
        "engine_version": str,
        "node": str,
        "load": str,
        **{f"e2e_tok_per_s{end}": float for end in _SPAN},
        **{f"speedup{end}": float for end in _SPAN},
        **{f"acceptance_length{end}": float for end in _SPAN},
        "acceptance_rate": float,
        "parity_frac": float,
        "simulated": bool,
    },
    "prompts": {
        "study": str,
        "arm": str,
        "arm_id": str,
        "is_baseline": bool,
        "load": str,
        "prompt_id": str,
        "category": str,
        "num_launches": int,
        "output_tokens": float,
        "e2e_tok_per_s": float,
        "speedup": float,
        "num_drafts": int,
        "num_accepted_tokens": int,
        "acceptance_length": float,
    },
    "requests": {
        "study": str,
        "arm": str,
        "arm_id": str,
        "is_baseline": bool,
        "trial_id": str,
        "load": str,
        "prompt_id": str,
        "turn": int,
        "category": str,
        "start_s": float,
        "ttft_s": float,
        "latency_s": float,
        "prompt_tokens": int,
        "output_tokens": int,
        "cached_tokens": int,
        "e2e_tok_per_s": float,
        "decode_tok_per_s": float,
        "num_drafts": int,
        "num_draft_tokens": int,
        "num_accepted_tokens": int,
        "finish_reason": str,
        "error": str,
    },
}


def rows_of(loaded: LoadedStudy, rows: Rows, *, arm_id: str | None = None) -> list[Row]:
    """With every column of ``COLUMNS[rows]``; unknown is ``None``. ``arm_id`` keeps one arm's rows."""
    makers: dict[Rows, Callable[[LoadedStudy], Iterable[Row]]] = {
        "arms": _arm_rows,
        "trials": _trial_rows,
        "prompts": prompt_rows,
        "requests": _request_rows,
    }
    return [
        {column: row.get(column) for column in COLUMNS[rows]}
        for row in makers[rows](loaded)
        if arm_id is None or row["arm_id"] == arm_id
    ]


def _arm_columns(loaded: LoadedStudy, arm: ArmSummary) -> Row:
    knobs = arm.arm.knobs
    return {
        "study": loaded.study.name,
        "arm": arm.name,
        "arm_id": arm.arm_id,
        "is_baseline": arm.is_baseline,
        "engine": arm.arm.engine,
        "target": arm.arm.target,
        **knobs.model_dump(),
    }


def _spread(name: str, interval: Interval | None) -> Row:
    if interval is None:
        return {}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _arm_rows(loaded: LoadedStudy) -> Iterable[Row]:
    imported = loaded.study.imported
    for arm in loaded.summary.arms:
        base = {
            **_arm_columns(loaded, arm),
            "status": arm.status,
            "num_trials": arm.num_trials,
            "simulated": loaded.summary.simulated,
            "imported_from": None if imported is None else imported.tool,
        }
        if not arm.loads:
            yield base
        for load in arm.loads:
            yield {**base, **_load_columns(arm, load)}


def _load_columns(arm: ArmSummary, load: LoadSummary) -> Row:
    first = load is arm.first
    return {
        "num_trials": load.num_trials,
        "load": load.label,
        "concurrency": load.load.concurrency,
        "request_rate": load.load.request_rate,
        "num_requests": load.num_requests,
        "num_failed_requests": load.num_failed_requests,
        **_spread("e2e_tok_per_s", load.e2e_tok_per_s),
        **_spread("decode_tok_per_s", load.decode_tok_per_s),
        "output_tok_per_s": load.output_tok_per_s,
        **_spread("speedup", load.speedup),
        "verdict": load.verdict,
        **_spread("acceptance_length", load.acceptance_length),
        "acceptance_rate": load.acceptance_rate,
        "parity_frac": load.parity.equal_frac if load.parity else None,
        "median_ttft_s": load.median_ttft_s,
        "p99_ttft_s": load.p99_ttft_s,
        "median_tpot_s": load.median_tpot_s,
        "p99_tpot_s": load.p99_tpot_s,
        "break_even_acceptance_length": arm.break_even_acceptance_length if first else None,
    }


def _trial_rows(loaded: LoadedStudy) -> Iterable[Row]:
    arms = {arm.arm_id: arm for arm in loaded.summary.arms}
    for trial in loaded.summary.trials:
        yield {
            **_arm_columns(loaded, arms[trial.arm_id]),
            "trial_id": trial.trial_id,
            "number": trial.number,
            "repetition": trial.repetition,
            "status": trial.status,
            "cause": trial.cause,
            "started_at": trial.started_at,
            "ended_at": trial.ended_at,
            "engine_version": trial.engine_version,
            "node": trial.node,
            "load": trial.load,
            **_spread("e2e_tok_per_s", trial.e2e_tok_per_s),
            **_spread("speedup", trial.speedup),
            **_spread("acceptance_length", trial.acceptance_length),
            "acceptance_rate": trial.acceptance_rate,
            "parity_frac": trial.parity_frac,
            "simulated": trial.simulated,
        }


def _request_rows(loaded: LoadedStudy) -> Iterable[Row]:
    baseline = loaded.study.baseline.arm_id
    for trial in loaded.trials:
        for load in trial.loads:
            for request in load.requests:
                counts = request.acceptance
                yield {
                    "study": loaded.study.name,
                    "arm": trial.arm.name,
                    "arm_id": trial.arm_id,
                    "is_baseline": trial.arm_id == baseline,
                    "trial_id": trial.trial_id,
                    "load": load.load.label,
                    **request.model_dump(
                        include={
                            "prompt_id",
                            "turn",
                            "category",
                            "start_s",
                            "ttft_s",
                            "latency_s",
                            "prompt_tokens",
                            "output_tokens",
                            "cached_tokens",
                            "finish_reason",
                            "error",
                        }
                    ),
                    "e2e_tok_per_s": request.e2e_tok_per_s,
                    "decode_tok_per_s": request.decode_tok_per_s,
                    "num_drafts": counts.num_drafts if counts else None,
                    "num_draft_tokens": counts.num_draft_tokens if counts else None,
                    "num_accepted_tokens": counts.num_accepted_tokens if counts else None,
                }


_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")
"""Beginnings that spreadsheets take for a formula, the wide forms of Japanese ones included."""


def csv_text(rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> str:
    """RFC 4180; unknown is empty. Text that a spreadsheet would run as a formula gets an apostrophe in front."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(map(_cell, columns))
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        clean = visible(value)
        return f"'{clean}" if _FORMULA.match(clean) else clean
    return "" if value is None else value


def write_parquet(rows: Sequence[Row], columns: dict[str, Kind], path: Path) -> None:
    """One table with stated types, so that an empty or wholly unknown column keeps its own."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BadInput(
            "export --as parquet needs pyarrow: pip install 'spectune[data]' (or take --as csv)"
        ) from error
    types = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    clean = [{k: _storable(v) for k, v in row.items()} for row in rows]
    table = pyarrow.Table.from_pylist(clean, schema=schema)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pyarrow.parquet.write_table(table, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _storable(value: Any) -> Any:
    """Without lone surrogates, which UTF-8 cannot hold."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value
