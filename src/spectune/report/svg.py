"""Inline SVG, small and escaped: elements, scales and axes. Colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from spectune.analysis.words import visible

Attribute = str | float | int | None

RATIO_TICKS = (
    *(0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 50.0),
)


def el(name: str, *children: str, **attributes: Attribute) -> Markup:
    """One element. Children are escaped unless they are ``Markup``; ``class_`` and ``stroke_width`` lose
    their underscores; an attribute that is ``None`` is left out."""
    parts = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(_attribute(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    inner = "".join(child if isinstance(child, Markup) else escape(visible(child)) for child in children)
    return Markup(f"<{name}{''.join(parts)}>{inner}</{name}>")  # noqa: S704 - every part is escaped above


def _attribute(value: str | float | int) -> str:
    return visible(value) if isinstance(value, str) else coordinate(value)


def coordinate(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def drawing(
    *children: Markup,
    width: float,
    height: float,
    key: str,
    title: str,
    description: str,
    class_: str = "chart",
) -> Markup:
    """An image for sight and for screen readers; ``key`` makes its ids unique on the page."""
    return el(
        "svg",
        el("title", title, id=f"{key}-title"),
        el("desc", description, id=f"{key}-desc"),
        *children,
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        width=width,
        height=height,
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        class_=class_,
    )


def text(content: str, *, x: float, y: float, class_: str | None = None, anchor: str | None = None) -> Markup:
    return el("text", content, x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rect(x: float, y: float, width: float, height: float, class_: str, *, hover: str | None = None) -> Markup:
    children = (el("title", hover),) if hover else ()
    return el("rect", *children, x=x, y=y, width=max(0.0, width), height=max(0.0, height), class_=class_)


def marker(shape: int, x: float, y: float, size: float, class_: str, *, hover: str | None = None) -> Markup:
    """One of four shapes, so that a series is told apart without its colour."""
    children = (el("title", hover),) if hover else ()
    s = size
    if shape % 4 == 0:
        return el("circle", *children, cx=x, cy=y, r=s, class_=class_)
    corners = {
        1: [(x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s)],
        2: [(x, y - 1.3 * s), (x + 1.2 * s, y + s), (x - 1.2 * s, y + s)],
        3: [(x, y - 1.4 * s), (x + 1.4 * s, y), (x, y + 1.4 * s), (x - 1.4 * s, y)],
    }[shape % 4]
    points = " ".join(f"{coordinate(a)},{coordinate(b)}" for a, b in corners)
    return el("polygon", *children, points=points, class_=class_)


@dataclass(frozen=True)
class Scale:
    """Maps values onto pixels; ``log`` for ratios. Values outside land on the nearest edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        if high == low:
            return (self.start + self.end) / 2
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def covers(self, value: float) -> bool:
        return self.low <= value <= self.high


def nice_ticks(low: float, high: float, *, about: int) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) within ``low`` and ``high``."""
    if high <= low:
        return [low]
    raw = (high - low) / max(1, about)
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def ratio_scale(values: Sequence[float], *, start: float, end: float) -> Scale:
    """A logarithmic scale around 1 that holds ``values`` with some air, at least 0.9 to 1.1."""
    known = [v for v in values if v > 0]
    low, high = min([0.9, *known]), max([1.1, *known])
    air = (high / low) ** 0.05
    return Scale(low / air, high * air, start, end, log=True)


def ratio_ticks(scale: Scale, *, apart: float) -> list[float]:
    """Round ratios at least ``apart`` pixels from each other; 1 is always among them."""
    chosen = [1.0]
    candidates = [t for t in RATIO_TICKS if scale.covers(t) and t != 1.0]
    for tick in sorted(candidates, key=lambda t: (-_roundness(t), abs(math.log(t)))):
        if all(abs(scale(tick) - scale(other)) >= apart for other in chosen):
            chosen.append(tick)
    return sorted(chosen)


def _roundness(tick: float) -> int:
    return 2 if tick in (0.1, 0.5, 2.0, 5.0, 10.0) else 1 if (tick * 10) % 2 == 0 else 0
