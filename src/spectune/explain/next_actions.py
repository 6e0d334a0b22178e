"""What to do next, ranked by what it is predicted to bring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spectune.domain.cost_model import SpeedModel
from spectune.domain.interval import Interval
from spectune.domain.prediction_estimate import LogEstimate
from spectune.domain.prediction_shape import id_of, shape_of
from spectune.explain.measured import MeasuredRow
from spectune.explain.records import ActionKind, ExplainedRow, NextAction, Schedule, WhatIf
from spectune.explain.rows import best_row

_MARGIN = 0.02
_TRAINING_DISCOUNT = 0.25
"""Training is slow and may not get there: its gain counts for less than a flag's (declared)."""


@dataclass(frozen=True)
class _Idea:
    kind: ActionKind
    action: str
    why: str
    speed: Interval | None
    score: float
    """Expected gain over what runs now, as a fraction; orders the list."""
    command: str | None = None
    unmeasured: bool = False


def next_actions(
    rows: Sequence[MeasuredRow],
    explained: Sequence[ExplainedRow],
    what_if: Sequence[WhatIf],
    model: SpeedModel,
    *,
    anchor: MeasuredRow | None,
    plan: Schedule | None,
    winner_id: str | None = None,
    winning_command: str | None = None,
) -> tuple[NextAction, ...]:
    """The most promising first. ``winner_id``: the arm shown to be best, whose command it is; else the fastest."""
    concurrency = min(row.concurrency for row in rows)
    best = best_row(rows, concurrency)
    shown = next((r for r in rows if r.concurrency == concurrency and id_of(r.arm) == winner_id), best)
    ideas = [*_winner(best, shown, anchor, rows, concurrency, winning_command)]
    if anchor is not None:
        by_name = {(e.arm, e.concurrency): e for e in explained}
        ideas += _changes(what_if, best)
        ideas += _drafters(rows, by_name, best)
        trained = _fastest_with_a_drafter(rows, concurrency)
        ideas += [] if trained is None else _train(by_name[(trained.name, trained.concurrency)], best)
    ideas += _switch_off(plan)
    ideas.append(_stop(ideas, best, shown))
    ideas.sort(key=lambda idea: -idea.score)
    return tuple(
        NextAction(
            rank=rank,
            kind=idea.kind,
            action=idea.action,
            why=idea.why,
            predicted_tok_per_s=idea.speed,
            gain_frac=None if idea.speed is None else idea.speed.value / best.tok_per_s - 1,
            command=idea.command,
        )
        for rank, idea in enumerate(ideas, 1)
    )


def _measured(row: MeasuredRow) -> Interval:
    return LogEstimate(row.tok_per_s, row.observation.log_sd or 0.03).interval(unit="tok/s")


def _fastest_with_a_drafter(rows: Sequence[MeasuredRow], concurrency: int) -> MeasuredRow | None:
    """Whose acceptance length is known; n-grams are looked up, and nothing can train them."""
    known = [
        r for r in rows if r.concurrency == concurrency and r.has_drafter and r.tokens_per_step is not None
    ]
    return max(known, key=lambda r: r.tok_per_s, default=None)


def _winner(
    best: MeasuredRow,
    shown: MeasuredRow,
    anchor: MeasuredRow | None,
    rows: Sequence[MeasuredRow],
    concurrency: int,
    command: str | None,
) -> Iterable[_Idea]:
    plain = max(
        (r for r in rows if r.is_baseline and r.concurrency == concurrency), key=lambda r: r.tok_per_s
    )
    if best.is_baseline:
        against = "" if anchor is None else f" against {anchor.tok_per_s:.1f} of the best arm, {anchor.name}"
        loss = 0.0 if anchor is None else plain.tok_per_s / anchor.tok_per_s - 1
        yield _Idea(
            "switch-off",
            "switch speculation off" + (" with this drafter" if anchor is None or anchor.has_drafter else ""),
            f"plain decoding runs {plain.tok_per_s:.1f} tok/s{against}",
            _measured(plain),
            loss,
            command,
        )
        return
    if best is not shown:
        yield _Idea(
            "measure",
            f"measure {best.name} again, with more prompts or repetitions",
            f"{best.tok_per_s:.1f} tok/s against {shown.tok_per_s:.1f} of {shown.name}: these launches do not show it "
            "to be faster",
            _measured(best),
            0.5 * (best.tok_per_s / shown.tok_per_s - 1),
        )
    if not shown.is_baseline:
        gain = shown.tok_per_s / plain.tok_per_s - 1
        yield _Idea(
            "change-flag",
            f"serve {shown.name}",
            f"measured: {shown.tok_per_s:.1f} tok/s, {1 + gain:.2f}x plain decoding",
            _measured(shown),
            gain,
            command,
        )


def _changes(what_if: Sequence[WhatIf], best: MeasuredRow) -> Iterable[_Idea]:
    """Unmeasured settings that may beat the best; the most promising of each factor."""
    factors = ("num_draft_tokens", "num_steps", "cuda_graphs")
    for factor in factors:
        options = [w for w in what_if if w.factor == factor and w.concurrency == best.concurrency]
        if not options:
            continue
        top = max(options, key=lambda w: w.predicted_tok_per_s.value)
        speed = top.predicted_tok_per_s
        reach = speed.high or speed.value
        if reach <= best.tok_per_s * (1 + _MARGIN):
            continue
        likely = speed.value > best.tok_per_s * (1 + _MARGIN)
        word = "predicted to be faster" if likely else "may be faster, and is worth one launch"
        gain = speed.value / best.tok_per_s - 1
        yield _Idea(
            "change-flag" if likely else "measure",
            f"measure {top.arm} with {top.change}",
            f"{word}: {top.basis}",
            speed,
            gain if likely else min(0.01, max(0.001, reach / best.tok_per_s - 1) / 10),
            unmeasured=True,
        )


def _drafters(
    rows: Sequence[MeasuredRow], by_name: dict[tuple[str, int], ExplainedRow], best: MeasuredRow
) -> Iterable[_Idea]:
    """Where drafters were compared in the same shape: which one keeps more."""
    groups: dict[tuple[object, ...], list[MeasuredRow]] = {}
    for row in rows:
        if row.has_drafter:
            shape = shape_of(row.arm)
            key = (row.concurrency, shape.steps, shape.topk, shape.tokens, row.arm.knobs.cuda_graphs)
            groups.setdefault(key, []).append(row)
    for group in groups.values():
        if len({r.arm.knobs.drafter for r in group}) < 2:
            continue
        fastest = max(group, key=lambda r: r.tok_per_s)
        slowest = min(group, key=lambda r: r.tok_per_s)
        words = [f"{r.name} {_length_words(by_name[(r.name, r.concurrency)])}" for r in (fastest, slowest)]
        yield _Idea(
            "use-drafter",
            f"keep the drafter of {fastest.name}, not the one of {slowest.name}",
            f"in the same shape {fastest.tok_per_s:.1f} against {slowest.tok_per_s:.1f} tok/s: {'; '.join(words)}",
            _measured(fastest),
            0.5 * (fastest.tok_per_s / best.tok_per_s - 1) if fastest is not best else 0.0,
        )


def _length_words(row: ExplainedRow) -> str:
    if row.acceptance_length is not None:
        return f"keeps {row.acceptance_length:.2f} tokens per step"
    if row.implied_acceptance_length is not None:
        return f"keeps about {row.implied_acceptance_length.value:.2f} tokens per step, by its speed"
    return "has an unknown acceptance length"


def _train(row: ExplainedRow, best: MeasuredRow) -> Iterable[_Idea]:
    """The acceptance lengths that training would have to reach, at the best arm's step cost."""
    if not row.required or row.acceptance_length is None:
        return
    wanted = [r for r in row.required if r.acceptance_length.value > row.acceptance_length]
    if not wanted:
        return
    words = ", ".join(
        f"{r.acceptance_length.value:.2f} for {r.speedup:g}x ({r.tok_per_s:.0f} tok/s)"
        + (" - out of reach at this depth" if r.reachable is False else "")
        for r in wanted
    )
    reachable = [r for r in wanted if r.reachable is not False]
    aim = reachable[min(1, len(reachable) - 1)] if reachable else wanted[0]
    length = aim.acceptance_length
    speed = LogEstimate(aim.tok_per_s, 0.05).interval(unit="tok/s")
    more = length.value / row.acceptance_length - 1
    gain = aim.tok_per_s / best.tok_per_s - 1
    yield _Idea(
        "train",
        f"train the drafter: it must keep {words}",
        f"it keeps {row.acceptance_length:.2f} now, in {row.arm}; {more:.0%} more is needed for {aim.speedup:g}x, "
        "if the step cost stays",
        speed,
        gain * _TRAINING_DISCOUNT if reachable else -0.5,
    )


def _switch_off(plan: Schedule | None) -> Iterable[_Idea]:
    if plan is None:
        return
    if plan.off_above_concurrency is not None:
        yield _Idea(
            "switch-off-above",
            f"switch speculation off above {plan.off_above_concurrency} requests at once",
            "plain decoding is faster at every larger concurrency measured",
            None,
            0.03,
        )
    if len(set(plan.best_by_concurrency.values())) > 1:
        best = ", ".join(f"{k} at {c}" for c, k in plan.best_by_concurrency.items())
        yield _Idea(
            "schedule",
            "let the draft length follow the batch",
            f"the fastest draft lengths by concurrency: {best}; the engine forms are in `schedule`",
            None,
            0.02,
        )


def _stop(ideas: Sequence[_Idea], best: MeasuredRow, shown: MeasuredRow) -> _Idea:
    count = sum(1 for i in ideas if i.unmeasured)
    why = (
        f"{count} unmeasured setting{'s' * (count > 1)} may still be faster"
        if count
        else f"no setting beside the measured ones is predicted to beat {best.name} by {_MARGIN:.0%}"
    )
    if best is not shown:
        why = f"nothing is shown to be faster; {why}"
    return _Idea("stop", f"stop here, with {shown.name}", why, _measured(shown), 0.0005)
