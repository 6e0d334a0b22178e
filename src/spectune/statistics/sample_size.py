"""How much to measure: the smallest difference that a comparison could find, and what more would decide one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from spectune.statistics.intervals import Comparison, ratio_of, t_quantile
from spectune.statistics.multiple import log_standard_error

MAX_PROMPTS = 100_000
"""More than so many are not asked for."""
MAX_LAUNCHES_COUNTED = 1_000
MOST_LAUNCHES_ASKED = 20
"""More than so many of an arm are not asked for: noise that they leave is to be mended on the machine."""


def detectable_ratio(comparison: Comparison, *, level: float | None = None) -> float | None:
    """The smallest speedup that this comparison would have found four times in five: 1.03 reads "can tell 3 % apart".

    From the errors of its paired effects, which its verdict is made of; ``None`` where it has no interval.
    """
    if comparison.degrees is None or comparison.speedup.low is None:
        return None
    reach = _reach(level or comparison.speedup.level, comparison.degrees)
    return ratio_of(reach * log_standard_error(comparison))


@dataclass(frozen=True)
class MoreNeeded:
    """What would turn CANNOT_TELL into an answer; ``None`` where that part cannot."""

    more_prompts: int | None
    more_launches: int | None
    quieter: bool = False
    """As many launches as anybody makes would not do: the machine must become quieter."""

    def __str__(self) -> str:
        ways = []
        if self.more_prompts is not None:
            ways.append(f"{self.more_prompts} more prompts")
        if self.more_launches is not None:
            ways.append(f"{self.more_launches} more launches of each arm")
        if ways:
            return f"CANNOT_TELL; {' or '.join(ways)} would"
        return f"CANNOT_TELL{'; the machine must become quieter' if self.quieter else ''}"


def _more_prompts(needed: float, now: int) -> int | None:
    """``None`` beyond what anybody asks: no number is promised that would not do."""
    return max(1, math.ceil(needed) - now) if needed - now <= MAX_PROMPTS else None


def more_for_precision(comparison: Comparison, *, precision: float, level: float | None = None) -> MoreNeeded:
    """Prompts, or launches, after which the speedup is known within this share of itself.

    Taken at the noise as it is seen now, which few launches overrate: of simulated studies half took two
    thirds of it or fewer.
    """
    launch, prompt = comparison.launch_log_var or 0.0, comparison.prompt_log_var
    if prompt is None or comparison.degrees is None:
        return MoreNeeded(None, None)
    wanted = math.log1p(precision) ** 2
    n, m = comparison.num_prompts, comparison.num_trials
    own = t_quantile((1 + (level or comparison.speedup.level)) / 2, comparison.degrees) ** 2
    prompts = None
    if wanted > own * launch:
        prompts = _more_prompts(own * prompt * n / (wanted - own * launch), n)
    if comparison.launch_log_var is None:
        return MoreNeeded(prompts, None)
    for launches in range(m + 1, MAX_LAUNCHES_COUNTED):
        # More launches narrow the error, and show better how large it is.
        degrees = comparison.degrees * (launches / m)
        factor = t_quantile((1 + (level or comparison.speedup.level)) / 2, degrees)
        if factor**2 * (launch + prompt) * m / launches <= wanted:
            return MoreNeeded(prompts, launches - m)
    return MoreNeeded(prompts, None)


def more_needed(comparison: Comparison, *, margin: float, level: float | None = None) -> MoreNeeded:
    """Prompts, or launches, after which the interval would exclude 1 or fit within the margin.

    Taken at the estimate as it is now, with a chance of 80 % if that is the
    truth; where it is not, a second look may ask again. More launches narrow
    the error and show better how large it is, so the degrees of freedom grow with them.
    """
    level = level or comparison.speedup.level
    effect = abs(math.log(comparison.speedup.value))
    launch, prompt = comparison.launch_log_var or 0.0, comparison.prompt_log_var
    if prompt is None or comparison.degrees is None:
        return MoreNeeded(None, None)
    target = max(effect, math.log1p(margin) - effect)
    wanted = target / _reach(level, comparison.degrees)
    n, m = comparison.num_prompts, comparison.num_trials
    prompts: int | None = None
    if wanted**2 > launch:
        prompts = _more_prompts(prompt * n / (wanted**2 - launch), n)
    if comparison.launch_log_var is None:
        return MoreNeeded(prompts, None)
    for more in range(1, MOST_LAUNCHES_ASKED + 1):
        error = math.sqrt((launch + prompt) * m / (m + more))
        if _reach(level, _degrees_after(comparison, more)) * error <= target:
            return MoreNeeded(prompts, more)
    return MoreNeeded(prompts, None, quieter=True)


def _reach(level: float, degrees: float) -> float:
    """Standard errors that an effect must be away from nothing to be found four times in five."""
    return t_quantile((1 + level) / 2, degrees) + NormalDist().inv_cdf(0.8)


def _degrees_after(comparison: Comparison, more: int) -> float:
    """Of freedom, after so many more launches of each arm: those of launches grow, those of prompts do not."""
    assert comparison.degrees is not None and comparison.prompt_log_var is not None
    launch, prompt, m = comparison.launch_log_var or 0.0, comparison.prompt_log_var, comparison.num_trials
    own = max(1, comparison.num_prompts - 1)
    rest = (launch + prompt) ** 2 / comparison.degrees - prompt**2 / own
    if launch <= 0 or rest <= 0:
        return comparison.degrees
    degrees = launch**2 / rest
    later = degrees * (m - 1 + more) / (m - 1) if m > 1 else degrees + more
    return (launch + prompt) ** 2 / (launch**2 / later + prompt**2 / own)
