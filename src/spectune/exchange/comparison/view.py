"""``spectune compare`` in a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from spectune.analysis.words import (
    SIMULATED,
    UNKNOWN,
    bounds_of_ratio,
    number,
    one_line,
    percent,
    ratio,
    times,
)
from spectune.exchange.comparison.compare import Cell, CompareRow, StudyComparison

_ANY_WIDTH = 10_000
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def comparison_view(found: StudyComparison) -> RenderableType:
    """The studies by letter, what differs, one table per load point, and why a ratio is missing."""
    parts: list[RenderableType] = [*_studies(found), *_differences(found)]
    for label in dict.fromkeys(row.load for row in found.rows):
        rows = [row for row in found.rows if row.load == label]
        parts.append(_fitting(found, rows, label, _table))
        lengths = [
            row for row in rows if any(c is not None and c.acceptance_length is not None for c in row.cells)
        ]
        parts += [_fitting(found, lengths, label, _acceptance_table)] if lengths else []
    parts += _reasons(found)
    return Group(*parts)


@dataclass(frozen=True)
class _Fitting:
    """One table of all studies where it fits, else one for each study against the first."""

    whole: Table
    parts: Sequence[Table]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = Measurement.get(console, options.update(width=_ANY_WIDTH), self.whole).maximum
        yield from (self.whole,) if wide <= options.max_width else self.parts


def _fitting(
    found: StudyComparison,
    rows: list[CompareRow],
    label: str,
    table: Callable[[StudyComparison, list[CompareRow], str, Sequence[int]], Table],
) -> _Fitting:
    every = range(len(found.studies))
    return _Fitting(
        table(found, rows, label, every),
        [
            table(found, [r for r in rows if r.cells[0] or r.cells[other]], label, (0, other))
            for other in every[1:]
        ],
    )


def _letter(place: int) -> str:
    return LETTERS[place] if place < len(LETTERS) else f"S{place + 1}"


def _studies(found: StudyComparison) -> Iterable[Text]:
    for place, study in enumerate(found.studies):
        about = [f"{study.engine} {', '.join(study.engine_versions) or 'version unknown'}", study.created_at]
        about += [f"imported from {study.imported_from}"] if study.imported_from else []
        about += [SIMULATED] if study.simulated else []
        yield Text.assemble(
            (f"{_letter(place)} ", "bold"),
            one_line(study.study_dir, limit=200),
            f"  ({one_line(', '.join(about), limit=200)})",
        )


def _differences(found: StudyComparison) -> Iterable[Text]:
    for place, study in enumerate(found.studies):
        if study.comparability is None:
            continue
        pair = f"{_letter(place)} and A"
        differences = study.comparability.differences
        if not differences:
            yield Text(
                f"{pair}: comparable; engine, version, machine, target, prompts and sampling are the same"
            )
        for check in differences:
            allowed = " (allowed)" if check.allowed else ""
            yield Text(
                f"{pair}: {check.aspect} {'differs' if check.state == 'differs' else 'unknown'}{allowed}"
            )
            yield Text(f"    A: {one_line(check.first, limit=160)}")
            yield Text(f"    {_letter(place)}: {one_line(check.second, limit=160)}")
            if check.effect and not check.allowed:
                yield Text(f"    so {one_line(check.effect)}", style="yellow")


def _table(found: StudyComparison, rows: list[CompareRow], label: str, places: Sequence[int]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=Text(f"at {label}"),
        title_justify="left",
        title_style="bold",
    )
    table.add_column("arm", overflow="fold", min_width=8, ratio=1)
    for place in places:
        table.add_column(f"{_letter(place)} tok/s", justify="right", no_wrap=True)
        table.add_column("speedup", justify="right", no_wrap=True)
        if place:
            table.add_column(f"{_letter(place)} / A", no_wrap=True)
    for row in rows:
        cells: list[str] = []
        for place, cell in ((place, row.cells[place]) for place in places):
            cells += _figures(row, cell)
            cells += [_ratio_text(cell)] if place else []
        table.add_row(Text(one_line(row.arm, limit=80)), *(Text(c) for c in cells))
    return table


def _acceptance_table(
    found: StudyComparison, rows: list[CompareRow], label: str, places: Sequence[int]
) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=Text(f"acceptance length at {label}"),
        title_justify="left",
        title_style="bold",
    )
    table.add_column("arm", overflow="fold", min_width=8, ratio=1)
    for place in places:
        table.add_column(_letter(place), justify="right", no_wrap=True)
        if place:
            table.add_column(f"{_letter(place)} / A", no_wrap=True)
    for row in rows:
        cells: list[str] = []
        for place, cell in ((place, row.cells[place]) for place in places):
            length = cell.acceptance_length if cell is not None else None
            cells.append(number(length.value if length else None))
            cells += [times(cell.acceptance_ratio if cell is not None else None)] if place else []
        table.add_row(Text(one_line(row.arm, limit=80)), *(Text(c) for c in cells))
    return table


def _figures(row: CompareRow, cell: Cell | None) -> list[str]:
    if cell is None:
        return [UNKNOWN, UNKNOWN]
    speed = number(cell.e2e_tok_per_s.value) if cell.e2e_tok_per_s else UNKNOWN
    return [speed, "1.00x" if row.is_baseline else ratio(cell.speedup.value if cell.speedup else None)]


def _ratio_text(cell: Cell | None) -> str:
    if cell is None or cell.ratio is None:
        return UNKNOWN
    of = " of speedups" if cell.basis == "speedup" else ""
    return f"{ratio(cell.ratio.value)} {bounds_of_ratio(cell.ratio)}".strip() + of


def _reasons(found: StudyComparison) -> Iterable[Text]:
    """Each reason once, with the arms it holds for."""
    reasons: dict[str, list[str]] = {}
    for row in found.rows:
        for place, cell in enumerate(row.cells):
            if cell is not None and cell.why_not is not None:
                key = f"{_letter(place)}: {cell.why_not}"
                reasons.setdefault(key, []).append(row.arm)
            if cell is not None and cell.settings_changed:
                yield Text(
                    f"{_letter(place)} {one_line(row.arm, limit=60)}: same name, other "
                    f"{one_line(', '.join(cell.settings_changed), limit=200)}",
                    style="yellow",
                )
    for reason, arms in reasons.items():
        names = ", ".join(one_line(arm, limit=40) for arm in dict.fromkeys(arms))
        yield Text(f"{one_line(reason, limit=300)} ({one_line(names, limit=200)})", style="dim")
    yield Text(
        f"ratios with {percent(found.level)} intervals that hold together for all arms of a table",
        style="dim",
    )
