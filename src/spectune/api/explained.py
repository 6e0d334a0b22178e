"""Explanations of figures that no study here measured, and the machine's ceiling."""

from __future__ import annotations

import io
from pathlib import Path

from spectune.analysis.explain.explanation import explain
from spectune.analysis.explain.records import Explanation
from spectune.analysis.explain.table import read_table
from spectune.errors import BadInput
from spectune.models.speed import machine_ceiling_tok_per_s

MAX_TABLE_BYTES = 4_000_000
_LEAST_SIZE, _MOST_SIZE = 0.001, 1_000_000


def explain_table(
    path: str | Path, *, weights_gib: float | None = None, bandwidth_gib_s: float | None = None
) -> Explanation:
    """The explanation of published or hand-measured figures in a CSV file; the numbers as in ``StudyResults.explain``.

    Columns ``arm,num_steps,topk,num_draft_tokens,cuda_graphs,e2e_tok_per_s,acceptance_length``, and ``tpot_ms`` where
    the time to the first token is to be told from decoding; the baseline's row has 0 draft tokens. Raises ``BadInput``
    with the line of what is wrong.
    """
    ceiling = machine_ceiling(weights_gib, bandwidth_gib_s)
    table = read_table(_read(Path(path)), path=str(path))
    return explain(table.rows, assumptions=table.assumptions, machine_ceiling_tok_per_s=ceiling)


def machine_ceiling(weights_gib: float | None, bandwidth_gib_s: float | None) -> float | None:
    """Plain decoding in tok/s, were a step only the reading of the weights; ``None`` if neither is given."""
    if weights_gib is None and bandwidth_gib_s is None:
        return None
    if weights_gib is None or bandwidth_gib_s is None or not _is_size(weights_gib, bandwidth_gib_s):
        raise BadInput(
            "weights in GiB and bandwidth in GiB/s: both are needed for the machine's ceiling, "
            f"from {_LEAST_SIZE:g} to {_MOST_SIZE:,}, got {weights_gib} and {bandwidth_gib_s}"
        )
    return machine_ceiling_tok_per_s(bytes_per_step=weights_gib, bandwidth_bytes_per_s=bandwidth_gib_s)


def _is_size(*values: float) -> bool:
    return all(_LEAST_SIZE <= value <= _MOST_SIZE for value in values)


def _read(path: Path) -> str:
    if path.is_dir():
        raise BadInput(f"{path}: is a directory; a table is a CSV file")
    if not path.exists():
        raise BadInput(f"{path}: no such file")
    with path.open("rb") as file:  # a pipe and a device have no size to ask for
        data = file.read(MAX_TABLE_BYTES + 1)
    if len(data) > MAX_TABLE_BYTES:
        raise BadInput(f"{path}: more than {MAX_TABLE_BYTES} bytes, which no table has")
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 text (byte {error.start}); save it as CSV in UTF-8") from error
