"""Speeds that were not measured: other acceptance, draft lengths, concurrency, graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any, Literal

from spectune.analysis.explain.limits import is_dead
from spectune.analysis.explain.measured import MeasuredRow
from spectune.analysis.explain.records import WhatIf
from spectune.analysis.explain.step import Step, step_of
from spectune.domain.arm import Arm
from spectune.models.arm_shape import VARIABLE_METHODS, Shape, arm_facts, shape_of
from spectune.models.speed import ArmPrediction, SpeedModel
from spectune.statistics.estimate import LogEstimate

_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
_CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128)
Draft = tuple[str, Shape, bool | None]
Factor = Literal["acceptance", "num_draft_tokens", "num_steps", "concurrency", "cuda_graphs", "overhead"]


def what_if_table(
    rows: Sequence[MeasuredRow], model: SpeedModel, anchor: MeasuredRow, *, tried: Sequence[Arm] = ()
) -> tuple[WhatIf, ...]:
    """Changes of ``anchor``, the fastest speculating arm, one at a time; none to an arm that was ``tried`` in vain."""
    step = step_of(anchor, model)
    if step is None:
        return ()
    known = {_draft(row.arm) for row in rows if row.concurrency == anchor.concurrency} | set(
        map(_draft, tried)
    )
    return (
        *_acceptance(step),
        *_overhead(step),
        *_lengths(anchor, model, known),
        *_graphs(anchor, model, rows, known),
        *_concurrency(anchor, model, rows),
    )


def _acceptance(step: Step) -> Iterable[WhatIf]:
    """Other acceptance lengths at the step cost as measured: cost does not depend on what is kept."""
    anchor = step.row
    now = anchor.as_length(step.tokens)
    lengths = {round(step.break_even_length.value, 3): "break-even of decoding"}
    lengths |= {round(now + 0.5, 2): "half a token more", round(now + 1.0, 2): "one token more"}
    if anchor.depth:
        lengths = {k: v for k, v in lengths.items() if k < anchor.depth + 1}
        lengths[float(anchor.depth + 1)] = "every draft kept"
    for length, label in sorted(lengths.items()):
        tokens = 1 + anchor.verify_frac * (length - 1)
        change, basis = f"acceptance length {length:.2f} ({label})", "at the measured step cost"
        yield _made(step, "acceptance", change, length, step.speed(tokens=tokens), basis)


def _overhead(step: Step) -> Iterable[WhatIf]:
    now, least = step.row.as_length(step.tokens), min(step.ratio, 1.0)
    for share, label in (
        (0.5, "half of what a step adds to a plain one saved"),
        (1.0, "a verify step as cheap as a plain one"),
    ):
        speed = step.speed(ratio=(1 - share) * step.ratio + share * least)
        yield _made(step, "overhead", label, now, speed, "arithmetic, not a setting")


def _lengths(anchor: MeasuredRow, model: SpeedModel, known: Set[Draft]) -> Iterable[WhatIf]:
    for arm, label in length_changes(anchor):
        if _draft(arm) not in known:
            prediction = model.predict(arm, concurrency=anchor.concurrency)
            yield _predicted(anchor, "num_draft_tokens", label, prediction)


def length_changes(anchor: MeasuredRow) -> list[tuple[Arm, str]]:
    """The anchor with other numbers of drafted tokens: a chain's length, or a tree's tokens."""
    shape = shape_of(anchor.arm)
    found = []
    # What is looked up keeps what the text repeats, which no other length tells; of a dead draft nothing is kept.
    if not anchor.depth or anchor.arm.knobs.method in VARIABLE_METHODS or is_dead(anchor):
        return []
    for tokens in _LENGTHS:
        if shape.topk == 1:
            changed, label = {"num_steps": tokens, "num_draft_tokens": tokens}, f"a chain of {tokens}"
            near = tokens <= shape.tokens + 4
        else:
            changed, label = {"num_draft_tokens": tokens}, f"{tokens} draft tokens"
            most = shape.topk + (shape.steps - 1) * shape.topk**2
            near = shape.steps <= tokens <= min(most, 2 * shape.tokens)
        if near and tokens != shape.tokens:
            found.append((_changed(anchor.arm, label, changed), label))
    return found


def _graphs(
    anchor: MeasuredRow, model: SpeedModel, rows: Sequence[MeasuredRow], known: Set[Draft]
) -> Iterable[WhatIf]:
    """Only where some pair of rows shows what graphs do."""
    seen = {row.arm.knobs.cuda_graphs for row in rows if not row.is_baseline}
    if not {True, False} <= seen:
        return
    other = anchor.arm.knobs.cuda_graphs is False
    label = "with graphs" if other else "without graphs"
    arm = _changed(anchor.arm, label, {"cuda_graphs": other})
    if _draft(arm) not in known:
        prediction = model.predict(arm, concurrency=anchor.concurrency)
        yield _predicted(anchor, "cuda_graphs", label, prediction)


def _concurrency(anchor: MeasuredRow, model: SpeedModel, rows: Sequence[MeasuredRow]) -> Iterable[WhatIf]:
    """Between measured concurrencies only: beyond them nothing says how the baseline itself goes on."""
    measured = sorted({row.concurrency for row in rows})
    for concurrency in _CONCURRENCIES:
        if measured[0] < concurrency < measured[-1] and concurrency not in measured:
            prediction = model.predict(anchor.arm, concurrency=concurrency)
            found = _predicted(anchor, "concurrency", f"{concurrency} requests at once", prediction)
            basis = f"{found.basis}; plain decoding taken between its measured concurrencies"
            yield found.model_copy(update={"basis": basis})


def _draft(arm: Arm) -> Draft:
    """Equal for arms that draft the same, however it is written: a chain of 3 with its steps given, and without."""
    facts = arm_facts(arm)
    return facts.setting, facts.shape, arm.knobs.cuda_graphs


def _changed(arm: Arm, label: str, knobs: dict[str, Any]) -> Arm:
    return arm.model_copy(
        update={"name": f"{arm.name}, {label}", "knobs": arm.knobs.model_copy(update=knobs)}
    )


def _predicted(anchor: MeasuredRow, factor: Factor, label: str, prediction: ArmPrediction) -> WhatIf:
    case = prediction.acceptance.case
    basis = {
        "own": "its acceptance as measured, its step cost predicted",
        "derived": "acceptance derived from a longer chain, step cost predicted",
        "regressed": "acceptance and step cost predicted from other shapes",
        "unknown": "nothing like it was measured",
    }[case]
    speed, most = prediction.tok_per_s, prediction.zero_overhead_tok_per_s
    if speed.value > most:  # no step that verifies a draft is cheaper than a plain one
        speed = LogEstimate(most, speed.log_sd)
    return WhatIf(
        factor=factor,
        arm=anchor.name,
        change=label,
        concurrency=prediction.concurrency,
        acceptance_length=prediction.acceptance.length.value,
        predicted_tok_per_s=speed.interval(unit="tok/s"),
        speedup=speed.value / prediction.baseline_tok_per_s,
        basis=basis,
    )


def _made(step: Step, factor: Factor, change: str, length: float, speed: LogEstimate, basis: str) -> WhatIf:
    return WhatIf(
        factor=factor,
        arm=step.row.name,
        change=change,
        concurrency=step.row.concurrency,
        acceptance_length=length,
        predicted_tok_per_s=speed.interval(unit="tok/s"),
        speedup=speed.value / step.baseline_tok_per_s,
        basis=basis,
    )
