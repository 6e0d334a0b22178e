"""The one sentence that says what limits an arm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spectune.analysis.explain.measured import MeasuredRow, three_digits, tok_per_s_words
from spectune.analysis.explain.records import LossShares, StepPart
from spectune.analysis.explain.step import Step
from spectune.domain.interval import Interval
from spectune.models.arm_shape import shape_of

_DEAD_LENGTH = 1.02
_SHARE_TOLD = 0.1
_WHOLE_TOLD = 0.05
_CHEAPEST_LOG = math.log(0.9)
"""Below a tenth under a plain step's cost, figures contradict each other (declared)."""
_CAUSES = {
    "verification": "verifying {tokens}",
    "drafting": "drafting {steps}",
    "overhead": "work around the models (scheduling, sampling, copying)",
    "no graphs": "launching kernels one by one, without graphs",
    "not explained": "something no arm measured here tells apart",
}


def binding_limit(step: Step, parts: Sequence[StepPart], losses: LossShares | None) -> tuple[str, str | None]:
    """A sentence and the factor it names."""
    row, tokens = step.row, step.tokens
    if row.is_baseline:
        return "plain decoding: one token per forward pass; every other row is compared with it", None
    if is_dead(row):
        return (
            f"acceptance: {tokens:.2f} tokens per forward pass, so {'nearly ' * (tokens > 1)}every draft is rejected; "
            "check the drafter before its speed",
            "acceptance",
        )
    if is_contradiction(step):
        return (
            f"figures that do not fit together: {tokens:.2f} tokens per forward pass at "
            f"{tok_per_s_words(row.tok_per_s)} make a step of {step.ratio:.2f} plain ones, and none that verifies a "
            "draft is cheaper than a plain one; see that speed, acceptance length and baseline are of the same "
            "requests and settings",
            None,
        )
    takes = f"a step takes {three_digits(1e3 * step.s)} ms, {step.ratio:.2f} plain steps"
    verdict = f"{tokens:.2f} tokens per forward pass {needed_words(step)}"
    before = first_token_words(step)
    if row.most_tokens is None:
        return (
            f"acceptance or step overhead, not told apart: nothing says how many steps the draft has, and so how many "
            f"tokens a perfect one would give; {takes}; {verdict}{before}",
            None,
        )
    if losses is None:
        return (
            f"the length of the draft: all of its {tokens:.2f} tokens per forward pass are kept, at the cost of a "
            f"plain step; only a longer draft can give more{before}",
            None,
        )
    name, seconds, share = _largest_part(parts)
    shares = (
        f" (of the loss against a perfect draft, step overhead is {losses.step_overhead:.0%} "
        f"and acceptance {losses.acceptance:.0%}){before}"
    )
    if losses.acceptance >= losses.step_overhead:
        return f"acceptance: {verdict}, {row.most_tokens:.2g} at most{shares}", "acceptance"
    cause = _cause(name, row)
    return (
        f"step overhead: {takes}, of which {cause} {'take' if ' and ' in cause else 'takes'} "
        f"{three_digits(1e3 * seconds)} ms ({share:.0%}); {verdict}{shares}",
        name,
    )


def needed_words(step: Step) -> str:
    """What the tokens of a pass are to be set against."""
    needed, whole = step.ratio, step.tokens_for(1.0)
    words = f"against {needed:.2f} to break even"
    if step.can_reach(needed) is False:
        return f"{words}, which this draft length cannot give"
    if whole is None or step.can_reach(whole) is False:
        return f"{words} (in decoding; whole requests cannot, their first token comes too late)"
    if abs(math.log(whole / needed)) > _WHOLE_TOLD:
        when = "later" if whole > needed else "sooner"
        return (
            f"{words} ({whole:.2f} for whole requests, whose first token comes {when} than without a draft)"
        )
    return words


def first_token_words(step: Step) -> str:
    """What no draft shortens, where it is a part worth telling."""
    share = step.first_token_share
    if share < _SHARE_TOLD:
        return ""
    return f"; {share:.0%} of a request's time passes before its first token, which no draft shortens"


def is_dead(row: MeasuredRow) -> bool:
    """Whether next to nothing of its drafts is kept."""
    tokens = row.tokens_per_step
    return not row.is_baseline and tokens is not None and row.as_length(tokens) < _DEAD_LENGTH


def is_contradiction(step: Step | None) -> bool:
    """Whether a step would be cheaper than a plain one, by more than its error."""
    if step is None:
        return False
    return math.log(step.ratio) < min(_CHEAPEST_LOG, -1.96 * step.row.decode_error)


def unknown_limit(row: MeasuredRow, implied: Interval | None, baseline: float) -> str:
    """Where the acceptance length is not known."""
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
