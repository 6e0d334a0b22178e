"""`spectune plan` against a simulated cluster: is the finish within 10 % of what happens?

    python benchmarks/plan_cluster.py [--nodes 64] [--trials 2000] [--failures 0.02] [--seeds 200] [--json]

The simulation is event by event and knows nothing of the plan's formula: each launch draws its time (arms differ,
launches of an arm differ), a lost node takes its launch with it at a random moment and is away for a while, and what a
node does next is decided by the code that decides it on a real cluster (``spectune.runner.lanes``). The plan sees a
pilot of 24 launches of arms and 8 of the baseline, as an earlier study would have recorded them.

Nothing is measured here: launch times are made up (a vLLM-like launch of minutes), and only ratios of times matter.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from spectune.models.cluster_time import ClusterWork, LaunchTimes, cluster_time
from spectune.runner.lanes import Lane

BASELINE = "baseline"
Draw = Callable[[random.Random, str], float]


@dataclass(frozen=True)
class World:
    """What is true of the simulated cluster, and hidden from the plan."""

    arm_s: float = 300.0
    arm_cv: float = 0.35
    """Between arms."""
    baseline_s: float = 420.0
    launch_cv: float = 0.06
    """Between launches of one arm."""
    worker_start_s: float = 5.0
    repair_s: float | None = 600.0

    def draw(self, rng: random.Random, arm: str) -> float:
        own = random.Random(f"{arm}/{self.arm_cv}") if arm != BASELINE else None
        typical = self.baseline_s if own is None else _lognormal(own, self.arm_s, self.arm_cv)
        return _lognormal(rng, typical, self.launch_cv)


def _lognormal(rng: random.Random, mean: float, cv: float) -> float:
    sd = math.sqrt(math.log1p(cv * cv))
    return mean * math.exp(rng.gauss(-sd * sd / 2, sd))


@dataclass
class Happened:
    """What a simulated study took."""

    finish_s: float = 0.0
    launches: int = 0
    lost: int = 0
    held_s: float = 0.0
    measured: dict[tuple[str, int], int] = field(default_factory=dict)
    """How often each trial was recorded: once, or the simulation is wrong."""


def simulate(
    trials: list[tuple[str, int]],
    *,
    nodes: int,
    world: World,
    lost_frac: float,
    baseline_every: int,
    rng: random.Random,
) -> Happened | None:
    """``None``: every node was lost for ever before the work was done."""
    happened = Happened()
    queue = deque(trials)
    own: list[list[Any]] = [[] for _ in range(nodes)]
    numbers, ticks = itertools.count(1), itertools.count()
    events: list[tuple[float, int, str, int, Any]] = []
    idle: set[int] = set()

    def at(time_s: float, what: str, node: int, about: Any = None) -> None:
        heapq.heappush(events, (time_s, next(ticks), what, node, about))

    for node in range(min(nodes, len(trials))):
        at(world.worker_start_s, "free", node)
        happened.held_s += world.worker_start_s
    busy = min(nodes, len(trials))
    idle |= set(range(min(nodes, len(trials)), nodes))
    while events:
        now, _, what, node, about = heapq.heappop(events)
        if what == "ended":
            key, started = about
            own[node].append(
                SimpleNamespace(
                    arm_id=key[0], status="complete", number=next(numbers), launch_number=next(numbers)
                )
            )
            happened.measured[key] = happened.measured.get(key, 0) + 1
            happened.held_s += now - started
        elif what == "lost":
            key, started = about
            happened.lost += 1
            happened.held_s += now - started
            busy -= 1
            if key[0] != BASELINE:
                queue.appendleft(key)
                if idle:
                    woken = idle.pop()
                    busy += 1
                    happened.held_s += world.worker_start_s
                    at(now + world.worker_start_s, "free", woken)
            if world.repair_s is not None:
                at(now + world.repair_s, "back", node)
            continue
        elif what == "back":
            if not queue and not busy:
                continue  # the study is over, and does not wait for it
            busy += 1
            happened.held_s += world.worker_start_s
            at(now + world.worker_start_s, "free", node)
            continue
        lane = Lane(tuple(own[node]), BASELINE, baseline_every, twice=False, is_node=True)
        reason = (lane.opening_reason() or lane.again_reason()) if queue else lane.closing_reason()
        if reason is not None:
            key = (BASELINE, next(ticks))
        elif queue:
            key = queue.popleft()
        else:
            idle.add(node)
            busy -= 1
            happened.finish_s = max(happened.finish_s, now if own[node] else 0.0)
            continue
        happened.launches += 1
        seconds = world.draw(rng, key[0])
        if rng.random() < lost_frac:
            at(now + seconds * rng.random(), "lost", node, (key, now))
        else:
            at(now + seconds, "ended", node, (key, now))
    return None if queue else happened


def compare(args: argparse.Namespace) -> dict[str, Any]:
    world = World(repair_s=None if args.repair_s < 0 else args.repair_s)
    arms = max(1, args.trials // args.repetitions)
    trials = [(f"arm{a}", r) for r in range(args.repetitions) for a in range(arms)]
    errors, inside, plans, finishes = [], 0, [], []
    for seed in range(args.seeds):
        rng = random.Random(seed)
        pilot = LaunchTimes.seen([world.draw(rng, f"pilot{seed}-{i}") for i in range(24)])
        baseline = LaunchTimes.seen([world.draw(rng, BASELINE) for _ in range(8)])
        work = ClusterWork(
            num_arm_launches=len(trials),
            num_arms=arms,
            arm=pilot,
            baseline=baseline,
            baseline_every=args.baseline_every,
            worker_start_s=world.worker_start_s,
            lost_frac=args.failures,
            repair_s=world.repair_s,
        )
        plan = cluster_time(work, nodes=args.nodes)
        truth = cluster_time(
            ClusterWork(
                num_arm_launches=len(trials),
                arm=_true_times(world, trials),
                baseline=LaunchTimes(world.baseline_s, world.launch_cv * world.baseline_s, 10**6),
                baseline_every=args.baseline_every,
                worker_start_s=world.worker_start_s,
                lost_frac=args.failures,
                repair_s=world.repair_s,
            ),
            nodes=args.nodes,
        )
        happened = simulate(
            trials,
            nodes=args.nodes,
            world=world,
            lost_frac=args.failures,
            baseline_every=args.baseline_every,
            rng=rng,
        )
        if happened is None or plan.finish_s is None or truth.finish_s is None:
            continue
        assert {k for k in happened.measured if k[0] != BASELINE} == set(trials)
        assert max(happened.measured.values()) == 1
        errors.append(
            (
                plan.finish_s.value / happened.finish_s - 1,
                truth.finish_s.value / happened.finish_s - 1,
                plan.launches / happened.launches - 1,
                (plan.node_hours or 0.0) * 3600 / happened.held_s - 1,
            )
        )
        low, high = plan.finish_s.low, plan.finish_s.high
        assert low is not None and high is not None
        inside += low <= happened.finish_s <= high
        plans.append(plan.finish_s.value)
        finishes.append(happened.finish_s)
    if not errors:
        return {"nodes": args.nodes, "trials": len(trials), "never": True}
    by_kind = list(zip(*errors, strict=True))

    def summary(values: tuple[float, ...]) -> dict[str, float]:
        ordered = sorted(map(abs, values))
        return {
            "mean": statistics.fmean(values),
            "median_abs": statistics.median(ordered),
            "p95_abs": ordered[math.ceil(0.95 * len(ordered)) - 1],
            "max_abs": ordered[-1],
        }

    return {
        "nodes": args.nodes,
        "trials": len(trials),
        "failures": args.failures,
        "seeds": len(errors),
        "simulated_finish_h": statistics.fmean(finishes) / 3600,
        "planned_finish_h": statistics.fmean(plans) / 3600,
        "finish_error_from_pilot": summary(by_kind[0]),
        "finish_error_of_formula": summary(by_kind[1]),
        "launches_error": summary(by_kind[2]),
        "node_hours_error": summary(by_kind[3]),
        "within_10_percent": sum(abs(e) <= 0.10 for e in by_kind[0]) / len(errors),
        "interval_holds": inside / len(errors),
    }


def _true_times(world: World, trials: list[tuple[str, int]]) -> LaunchTimes:
    """The arms' own mean: what a plan would know that had seen each of them often."""
    arms = sorted({arm for arm, _ in trials})
    typical = [_lognormal(random.Random(f"{arm}/{world.arm_cv}"), world.arm_s, world.arm_cv) for arm in arms]
    mean = statistics.fmean(typical)
    return LaunchTimes(mean, statistics.pstdev(typical) if len(typical) > 1 else 0.0, 10**6)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--trials", type=int, default=2000, help="launches of arms; baselines come on top")
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--baseline-every", type=int, default=2)
    parser.add_argument("--failures", type=float, default=0.02)
    parser.add_argument("--repair-s", type=float, default=600.0, help="below 0: lost nodes never come back")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    result = compare(parse())
    if "--json" in sys.argv:
        print(json.dumps(result, indent=1))
        return 0
    for name, value in result.items():
        shown = ", ".join(f"{k} {v:+.2%}" for k, v in value.items()) if isinstance(value, dict) else value
        print(f"{name:26} {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
