"""Plots of arms beside the break-even chart: acceptance by context length, and predicted against measured."""

from __future__ import annotations

from markupsafe import Markup

from spectune.analysis.records import ArmSummary, ContextSummary, StudySummary
from spectune.analysis.words import listing, one_line, ratio
from spectune.domain.interval import Interval
from spectune.report import svg
from spectune.report.charts import CHARACTER_PX, coloured_arms, end_labels

_TALLEST = 3.0
"""An interval that reaches further than this from its own value does not stretch the axis."""


def range_words(part: ContextSummary) -> str:
    return f"{part.min_tokens}–{part.max_tokens}"


def acceptance_by_context(summary: StudySummary, *, width: float, key: str) -> Markup | None:
    """Acceptance length in each range of context lengths, a line per arm; ``None`` below two ranges."""
    colours = coloured_arms(summary)
    series: list[tuple[ArmSummary, tuple[ContextSummary, ...]]] = [
        (arm, arm.first.contexts)
        for arm in summary.ranked_arms
        if arm.arm_id in colours and arm.first is not None and arm.first.contexts
    ]
    if not series:
        return None
    ranges = series[0][1]
    height = 300.0
    names_px = min(width * 0.34, max(len(one_line(arm.name)) for arm, _ in series) * CHARACTER_PX + 12)
    left, right, top, bottom = 50.0, width - names_px, 18.0, height - 46.0
    x = svg.Scale(0, len(ranges) - 1, left + 34, right - 34)
    known = [p.acceptance_length for _, parts in series for p in parts if p.acceptance_length is not None]
    tallest = max(min(_high(i), i.value * _TALLEST) for i in known)
    y = svg.Scale(1.0, max(1.5, tallest * 1.04), bottom, top)
    body = _context_axes(ranges, x, y, left=left, right=right, bottom=bottom)
    ends: list[tuple[float, float, str, int]] = []
    for place, (arm, parts) in reversed(list(enumerate(series))):
        colour = colours[arm.arm_id]
        apart = (place - (len(series) - 1) / 2) * 4  # so that whiskers at one range do not cover each other
        body += _context_line(arm, parts, x, y, colour=colour, apart=apart)
        last = max(i for i, p in enumerate(parts) if p.acceptance_length is not None)
        length = parts[last].acceptance_length
        assert length is not None
        ends.append((x(last) + apart, y(length.value), arm.name, colour))
    body += end_labels(ends, limit_px=names_px - 6, right=right, bottom=bottom)
    told = [f"{one_line(arm.name)} {_told(parts[0])} to {_told(parts[-1])}" for arm, parts in series]
    return svg.drawing(
        *body,
        width=width,
        height=height,
        key=key,
        title="Acceptance length by context length",
        description=f"From the shortest contexts ({range_words(ranges[0])} tokens) to the longest "
        f"({range_words(ranges[-1])}): {listing(told, most=8)}.",
    )


def _high(interval: Interval) -> float:
    return interval.value if interval.high is None else interval.high


def _told(part: ContextSummary) -> str:
    return "unknown" if part.acceptance_length is None else f"{part.acceptance_length.value:.2f}"


def _context_axes(
    ranges: tuple[ContextSummary, ...],
    x: svg.Scale,
    y: svg.Scale,
    *,
    left: float,
    right: float,
    bottom: float,
) -> list[Markup]:
    parts = []
    for tick in svg.nice_ticks(y.low, y.high, about=5):
        parts.append(svg.line(left, y(tick), right, y(tick), "axis" if tick == y.low else "grid"))
        parts.append(svg.text(f"{tick:.3g}", x=left - 7, y=y(tick) + 4, class_="tick", anchor="end"))
    every = -(-len(ranges) * 66 // max(1, int(right - left)))  # labels are about 66 pixels wide
    for i, part in enumerate(ranges):
        if i % every == 0:
            parts.append(svg.text(range_words(part), x=x(i), y=bottom + 17, class_="tick", anchor="middle"))
    where = (left + right) / 2
    label = "context length (tokens before the answer)"
    return [*parts, svg.text(label, x=where, y=bottom + 37, class_="label", anchor="middle")]


def _context_line(
    arm: ArmSummary,
    parts: tuple[ContextSummary, ...],
    x: svg.Scale,
    y: svg.Scale,
    *,
    colour: int,
    apart: float,
) -> list[Markup]:
    spots, drawn = [], []
    for i, part in enumerate(parts):
        length = part.acceptance_length
        if length is None:
            continue
        at = x(i) + apart
        spots.append((at, y(length.value)))
        if length.low is not None and length.high is not None:
            drawn.append(svg.line(at, y(length.low), at, y(length.high), f"whisker s{colour}"))
        hover = f"{one_line(arm.name)}, {range_words(part)} tokens: {length.value:.2f}"
        drawn.append(svg.marker(colour, at, y(length.value), 3.8, f"dot s{colour}", hover=hover))
    path = " ".join(f"{svg.coordinate(a)},{svg.coordinate(b)}" for a, b in spots)
    return [svg.el("polyline", points=path, class_=f"trace s{colour}"), *drawn]


def predicted_and_measured(summary: StudySummary, *, width: float, key: str) -> Markup | None:
    """Each arm's speedup as it was predicted before its first launch, and as measured; on the line they agree."""
    found = summary.explanation.predictions if summary.explanation is not None else ()
    known = [
        (p.arm, p.predicted_speedup, p.measured_speedup)
        for p in found
        if p.predicted_speedup is not None and p.measured_speedup is not None
    ]
    if not known:
        return None
    colours = {arm.name: coloured_arms(summary).get(arm.arm_id, 0) for arm in summary.arms}
    height = min(width * 0.8, 360.0)
    left, right, top, bottom = 50.0, min(width - 16, height * 1.3), 18.0, height - 46.0
    values = [v for _, predicted, measured in known for v in (predicted.value, measured)]
    ends = [v for _, p, _ in known for v in (p.low, p.high) if v is not None and v < 2 * max(values)]
    scale_x = svg.ratio_scale([*values, *ends], start=left, end=right)
    scale_y = svg.Scale(scale_x.low, scale_x.high, bottom, top, log=True)
    body = _square_axes(scale_x, scale_y, left=left, right=right, top=top, bottom=bottom)
    for arm, predicted, measured in reversed(known):
        colour, at = colours.get(arm, 0), scale_y(measured)
        if predicted.low is not None and predicted.high is not None:
            body.append(
                svg.line(scale_x(predicted.low), at, scale_x(predicted.high), at, f"whisker s{colour}")
            )
        hover = f"{one_line(arm)}: predicted {ratio(predicted.value)}, measured {ratio(measured)}"
        body.append(svg.marker(colour, scale_x(predicted.value), at, 4.5, f"dot s{colour}", hover=hover))
    told = [f"{one_line(arm)} {ratio(p.value)}, then {ratio(m)}" for arm, p, m in known]
    return svg.drawing(
        *body,
        width=width,
        height=height,
        key=key,
        title="Predicted and measured speedups",
        description=f"Predicted, then measured: {listing(told, most=8)}.",
    )


def _square_axes(
    x: svg.Scale, y: svg.Scale, *, left: float, right: float, top: float, bottom: float
) -> list[Markup]:
    parts = [svg.line(x(x.low), y(x.low), x(x.high), y(x.high), "one")]
    for tick in svg.ratio_ticks(x, apart=44):
        parts += [
            svg.line(x(tick), top, x(tick), bottom, "grid"),
            svg.text(f"{tick:g}x", x=x(tick), y=bottom + 17, class_="tick", anchor="middle"),
        ]
    for tick in svg.ratio_ticks(y, apart=24):
        parts += [
            svg.line(left, y(tick), right, y(tick), "grid"),
            svg.text(f"{tick:g}x", x=left - 7, y=y(tick) + 4, class_="tick", anchor="end"),
        ]
    where = (left + right) / 2
    return [
        *parts,
        svg.text("measured", x=left + 6, y=top + 4, class_="label"),
        svg.text("predicted", x=where, y=bottom + 37, class_="label", anchor="middle"),
    ]
