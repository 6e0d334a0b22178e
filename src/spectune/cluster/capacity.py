"""How long a study takes on so many nodes, from the phase times of trials that were recorded before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from statistics import median

from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.models.cluster_time import ClusterTime, ClusterWork, LaunchTimes, cluster_time
from spectune.runner.estimate import cost_of_trial
from spectune.runner.lanes import open_blocks
from spectune.runner.search import search_estimate

_FEW = 3
"""Launches of the baseline below which its time is taken from all launches."""


@dataclass(frozen=True)
class CapacityPlan:
    """What is left of a study, and what it takes on each number of nodes that was asked about."""

    arm_launches: int
    arms: int
    times: tuple[ClusterTime, ...]
    basis: str
    arm_launch_s: LaunchTimes
    baseline_launch_s: LaunchTimes


def plan_capacity(
    study: Study,
    trials: Sequence[Trial],
    *,
    nodes: Sequence[int],
    recorded: Sequence[Trial] | None = None,
    lost_frac: float = 0.0,
    repair_s: float | None = 600.0,
    worker_start_s: float = 5.0,
    launch_s: float | None = None,
    measure_s: float | None = None,
    level: float = 0.9,
) -> CapacityPlan:
    """``trials``: what the study has done. ``recorded``: those whose times are used; default: the same.

    Without any, ``launch_s`` and ``measure_s``, or stated assumptions, and then no interval.
    """
    blocks = open_blocks(study, trials)
    launches = len(blocks)
    arms = len({block[0].arm_id for block in blocks})
    if study.search is not None and study.search_end is None:
        launches = max(0, search_estimate(study, trials).launches_likely - len(trials))
        arms = launches
    per_launch = len([p for block in blocks for p in block]) / len(blocks) if blocks else 1.0
    arm, baseline, basis = _times(
        study, trials if recorded is None else recorded, launch_s, measure_s, per_launch=per_launch
    )
    work = ClusterWork(
        num_arm_launches=launches,
        num_arms=arms,
        arm=arm,
        baseline=baseline,
        baseline_every=study.baseline_every,
        noise_floor=study.noise_floor,
        worker_start_s=worker_start_s,
        lost_frac=lost_frac,
        repair_s=repair_s,
    )
    share = 1 if study.cluster is None else study.cluster.trials_per_node
    size = study.nodes_per_server
    found = tuple(_on_nodes(work, count, share=share, size=size, level=level) for count in nodes)
    return CapacityPlan(launches, arms, found, basis, arm, baseline)


def nodes_of_lanes(lanes: int, *, share: int, size: int) -> int:
    """How many nodes so many lanes fill, ``share`` of them on one, or each on ``size``."""
    return -(-lanes // share) if size == 1 else lanes * size


def _on_nodes(work: ClusterWork, count: int, *, share: int, size: int, level: float) -> ClusterTime:
    """``nodes`` and node hours are those of nodes: such as serve together are one lane, and one may be several."""
    if size == 1:
        time = cluster_time(work, nodes=count * share, level=level)
        if share == 1 or not time.lanes:
            return replace(time, nodes=count)
        used = nodes_of_lanes(time.lanes, share=share, size=size)
        hours = None if time.node_hours is None else time.node_hours * used / time.lanes
        return replace(time, nodes=count, node_hours=hours)
    if count < size:
        return ClusterTime(
            count, 0, 0.0, 0.0, None, None, f"a server spans {size} nodes: fewer serve nothing"
        )
    time = cluster_time(work, nodes=count // size, level=level)
    hours = None if time.node_hours is None else time.node_hours * size
    return replace(time, nodes=count, node_hours=hours)


def _times(
    study: Study,
    recorded: Sequence[Trial],
    launch_s: float | None,
    measure_s: float | None,
    *,
    per_launch: float,
) -> tuple[LaunchTimes, LaunchTimes, str]:
    """Of an arm's launch and of the baseline's, and where they come from."""
    if launch_s is None and measure_s is None:
        seen = [t for t in recorded if t.soak is None and t.phases_s]
        by_launch: dict[int, list[Trial]] = {}
        for trial in seen:
            by_launch.setdefault(trial.launch_number, []).append(trial)
        gap_s = _gap_s(seen)
        totals = {n: gap_s + sum(sum(t.phases_s.values()) for t in own) for n, own in by_launch.items()}
        plain = [totals[n] for n, own in by_launch.items() if own[0].arm.is_baseline]
        others = [totals[n] for n, own in by_launch.items() if not own[0].arm.is_baseline]
        if totals:
            every = list(totals.values())
            arm = LaunchTimes.seen(others or every)
            baseline = LaunchTimes.seen(plain if len(plain) >= _FEW else every)
            failed = sum(t.status == "failed" for t in seen)
            basis = f"{len(others)} recorded launches of arms and {len(plain)} of the baseline"
            basis += f", {failed} of them failed" if failed else ""
            return arm, baseline, f"{basis}; {gap_s:.1f} s between two launches"
    cost = cost_of_trial(study, ())
    launch = cost.launch_s if launch_s is None else launch_s
    measure = cost.measure_s if measure_s is None else measure_s
    given = [name for name, value in (("launch", launch_s), ("measurement", measure_s)) if value is not None]
    basis = f"times given for {' and '.join(given)}" if given else cost.basis
    return (
        LaunchTimes(launch + per_launch * measure),
        LaunchTimes(launch + measure),
        f"{basis}; no interval, since nothing was recorded",
    )


def _gap_s(trials: Sequence[Trial]) -> float:
    """What passes between two trials of one node: the record, a check of the host, the worker's own work."""
    gaps = []
    for place in {t.place for t in trials}:
        own = sorted((t for t in trials if t.place == place), key=lambda t: t.number)
        for before, after in pairwise(own):
            seconds = _seconds(after.started_at) - _seconds(before.started_at) - sum(before.phases_s.values())
            gaps += [seconds] if 0 <= seconds < 60 else []  # a longer one is an interruption
    return median(gaps) if gaps else 0.0


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
