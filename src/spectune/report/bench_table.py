"""What ``spectune bench`` shows: one column per load point, and the doubts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spectune.analysis.records import LoadSummary
from spectune.analysis.words import measured, milliseconds, number, one_line, percent, tail
from spectune.domain.findings import Finding
from spectune.domain.interval import Interval

_ROWS: tuple[tuple[str, Callable[[LoadSummary], str]], ...] = (
    ("requests (failed)", lambda load: f"{load.num_requests} ({load.num_failed_requests})"),
    ("end-to-end tok/s per stream", lambda load: measured(load.e2e_tok_per_s)),
    ("decode tok/s per stream", lambda load: measured(load.decode_tok_per_s)),
    ("output tok/s, all streams", lambda load: number(load.output_tok_per_s)),
    (
        "steady state, of the time",
        lambda load: "all" if load.steady_frac is None else percent(load.steady_frac),
    ),
    ("TTFT median, p99 or max", lambda load: _pair(load.median_ttft_s, load.p99_ttft_s, load.largest_ttft_s)),
    ("TPOT median, p99 or max", lambda load: _pair(load.median_tpot_s, load.p99_tpot_s, load.largest_tpot_s)),
    (
        "ITL per chunk median, p99 or max",
        lambda load: _pair(load.median_itl_s, load.p99_itl_s, load.largest_itl_s),
    ),
    ("acceptance length, token-weighted", lambda load: measured(load.acceptance_length)),
    ("acceptance length, request-weighted", lambda load: _plain(load.request_weighted_acceptance_length)),
    ("acceptance rate", lambda load: percent(load.acceptance_rate)),
    ("accepted per position", lambda load: _positions(load.accepted_per_position)),
    ("prompt tokens from a cache", lambda load: percent(load.cached_token_frac)),
)


def bench_table(loads: Sequence[LoadSummary], findings: Sequence[Finding]) -> RenderableType:
    """Figures by load point, acceptance by category, findings."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for load in loads:
        table.add_column(load.label, justify="right")
    for name, show in _ROWS:
        table.add_row(name, *(Text(show(load)) for load in loads))
    categories = sorted({row.category for load in loads for row in load.categories})
    for category in categories:
        cells = []
        for load in loads:
            row = next((c for c in load.categories if c.category == category), None)
            cells.append(Text("" if row is None else _category(row.e2e_tok_per_s, row.acceptance_length)))
        table.add_row(Text(f"{one_line(category, limit=30)}: tok/s, acceptance"), *cells)
    lines = [Text(f"{f.severity}: {one_line(f.message)}{_first_detail(f)}") for f in findings]
    return Group(table, *lines)


def _first_detail(finding: Finding) -> str:
    return f" ({one_line(finding.evidence[0].detail, limit=200)})" if finding.evidence else ""


def _pair(median_s: float | None, p99_s: float | None, largest_s: float | None) -> str:
    return f"{milliseconds(median_s)}, {tail(p99_s, largest_s)}"


def _plain(value: float | None) -> str:
    return number(value)


def _positions(values: tuple[float, ...] | None) -> str:
    return "unknown" if values is None else " ".join(f"{v:.2f}" for v in values)


def _category(speed: Interval | None, length: Interval | None) -> str:
    speed_text = number(None if speed is None else speed.value)
    length_text = number(None if length is None else length.value)
    return f"{speed_text}, {length_text}"
