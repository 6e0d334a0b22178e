"""What stopping clearly worse arms early saves on the simulated surfaces, and what it costs in regret.

    early_stopping.py --curves FILE.csv [--seeds 50] [--space chain|tree|both] [--json]

Every arm's prompts come in blocks of 4 of 32, paired with the best arm so far;
one prompt's speed has a noise of 2 to 10 %, drawn per seed. Saved time is
measuring time, in which a slow arm's prompts cost more. Two strategies: the full grid
(shuffled), where most arms are clearly worse, and ``predict`` within its budget.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from search_regret import BUDGET, legal_arms
from search_surfaces import (
    CHAIN_COSTS,
    PROMPTS,
    TREE_COSTS,
    Surface,
    chain_surface,
    draw_counts,
    read_curves,
    tree_surface,
)

from spectune.domain.arm import Arm
from spectune.domain.prediction_observation import Observation
from spectune.domain.prediction_shape import id_of
from spectune.domain.statistics_sequential import EarlyStopping, PooledNoise, pool_noise
from spectune.search.grid import Grid
from spectune.search.predict import Predict
from spectune.search.protocol import Ask, Budget, History, Strategy


@dataclass
class Bench:
    """Measures arms prompt by prompt; stops the clearly worse ones if asked to."""

    surface: Surface
    seed: int
    noise: float
    rule: EarlyStopping | None
    time_s: float = 0.0
    logs: dict[str, list[float]] = field(default_factory=dict)
    ratios: list[list[float]] = field(default_factory=list)
    stopped: int = 0

    def measure(self, arm: Arm, launch: int) -> Observation:
        rng = random.Random(f"{self.surface.name}/{self.seed}/{id_of(arm)}")
        reference = self._reference()
        pooled: PooledNoise | None = pool_noise(self.ratios)
        mine: list[float] = []
        paired: list[float] = []
        speed = self.surface.speed[id_of(arm)]
        for prompt in range(PROMPTS):
            mine.append(math.log(speed) + rng.gauss(0, self.noise))
            self.time_s += 128 / math.exp(mine[-1])
            if reference is not None:
                paired.append(mine[-1] - reference[prompt])
                if self.rule is not None and self.rule.clearly_worse(paired, pooled):
                    self.stopped += 1
                    break
        if len(paired) >= 2:
            self.ratios.append(paired)
        self.logs[id_of(arm)] = mine
        mean = math.fsum(paired) / len(paired) + _mean(reference) if reference is not None else _mean(mine)
        counts = (
            None
            if arm.is_baseline
            else draw_counts(rng, self.surface.shares[id_of(arm)], arm.knobs.num_draft_tokens or 0)
        )
        return Observation(
            arm=arm,
            tok_per_s=math.exp(mean),
            speedup=None,
            acceptance=counts,
            log_sd=self.noise / math.sqrt(len(mine)),
            launch=launch,
        )

    def _reference(self) -> list[float] | None:
        """The fastest arm that was measured in full."""
        full = [logs for logs in self.logs.values() if len(logs) == PROMPTS]
        return max(full, key=_mean, default=None)


def _mean(values: Sequence[float] | None) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def run(strategy: Strategy, bench: Bench) -> float:
    """Regret of what the strategy recommends."""
    seen: list[Observation] = []
    while True:
        answer = strategy.ask(History(tuple(seen)))
        if not isinstance(answer, Ask):
            return bench.surface.regret(answer.best)
        seen.append(bench.measure(answer.arm, len(seen)))


def compare(space: str, surfaces: Sequence[Surface], *, seeds: int, name: str) -> dict[str, Any]:
    regrets: dict[bool, list[float]] = {False: [], True: []}
    saved: list[float] = []
    stopped = arms = 0
    for surface in surfaces:
        for seed in range(seeds):
            noise = random.Random(f"noise/{surface.name}/{seed}").uniform(0.02, 0.10)
            times = {}
            for stopping in (False, True):
                rule = EarlyStopping(num_prompts=PROMPTS) if stopping else None
                bench = Bench(surface, seed, noise, rule)
                strategy: Strategy = (
                    Grid(legal_arms(surface))
                    if name == "grid"
                    else Predict(
                        legal_arms(surface), budget=Budget(launches=BUDGET[space]), launch_log_sd=0.001
                    )
                )
                regrets[stopping].append(run(strategy, bench))
                times[stopping] = bench.time_s
                if stopping:
                    stopped += bench.stopped
                    arms += len(bench.logs)
            saved.append(1 - times[True] / times[False])
    return {
        "runs": len(saved),
        "mean_saved_frac": statistics.fmean(saved),
        "mean_regret": statistics.fmean(regrets[False]),
        "mean_regret_with_stopping": statistics.fmean(regrets[True]),
        "arms_stopped_frac": stopped / arms,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--curves", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--space", choices=("chain", "tree", "both"), default="both")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    makers = {"chain": (chain_surface, CHAIN_COSTS), "tree": (tree_surface, TREE_COSTS)}
    document: dict[str, Any] = {"schema_version": 1, "spaces": {}}
    for space in ("chain", "tree") if args.space == "both" else (args.space,):
        make, costs = makers[space]
        surfaces = [make(curve, cost) for curve in read_curves(args.curves) for cost in costs]
        document["spaces"][space] = {
            name: compare(space, surfaces, seeds=args.seeds, name=name) for name in ("grid", "predict")
        }
    if args.json:
        print(json.dumps(document, indent=1))
        return 0
    print("| space | strategy | measuring time saved | regret without | with | arms stopped | runs |")
    print("|---|---|---|---|---|---|---|")
    for space, rows in document["spaces"].items():
        for name, row in rows.items():
            print(
                f"| {space} | {name} | {row['mean_saved_frac']:.0%} | {row['mean_regret']:.2%} "
                f"| {row['mean_regret_with_stopping']:.2%} | {row['arms_stopped_frac']:.0%} | {row['runs']} |"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
