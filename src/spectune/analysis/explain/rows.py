"""Each measured row: step cost, its parts, break-even, ceilings, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spectune.analysis.explain.limits import binding_limit, unknown_limit
from spectune.analysis.explain.measured import MeasuredRow
from spectune.analysis.explain.records import ExplainedRow, LossShares, RequiredLength, StepPart
from spectune.analysis.explain.step import Step, step_of
from spectune.domain.interval import Interval
from spectune.models.arm_shape import id_of
from spectune.models.speed import DEFAULT_LOG_SD, SpeedModel
from spectune.statistics.estimate import LogEstimate

TARGET_SPEEDUPS = (1.0, 1.3, 1.5)


def explain_row(row: MeasuredRow, model: SpeedModel, *, machine_ceiling: float | None = None) -> ExplainedRow:
    """``machine_ceiling``: plain tok/s if a step were only the reading of the weights."""
    baseline = model.baseline_tok_per_s(row.concurrency)
    if baseline is None:
        raise ValueError("no baseline was measured")
    found = ExplainedRow(
        arm=row.name,
        arm_id=id_of(row.arm),
        is_baseline=row.is_baseline,
        has_drafter=row.has_drafter,
        concurrency=row.concurrency,
        e2e_tok_per_s=row.tok_per_s,
        speedup=None if row.is_baseline else row.tok_per_s / baseline,
        tokens_per_pass=row.tokens_per_step,
        most_tokens_per_pass=row.most_tokens,
        verify_step_frac=None if row.is_baseline or row.tokens_per_step is None else row.verify_frac,
        acceptance_length=row.acceptance_length.value if row.acceptance_length else None,
        acceptance_length_interval=row.acceptance_length,
        acceptance_assumed_from=row.assumed_from,
        step_cost_s=None,
        step_cost_ratio=None,
        break_even_acceptance_length=None,
        zero_overhead_tok_per_s=None,
        perfect_acceptance_tok_per_s=None,
        binding_limit="",
        binding_factor=None,
    )
    step = step_of(row, model)
    if step is None:
        implied = implied_length(row, model)
        sentence, factor = unknown_limit(row, implied, baseline), None
        added: dict[str, object] = {"implied_acceptance_length": implied}
    else:
        parts = step_parts(step, model)
        losses = _losses(step)
        sentence, factor = binding_limit(step, parts, losses)
        added = _of_step(step, machine_ceiling) | {"parts": parts, "loss_shares": losses}
    return found.model_copy(update={**added, "binding_limit": sentence, "binding_factor": factor})


def _of_step(step: Step, machine_ceiling: float | None) -> dict[str, object]:
    row, most = step.row, step.row.most_tokens
    found: dict[str, object] = {
        "step_cost_s": step.s,
        "step_cost_ratio": step.ratio,
        "first_token_s": step.first_token_s,
        "first_token_share": step.first_token_share,
        "zero_overhead_tok_per_s": step.speed(ratio=1.0).value,
        "perfect_acceptance_tok_per_s": None if most is None else step.speed(tokens=most).value,
    }
    if machine_ceiling is not None:
        found["machine_ceiling_tok_per_s"] = step.speed(ratio=1 / (machine_ceiling * step.forward_s)).value
    if not row.is_baseline:
        even = step.break_even_length
        found |= {
            "break_even_tokens_per_pass": step.ratio,
            "break_even_acceptance_length": even.value,
            "break_even_interval": even,
            "break_even_reachable": step.can_reach(step.ratio),
            "required": required_lengths(step),
        }
    return found


def step_parts(step: Step, model: SpeedModel) -> tuple[StepPart, ...]:
    """Baseline forward pass, what the fitted model says of the rest, and what it cannot say."""
    row, forward_s, step_s = step.row, step.forward_s, step.s

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


def _losses(step: Step) -> LossShares | None:
    """Logarithms of the two factors by which decoding falls short of the ideal, as shares."""
    most = step.row.most_tokens
    if most is None:
        return None
    acceptance = math.log(most / min(step.tokens, most))
    overhead = max(0.0, math.log(step.ratio))
    total = acceptance + overhead
    if total <= 0:
        return None
    return LossShares(acceptance=acceptance / total, step_overhead=overhead / total)


def required_lengths(step: Step) -> tuple[RequiredLength, ...]:
    """For speedups worth having, at the step cost as measured."""
    return tuple(
        RequiredLength(
            speedup=speedup,
            tok_per_s=speedup * step.baseline_tok_per_s,
            acceptance_length=step.length_for(speedup),
            tokens_per_pass=step.tokens_for(speedup),
            reachable=step.can_reach(step.tokens_for(speedup)),
        )
        for speedup in TARGET_SPEEDUPS
    )


def implied_length(row: MeasuredRow, model: SpeedModel) -> Interval | None:
    """Acceptance length that a speed means, if its steps cost what those of other drafts do; ``None`` without one."""
    known = any(o.acceptance_length is not None and not o.arm.is_baseline for o in model.observations)
    if row.is_baseline or not known:
        return None
    prediction = model.predict(row.arm, concurrency=row.concurrency)
    cost = prediction.cost
    length = prediction.length_for(row.tok_per_s)
    if length is None:
        return None
    value = max(1.0, length)
    return LogEstimate(value, math.hypot(cost.sd / cost.value, DEFAULT_LOG_SD)).interval(
        unit="tokens/step", level=0.9
    )


def best_row(rows: Sequence[MeasuredRow], concurrency: int) -> MeasuredRow:
    """The fastest at one concurrency."""
    return max((r for r in rows if r.concurrency == concurrency), key=lambda r: r.tok_per_s)
