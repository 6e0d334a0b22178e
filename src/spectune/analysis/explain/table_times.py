"""The time before the first token in a table: what a token of the whole request takes beyond one of the decoding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spectune.analysis.explain.measured import MeasuredRow, baselines
from spectune.domain.request_time import RequestTimes
from spectune.errors import Problem


def time_problems(rows: Sequence[MeasuredRow], lines: Sequence[int]) -> Iterable[Problem]:
    """Times that cannot be used, or that contradict the speeds."""
    for row, line in zip(rows, lines, strict=True):
        plain_share = _plain_share(rows, row.concurrency)
        if plain_share is None and row.observation.decode_tok_per_s is not None:
            yield Problem("tpot_ms", "is given here and not for the baseline, which it is set against", line)
        elif plain_share is not None and not row.is_baseline and _of(row, rows) is None:
            yield Problem(
                "tpot_ms",
                "is missing: this row is faster than the baseline's time before the first token allows, so its own is "
                "shorter",
                line,
            )


def with_times(row: MeasuredRow, rows: Sequence[MeasuredRow]) -> MeasuredRow:
    return replace(row, observation=replace(row.observation, times=_of(row, rows)))


def time_assumptions(rows: Sequence[MeasuredRow]) -> Iterable[str]:
    for concurrency in sorted({row.concurrency for row in rows}):
        here = [r for r in rows if r.concurrency == concurrency and not r.is_baseline]
        assumed = [r.name for r in here if r.observation.times and r.observation.decode_tok_per_s is None]
        if assumed:
            more = f" and {len(assumed) - 1} more" if len(assumed) > 1 else ""
            yield f"{assumed[0]}{more}: no tpot_ms, so the time before the first token is taken to be the baseline's"


def _plain(rows: Sequence[MeasuredRow], concurrency: int) -> list[MeasuredRow]:
    return [r for r in baselines(rows, concurrency) if r.observation.decode_tok_per_s is not None]


def _plain_share(rows: Sequence[MeasuredRow], concurrency: int) -> float | None:
    shares = [_own_share(r) for r in _plain(rows, concurrency)]
    return math.fsum(shares) / len(shares) if shares else None


def _own_share(row: MeasuredRow) -> float:
    """Of a request's time, before the first token; the decoding of a token is counted for the first one too."""
    decode = row.observation.decode_tok_per_s
    return 0.0 if decode is None else max(0.0, 1 - row.tok_per_s / decode)


def _of(row: MeasuredRow, rows: Sequence[MeasuredRow]) -> RequestTimes | None:
    plain_share = _plain_share(rows, row.concurrency)
    if plain_share is None:
        return None
    plain = [r.tok_per_s for r in baselines(rows, row.concurrency)]
    whole = math.exp(math.fsum(map(math.log, plain)) / len(plain)) / row.tok_per_s
    first = plain_share
    if row.observation.decode_tok_per_s is not None:
        first = _own_share(row) * whole
    if first >= whole or plain_share >= 1:
        return None
    return RequestTimes(plain_first=(plain_share,), first=(first,), decode=(whole - first,))
