"""The same arms in two studies: how much each changed, and whether it fell by more than a limit.

Where two studies ran on one machine with the same prompts, absolute speeds are
compared and the launch is the unit: a launch's figure is its mean log speed
over the prompts that every launch answered, so that prompts cancel, and the
noise of launches is pooled from both studies. Where machines differ, speedups
are compared, each with the errors of its own study.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from spectune.domain.acceptance import AcceptanceCounts
from spectune.statistics.intervals import Comparison, ratio_of, t_quantile
from spectune.statistics.launches import f_quantile
from spectune.statistics.multiple import holm

_CONTRADICTION = 0.95
"""An arm's own noise counts alone where it contradicts the other arms' beyond this quantile of F."""

ROUNDING = 1e-12
"""What sums of one and the same logarithm may differ by: greedy texts repeat, and so do their acceptance lengths."""

SpeedByPrompt = Mapping[str, float]
AcceptanceByPrompt = Mapping[str, AcceptanceCounts]
LaunchNumbers = Mapping[str, tuple[Sequence[int], Sequence[int]]]
"""By arm, of its launches in the old and in the new study: arms that shared a server have a number in common."""


@dataclass(frozen=True)
class Change:
    """New against old on the log scale. ``error`` is ``None`` where nothing tells the noise of launches."""

    name: str
    log_ratio: float
    error: float | None
    degrees: float | None
    num_prompts: int
    num_old: int
    """Launches."""
    num_new: int

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    def interval(self, level: float) -> tuple[float, float] | None:
        """Two-sided, on the scale of ratios."""
        if self.error is None or self.degrees is None:
            return None
        half = t_quantile((1 + level) / 2, self.degrees) * self.error
        return ratio_of(self.log_ratio - half), ratio_of(self.log_ratio + half)

    def p_below(self, log_limit: float) -> float | None:
        """Of the hypothesis that the true log ratio is at least ``log_limit``: small means that it fell further."""
        if self.error is None or self.degrees is None:
            return None
        distance = self.log_ratio - log_limit
        error = max(self.error, ROUNDING)
        from scipy.special import stdtr  # as in statistics.t_quantile

        return float(stdtr(self.degrees, distance / error))


@dataclass(frozen=True)
class _Figures:
    """One arm's launches as one number each."""

    name: str
    old: tuple[float, ...]
    new: tuple[float, ...]
    num_prompts: int
    numbers: tuple[tuple[Hashable, ...], tuple[Hashable, ...]]

    def groups(self) -> list[tuple[int, tuple[float, ...], tuple[Hashable, ...]]]:
        """Both sides that have several launches: side, figures, launch numbers."""
        sides = ((0, self.old, self.numbers[0]), (1, self.new, self.numbers[1]))
        return [side for side in sides if len(side[1]) > 1]

    def change(self, noise: tuple[float, float] | None) -> Change:
        difference = math.fsum(self.new) / len(self.new) - math.fsum(self.old) / len(self.old)
        error = None if noise is None else math.sqrt(noise[0] * (1 / len(self.new) + 1 / len(self.old)))
        degrees = None if noise is None else noise[1]
        return Change(self.name, difference, error, degrees, self.num_prompts, len(self.old), len(self.new))


def speed_changes(
    arms: Mapping[str, tuple[Sequence[SpeedByPrompt], Sequence[SpeedByPrompt]]],
    *,
    numbers: LaunchNumbers | None = None,
) -> dict[str, Change]:
    """By arm, from its launches in the old and in the new study; arms without a common prompt are left out.

    ``numbers``: where arms shared launches; without it, every launch is another.
    """
    figures = []
    for name, (old, new) in arms.items():
        prompts = _common([*old, *new]) if old and new else set()
        if prompts:
            figures.append(
                _Figures(
                    name,
                    tuple(_mean_log(launch, prompts) for launch in old),
                    tuple(_mean_log(launch, prompts) for launch in new),
                    len(prompts),
                    _numbers(name, old, new, numbers),
                )
            )
    return {f.name: f.change(_noise_for(f, figures)) for f in figures}


def _common(launches: Sequence[Mapping[str, object]]) -> set[str]:
    return set(launches[0]).intersection(*launches[1:])


def _mean_log(launch: SpeedByPrompt, prompts: set[str]) -> float:
    return math.fsum(math.log(launch[p]) for p in prompts) / len(prompts)


def _numbers(
    name: str, old: Sequence[object], new: Sequence[object], numbers: LaunchNumbers | None
) -> tuple[tuple[Hashable, ...], tuple[Hashable, ...]]:
    if numbers is None:
        return tuple((name, i) for i in range(len(old))), tuple((name, i) for i in range(len(new)))
    return tuple(numbers[name][0]), tuple(numbers[name][1])


def _squares(arms: Sequence[_Figures], *, sharing: Mapping[tuple[int, Hashable], int]) -> tuple[float, float]:
    """Sum of squares within arms and sides, and its degrees of freedom.

    Arms that shared their launches tell of them once, whatever their number: each counts for its part.
    """
    squares = degrees = 0.0
    for arm in arms:
        for side, values, numbers in arm.groups():
            mean = math.fsum(values) / len(values)
            part = len(values) / sum(sharing.get((side, n), 1) for n in numbers)
            squares += part * math.fsum((value - mean) ** 2 for value in values)
            degrees += part * (len(values) - 1)
    return squares, degrees


def _noise_for(arm: _Figures, arms: Sequence[_Figures]) -> tuple[float, float] | None:
    """Variance of one launch of ``arm`` and its degrees: of all arms, or its own where that is clearly larger."""
    sharing = Counter((side, n) for a in arms for side, _, numbers in a.groups() for n in numbers)
    own, own_degrees = _squares([arm], sharing={})
    rest, rest_degrees = _squares([a for a in arms if a is not arm], sharing=sharing)
    pooled, degrees = _squares(arms, sharing=sharing)
    if degrees == 0:
        return None
    if own_degrees and rest_degrees:
        limit = f_quantile(_CONTRADICTION, own_degrees, rest_degrees)
        if own / own_degrees > limit * rest / rest_degrees:
            return own / own_degrees, own_degrees
    return pooled / degrees, degrees


def speedup_change(name: str, old: Comparison, new: Comparison) -> Change:
    """Of two speedups, each against the baseline of its own study."""
    variances = []
    for comparison in (old, new):
        prompts, launches, own = comparison.prompt_log_var, comparison.launch_log_var, comparison.degrees
        if prompts is not None and launches is not None and own is not None:
            variances.append((prompts + launches, own))
    error = degrees = None
    if len(variances) == 2:
        total = math.fsum(v for v, _ in variances)
        spread = math.fsum(v * v / df for v, df in variances)
        error, degrees = math.sqrt(total), total**2 / spread if spread > 0 else min(df for _, df in variances)
    return Change(
        name,
        math.log(new.speedup.value / old.speedup.value),
        error,
        degrees,
        min(old.num_prompts, new.num_prompts),
        old.num_trials,
        new.num_trials,
    )


def acceptance_changes(
    arms: Mapping[str, tuple[Sequence[AcceptanceByPrompt], Sequence[AcceptanceByPrompt]]],
    *,
    numbers: LaunchNumbers | None = None,
) -> dict[str, Change]:
    """Of acceptance length, token-weighted over the common prompts.

    Two errors are added: the spread of launches where there are several, and
    that of the prompts' own changes (delete-one jackknife), since a new version
    that writes other text moves each prompt by chance. Acceptance does not
    depend on the machine's speed, so prompts alone are enough where nothing was
    launched twice.
    """
    figures: list[_Figures] = []
    jackknifed: dict[str, tuple[float, float]] = {}
    for name, (old, new) in arms.items():
        prompts = _counted([*old, *new]) if old and new else []
        launches = [[_log_length(launch, prompts) for launch in side] for side in (old, new)]
        if not prompts or any(value is None for side in launches for value in side):
            continue
        sides = [tuple(v for v in side if v is not None) for side in launches]
        figures.append(_Figures(name, sides[0], sides[1], len(prompts), _numbers(name, old, new, numbers)))
        spread = _jackknife(old, new, prompts)
        if spread is not None:
            jackknifed[name] = spread
    found = {}
    for arm in figures:
        noise = _noise_for(arm, figures)
        change = arm.change(noise)
        by_prompt = jackknifed.get(arm.name)
        parts = [p for p in (by_prompt, _of_launches(change)) if p is not None]
        found[arm.name] = _with_error(change, parts if by_prompt is not None else [])
    return found


def _of_launches(change: Change) -> tuple[float, float] | None:
    if change.error is None or change.degrees is None:
        return None
    return change.error**2, change.degrees


def _with_error(change: Change, parts: Sequence[tuple[float, float]]) -> Change:
    error = degrees = None
    if parts:
        total = math.fsum(v for v, _ in parts)
        spread = math.fsum(v * v / df for v, df in parts)
        error, degrees = math.sqrt(total), total**2 / spread if spread > 0 else parts[0][1]
    return Change(
        change.name, change.log_ratio, error, degrees, change.num_prompts, change.num_old, change.num_new
    )


def _counted(launches: Sequence[AcceptanceByPrompt]) -> list[str]:
    """Prompts whose verify steps are known in every launch: without them accepted tokens say nothing."""
    common = sorted(_common(launches))
    return [p for p in common if all(launch[p].num_drafts is not None for launch in launches)]


def _steps(counts: AcceptanceCounts) -> int:
    assert counts.num_drafts is not None  # `_counted` left the others out
    return counts.num_drafts


def _counts(launch: AcceptanceByPrompt, prompts: Sequence[str]) -> tuple[int, int]:
    """Accepted tokens and verify steps."""
    return sum(launch[p].num_accepted_tokens for p in prompts), sum(_steps(launch[p]) for p in prompts)


def _log_length(launch: AcceptanceByPrompt, prompts: Sequence[str]) -> float | None:
    accepted, drafts = _counts(launch, prompts)
    return math.log1p(accepted / drafts) if drafts else None


def _jackknife(
    old: Sequence[AcceptanceByPrompt], new: Sequence[AcceptanceByPrompt], prompts: Sequence[str]
) -> tuple[float, float] | None:
    """Variance of the mean log change over prompts left out one by one, and its degrees of freedom."""
    if len(prompts) < 2:
        return None
    totals = [[_counts(launch, prompts) for launch in side] for side in (old, new)]
    without = []
    for prompt in prompts:
        means = []
        for side, sums in zip((old, new), totals, strict=True):
            lengths = []
            for launch, (accepted, drafts) in zip(side, sums, strict=True):
                counts = launch[prompt]
                left = drafts - _steps(counts)
                if left <= 0:
                    return None
                lengths.append(math.log1p((accepted - counts.num_accepted_tokens) / left))
            means.append(math.fsum(lengths) / len(lengths))
        without.append(means[1] - means[0])
    n = len(prompts)
    mean = math.fsum(without) / n
    return (n - 1) / n * math.fsum((x - mean) ** 2 for x in without), float(n - 1)


def together(name: str, changes: Sequence[Change], *, independent: bool) -> Change | None:
    """The mean change of several arms; ``None`` unless there are two with a known error.

    Where arms share launches (speedups against one baseline) their errors are
    taken as fully correlated, which is never too small.
    """
    known, errors, degrees = [], [], []
    for change in changes:
        if change.error is not None and change.degrees is not None:
            known.append(change)
            errors.append(change.error)
            degrees.append(change.degrees)
    if len(known) < 2:
        return None
    error = math.sqrt(math.fsum(e * e for e in errors)) if independent else math.fsum(errors)
    return Change(
        name,
        math.fsum(c.log_ratio for c in known) / len(known),
        error / len(known),
        min(degrees),
        min(c.num_prompts for c in known),
        sum(c.num_old for c in known),
        sum(c.num_new for c in known),
    )


def fallen(changes: Sequence[Change], *, max_fall: float, alpha: float) -> list[float | None]:
    """Adjusted p values of "fell by more than ``max_fall``", over all changes together (Holm 1979).

    A value of at most ``alpha`` is a fall; where none fell further than the
    limit, one is found with a chance of ``alpha`` at most. ``None``: no error is known.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be between 0 and 1, got {alpha}")
    log_limit = math.log1p(-max_fall)
    values = [change.p_below(log_limit) for change in changes]
    adjusted = iter(holm([v for v in values if v is not None]))
    return [None if value is None else next(adjusted) for value in values]
