"""Train more, change the data, change the drafter, or stop: one answer, with its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from spectune.drafter.forecast.forms import Curve, DataPoint
from spectune.drafter.forecast.records import Advice, CategoryRow, ForecastRequest, Needed

REACH = 1000.0
"""Times the largest data set: nobody forecasts further."""
_WORTH_FRAC = 0.03
"""A gain in speed below this is within what other changes do by accident."""
_HOPELESS = 0.2
_WEAK_SHARE = 0.6
_FALL_SDS = 3.0
"""Of the difference of two points: beyond it, noise does not explain why more data gave less."""


def largest_fall(points: Sequence[DataPoint]) -> tuple[DataPoint, DataPoint] | None:
    """A smaller and a larger data set whose acceptance length is lower beyond noise; every form only rises."""
    falls = [
        (few, many)
        for few in points
        for many in points
        if few.num_samples < many.num_samples
        and few.acceptance_length - many.acceptance_length
        > _FALL_SDS * math.hypot(few.total_sd, many.total_sd)
    ]
    return max(falls, key=lambda pair: pair[0].acceptance_length - pair[1].acceptance_length, default=None)


def category_rows(by_category: Mapping[str, Sequence[DataPoint]]) -> tuple[CategoryRow, ...]:
    """Which of them lag behind: a language or a task that the data hardly holds.

    Seen in public: a Kimi-K2.5 draft with 1.48 on CEval beside 2.6 to 3.3 elsewhere, and 2.30 after data of that kind
    (https://huggingface.co/lightseekorg/kimi-k2.5-eagle3).
    """
    last = {name: max(points, key=lambda p: p.num_samples) for name, points in by_category.items() if points}
    rows = []
    for name, point in sorted(last.items()):
        others = [other.acceptance_length - 1 for key, other in last.items() if key != name]
        median = float(np.median(others)) if others else 0.0
        share = (point.acceptance_length - 1) / median if median > 0 else 1.0
        rows.append(
            CategoryRow(
                category=name,
                acceptance_length=point.acceptance_length,
                share_of_median=share,
                growth_per_doubling=_growth(by_category[name]),
                weak=len(others) >= 2 and share < _WEAK_SHARE,
            )
        )
    return tuple(rows)


def _growth(points: Sequence[DataPoint]) -> float | None:
    ordered = sorted(points, key=lambda point: point.num_samples)
    doublings = math.log2(ordered[-1].num_samples / ordered[0].num_samples)
    if doublings <= 0:
        return None
    return (ordered[-1].acceptance_length - ordered[0].acceptance_length) / doublings


def advise(
    request: ForecastRequest, curve: Curve, needed: Sequence[Needed], categories: Sequence[CategoryRow]
) -> tuple[Advice, str, float | None, str | None]:
    """One of four, the reason, and for the first two how much data or which category."""
    fall = largest_fall(curve.points)
    if fall is not None:
        few, many = fall
        because = (
            f"{few.acceptance_length:.2f} tokens per step with {few.num_samples:,.0f} samples and "
            f"{many.acceptance_length:.2f} with {many.num_samples:,.0f}: that is no effect of more data; train all "
            "sizes alike, on data of one kind, and forecast again"
        )
        return "stop", because, None, None
    last = curve.points[-1]
    ten = float(np.median(curve.draws(10 * last.num_samples)))
    gain = ten / last.acceptance_length - 1
    more = f"ten times the data would bring {gain:+.0%} ({last.acceptance_length:.2f} -> {ten:.2f} tokens per step)"
    goal = next((row for row in needed if row.speedup == request.goal_speedup), None)
    speed = request.speed
    now = speed.tok_per_s(last.acceptance_length) / speed.baseline_tok_per_s if speed else None
    reached = now is not None and now >= request.goal_speedup
    weak = min((row for row in categories if row.weak), key=lambda row: row.share_of_median, default=None)
    if goal is not None and not reached and not goal.possible:
        return "change the drafter", _impossible(request, goal), None, None
    if weak is not None and not reached:
        others = f"{weak.category} keeps {weak.acceptance_length:.2f} tokens per step, {weak.share_of_median:.0%} of "
        because = f"{others}the other categories' gain: add prompts of that kind before more of the rest"
        return "change the data", because, None, weak.category
    if goal is not None and not reached:
        return _towards_goal(request, curve, goal, gain, more)
    if gain < _WORTH_FRAC:
        at_goal = f"; {now:.2f}x is already reached" if reached else ""
        return "stop", f"{more}{at_goal}", None, None
    if reached:
        because = (
            f"{now:.2f}x is reached, the goal was {request.goal_speedup:g}x; {more}, if that is worth it"
        )
        return "stop", because, None, None
    return "train more", more, 10 * last.num_samples, None


def _impossible(request: ForecastRequest, goal: Needed) -> str:
    if goal.acceptance_length is None:
        return (
            f"{goal.speedup:g}x is out of reach of any draft: the time before the first token alone is too long; "
            "shorten prompts, or cache them"
        )
    assert request.depth is not None
    return (
        f"{goal.speedup:g}x needs {goal.acceptance_length:.2f} tokens per step, and {request.depth} drafted tokens "
        f"give at most {request.depth + 1}: a cheaper step or another draft length is needed, not data"
    )


def _towards_goal(
    request: ForecastRequest, curve: Curve, goal: Needed, gain: float, more: str
) -> tuple[Advice, str, float | None, str | None]:
    target = f"{goal.speedup:g}x needs {goal.acceptance_length:.2f} tokens per step"
    largest = curve.points[-1].num_samples
    if goal.chance < _HOPELESS:
        assert request.speed is not None
        most = float(np.median(curve.draws(REACH * largest)))
        ceiling = request.speed.tok_per_s(most) / request.speed.baseline_tok_per_s
        because = (
            f"{target}; with a thousand times the data this draft would be near {ceiling:.2f}x (chance "
            f"{goal.chance:.0%} to get there): take a drafter that costs less or can learn more"
        )
        return "change the drafter", because, None, None
    if gain < _WORTH_FRAC:
        return "stop", f"{target}, and {more}: not worth its cost", None, None
    if goal.num_samples is not None and goal.num_samples <= 30 * largest:
        because = f"{target}, likely at {goal.num_samples:,.0f} samples (chance to get there at all {goal.chance:.0%})"
        return "train more", because, goal.num_samples, None
    because = f"{target}, far beyond the data measured; {more}: train on ten times, then forecast again"
    return "train more", because, 10 * largest, None
