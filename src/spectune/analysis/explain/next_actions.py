"""What to do next, ranked by what it is predicted to bring."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spectune.analysis.explain.limits import is_contradiction, is_dead
from spectune.analysis.explain.measured import (
    MeasuredRow,
    log_sd_of,
    three_digits,
    tok_per_s_words,
    told_apart,
)
from spectune.analysis.explain.records import ActionKind, ExplainedRow, NextAction, Schedule, WhatIf
from spectune.analysis.explain.rows import best_row
from spectune.analysis.explain.step import step_of
from spectune.domain.interval import Interval
from spectune.models.arm_shape import id_of, shape_of
from spectune.models.speed import DEFAULT_LOG_SD, SpeedModel
from spectune.statistics.estimate import LogEstimate

_MARGIN = 0.02
_REACH_OF_90 = 1.645
_AGAIN = "spectune run STUDY_DIR/study.yaml --dir STUDY_DIR --set repetitions=N"
"""Launches that a study has are kept; what is missing is made."""
_DEAD_SCORE = 0.03
_HIDDEN_BY_NOISE = 1.0
"""Where no smaller difference than this can be shown, a faster arm would hardly be seen."""
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
    concurrency: int,
    anchor: MeasuredRow | None,
    plan: Schedule | None,
    least_gain: float | None = None,
    detectable_frac: float | None = None,
    winner_id: str | None = None,
    winning_command: str | None = None,
) -> tuple[NextAction, ...]:
    """The most promising first. ``winner_id``: the arm shown to be best, whose command it is; else the fastest."""
    best = best_row(rows, concurrency)
    shown = next((r for r in rows if r.concurrency == concurrency and id_of(r.arm) == winner_id), best)
    ideas = [*_winner(best, shown, rows, model, winning_command)]
    if best.is_baseline and detectable_frac is not None and detectable_frac >= _HIDDEN_BY_NOISE:
        ideas.append(_quieter(ideas))
    if anchor is not None:
        by_name = {(e.arm, e.concurrency): e for e in explained}
        ideas += _changes(what_if, best, least_gain)
        ideas += _dead(rows, concurrency)
        ideas += _drafters(rows, by_name, best)
        trained = _to_train(rows, concurrency, by_name)
        if trained is not None:
            now = max(
                (i.score for i in ideas if i.kind in ("change-flag", "switch-off") and not i.unmeasured),
                default=1,
            )
            ideas += _train(by_name[(trained.name, trained.concurrency)], best, most=now)
    ideas += _switch_off(plan)
    ideas.append(_stop(ideas, best, shown, anchor, winning_command))
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


def _quieter(ideas: Sequence[_Idea]) -> _Idea:
    """Before anything else: what such launches do not show is not shown to be absent."""
    return _Idea(
        "measure",
        "make the machine quieter and measure again",
        "equal launches differ so much here that not even twice the speed would be shown",
        None,
        max((idea.score for idea in ideas), default=0.0) + 0.01,
        _AGAIN,
    )


def _measured(row: MeasuredRow) -> Interval:
    return LogEstimate(row.tok_per_s, row.speed_error).interval(unit="tok/s")


def _to_train(
    rows: Sequence[MeasuredRow], concurrency: int, by_name: dict[tuple[str, int], ExplainedRow]
) -> MeasuredRow | None:
    """The fastest arm with a drafter whose depth lets it gain anything; n-grams are looked up, nothing trains them."""
    known = [
        r
        for r in rows
        if r.concurrency == concurrency and r.has_drafter and r.tokens_per_step is not None and not is_dead(r)
    ]
    return max(known, key=lambda r: (_can_gain(by_name[(r.name, r.concurrency)]), r.tok_per_s), default=None)


def _can_gain(row: ExplainedRow) -> bool:
    return any(
        r.reachable is not False
        and r.acceptance_length is not None
        and r.acceptance_length.value > _kept(row)
        for r in row.required
    )


def _kept(row: ExplainedRow) -> float:
    return row.acceptance_length if row.acceptance_length is not None else math.inf


def _winner(
    best: MeasuredRow,
    shown: MeasuredRow,
    rows: Sequence[MeasuredRow],
    model: SpeedModel,
    command: str | None,
) -> Iterable[_Idea]:
    concurrency = best.concurrency
    plain = max(
        (r for r in rows if r.is_baseline and r.concurrency == concurrency), key=lambda r: r.tok_per_s
    )
    if best.is_baseline:
        drafting = [r for r in rows if not r.is_baseline and r.concurrency == concurrency]
        other = max(drafting, key=lambda r: r.tok_per_s, default=None)
        if other is None:
            return
        told = told_apart(plain, other, margin=_MARGIN)
        off = "switch speculation off" + (" with this drafter" if other.has_drafter else "")
        yield _Idea(
            "switch-off",
            off if told else "leave speculation off: nothing measured is shown to be faster",
            f"plain decoding runs {tok_per_s_words(plain.tok_per_s)} against {three_digits(other.tok_per_s)} of the "
            f"fastest arm with a draft, {other.name}" + ("" if told else "; the two are not told apart"),
            _measured(plain),
            plain.tok_per_s / other.tok_per_s - 1,
            command,
        )
        return
    if best is not shown:
        yield _Idea(
            "measure",
            f"measure {best.name} again, with more prompts or repetitions",
            f"{tok_per_s_words(best.tok_per_s)} against {three_digits(shown.tok_per_s)} of {shown.name}: these "
            "launches do not show it to be faster",
            _measured(best),
            0.5 * (best.tok_per_s / shown.tok_per_s - 1),
            _AGAIN if command is not None else None,
        )
    if not shown.is_baseline:
        gain = shown.tok_per_s / plain.tok_per_s - 1
        if is_contradiction(step_of(shown, model)):
            yield _Idea(
                "measure",
                f"measure {shown.name} and plain decoding again, on the same requests and settings",
                "their figures do not fit together: no step that verifies a draft is cheaper than a plain one",
                None,
                gain,
                _AGAIN if command is not None else None,
            )
            if command is None:
                return
        yield _Idea(
            "change-flag",
            f"serve {shown.name}",
            f"measured: {tok_per_s_words(shown.tok_per_s)}, {1 + gain:.2f}x plain decoding",
            _measured(shown),
            gain,
            command,
        )


def _changes(what_if: Sequence[WhatIf], best: MeasuredRow, least_gain: float | None) -> Iterable[_Idea]:
    """Unmeasured settings that may beat the best; the most promising of each factor.

    None whose predicted gain is below ``least_gain``: what predictions here were off by, or what noise hides.
    """
    limit = best.tok_per_s * (1 + _MARGIN)
    for factor in ("num_draft_tokens", "num_steps", "cuda_graphs"):
        options = [w for w in what_if if w.factor == factor and w.concurrency == best.concurrency]
        if not options:
            continue
        top = max(options, key=lambda w: w.predicted_tok_per_s.value)
        speed = top.predicted_tok_per_s
        reach, gain = speed.high or speed.value, speed.value / best.tok_per_s - 1
        if reach <= limit or (least_gain is not None and gain <= least_gain):
            continue
        likely = speed.value > limit
        word = "predicted to be faster" if likely else "may be faster, and is worth one launch"
        sd = log_sd_of(speed, reach=_REACH_OF_90)
        if sd is not None:
            chance = LogEstimate(speed.value, sd).chance_above(limit)
            word += f" ({chance:.0%} chance to beat {best.name} by {_MARGIN:.0%})"
        yield _Idea(
            "change-flag" if likely else "measure",
            f"measure {top.arm} with {top.change}",
            f"{word}: {top.basis}",
            speed,
            gain if likely else min(0.01, max(0.001, reach / best.tok_per_s - 1) / 10),
            unmeasured=True,
        )


def _dead(rows: Sequence[MeasuredRow], concurrency: int) -> Iterable[_Idea]:
    """A drafter of which next to nothing is kept is broken, or not the target's: no training and no flag mends that."""
    for row in rows:
        if row.concurrency == concurrency and row.has_drafter and is_dead(row):
            yield _Idea(
                "check",
                f"find out why the drafts of {row.name} are all rejected",
                "a draft made for another target, read at the wrong layers or not loaded is rejected like this; no "
                "training and no other draft length changes it",
                None,
                _DEAD_SCORE,
                "spectune diagnose STUDY_DIR",
            )
            return


def _drafters(
    rows: Sequence[MeasuredRow], by_name: dict[tuple[str, int], ExplainedRow], best: MeasuredRow
) -> Iterable[_Idea]:
    """Where drafters were compared in the same shape and are told apart: which one is faster, and what each keeps."""
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
        if not told_apart(fastest, slowest, margin=_MARGIN):
            continue
        yield _Idea(
            "use-drafter",
            f"keep the drafter of {fastest.name}, not the one of {slowest.name}",
            f"in the same shape {three_digits(fastest.tok_per_s)} against {tok_per_s_words(slowest.tok_per_s)}: "
            f"{'; '.join(words)}",
            _measured(fastest),
            0.5 * (fastest.tok_per_s / best.tok_per_s - 1) if fastest is not best else 0.0,
        )


def _length_words(row: ExplainedRow) -> str:
    if row.acceptance_length is not None:
        return f"keeps {row.acceptance_length:.2f} tokens per step"
    if row.implied_acceptance_length is not None:
        return f"keeps about {row.implied_acceptance_length.value:.2f} tokens per step, by its speed"
    return "has an unknown acceptance length"


def _train(row: ExplainedRow, best: MeasuredRow, *, most: float) -> Iterable[_Idea]:
    """The acceptance lengths that training would have to reach, at the best arm's step cost.

    ``most``: the score of what is measured and can be had at once, which goes first.
    """
    if not row.required or row.acceptance_length is None:
        return
    wanted = [
        (r, length)
        for r in row.required
        if (length := r.acceptance_length) is not None and length.value > row.acceptance_length
    ]
    reachable = [(r, length) for r, length in wanted if r.reachable is not False]
    if not reachable:
        return
    words = ", ".join(
        f"{length.value:.2f} for {r.speedup:g}x ({_rounded(r.tok_per_s)} tok/s)" for r, length in reachable
    )
    beyond = [f"{r.speedup:g}x" for r in row.required if r.reachable is False]
    words += f"; this draft length cannot give {' or '.join(beyond)}" if beyond else ""
    aim, length = reachable[min(1, len(reachable) - 1)]
    # At just that length: as uncertain as the length that the speed was worked out from.
    speed = LogEstimate(aim.tok_per_s, log_sd_of(length, reach=_REACH_OF_90) or DEFAULT_LOG_SD).interval(
        unit="tok/s"
    )
    more = length.value / row.acceptance_length - 1
    gain = aim.tok_per_s / best.tok_per_s - 1
    yield _Idea(
        "train",
        f"train the drafter: it must keep {words}",
        f"it keeps {row.acceptance_length:.2f} now, in {row.arm}; {more:.0%} more is needed for {aim.speedup:g}x, "
        "if the step cost stays",
        speed,
        min(most, gain * _TRAINING_DISCOUNT),
    )


def _rounded(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 9.5 else three_digits(speed)


def _switch_off(plan: Schedule | None) -> Iterable[_Idea]:
    if plan is None:
        return
    if plan.off_above_concurrency is not None:
        yield _Idea(
            "switch-off-above",
            f"switch speculation off above {plan.off_above_concurrency} "
            f"request{'s' * (plan.off_above_concurrency > 1)} at once",
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


def _stop(
    ideas: Sequence[_Idea],
    best: MeasuredRow,
    shown: MeasuredRow,
    anchor: MeasuredRow | None,
    command: str | None,
) -> _Idea:
    count = sum(1 for i in ideas if i.unmeasured)
    if anchor is None:
        why = "no acceptance length is known, so nothing is predicted of settings that were not measured"
    elif count:
        why = f"{count} unmeasured setting{'s' * (count > 1)} may still be faster"
    else:
        why = f"no other draft length or graphs of {anchor.name} are predicted to beat {best.name} by {_MARGIN:.0%}"
    if best is not shown:
        why = f"nothing is shown to be faster; {why}"
    return _Idea("stop", f"stop here, with {shown.name}", why, _measured(shown), 0.0005, command)
