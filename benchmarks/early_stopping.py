"""What ending arms early saves on the simulated surfaces, and what it costs in regret.

    early_stopping.py --curves FILE.csv [--seeds 50] [--space chain|tree|both] [--strategies grid,predict] [--json]
    early_stopping.py --drawn 200 --seeds 1 [...]

The rule is that of ``spectune run``. After every second of 32 prompts, paired
with the fastest arm so far: ``worse`` ends arms whose remaining prompts are
worth less than 0.1 % of speed; ``enough`` also ends those whose ratio to plain
decoding is known to 3 % (``spectune run`` does that under ``predict`` alone).
Plain decoding is always measured whole. Saved is measuring time, in which a slow arm's prompts
cost more, against every launched arm measured whole. Two strategies: the full
grid (shuffled), where most arms are clearly worse, and ``predict`` in its budget.
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
from search_surfaces import PROMPTS, VERIFY_STEPS, Surface, draw_counts, surfaces_of

from spectune.domain.arm import Arm
from spectune.models.arm_shape import id_of
from spectune.models.observation import Observation
from spectune.runner.stop_early import BLOCK, ENOUGH_MARGINS, LEAST_EXPECTED_LOG_SD, LEAST_PROMPTS
from spectune.search.grid import Grid
from spectune.search.predict import Predict
from spectune.search.protocol import Ask, Budget, History, Strategy
from spectune.statistics.sequential import Expected, PooledNoise, WorthStopping, pool_noise

MARGIN = 0.02


@dataclass
class Bench:
    """Measures arms prompt by prompt; ends those that need no more, if asked to.

    Plain decoding is always measured whole: every other arm's speed is
    plain decoding's times their ratio on the prompts that both have.
    """

    surface: Surface
    seed: int
    noise: float
    rule: WorthStopping | None
    time_s: float = 0.0
    logs: dict[str, list[float]] = field(default_factory=dict)
    worse: set[str] = field(default_factory=set)

    def measure(self, ask: Ask, launch: int) -> Observation:
        arm = ask.arm
        rng = random.Random(f"{self.surface.name}/{self.seed}/{id_of(arm)}")
        baseline = next(iter(self.logs.values()), None)
        reference = self._reference()
        expected = self._expected(ask, reference)
        pooled, pooled_to_baseline = self._noise(reference), self._noise(baseline)
        mine: list[float] = []
        speed = self.surface.speed[id_of(arm)]
        for _ in range(PROMPTS):
            mine.append(math.log(speed) + rng.gauss(0, self.noise))
            self.time_s += 128 / math.exp(mine[-1])
            if self.rule is None or baseline is None or reference is None:
                continue
            verdict = self.rule.verdict(
                _paired(mine, reference),
                _paired(mine, baseline),
                pooled=pooled,
                pooled_to_baseline=pooled_to_baseline,
                expected=expected,
                most_pairs=len(reference),
            )
            if verdict == "worse":
                self.worse.add(id_of(arm))
            if verdict is not None:
                break
        self.logs[id_of(arm)] = mine
        return self._observed(arm, launch, rng)

    def _observed(self, arm: Arm, launch: int, rng: random.Random) -> Observation:
        n = len(self.logs[id_of(arm)])
        counts = None
        if not arm.is_baseline:
            counts = draw_counts(
                rng,
                self.surface.shares[id_of(arm)],
                arm.knobs.num_draft_tokens or 0,
                steps=max(1, VERIFY_STEPS * n // PROMPTS),
            )
        return Observation(
            arm=arm,
            tok_per_s=math.exp(self._log_speed(id_of(arm))),
            speedup=None,
            acceptance=counts,
            log_sd=self.noise * math.sqrt(max(2 / n - 1 / PROMPTS, 1 / PROMPTS)),
            stopped=id_of(arm) in self.worse,
            launch=launch,
        )

    def _log_speed(self, arm_id: str) -> float:
        """Plain decoding's, times the ratio on the prompts that were measured."""
        mine, baseline = self.logs[arm_id], next(iter(self.logs.values()))
        return statistics.fmean(baseline) + statistics.fmean(_paired(mine, baseline))

    def _noise(self, other: list[float] | None) -> PooledNoise | None:
        """How the ratios of the arms measured so far scatter; those stopped as worse are no results."""
        kept = [logs for arm_id, logs in self.logs.items() if arm_id not in self.worse]
        if other is None:
            return None
        return pool_noise([_paired(logs, other) for logs in kept if logs is not other])

    def _reference(self) -> list[float] | None:
        """The fastest arm that was not stopped as worse."""
        kept = [arm_id for arm_id in self.logs if arm_id not in self.worse]
        fastest = max(kept, key=self._log_speed, default=None)
        return None if fastest is None else self.logs[fastest]

    def _expected(self, ask: Ask, reference: list[float] | None) -> Expected | None:
        if ask.prediction is None or reference is None:
            return None
        fastest = max(self._log_speed(arm_id) for arm_id in self.logs if arm_id not in self.worse)
        return Expected(ask.prediction.log - fastest, max(ask.prediction.log_sd, LEAST_EXPECTED_LOG_SD))


def _paired(mine: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(mine, other, strict=False)]


def run(strategy: Strategy, bench: Bench) -> float:
    """Regret of what the strategy recommends."""
    seen: list[Observation] = []
    while True:
        answer = strategy.ask(History(tuple(seen)))
        if not isinstance(answer, Ask):
            return bench.surface.regret(answer.best)
        seen.append(bench.measure(answer, len(seen)))


RULES: dict[str, WorthStopping | None] = {
    "none": None,
    "worse": WorthStopping(num_prompts=PROMPTS, block=BLOCK, least=LEAST_PROMPTS),
    "worse or enough": WorthStopping(
        num_prompts=PROMPTS,
        block=BLOCK,
        least=LEAST_PROMPTS,
        precision=ENOUGH_MARGINS * math.log1p(MARGIN),
    ),
}


def compare(space: str, surfaces: Sequence[Surface], *, seeds: int, name: str) -> dict[str, Any]:
    """By rule: measuring time saved against every launched arm measured whole, and the regret."""
    saved: dict[str, list[float]] = {rule: [] for rule in RULES}
    regrets: dict[str, list[float]] = {rule: [] for rule in RULES}
    for surface in surfaces:
        for seed in range(seeds):
            noise = random.Random(f"noise/{surface.name}/{seed}").uniform(0.02, 0.10)
            whole_s = 0.0
            for rule_name, rule in RULES.items():
                bench = Bench(surface, seed, noise, rule)
                regrets[rule_name].append(run(_strategy(space, surface, name), bench))
                whole_s = whole_s or bench.time_s
                saved[rule_name].append(1 - bench.time_s / whole_s)
    return {
        "runs": len(surfaces) * seeds,
        "rules": {
            rule: {
                "mean_saved_frac": statistics.fmean(saved[rule]),
                "mean_regret": statistics.fmean(regrets[rule]),
                "worst_regret": max(regrets[rule]),
            }
            for rule in RULES
        },
    }


def _strategy(space: str, surface: Surface, name: str) -> Strategy:
    if name == "grid":
        return Grid(legal_arms(surface))
    return Predict(legal_arms(surface), budget=Budget(launches=BUDGET[space]), launch_log_sd=0.001)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--curves", type=Path, help="CSV: model,mode,k1,...,k8")
    parser.add_argument("--drawn", type=int, help="so many drawn surfaces instead of the curves'")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--space", choices=("chain", "tree", "both"), default="both")
    parser.add_argument("--strategies", default="grid,predict")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if (args.curves is None) == (args.drawn is None):
        parser.error("one of --curves and --drawn")
    document: dict[str, Any] = {"schema_version": 1, "spaces": {}}
    for space in ("chain", "tree") if args.space == "both" else (args.space,):
        surfaces = surfaces_of(space, curves=args.curves, drawn=args.drawn)
        document["spaces"][space] = {
            name: compare(space, surfaces, seeds=args.seeds, name=name) for name in args.strategies.split(",")
        }
    if args.json:
        print(json.dumps(document, indent=1))
        return 0
    print("| space | strategy | ended early | measuring time saved | mean regret | worst | runs |")
    print("|---|---|---|---|---|---|---|")
    for space, rows in document["spaces"].items():
        for name, found in rows.items():
            for rule, row in found["rules"].items():
                print(
                    f"| {space} | {name} | {rule} | {row['mean_saved_frac']:.0%} | {row['mean_regret']:.2%} "
                    f"| {row['worst_regret']:.1%} | {found['runs']} |"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
