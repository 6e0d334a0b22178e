"""Charts of how fast and how well an arm drafts: speed against acceptance, and acceptance by position."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from spectune.analysis.records import ArmSummary, LoadSummary, StudySummary
from spectune.analysis.words import count, listing, number, one_line, ratio
from spectune.report import svg

MAX_SERIES = 8
"""Arms with a colour of their own; the others are drawn grey and without a label."""
CHARACTER_PX = 7.3


def coloured_arms(summary: StudySummary) -> dict[str, int]:
    """The fastest arms' ids and their colours 1..8; an arm keeps its colour in every chart."""
    speculative = [a for a in summary.ranked_arms if not a.is_baseline and a.first is not None]
    return {arm.arm_id: index for index, arm in enumerate(speculative[:MAX_SERIES], start=1)}


def fitted(name: str, width_px: float) -> str:
    """``name`` on one line, cut to what fits."""
    return one_line(name, limit=max(4, int(width_px / CHARACTER_PX)))


@dataclass(frozen=True)
class _Point:
    arm: ArmSummary
    length: float
    speedup: float
    low: float | None
    high: float | None
    colour: int


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def hits(self, other: _Box) -> bool:
        return not (
            self.right < other.left
            or other.right < self.left
            or self.bottom < other.top
            or other.bottom < self.top
        )


def speed_against_acceptance(summary: StudySummary, *, width: float, key: str) -> Markup | None:
    """Each arm at its tokens per forward pass and its speedup times the baseline's speed.

    Drawn at the speedup and not at the raw tok/s, so that a drift of the machine
    between launches moves no point. ``None`` when no arm has both figures.
    """
    base = summary.baseline.first
    base_speed = base.e2e_tok_per_s.value if base is not None and base.e2e_tok_per_s is not None else None
    points = _points(summary)
    if base_speed is None or not points:
        return None
    height = 380.0 if width > 500 else 330.0
    left, right, top, bottom = 50.0, width - 48.0, 18.0, height - 46.0
    lengths = [p.length for p in points]
    reach = max(lengths) * 1.4
    needs = [p.arm.break_even_tokens_per_pass for p in points if p.colour]
    marks = [needed for needed in needs if needed is not None and needed <= reach]
    x = svg.Scale(0.95, max([*lengths, *marks]) * 1.06, left, right)
    values = [v for p in points for v in (p.speedup, p.low, p.high) if v is not None]
    tallest = max(p.speedup for p in points) * 1.6
    y = svg.Scale(max(0.0, min(*values, 1.0) * 0.9), min(max(*values, 1.0), tallest) * 1.06, bottom, top)
    body = [*_axes(x, y, base_speed, left=left, right=right, bottom=bottom, top=top)]
    taken = [_Box(left, y(1) - 18, left + 100, y(1) + 2), _Box(left, y(1) - 3, right, y(1) + 3)]
    for point in reversed(points):
        body += _point(point, x, y)
        taken += _occupied(point, x, y)
    body.append(svg.marker(3, x(1), y(1), 5, "base", hover=f"baseline: {number(base_speed)} tok/s"))
    body += _labels(points, x, y, taken, right=right, top=top, bottom=bottom)
    return svg.drawing(
        *body,
        width=width,
        height=height,
        key=key,
        title="Speed against tokens per forward pass",
        description=_scatter_words(points, base_speed),
    )


def _points(summary: StudySummary) -> list[_Point]:
    colours = coloured_arms(summary)
    found = []
    for arm in summary.ranked_arms:
        load = arm.first
        if load is not None and load.speedup is not None and load.acceptance_length is not None:
            s = load.speedup
            length = load.tokens_per_pass or load.acceptance_length.value
            found.append(_Point(arm, length, s.value, s.low, s.high, colours.get(arm.arm_id, 0)))
    return found


def _axes(
    x: svg.Scale, y: svg.Scale, base_speed: float, *, left: float, right: float, bottom: float, top: float
) -> list[Markup]:
    parts = [svg.rect(left, y(1), right - left, bottom - y(1), "loss")]
    for tick in svg.nice_ticks(y.low * base_speed, y.high * base_speed, about=5):
        at = y(tick / base_speed)
        parts += [svg.line(left, at, right, at, "grid")]
        parts += [svg.text(f"{tick:g}", x=left - 7, y=at + 4, class_="tick", anchor="end")]
    for tick in svg.nice_ticks(y.low, y.high, about=6):
        if abs(y(tick) - y(1)) > 14:
            parts.append(svg.text(ratio(tick), x=right + 6, y=y(tick) + 4, class_="tick"))
    for tick in svg.nice_ticks(x.low, x.high, about=6):
        parts += [svg.line(x(tick), bottom, x(tick), bottom + 4, "axis")]
        parts += [svg.text(f"{tick:.3g}", x=x(tick), y=bottom + 17, class_="tick", anchor="middle")]
    parts += [
        svg.line(left, y(1), right, y(1), "one"),
        svg.text("1.00x", x=right + 6, y=y(1) + 4, class_="tick strong"),
        svg.text("break-even", x=left + 24, y=y(1) - 6, class_="note"),
        svg.text("tok/s", x=left - 7, y=top - 5, class_="tick", anchor="end"),
        svg.text(
            "tokens per forward pass",
            x=(left + right) / 2,
            y=bottom + 37,
            class_="label",
            anchor="middle",
        ),
    ]
    return parts


def _point(point: _Point, x: svg.Scale, y: svg.Scale) -> list[Markup]:
    parts = []
    px, py, colour = x(point.length), y(point.speedup), f"s{point.colour}"
    needed = point.arm.break_even_tokens_per_pass
    if needed is not None and point.colour:
        if needed <= x.high:
            parts.append(svg.line(px, py, x(needed), y(1), f"reach {colour}"))
            parts.append(svg.line(x(needed), y(1) - 6, x(needed), y(1) + 6, f"mark {colour}"))
        else:
            edge = point.speedup + (1 - point.speedup) * (x.high - point.length) / (needed - point.length)
            parts.append(svg.line(px, py, x(x.high), y(edge), f"reach {colour}"))
    if point.low is not None and point.high is not None:
        parts.append(svg.line(px, y(point.low), px, y(point.high), f"whisker {colour}"))
    about = f"{one_line(point.arm.name)}: {ratio(point.speedup)}, {point.length:.2f} tokens per forward pass"
    parts.append(svg.marker(point.colour, px, py, 4.5, f"dot {colour}", hover=about))
    return parts


def _occupied(point: _Point, x: svg.Scale, y: svg.Scale) -> list[_Box]:
    """Where a name would hide a point or its interval."""
    px, py = x(point.length), y(point.speedup)
    top = y(point.high) if point.high is not None else py
    bottom = y(point.low) if point.low is not None else py
    return [_Box(px - 6, py - 6, px + 6, py + 6), _Box(px - 1, top, px + 1, bottom)]


def _labels(
    points: list[_Point],
    x: svg.Scale,
    y: svg.Scale,
    taken: list[_Box],
    *,
    right: float,
    top: float,
    bottom: float,
) -> list[Markup]:
    """A name beside each coloured point, where one of a few places is free; else none."""
    parts: list[Markup] = []
    for point in points:
        if not point.colour:
            continue
        name = fitted(point.arm.name, x.end / 3.2)
        wide, px, py = len(name) * CHARACTER_PX, x(point.length), y(point.speedup)
        steps = (4.0, -10.0, 18.0, -24.0, 32.0)
        for dx, dy in [(9.0, step) for step in steps] + [(-9.0 - wide, step) for step in steps]:
            box = _Box(px + dx, py + dy - 11, px + dx + wide, py + dy + 3)
            inside = box.left > x.start and box.right < right and box.top > top - 8 and box.bottom < bottom
            if inside and not any(box.hits(other) for other in taken):
                taken.append(box)
                parts.append(svg.text(name, x=box.left, y=py + dy, class_=f"name s{point.colour}"))
                break
    return parts


def _scatter_words(points: list[_Point], base_speed: float) -> str:
    best = points[0]
    above = sum(p.speedup > 1 for p in points)
    return (
        f"{count(len(points), 'arm')}; plain decoding runs at {number(base_speed)} tok/s. "
        f"{above} of {len(points)} lie above that line. Fastest: {one_line(best.arm.name)} with "
        f"{ratio(best.speedup)} at {best.length:.2f} tokens per forward pass. All figures are in the table of arms."
    )


def acceptance_by_position(summary: StudySummary, *, width: float, key: str) -> Markup | None:
    """Marginal acceptance of each draft position, a line per arm; ``None`` when no arm knows it."""
    colours = coloured_arms(summary)
    series: list[tuple[ArmSummary, tuple[float, ...]]] = [
        (arm, rates)
        for arm in summary.ranked_arms
        if arm.arm_id in colours and arm.first is not None and (rates := _rates(arm.first))
    ]
    if not series:
        return None
    height = 300.0
    names_px = min(width * 0.34, max(len(one_line(arm.name)) for arm, _ in series) * CHARACTER_PX + 12)
    left, right, top, bottom = 50.0, width - names_px, 18.0, height - 46.0
    longest = max(len(rates) for _, rates in series)
    x = svg.Scale(1, max(2, longest), left + 14, right - 8)
    y = svg.Scale(0, 1, bottom, top)
    body: list[Markup] = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        body.append(svg.line(left, y(tick), right, y(tick), "axis" if tick == 0 else "grid"))
        body.append(svg.text(f"{100 * tick:.0f} %", x=left - 7, y=y(tick) + 4, class_="tick", anchor="end"))
    every = max(1, round(longest / 12))
    for position in range(1, longest + 1, every):
        body.append(svg.text(str(position), x=x(position), y=bottom + 17, class_="tick", anchor="middle"))
    where = (left + right) / 2
    body.append(svg.text("draft position", x=where, y=bottom + 37, class_="label", anchor="middle"))
    ends: list[tuple[float, float, str, int]] = []
    for arm, rates in reversed(series):
        colour = colours[arm.arm_id]
        spots = [(x(i), y(rate)) for i, rate in enumerate(rates, start=1)]
        path = " ".join(f"{svg.coordinate(a)},{svg.coordinate(b)}" for a, b in spots)
        body.append(svg.el("polyline", points=path, class_=f"trace s{colour}"))
        for i, (a, b) in enumerate(spots):
            hover = f"{one_line(arm.name)}, position {i + 1}: {100 * rates[i]:.1f} %"
            body.append(svg.marker(colour, a, b, 3.8, f"dot s{colour}", hover=hover))
        ends.append((*spots[-1], arm.name, colour))
    body += end_labels(ends, limit_px=names_px - 6, right=right, bottom=bottom)
    first = [f"{one_line(arm.name)} {100 * rates[0]:.0f} %" for arm, rates in series]
    return svg.drawing(
        *body,
        width=width,
        height=height,
        key=key,
        title="Acceptance by draft position",
        description=f"Share of verify steps that kept a position. Position 1: {listing(first, most=8)}.",
    )


def _rates(load: LoadSummary) -> tuple[float, ...]:
    return load.accepted_per_position or ()


def end_labels(
    ends: list[tuple[float, float, str, int]], *, limit_px: float, right: float, bottom: float
) -> list[Markup]:
    """Names in the right margin, spread so that none covers another, with leaders to the lines' ends."""
    parts: list[Markup] = []
    free_y = bottom + 4
    for end_x, end_y, name, colour in sorted(ends, key=lambda e: -e[1]):
        at = min(end_y + 4, free_y)
        free_y = at - 15
        parts.append(svg.line(end_x + 6, end_y, right, at - 4, "leader"))
        parts.append(svg.text(fitted(name, limit_px), x=right + 5, y=at, class_=f"name s{colour}"))
    return parts
