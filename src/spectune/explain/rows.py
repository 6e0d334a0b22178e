"""Each measured row: step cost, its parts, break-even, ceilings, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spectune.domain.cost_model import DEFAULT_LOG_SD, SpeedModel
from spectune.domain.interval import Interval
from spectune.domain.prediction_estimate import LogEstimate
from spectune.domain.prediction_shape import id_of
from spectune.explain.limits import binding_limit
from spectune.explain.measured import MeasuredRow
from spectune.explain.records import ExplainedRow, LossShares, RequiredLength, StepPart

TARGET_SPEEDUPS = (1.0, 1.3, 1.5)


def explain_row(row: MeasuredRow, model: SpeedModel, *, machine_ceiling: float | None = None) -> ExplainedRow:
    """``machine_ceiling``: plain tok/s if a step were only the reading of the weights."""
    baseline = model.baseline_tok_per_s(row.concurrency)
    if baseline is None:
        raise ValueError("no baseline was measured")
    length = row.tokens_per_step
    step_s = None if length is None else length / row.tok_per_s
    ratio = None if step_s is None else step_s * baseline
    parts = () if step_s is None else step_parts(row, model, step_s=step_s, baseline=baseline)
    losses = _losses(length, ratio, row.most_tokens)
    break_even = None if row.is_baseline or ratio is None else row.as_length(ratio)
    implied = implied_length(row, model) if length is None else None
    sentence, factor = binding_limit(
        row, ratio=ratio, parts=parts, losses=losses, baseline=baseline, implied=implied
    )
    return ExplainedRow(
        arm=row.name,
        arm_id=id_of(row.arm),
        is_baseline=row.is_baseline,
        has_drafter=row.has_drafter,
        concurrency=row.concurrency,
        e2e_tok_per_s=row.tok_per_s,
        speedup=None if row.is_baseline else row.tok_per_s / baseline,
        acceptance_length=row.acceptance_length.value if row.acceptance_length else None,
        acceptance_length_interval=row.acceptance_length,
        acceptance_assumed_from=row.assumed_from,
        implied_acceptance_length=implied,
        step_cost_s=step_s,
        step_cost_ratio=ratio,
        break_even_acceptance_length=break_even,
        break_even_interval=None if break_even is None else _length_interval(row, break_even),
        zero_overhead_tok_per_s=None if length is None else length * baseline,
        perfect_acceptance_tok_per_s=None
        if step_s is None or row.most_tokens is None
        else row.most_tokens / step_s,
        machine_ceiling_tok_per_s=None
        if machine_ceiling is None or length is None
        else machine_ceiling * length,
        parts=parts,
        loss_shares=losses,
        binding_limit=sentence,
        binding_factor=factor,
        required=() if step_s is None or row.is_baseline else required_lengths(row, step_s, baseline),
    )


def step_parts(
    row: MeasuredRow, model: SpeedModel, *, step_s: float, baseline: float
) -> tuple[StepPart, ...]:
    """Baseline forward pass, what the fitted model says of the rest, and what it cannot say."""
    forward_s = 1 / baseline

    def part(name: str, s: float, sd_s: float | None, separated: bool) -> StepPart:
        low = None if sd_s is None else max(0.0, s - 1.645 * sd_s)
        high = None if sd_s is None else s + 1.645 * sd_s
        return StepPart(name=name, s=s, share=s / step_s, low_s=low, high_s=high, separated=separated)

    if row.is_baseline:
        return (part("baseline forward", step_s, None, True),)
    found = [part("baseline forward", forward_s, None, True)]
    components = model.cost.components(
        row.arm,
        concurrency=row.concurrency,
        context_tokens=row.observation.context_tokens,
        drafted=model.drafted(row.arm),
    )
    added_s = math.fsum(c.cost.value for c in components) * forward_s
    # No part takes more than what the step has beyond a plain one.
    fits = min(1.0, max(0.0, step_s - forward_s) / added_s) if added_s > 0 else 1.0
    for component in components:
        s, sd_s = component.cost.value * forward_s * fits, component.cost.sd * forward_s
        found.append(part(component.name, s, sd_s, component.separated))
    rest = step_s - math.fsum(p.s for p in found)
    if abs(rest) > 0.005 * step_s:
        found.append(part("not explained", rest, None, True))
    return tuple(found)


def _losses(tokens: float | None, ratio: float | None, most: float | None) -> LossShares | None:
    """Logarithms of the two factors by which speed falls short of the ideal, as shares."""
    if tokens is None or ratio is None or most is None:
        return None
    acceptance = math.log(most / min(tokens, most))
    overhead = max(0.0, math.log(ratio))
    total = acceptance + overhead
    if total <= 0:
        return None
    return LossShares(acceptance=acceptance / total, step_overhead=overhead / total)


def _length_interval(row: MeasuredRow, value: float) -> Interval:
    return LogEstimate(value, row.length_error).interval(unit="tokens/step", level=0.9)


def required_lengths(row: MeasuredRow, step_s: float, baseline: float) -> tuple[RequiredLength, ...]:
    """For speedups worth having, at the step cost as measured."""
    found = []
    for speedup in TARGET_SPEEDUPS:
        length = row.as_length(speedup * baseline * step_s)
        found.append(
            RequiredLength(
                speedup=speedup,
                tok_per_s=speedup * baseline,
                acceptance_length=_length_interval(row, length),
                reachable=None if not row.depth else length <= row.depth + 1,
            )
        )
    return tuple(found)


def implied_length(row: MeasuredRow, model: SpeedModel) -> Interval | None:
    """Acceptance length that a speed means, if its steps cost what those of other drafts do; ``None`` without one."""
    known = any(o.acceptance_length is not None and not o.arm.is_baseline for o in model.observations)
    if row.is_baseline or not known:
        return None
    prediction = model.predict(row.arm, concurrency=row.concurrency)
    cost = prediction.cost
    value = max(1.0, prediction.length_for(row.tok_per_s))
    return LogEstimate(value, math.hypot(cost.sd / cost.value, DEFAULT_LOG_SD)).interval(
        unit="tokens/step", level=0.9
    )


def best_row(rows: Sequence[MeasuredRow], concurrency: int) -> MeasuredRow:
    """The fastest at one concurrency."""
    return max((r for r in rows if r.concurrency == concurrency), key=lambda r: r.tok_per_s)
