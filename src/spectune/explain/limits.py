"""The one sentence that says what limits an arm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spectune.domain.interval import Interval
from spectune.domain.prediction_shape import shape_of
from spectune.explain.measured import MeasuredRow, three_digits, tok_per_s_words
from spectune.explain.records import LossShares, StepPart

_DEAD_LENGTH = 1.02
_CHEAPEST_LOG = math.log(0.9)
"""Below a tenth under a plain step's cost, figures contradict each other (declared)."""
_CAUSES = {
    "verification": "verifying {tokens}",
    "drafting": "drafting {steps}",
    "overhead": "work around the models (scheduling, sampling, copying)",
    "no graphs": "launching kernels one by one, without graphs",
    "not explained": "something no arm measured here tells apart",
}


def binding_limit(
    row: MeasuredRow,
    *,
    ratio: float | None,
    parts: Sequence[StepPart],
    losses: LossShares | None,
    baseline: float,
    implied: Interval | None,
) -> tuple[str, str | None]:
    """A sentence and the factor it names."""
    if row.is_baseline:
        return "plain decoding: one token per forward pass; every other row is compared with it", None
    if ratio is None:
        return _unknown(row, implied, baseline), None
    length = row.as_length(ratio * row.tok_per_s / baseline)
    break_even = row.as_length(ratio)
    if length < _DEAD_LENGTH:
        return (
            f"acceptance: {length:.2f} tokens per step, so {'nearly ' * (length > 1)}every draft is rejected; "
            "check the drafter before its speed",
            "acceptance",
        )
    if is_contradiction(row, ratio):
        return (
            f"figures that do not fit together: {length:.2f} tokens per step at {tok_per_s_words(row.tok_per_s)} make "
            f"a step of {ratio:.2f} plain ones, and none that verifies a draft is cheaper than a plain one; see that "
            "speed, acceptance length and baseline are of the same requests and settings",
            None,
        )
    step_ms = 1e3 * ratio / baseline
    verdict = f"{length:.2f} tokens per step against {break_even:.2f} to break even"
    if row.most_tokens is None:
        return (
            f"acceptance or step overhead, not told apart: nothing says how many steps the draft has, and so how many "
            f"tokens a perfect one would give; a step takes {three_digits(step_ms)} ms, {ratio:.2f} plain steps; "
            f"{verdict}",
            None,
        )
    if losses is None:
        return (
            f"the length of the draft: all of its {length:.2f} tokens per step are kept, at the cost of a plain step; "
            "only a longer draft can give more",
            None,
        )
    name, seconds, share = _largest_part(parts)
    shares = (
        f" (of the loss against a perfect draft, step overhead is {losses.step_overhead:.0%} "
        f"and acceptance {losses.acceptance:.0%})"
    )
    if losses.acceptance >= losses.step_overhead:
        most = f" of {row.depth + 1} possible" if row.depth else ""
        return (
            f"acceptance: {length:.2f}{most} tokens per step are kept, {break_even:.2f} break even{shares}",
            "acceptance",
        )
    cause = _cause(name, row)
    return (
        f"step overhead: a step takes {three_digits(step_ms)} ms, {ratio:.2f} plain steps, of which {cause} "
        f"{'take' if ' and ' in cause else 'takes'} {three_digits(1e3 * seconds)} ms ({share:.0%}); {verdict}{shares}",
        name,
    )


def is_contradiction(row: MeasuredRow, ratio: float | None) -> bool:
    """Whether a step would be cheaper than a plain one, by more than its error."""
    return ratio is not None and math.log(ratio) < min(_CHEAPEST_LOG, -1.96 * row.speed_error)


def _unknown(row: MeasuredRow, implied: Interval | None, baseline: float) -> str:
    if implied is None:
        return "unknown: no acceptance length was given, and no like arm tells what its steps cost"
    side = "slower" if row.tok_per_s < baseline else "faster"
    return (
        f"unknown without its acceptance length; if a step costs what like arms' do, {tok_per_s_words(row.tok_per_s)} "
        f"({side} than plain) means {implied.value:.2f} tokens per step"
    )


def _largest_part(parts: Sequence[StepPart]) -> tuple[str, float, float]:
    """The largest added part; parts that were not told apart are taken together."""
    added = [p for p in parts if p.name != "baseline forward"]
    together = [p for p in added if not p.separated]
    groups = [[p] for p in added if p.separated]
    if together:
        groups.append(together)
    if not groups:
        return "overhead", 0.0, 0.0
    largest = max(groups, key=lambda group: sum(p.s for p in group))
    name = " and ".join(p.name for p in largest)
    return name, sum(p.s for p in largest), sum(p.share for p in largest)


def _count(number: int | None, word: str, unknown: str) -> str:
    return unknown if not number else f"{number} {word}" if number == 1 else f"{number} {word}s"


def _cause(name: str, row: MeasuredRow) -> str:
    tokens = shape_of(row.arm).tokens if row.arm.knobs.num_draft_tokens else None
    words = [
        _CAUSES.get(part, part).format(
            tokens=_count(tokens, "token", "the drafted tokens"),
            steps=_count(row.depth, "step", "all steps"),
        )
        for part in name.split(" and ")
    ]
    return " and ".join(words)
