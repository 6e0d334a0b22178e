"""Bars: speedup intervals, speedups per category, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from spectune.analysis.records import ArmSummary, LoadSummary, StudySummary, TrialTime
from spectune.analysis.words import number, one_line, percent, ratio, seconds, times
from spectune.domain.interval import Interval
from spectune.domain.trial import PHASES
from spectune.report import svg
from spectune.report.charts import fitted
from spectune.statistics.intervals import Verdict

INTERVAL_WIDTH = 260.0
MAX_CATEGORY_ARMS = 4
MAX_LABELLED_TRIALS = 60
TICK_PX = 44.0


def speedup_scale(loads: Sequence[LoadSummary], *, start: float, end: float) -> svg.Scale:
    """One scale for all rows. An interval wider than three times its value does not stretch it."""
    values: list[float] = []
    for load in loads:
        if load.speedup is not None:
            values += _drawn_values(load.speedup)
    return svg.ratio_scale(values, start=start, end=end)


def _drawn_values(speedup: Interval) -> list[float]:
    ends = [end for end in (speedup.low, speedup.high) if end is not None]
    return [speedup.value, *(e for e in ends if speedup.value / 3 <= e <= speedup.value * 3)]


def interval_axis(scale: svg.Scale) -> Markup:
    """Tick labels over a column of ``interval_bar``; for the eye only."""
    ticks = [
        svg.text(
            f"{tick:g}x", x=scale(tick), y=12, class_="tick strong" if tick == 1 else "tick", anchor="middle"
        )
        for tick in svg.ratio_ticks(scale, apart=TICK_PX)
    ]
    return _hidden(*ticks, height=16)


def interval_bar(speedup: Interval | None, verdict: Verdict | None, scale: svg.Scale) -> Markup:
    """A speedup with its interval beside the line of 1; for the eye only, the numbers stand next to it."""
    middle = 12.0
    parts = [
        svg.line(scale(tick), 0, scale(tick), 24, "grid") for tick in svg.ratio_ticks(scale, apart=TICK_PX)
    ]
    parts.append(svg.line(scale(1), 0, scale(1), 24, "one"))
    tone = f"v-{verdict}" if verdict else "v-none"
    if speedup is None:
        parts.append(svg.marker(3, scale(1), middle, 5, "base"))
    else:
        if speedup.low is not None and speedup.high is not None:
            low, high = scale(speedup.low), scale(speedup.high)
            parts.append(svg.rect(low, middle - 4, high - low, 8, f"band {tone}"))
            for end, at in ((speedup.low, low), (speedup.high, high)):
                if scale.covers(end):
                    parts.append(svg.line(at, middle - 6, at, middle + 6, f"end {tone}"))
        parts.append(svg.marker(0, scale(speedup.value), middle, 4.5, f"dot {tone}"))
    return _hidden(*parts, height=24)


def _hidden(*parts: Markup, height: float) -> Markup:
    return svg.el(
        "svg",
        *parts,
        viewBox=f"0 0 {svg.coordinate(INTERVAL_WIDTH)} {svg.coordinate(height)}",
        width=INTERVAL_WIDTH,
        height=height,
        class_="interval",
        aria_hidden="true",
    )


def speedup_by_category(summary: StudySummary, *, width: float, key: str) -> Markup | None:
    """The fastest arms' speedup in each prompt category; ``None`` below two categories."""
    arms = [a for a in summary.ranked_arms if not a.is_baseline and a.first is not None][:MAX_CATEGORY_ARMS]
    rows: dict[str, list[tuple[ArmSummary, Interval, Verdict | None]]] = {}
    for arm in arms:
        for part in arm.first.categories if arm.first is not None else ():
            if part.speedup is not None:
                rows.setdefault(part.category, []).append((arm, part.speedup, part.verdict))
    if len(rows) < 2:
        return None
    names_px = min(190.0, width * 0.36)
    values_px = 128.0 if width > 500 else 48.0
    values = [v for group in rows.values() for _, speedup, _ in group for v in _drawn_values(speedup)]
    scale = svg.ratio_scale(values, start=names_px + 8, end=width - values_px)
    top, at = 26.0, 26.0
    body: list[Markup] = []
    for category, group in rows.items():
        at += 16
        body.append(svg.text(fitted(category, width / 2), x=0, y=at, class_="group"))
        at += 10
        for arm, speedup, verdict in group:
            body += _category_row(arm, speedup, verdict, scale, at, names_px, wide=width > 500)
            at += 20
        at += 4
    ticks = svg.ratio_ticks(scale, apart=TICK_PX)
    lines = [svg.line(scale(t), top, scale(t), at, "one" if t == 1 else "grid") for t in ticks]
    labels = [svg.text(f"{t:g}x", x=scale(t), y=top - 8, class_="tick", anchor="middle") for t in ticks]
    worst = [f"{c}: {one_line(g[0][0].name)} {ratio(g[0][1].value)}" for c, g in rows.items()]
    return svg.drawing(
        *lines,
        *labels,
        *body,
        width=width,
        height=at + 4,
        key=key,
        title="Speedup by prompt category",
        description="; ".join(worst) + ".",
    )


def _category_row(
    arm: ArmSummary,
    speedup: Interval,
    verdict: Verdict | None,
    scale: svg.Scale,
    at: float,
    names_px: float,
    *,
    wide: bool,
) -> list[Markup]:
    tone = f"v-{verdict}" if verdict else "v-none"
    one, value = scale(1), scale(speedup.value)
    parts = [
        svg.text(fitted(arm.name, names_px - 10), x=10, y=at + 11, class_="tick ink"),
        svg.rect(
            min(one, value),
            at + 2,
            abs(value - one),
            11,
            f"bar {tone}",
            hover=f"{one_line(arm.name)}: {times(speedup)}",
        ),
    ]
    if speedup.low is not None and speedup.high is not None:
        parts.append(svg.line(scale(speedup.low), at + 7.5, scale(speedup.high), at + 7.5, f"whisker {tone}"))
    shown = times(speedup) if wide else ratio(speedup.value)
    return [*parts, svg.text(shown, x=scale.end + 8, y=at + 11, class_="tick ink")]


def phase_class(name: str) -> str:
    """Style class of a phase; unknown ones share the last."""
    known = [*PHASES, "spectune"]
    return f"p{known.index(name)}" if name in known else f"p{len(known)}"


def part_class(name: str) -> str:
    """Style class of a part of a verify step."""
    known = ("baseline forward", "verification", "drafting", "overhead", "no graphs")
    return f"p{known.index(name)}" if name in known else f"p{len(known)}"


def where_time_went(summary: StudySummary, *, width: float, key: str) -> Markup | None:
    """One stacked bar per launch, in order; spectune's own share is the last piece of each."""
    rows = summary.time.trials
    if not rows or summary.time.wall_s <= 0:
        return None
    labelled = len(rows) <= MAX_LABELLED_TRIALS
    row_px = 22.0 if labelled else 6.0
    names_px, values_px = (min(190.0, width * 0.34), 62.0) if labelled else (8.0, 8.0)
    longest = max(row.wall_s + row.gap_before_s for row in rows)
    x = svg.Scale(0, longest, names_px + 8, width - values_px)
    ticks = svg.nice_ticks(0, longest, about=5 if width > 500 else 3)
    body: list[Markup] = []
    at = 22.0
    for row in rows:
        body += _time_row(row, x, at, row_px, names_px, labelled=labelled)
        at += row_px
    lines = [svg.line(x(t), 18, x(t), at, "grid") for t in ticks]
    labels = [svg.text(f"{t:g} s", x=x(t), y=12, class_="tick", anchor="middle") for t in ticks]
    time = summary.time
    shares = ", ".join(f"{name} {percent(s / time.wall_s)}" for name, s in time.phases_s.items())
    return svg.drawing(
        *lines,
        *labels,
        *body,
        width=width,
        height=at + 6,
        key=key,
        title="Where the time of each launch went",
        description=f"{seconds(time.wall_s)} in all: {shares}, spectune itself {percent(time.own_frac)}.",
    )


def _time_row(
    row: TrialTime, x: svg.Scale, at: float, row_px: float, names_px: float, *, labelled: bool
) -> list[Markup]:
    parts: list[Markup] = []
    bar_px = row_px - (7 if labelled else 1)
    begun = 0.0
    pieces = [*row.phases_s.items(), ("spectune", row.own_s + row.gap_before_s)]
    for name, length_s in pieces:
        if length_s > 0:
            left, end = x(begun), x(begun + length_s)
            hover = f"{row.number} {one_line(row.name)}: {name} {seconds(length_s)}" if labelled else None
            parts.append(svg.rect(left, at, end - left, bar_px, f"phase {phase_class(name)}", hover=hover))
        begun += length_s
    if labelled:
        name = fitted(f"{row.number}  {row.name}", names_px)
        parts.append(svg.text(name, x=0, y=at + 12, class_="tick ink"))
        parts.append(svg.text(f"{number(begun)} s", x=x(begun) + 6, y=at + 12, class_="tick"))
    return parts
