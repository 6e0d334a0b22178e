"""``explain``: measured rows in, the whole explanation out. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from spectune.analysis.explain.imposed import imposed_costs
from spectune.analysis.explain.limits import is_contradiction
from spectune.analysis.explain.measured import MeasuredRow, Prediction, baselines, tok_per_s_words
from spectune.analysis.explain.next_actions import next_actions
from spectune.analysis.explain.records import (
    ExplainedRow,
    Explanation,
    ImposedCost,
    ModelError,
    PredictedAgainstMeasured,
)
from spectune.analysis.explain.rows import best_row, explain_row
from spectune.analysis.explain.schedule import schedule
from spectune.analysis.explain.step import step_of
from spectune.analysis.explain.what_if import what_if_table
from spectune.domain.arm import Arm
from spectune.models.arm_shape import id_of
from spectune.models.observation import Observation
from spectune.models.prediction import prediction_error
from spectune.models.speed import SpeedModel


def explain(
    rows: Sequence[MeasuredRow],
    *,
    assumptions: Sequence[str] = (),
    predictions: Sequence[Prediction] = (),
    imposed: Sequence[Observation] = (),
    tried: Sequence[Arm] = (),
    winner_id: str | None = None,
    winning_command: str | None = None,
    machine_ceiling_tok_per_s: float | None = None,
    first_concurrency: int | None = None,
    margin: float = 0.02,
    detectable_frac: float | None = None,
) -> Explanation:
    """Needs a baseline row; ``predictions`` were written before each launch.

    ``imposed``: arms whose acceptance was imposed. What their steps cost goes
    into the model; they are no rows, since their speed is no result. ``tried``: arms that failed or were stopped early.
    ``winner_id``: the arm that is shown to be best, whose command ``winning_command`` is; the fastest need not be it.
    ``detectable_frac``: the smallest difference that the measurements could show; no smaller gain is predicted.
    ``first_concurrency``: the one that the answer is about; else the lowest.
    """
    model = SpeedModel([*(row.observation for row in rows), *imposed])
    explained = tuple(explain_row(row, model, machine_ceiling=machine_ceiling_tok_per_s) for row in rows)
    measured = {row.concurrency for row in rows}
    first = min(measured)
    if first_concurrency is not None and first_concurrency in measured:
        first = first_concurrency
    anchor = _anchor(rows, first)
    table = () if anchor is None else what_if_table(rows, model, anchor, tried=tried)
    costs = imposed_costs(imposed, model)
    compared = [_as_compared(row, rows, model) for row in rows]
    plan = schedule(compared, margin=margin)
    best = best_row(compared, first)
    actions = next_actions(
        compared,
        explained,
        table,
        model,
        concurrency=first,
        anchor=anchor,
        plan=plan,
        least_gain=_least_gain(_error(predictions), detectable_frac),
        detectable_frac=detectable_frac,
        winner_id=winner_id,
        winning_command=winning_command,
    )
    plain = {c: model.baseline_tok_per_s(c) for c in sorted(measured)}
    winner = next((row for row in rows if id_of(row.arm) == winner_id), None)
    return Explanation(
        headline=_headline(
            best, _shown(rows, first, winner_id) or anchor, explained, costs, winner_id, margin, model
        ),
        first_concurrency=first,
        baseline_tok_per_s={str(c): speed for c, speed in plain.items() if speed is not None},
        best_arm=id_of(best.arm),
        rows=explained,
        what_if=table,
        imposed=costs,
        next=actions,
        schedule=plan,
        predictions=tuple(_judged(item) for item in predictions),
        model_error=_error(predictions),
        winning_arm=None if winner is None else "plain decoding" if winner.is_baseline else winner.name,
        winning_command=winning_command,
        winning_request={} if winner is None else dict(winner.arm.request),
        assumptions=(*assumptions, *_unknown_times(rows)),
    )


def _least_gain(error: ModelError | None, detectable_frac: float | None) -> float | None:
    """A predicted gain below it is not worth a word: predictions here missed by as much, or no launch could show it."""
    known = [x for x in (None if error is None else error.median_abs_frac, detectable_frac) if x is not None]
    return max(known, default=None)


def _unknown_times(rows: Sequence[MeasuredRow]) -> list[str]:
    known = [r for r in rows if not r.is_baseline and r.tokens_per_step is not None]
    names = [r.name for r in known if r.observation.times is None]
    if not names:
        return []
    which = (
        ""
        if len(names) == len(known)
        else f"of {names[0]} " + (f"and {len(names) - 1} more " * (len(names) > 1))
    )
    return [
        f"the time to the first token {which}is not known, so whole requests are taken for decoding: where prompts "
        "take a part of the time, a step costs more than said here and breaks even later"
    ]


def _anchor(rows: Sequence[MeasuredRow], concurrency: int) -> MeasuredRow | None:
    """The fastest speculating arm whose acceptance length is known."""
    known = [
        r
        for r in rows
        if not r.is_baseline and r.concurrency == concurrency and r.tokens_per_step is not None
    ]
    return max(known, key=lambda r: r.tok_per_s, default=None)


def _shown(rows: Sequence[MeasuredRow], concurrency: int, winner_id: str | None) -> MeasuredRow | None:
    """The arm that is shown to be best, if it speculates and its acceptance length is known."""
    known = [r for r in rows if not r.is_baseline and r.tokens_per_step is not None]
    return next((r for r in known if r.concurrency == concurrency and id_of(r.arm) == winner_id), None)


def _as_compared(row: MeasuredRow, rows: Sequence[MeasuredRow], model: SpeedModel) -> MeasuredRow:
    """A baseline at the speed that every other row is set against: of several rows, their mean."""
    plain = model.baseline_tok_per_s(row.concurrency)
    if plain is None or row not in baselines(rows, row.concurrency):
        return row
    return replace(row, observation=replace(row.observation, tok_per_s=plain))


def _headline(
    best: MeasuredRow,
    anchor: MeasuredRow | None,
    explained: Sequence[ExplainedRow],
    costs: Sequence[ImposedCost],
    winner_id: str | None,
    margin: float,
    model: SpeedModel,
) -> str:
    if anchor is None and costs and best.is_baseline:
        return f"no drafter's own acceptance was measured; with it imposed, {costs[0].words}"
    if anchor is None:
        return f"{best.name} is the fastest, {tok_per_s_words(best.tok_per_s)}; no acceptance length is known"
    row = next(e for e in explained if e.arm == anchor.name and e.concurrency == anchor.concurrency)
    ratio = row.speedup
    assert ratio is not None  # as of every anchor
    drafting = [e for e in explained if not e.is_baseline and e.concurrency == anchor.concurrency]
    which = "the fastest arm of known acceptance length"
    if id_of(anchor.arm) in (id_of(best.arm), winner_id):
        which = "the best arm"
    elif all(e.e2e_tok_per_s <= anchor.tok_per_s for e in drafting):
        which = "the fastest arm with a draft"
    outcome = _outcome(anchor, ratio, margin)
    at = f" at c={anchor.concurrency}" if len({e.concurrency for e in explained}) > 1 else ""
    if is_contradiction(step_of(anchor, model)):
        outcome = "tells nothing"
    return (
        f"{anchor.name}, {which}, {outcome}: {tok_per_s_words(anchor.tok_per_s)}{at}, {ratio:.2f}x "
        f"plain decoding. Limit: {row.binding_limit}"
    )


def _outcome(row: MeasuredRow, ratio: float, margin: float) -> str:
    """The study's verdict; a table's figures count beyond their errors, or without any beyond the margin."""
    if row.verdict is not None:
        same = f"equals plain decoding within {100 * margin:g} %"
        words = {"FASTER": "wins", "SLOWER": "loses", "SAME": same}
        return words.get(row.verdict, "cannot be told from plain decoding")
    sd, difference = row.observation.log_sd, abs(math.log(ratio))
    if sd is None and row.observation.speedup is None and difference <= math.log1p(margin):
        return f"equals plain decoding within {100 * margin:g} %"
    is_told = row.observation.speedup is None if sd is None else difference > 1.96 * sd
    return "cannot be told from plain decoding" if not is_told else "wins" if ratio > 1 else "loses"


def _judged(prediction: Prediction) -> PredictedAgainstMeasured:
    error = inside = None
    if prediction.pair is not None:
        predicted, measured = prediction.pair
        error = predicted.value / measured - 1
        inside = None
        if predicted.low is not None and predicted.high is not None:
            inside = predicted.low <= measured <= predicted.high
    return PredictedAgainstMeasured(
        arm=prediction.arm,
        predicted_tok_per_s=prediction.predicted_tok_per_s,
        predicted_speedup=prediction.predicted_speedup,
        measured_tok_per_s=prediction.measured_tok_per_s,
        measured_speedup=prediction.measured_speedup,
        error_frac=error,
        inside=inside,
    )


def _error(predictions: Sequence[Prediction]) -> ModelError | None:
    error = prediction_error([p.pair for p in predictions if p.pair is not None])
    if error is None:
        return None
    return ModelError(
        n=error.n,
        median_abs_frac=error.median_abs_frac,
        worst_abs_frac=error.worst_abs_frac,
        inside_frac=error.inside_frac,
        level=error.level,
    )
