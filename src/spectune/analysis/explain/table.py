"""A table of published or hand-measured figures, as CSV.

Columns: ``arm,num_steps,topk,num_draft_tokens,cuda_graphs,e2e_tok_per_s,acceptance_length``,
and optionally ``concurrency,method,drafter,engine,tpot_ms``. The baseline has 0 draft
tokens; tokens are those proposed, without the root. An acceptance length may be a range, ``2.1-2.5``. ``tpot_ms`` is
the time per output token after the first: what a request takes beyond it is the time to the first token
(``table_times``). Lines with # are comments. Every mistake of the file is reported, with its line and column.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spectune.analysis.explain.measured import (
    MeasuredRow,
    baselines,
    log_sd_of,
    three_digits,
    tok_per_s_words,
)
from spectune.analysis.explain.table_cells import Cells
from spectune.analysis.explain.table_times import time_assumptions, time_problems, with_times
from spectune.domain.arm import Arm, Knobs
from spectune.errors import Problem, StudyFileError
from spectune.models.acceptance import LENGTH_LOG_SD
from spectune.models.observation import Observation
from spectune.models.speed import DEFAULT_LOG_SD

REQUIRED = (
    "arm",
    "num_steps",
    "topk",
    "num_draft_tokens",
    "cuda_graphs",
    "e2e_tok_per_s",
    "acceptance_length",
)
OPTIONAL = ("concurrency", "method", "drafter", "engine", "tpot_ms")
MAX_ROWS = 500
"""The fit takes the third power of them: 500 are some seconds of processor."""
MAX_DRAFT = 1_000
"""Steps, branches and tokens of a draft: far beyond any that exists."""
MAX_CONCURRENCY = 1_000_000
MAX_NAME = 200
_LINE_END = re.compile(r"\r\n|\n|\r")
"""As editors count lines; a form feed in a name ends none."""
DEFAULT_METHOD = "eagle3"
_OTHER_WORDS = {
    "eagle-3": "eagle3",
    "draft-model": "draft_model",
    "standalone": "draft_model",
    "nextn": "mtp",
}
"""Methods as engines and papers write them."""


@dataclass(frozen=True)
class Table:
    rows: tuple[MeasuredRow, ...]
    assumptions: tuple[str, ...]
    """What the file does not say and was taken for granted."""


def read_table(text: str, *, path: str) -> Table:
    """The rows of a CSV; raises ``StudyFileError`` (a ``BadInput``) with all of its mistakes."""
    problems: list[Problem] = []
    lines = [
        (i, line)
        for i, line in enumerate(_LINE_END.split(text), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise StudyFileError(
            path, [Problem("file", f"is empty; its first line must be {','.join(REQUIRED)}")]
        )
    try:
        parsed = list(csv.reader((line for _, line in lines), strict=True))
    except csv.Error as error:
        raise StudyFileError(path, [Problem("file", f"is not CSV: {error}")]) from error
    if len(parsed) != len(lines):
        raise StudyFileError(
            path, [Problem("file", "has a quoted cell over several lines; write each row on one line")]
        )
    header = [cell.strip().lstrip("\ufeff") for cell in parsed[0]]
    problems += _header_problems(header, lines[0][0])
    if problems:
        raise StudyFileError(path, problems)
    if len(parsed) - 1 > MAX_ROWS:
        raise StudyFileError(
            path,
            [
                Problem(
                    "file",
                    f"{len(parsed) - 1} rows; at most {MAX_ROWS}: give those of one model on one machine",
                )
            ],
        )
    cells = []
    for (line, _), values in zip(lines[1:], parsed[1:], strict=True):
        if len(values) != len(header):
            problems.append(Problem("row", f"has {len(values)} cells; the header has {len(header)}", line))
            continue
        cells.append(Cells(line, dict(zip(header, (v.strip() for v in values), strict=True)), problems))
    found = [_row(row) for row in cells]
    rows = _without_a_common_lack([row for row in found if row is not None])
    lines_of = [row.line for row, made in zip(cells, found, strict=True) if made is not None]
    problems += _table_problems(rows, lines_of, complete=not problems)
    if not problems:
        problems += time_problems(rows, lines_of)
    if problems:
        raise StudyFileError(path, sorted(problems, key=lambda p: p.line or 0))
    found_rows = _with_assumptions(rows)
    rooted = [
        f"{row.text('arm')}: {row.text('num_draft_tokens')} draft tokens in a chain of {row.text('num_steps')} steps "
        f"count the root, as SGLang does: read as {row.text('num_steps')}"
        for row in cells
        if _counts_the_root(row)
    ]
    return replace(found_rows, assumptions=(*rooted, *found_rows.assumptions))


def _header_problems(header: Sequence[str], line: int) -> Iterable[Problem]:
    valid = (*REQUIRED, *OPTIONAL)
    for name in REQUIRED:
        if name not in header:
            yield Problem(name, f"this column is missing; needed: {', '.join(REQUIRED)}", line)
    for name in header:
        if name not in valid:
            yield Problem(name or "(empty name)", f"unknown column; valid: {', '.join(valid)}", line)
    for name in sorted({n for n in header if header.count(n) > 1}):
        yield Problem(name, "this column is there twice", line)


def _row(cells: Cells) -> MeasuredRow | None:
    before = len(cells.problems)
    name = cells.text("arm")
    if not name:
        cells.problem("arm", "must be a name")
    for column in ("arm", *OPTIONAL):
        if len(cells.text(column)) > MAX_NAME:
            cells.problem(column, f"is longer than {MAX_NAME} characters")
    tokens = cells.whole("num_draft_tokens", least=0, most=MAX_DRAFT)
    steps = cells.whole("num_steps", least=0, most=MAX_DRAFT)
    topk = cells.whole("topk", least=0, most=MAX_DRAFT)
    graphs = cells.flag("cuda_graphs")
    speed = cells.speed("e2e_tok_per_s")
    tpot_s = cells.tpot_s("tpot_ms", tok_per_s=speed)
    concurrency = cells.whole("concurrency", least=1, most=MAX_CONCURRENCY) or 1
    if tokens is None and not cells.text("num_draft_tokens"):
        tokens = steps if (topk or 1) == 1 else None
    is_baseline = tokens == 0
    if topk == 1 and steps and tokens == steps + 1:
        tokens = steps  # SGLang's own count, which includes the root; ``_with_assumptions`` says so
    method = cells.text("method").lower()
    method = _OTHER_WORDS.get(method, method) or DEFAULT_METHOD
    if tokens and method == "none":
        cells.problem(
            "method", f"drafts nothing, and num_draft_tokens is {tokens}; give the method that drafts them"
        )
    if is_baseline and steps:
        cells.problem("num_steps", "must be 0 or empty where num_draft_tokens is 0")
    if tokens and steps == 0:
        cells.problem("num_steps", f"must be at least 1, or empty, with {tokens} draft tokens")
    depth = 0 if is_baseline else steps or (tokens if (topk or 1) == 1 else None)
    if depth and tokens:
        depth = min(depth, tokens)
    length = cells.length("acceptance_length", most=None if depth is None else max(depth, 0) + 1)
    if len(cells.problems) > before or speed is None:
        return None
    knobs = Knobs(
        method="none" if is_baseline else method,
        drafter=None if is_baseline else cells.text("drafter") or None,
        num_steps=None if is_baseline else steps or depth,
        topk=None if is_baseline else topk or None,
        num_draft_tokens=None if is_baseline else tokens,
        cuda_graphs=graphs,
    )
    arm = Arm(name=name, engine=cells.text("engine") or "unknown", target="unknown", knobs=knobs)
    observation = Observation(
        arm=arm,
        tok_per_s=speed,
        speedup=None,
        acceptance=None,
        concurrency=concurrency,
        length=None if is_baseline else (length.value if length else None),
        length_log_sd=log_sd_of(length),
        launch=cells.line,
        decode_tok_per_s=None if tpot_s is None else 1 / tpot_s,
    )
    return MeasuredRow(name, observation, None if is_baseline else length, depth=depth)


def _without_a_common_lack(rows: Sequence[MeasuredRow]) -> Sequence[MeasuredRow]:
    """Where no row has graphs, none costs more than another for want of them."""
    if any(row.arm.knobs.cuda_graphs is not False for row in rows):
        return rows
    found = []
    for row in rows:
        knobs = row.arm.knobs.model_copy(update={"cuda_graphs": None})
        arm = row.arm.model_copy(update={"knobs": knobs})
        found.append(replace(row, observation=replace(row.observation, arm=arm)))
    return found


def _counts_the_root(cells: Cells) -> bool:
    steps, tokens = cells.text("num_steps"), cells.text("num_draft_tokens")
    return (
        cells.text("topk") == "1"
        and steps.isdecimal()
        and tokens.isdecimal()
        and 0 < int(steps) == int(tokens) - 1
    )


def _table_problems(
    rows: Sequence[MeasuredRow], lines: Sequence[int], *, complete: bool
) -> Iterable[Problem]:
    if complete:
        for concurrency in sorted({row.concurrency for row in rows}):
            if not any(row.is_baseline and row.concurrency == concurrency for row in rows):
                yield Problem(
                    "num_draft_tokens",
                    f"no baseline row at concurrency {concurrency}: one row must have 0 draft tokens",
                )
        if rows and all(row.is_baseline for row in rows):
            yield Problem("arm", "no row beside the baseline; there is nothing to explain")
        if not rows:
            yield Problem("file", "has a header and no rows")
    seen: dict[tuple[str, int], int] = {}
    for row, line in zip(rows, lines, strict=True):
        key = (row.name, row.concurrency)
        if key in seen:
            yield Problem(
                "arm", f"{row.name!r} is already on line {seen[key]}; give it a name of its own", line
            )
        seen.setdefault(key, line)


def _with_assumptions(rows: Sequence[MeasuredRow]) -> Table:
    """Fills a missing acceptance length from the row that differs in graphs alone, and tells twins apart."""
    assumptions: list[str] = [*_baselines(rows)]
    taken: dict[tuple[object, ...], str] = {}
    distinct: list[MeasuredRow] = []
    for row in rows:
        knobs = row.arm.knobs
        key = (row.is_baseline, *knobs.model_dump().values(), row.concurrency)
        if key in taken and not row.is_baseline:
            assumptions.append(f"{row.name}: the same settings as {taken[key]}, so taken as another drafter")
            row = _as_other_drafter(row)
        taken.setdefault(key, row.name)
        distinct.append(row)
    filled = []
    for row in distinct:
        twin = None if row.is_baseline or row.acceptance_length else _graph_twin(row, distinct)
        if twin is not None:
            assumptions.append(
                f"{row.name}: acceptance length taken from {twin.name}, which drafts the same; graphs do not change it"
            )
            row = replace(
                row,
                acceptance_length=twin.acceptance_length,
                assumed_from=twin.name,
                observation=replace(
                    row.observation,
                    length=twin.observation.length,
                    length_log_sd=twin.observation.length_log_sd,
                ),
            )
        filled.append(row)
    timed = [with_times(row, filled) for row in filled]
    return Table(tuple(timed), (*assumptions, *_spread(rows), *time_assumptions(timed)))


def _baselines(rows: Sequence[MeasuredRow]) -> Iterable[str]:
    for concurrency in sorted({row.concurrency for row in rows}):
        here = [r for r in rows if r.concurrency == concurrency]
        compared = baselines(here, concurrency)
        plain = [r.tok_per_s for r in compared]
        if len(plain) > 1:
            mean = math.exp(math.fsum(map(math.log, plain)) / len(plain))
            yield (
                f"plain decoding at {concurrency} at once runs {tok_per_s_words(mean)}, the geometric mean of its "
                f"{len(plain)} rows ({three_digits(min(plain))} to {three_digits(max(plain))})"
            )
        yield from (
            f"{r.name}: plain decoding without graphs, and not what other rows are set against"
            for r in here
            if r.is_baseline and r not in compared
        )
        with_graphs = [r.name for r in here if not r.is_baseline and r.arm.knobs.cuda_graphs]
        if with_graphs and all(r.arm.knobs.cuda_graphs is False for r in compared):
            yield (
                f"plain decoding at {concurrency} at once has no graphs, and {with_graphs[0]}"
                f"{f' and {len(with_graphs) - 1} more have' if len(with_graphs) > 1 else ' has'} them: a part of the "
                "speedup is the graphs'"
            )


def _spread(rows: Sequence[MeasuredRow]) -> Iterable[str]:
    """What intervals are made of where a table gives none."""
    yield (
        f"speeds come without their spread: {DEFAULT_LOG_SD:.0%} is taken for one standard error of each, "
        f"{LENGTH_LOG_SD:.0%} of an acceptance length that is no range, and 90 % intervals are made of it"
    )
    if any(r.acceptance_length is not None and r.acceptance_length.low is not None for r in rows):
        yield "a range of acceptance lengths is read as a 95 % interval, and its middle as the value"


def _as_other_drafter(row: MeasuredRow) -> MeasuredRow:
    knobs = row.arm.knobs.model_copy(update={"drafter": f"drafter of {row.name}"})
    arm = row.arm.model_copy(update={"knobs": knobs})
    return replace(row, observation=replace(row.observation, arm=arm))


def _graph_twin(row: MeasuredRow, rows: Sequence[MeasuredRow]) -> MeasuredRow | None:
    mine = row.arm.knobs
    for other in rows:
        theirs = other.arm.knobs
        same = mine.model_copy(update={"cuda_graphs": theirs.cuda_graphs}) == theirs
        if other is not row and same and other.concurrency == row.concurrency and other.acceptance_length:
            return other
    return None
