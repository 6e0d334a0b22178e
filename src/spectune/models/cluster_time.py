"""How long a study takes on so many nodes, in closed form, from how long launches took before.

Each node is a lane: the baseline first, again after every few arms, and last;
arms come from one queue, so that lanes end within about a launch of each other
(list scheduling, Graham 1969). The finish is the work divided by the lanes,
and what the last launches stick out; a lost launch is repeated by another lane
and its node is away for a while, or for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from spectune.domain.interval import Interval
from spectune.statistics.intervals import t_quantile

_IN_STEP = 0.25
"""Lanes whose totals spread by less than this part of a launch still end in step."""
_FORMULA_SD = 0.02
"""What the closed form itself is off by, of the finish, as simulated clusters say (benchmarks/plan_cluster.py)."""
_HOURS = 3600.0


@dataclass(frozen=True)
class LaunchTimes:
    """Seconds from the start of a launch to the start of the next one on its node."""

    mean_s: float
    sd_s: float | None = None
    """Between launches, whichever arms they are of; ``None``: unknown."""
    n: int | None = None
    """Launches that was seen on; ``None``: it is an assumption."""

    @classmethod
    def seen(cls, seconds: Sequence[float]) -> LaunchTimes:
        mean = math.fsum(seconds) / len(seconds)
        if len(seconds) < 2:
            return cls(mean, None, len(seconds))
        return cls(
            mean, math.sqrt(math.fsum((s - mean) ** 2 for s in seconds) / (len(seconds) - 1)), len(seconds)
        )


@dataclass(frozen=True)
class ClusterWork:
    """What is to be launched, and how."""

    num_arm_launches: int
    arm: LaunchTimes
    baseline: LaunchTimes
    num_arms: int | None = None
    """Different ones among the launches; ``None``: as many as launches. Arms differ more than an arm's launches do."""
    baseline_every: int = 2
    noise_floor: bool = False
    worker_start_s: float = 5.0
    """Once per lane, and again when a lost node is back."""
    lost_frac: float = 0.0
    """Share of launches under which their node is lost, at any moment of them."""
    repair_s: float | None = 600.0
    """Until a lost node is back; ``None``: it never is."""


@dataclass(frozen=True)
class ClusterTime:
    """A forecast; ``never`` says why there is no finish."""

    nodes: int
    lanes: int
    """Nodes that find work."""
    launches: float
    """Those that will be repeated included."""
    lost: float
    node_hours: float | None
    """Held by the study; a node that is away is not held."""
    finish_s: Interval | None
    never: str | None = None


def cluster_time(work: ClusterWork, *, nodes: int, level: float = 0.9) -> ClusterTime:
    """For ``nodes`` equal nodes, one launch at a time on each."""
    arms, p = work.num_arm_launches, work.lost_frac
    lanes = max(1, min(nodes, arms))
    if arms == 0:
        none = Interval(value=0.0, low=0.0, high=0.0, level=level, n=1, unit="s")
        return ClusterTime(nodes, 0, 0.0, 0.0, 0.0, none)
    baselines = _num_baselines(work, lanes)
    launches = arms + baselines
    lost = launches * p / (1 - p)
    useful_s = arms * work.arm.mean_s + baselines * work.baseline.mean_s
    mean_s = useful_s / launches
    held_s = useful_s + lost * mean_s / 2 + lanes * work.worker_start_s
    if work.repair_s is not None:
        held_s += lost * work.worker_start_s
    body_s = _body_s(work, held_s, lost, lanes=lanes, mean_s=mean_s)
    if body_s is None:
        return ClusterTime(
            nodes,
            lanes,
            launches + lost,
            lost,
            None,
            None,
            f"{p:.0%} of the launches lose their node for ever: all {lanes} nodes are gone before the work is done",
        )
    finish_s = body_s + _tail_s(work, lanes=lanes)
    spread = _sd_s(work, finish_s, launches=launches, baselines=baselines, lanes=lanes, mean_s=mean_s)
    return ClusterTime(
        nodes, lanes, launches + lost, lost, held_s / _HOURS, _interval(work, finish_s, spread, level)
    )


def _num_baselines(work: ClusterWork, lanes: int) -> int:
    """One first on each lane and one after every ``baseline_every`` arms, the last of which may be fewer."""
    few, longer = divmod(work.num_arm_launches, lanes)
    of = [few + 1] * longer + [few] * (lanes - longer)
    return sum(1 + math.ceil(arms / work.baseline_every) for arms in of) + work.noise_floor


def _body_s(work: ClusterWork, held_s: float, lost: float, *, lanes: int, mean_s: float) -> float | None:
    """When the lanes have done the work on average; ``None``: never, since the nodes run out."""
    if work.repair_s is not None or not work.lost_frac:
        return (held_s + lost * (work.repair_s or 0.0)) / lanes
    # Lanes die at the rate lost_frac / mean_s: the work done by t is lanes * (1 - exp(-rate * t)) / rate.
    share = held_s * work.lost_frac / mean_s / lanes
    return None if share >= 1 else -math.log1p(-share) * mean_s / work.lost_frac


def _tail_s(work: ClusterWork, *, lanes: int) -> float:
    """How much later than the average lane the last one ends."""
    if lanes == 1:
        return 0.0
    arm, baseline = work.arm, work.baseline
    few, longer = divmod(work.num_arm_launches, lanes)
    own = few + (1 if longer else 0)
    sd = math.sqrt(own * (arm.sd_s or 0.0) ** 2 + own / work.baseline_every * (baseline.sd_s or 0.0) ** 2)
    slowest = _expected_max(lanes)
    if sd < _IN_STEP * arm.mean_s and not work.lost_frac:
        behind = (1 - longer / lanes) * arm.mean_s if longer else 0.0
        return behind + slowest * sd
    # Out of step: when the queue is empty, each lane has a random part of a launch before it.
    second = arm.mean_s**2 + (arm.sd_s or 0.0) ** 2
    average = second / (2 * arm.mean_s)
    longest = arm.mean_s + slowest * (arm.sd_s or 0.0) / 2
    repeated = (1 - (1 - work.lost_frac) ** lanes) * arm.mean_s / 2
    return longest * lanes / (lanes + 1) - average + repeated


def _expected_max(count: int) -> float:
    """Of so many standard normals (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def _sd_s(
    work: ClusterWork, finish_s: float, *, launches: int, baselines: int, lanes: int, mean_s: float
) -> float | None:
    """Of the finish: times known from few launches, launches still to be drawn, losses, and the last launch."""
    variance = (_FORMULA_SD * finish_s) ** 2
    arms = work.num_arm_launches
    for times, count, kinds in (
        (work.arm, arms, min(arms, work.num_arms or arms)),
        (work.baseline, baselines, baselines),
    ):
        if times.sd_s is None or times.n is None:
            return None
        variance += (count * times.sd_s / lanes) ** 2 * (1 / kinds + 1 / times.n)
    cost_s = mean_s / 2 + work.worker_start_s + (work.repair_s or 0.0)
    variance += launches * work.lost_frac * (cost_s / lanes) ** 2
    repeated = 1 - (1 - work.lost_frac) ** lanes
    variance += repeated * (1 - repeated) * work.arm.mean_s**2
    if lanes > 1:
        variance += (work.arm.sd_s or 0.0) ** 2 / 2 + (work.arm.mean_s / (lanes + 1)) ** 2
    return math.sqrt(variance)


def _interval(work: ClusterWork, finish_s: float, spread: float | None, level: float) -> Interval:
    n = work.arm.n or 1
    low = high = None
    if spread is not None and work.arm.n is not None:
        half = t_quantile((1 + level) / 2, max(1, work.arm.n - 1)) * spread
        low, high = max(0.0, finish_s - half), finish_s + half
    return Interval(value=finish_s, low=low, high=high, level=level, n=n, unit="s")
