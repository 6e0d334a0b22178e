"""How much to measure: noise floor, detectable difference, sample size, what a search will take.

One launch's log speed differs from another's by ``launch_log_sd``; one
prompt's log ratio, paired, by ``prompt_log_sd``. The standard error of a
speedup over m launches of each arm with n prompts is
``sqrt(2 * launch^2 / m + prompt^2 / (m * n))`` when every launch has its own
baseline launch, and prompts alone never remove the first term.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from spectune.domain.statistics import Comparison, ratio_of, t_quantile
from spectune.domain.statistics_launches import FEW_DEGREES, KNOWN_DEGREES, degrees_of_steps

MAX_PROMPTS = 100_000
"""More than so many are not asked for."""
MAX_LAUNCHES_COUNTED = 1_000
MOST_LAUNCHES_ASKED = 20
"""More than so many of an arm are not asked for: noise that they leave is to be mended on the machine."""
_LARGEST_FACTOR = 100


@dataclass(frozen=True)
class Noise:
    """Standard deviations on the log scale. ``prompt``: of a paired log ratio, launch shifts removed."""

    launch: float
    prompt: float
    launch_degrees: int | None = None
    """Degrees of freedom behind ``launch`` in comparisons to come: ``None`` where it is passed to them as
    known, 0 where they must find it themselves."""


def noise_floor(pairs: Sequence[Mapping[str, float]]) -> Noise | None:
    """From A/A: each item is one pair of launches of the same arm, log ratio by prompt.

    ``None`` for no pair with two prompts. The launch part is what the means
    of pairs spread beyond what their prompts explain.
    """
    means, within, degrees = [], 0.0, 0
    errors = []
    for pair in pairs:
        logs = list(pair.values())
        if len(logs) < 2:
            continue
        mean = math.fsum(logs) / len(logs)
        squares = math.fsum((x - mean) ** 2 for x in logs)
        within += squares
        degrees += len(logs) - 1
        means.append(mean)
        errors.append(squares / (len(logs) - 1) / len(logs))
    if not means:
        return None
    between = math.fsum(m * m for m in means) / len(means)  # the true difference is zero
    launch = max(0.0, between - math.fsum(errors) / len(errors)) / 2
    return Noise(math.sqrt(launch), math.sqrt(within / degrees), len(means))


def _factor(level: float, power: float, degrees: float) -> float:
    normal = NormalDist()
    if not math.isfinite(degrees) or degrees > 1000:
        return normal.inv_cdf((1 + level) / 2) + normal.inv_cdf(power)
    return t_quantile((1 + level) / 2, degrees) + t_quantile(power, degrees)


def _launch_degrees(noise: Noise, launches: int) -> float:
    """From the repeated launches, the steps between baselines, and what was known before."""
    before = KNOWN_DEGREES if noise.launch_degrees is None else noise.launch_degrees
    return launches - 1 + degrees_of_steps(launches) + before


def _apparent_launch_var(noise: Noise, launches: int, prompts: int) -> float:
    """Launch variance as four in five studies of this size will see it at most.

    With few launches the estimate scatters widely, and a study that overrates
    its noise finds nothing: a plan for the average would break its promise.
    """
    mixed = noise.launch**2 + noise.prompt**2 / (2 * prompts)
    spread = mixed * math.sqrt(2 / max(_launch_degrees(noise, launches), 0.5))
    return noise.launch**2 + NormalDist().inv_cdf(0.8) * spread


def _degrees(noise: Noise, launches: int, prompts: int) -> float:
    """Of the standard error, as ``compare_with_baseline`` will find it (Satterthwaite 1946)."""
    launch = 2 * _apparent_launch_var(noise, launches, prompts) / launches
    prompt = noise.prompt**2 / (launches * prompts)
    own = _launch_degrees(noise, launches)
    if own <= 0:
        return 0.5
    spread = launch**2 / own + prompt**2 / max(1, prompts - 1)
    degrees = (launch + prompt) ** 2 / spread if spread > 0 else math.inf
    return min(degrees, own) if own < FEW_DEGREES else degrees


def detectable_ratio(
    noise: Noise, *, launches: int, prompts: int, level: float = 0.95, power: float = 0.8
) -> float:
    """The smallest ratio that is found with ``power``: 1.03 reads "can tell 3 % apart"."""
    apparent = _apparent_launch_var(noise, launches, prompts)
    error = math.sqrt(2 * apparent / launches + noise.prompt**2 / (launches * prompts))
    return ratio_of(_factor(level, power, _degrees(noise, launches, prompts)) * error)


def describe_noise(noise: Noise, *, launches: int, prompts: int, level: float = 0.95) -> str:
    """One sentence for the report."""
    ratio = detectable_ratio(noise, launches=launches, prompts=prompts, level=level)
    return (
        f"this machine can tell {_apart(ratio)} apart with these {prompts} prompts and {launches} "
        f"launch{'es' if launches != 1 else ''} per arm (launches alone differ by {noise.launch:.1%}, "
        f"prompts by {noise.prompt:.1%})"
    )


def _apart(ratio: float) -> str:
    """``3.2 %``; where launches differ so much that only a large factor stands out, that factor."""
    percent = 100 * (ratio - 1)
    if percent < 1_000:
        return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
    return (
        f"only a factor of {ratio:.0f}"
        if ratio < _LARGEST_FACTOR
        else f"only a factor above {_LARGEST_FACTOR}"
    )


@dataclass(frozen=True)
class SampleSize:
    """What reaches a wanted precision; ``reachable`` is false where the budget ends before."""

    launches: int
    prompts: int
    detectable_ratio: float
    reachable: bool


def sample_size(
    noise: Noise,
    *,
    ratio: float,
    prompts_per_launch: int,
    max_launches: int,
    level: float = 0.95,
    power: float = 0.8,
) -> SampleSize:
    """The fewest launches of each arm that find a true ``ratio`` with ``power``; prompts are those per launch."""
    low, high = 1, max_launches

    def found(launches: int) -> float:
        return detectable_ratio(
            noise, launches=launches, prompts=prompts_per_launch, level=level, power=power
        )

    wanted = max(ratio, 1 / ratio)
    if found(max_launches) > wanted:
        return SampleSize(max_launches, prompts_per_launch, found(max_launches), False)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) <= wanted else (middle + 1, high)
    return SampleSize(low, prompts_per_launch, found(low), True)


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
