"""Regret and launches of each strategy on simulated surfaces.

    search_regret.py --curves FILE.csv --seeds 200 [--space chain|tree|both] [--launches N] [--per prompt|launch]
    search_regret.py --drawn 2000 --seeds 1 [...] [--tail 0.05]

Regret is 1 - true speed of the arm recommended / true speed of the best arm,
plain decoding among them. Every seed draws its noise between 2 and 10 %.
``--per prompt``: that is one prompt's, of 32 paired in a launch; ``--per
launch``: of the launch's whole result. ``--drawn``: surfaces whose acceptance
and cost are drawn, on which constants were chosen; those of the published
curves are the test. ``predict to its end`` has no limit of launches. ``oracle``
launches the truly fastest arms and recommends by what it measured: what noise
alone leaves of so many launches. ``--first-share``: the length of ``predict``'s
first probe, of the longest. ``--tail``: lists the runs that lose more than this
share, and what they launched. ``full grid + model`` recommends by the model after
the full sweep. TPE needs optuna, which only this benchmark uses; without it the
row is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from search_surfaces import LAUNCH_S, MEASURE_S, Surface, surfaces_of

from spectune.domain.arm import Arm
from spectune.models.arm_shape import id_of
from spectune.models.observation import Observation
from spectune.search.grid import Grid
from spectune.search.one_factor import OneFactor
from spectune.search.predict import Predict
from spectune.search.protocol import Ask, Budget, History, LegalArm, Strategy

BUDGET = {"chain": 4, "tree": 10}


@dataclass(frozen=True)
class Noise:
    """Of one seed."""

    sd: float
    per: str
    first_share: float | None = None
    """Length of predict's first probe, of the longest; None is its own choice."""


@dataclass(frozen=True)
class Result:
    regret: float
    launched: tuple[str, ...]
    """Names of arms, in order."""
    not_launched: float
    """Regret of the truly fastest arm that was launched: what choosing better among those could not mend."""

    @classmethod
    def of(cls, surface: Surface, best: Arm | None, seen: Sequence[Observation]) -> Result:
        left = min((surface.regret(o.arm) for o in seen), default=1.0)
        return cls(surface.regret(best), tuple(o.arm.name for o in seen), left)

    @property
    def launches(self) -> int:
        return len(self.launched)


Search = Callable[[Surface, int, int, Noise], Result]


def run_strategy(strategy: Strategy, surface: Surface, seed: int, noise: Noise) -> Result:
    """Asks until the strategy stops."""
    seen: list[Observation] = []
    while True:
        answer = strategy.ask(History(tuple(seen)))
        if not isinstance(answer, Ask):
            return Result.of(surface, answer.best, seen)
        seen.append(surface.measure(answer.arm, launch=len(seen), seed=seed, noise=noise.sd, per=noise.per))


_LEGAL: dict[str, list[LegalArm]] = {}


def legal_arms(surface: Surface) -> list[LegalArm]:
    """Of the surface last asked for, remembered."""
    if surface.name not in _LEGAL:
        _LEGAL.clear()
        _LEGAL[surface.name] = [LegalArm(arm, launch_s=LAUNCH_S, measure_s=MEASURE_S) for arm in surface.arms]
    return _LEGAL[surface.name]


def predict(surface: Surface, seed: int, budget: int | None, noise: Noise) -> Result:
    launch_sd = noise.sd if noise.per == "launch" else 0.001
    strategy = Predict(legal_arms(surface), budget=Budget(launches=budget), launch_log_sd=launch_sd)
    if noise.first_share is not None:
        strategy = replace(strategy, first_share=noise.first_share)
    return run_strategy(strategy, surface, seed, noise)


def predict_to_its_end(surface: Surface, seed: int, budget: int, noise: Noise) -> Result:
    """Without a limit of launches: until no arm is likely to be better by 2 %."""
    return predict(surface, seed, None, noise)


def one_factor(surface: Surface, seed: int, budget: int, noise: Noise) -> Result:
    return run_strategy(OneFactor(legal_arms(surface), budget=Budget(launches=budget)), surface, seed, noise)


def full_grid(surface: Surface, seed: int, budget: int, noise: Noise) -> Result:
    return run_strategy(Grid(legal_arms(surface)), surface, seed, noise)


def full_grid_model(surface: Surface, seed: int, budget: int, noise: Noise) -> Result:
    """Every arm measured; recommended by what the model and the measurements say together."""
    strategy, seen = Grid(legal_arms(surface)), list[Observation]()
    while isinstance(answer := strategy.ask(History(tuple(seen))), Ask):
        seen.append(surface.measure(answer.arm, launch=len(seen), seed=seed, noise=noise.sd, per=noise.per))
    launch_sd = noise.sd if noise.per == "launch" else 0.001
    best = Predict(legal_arms(surface), launch_log_sd=launch_sd).best(History(tuple(seen)))
    return Result.of(surface, best, seen)


def grid(surface: Surface, seed: int, budget: int, noise: Noise) -> Result:
    """An even grid over the arms as listed, within the budget."""
    others = surface.arms[1:]
    chosen = [others[round((i + 0.5) * len(others) / (budget - 1) - 0.5)] for i in range(budget - 1)]
    return _best_of(surface, chosen, seed, noise)


def random_search(surface: Surface, seed: int, budget: int, noise: Noise) -> Result:
    chosen = random.Random(f"random/{surface.name}/{seed}").sample(surface.arms[1:], budget - 1)
    return _best_of(surface, chosen, seed, noise)


def _best_of(surface: Surface, arms: Sequence[Arm], seed: int, noise: Noise) -> Result:
    found = [
        surface.measure(arm, launch=i, seed=seed, noise=noise.sd, per=noise.per)
        for i, arm in enumerate((surface.arms[0], *arms))
    ]
    best = max(found, key=lambda o: o.tok_per_s)
    return Result.of(surface, best.arm, found)


def oracle(surface: Surface, seed: int, budget: int, noise: Noise) -> Result:
    """Plain decoding and the arms that are truly fastest: what noise alone leaves of so many launches."""
    fastest = sorted(surface.arms[1:], key=lambda arm: -surface.speed[id_of(arm)])
    return _best_of(surface, fastest[: budget - 1], seed, noise)


def tpe(surface: Surface, seed: int, budget: int, noise: Noise) -> Result:
    """Optuna's TPE over the same knobs; the baseline is given, an illegal or repeated draw costs nothing."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # By the seed alone all surfaces would share its draws.
    own = random.Random(f"tpe/{surface.name}/{seed}").getrandbits(32)
    sampler = optuna.samplers.TPESampler(seed=own, n_startup_trials=max(2, budget // 3))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    by_shape = {_shape(arm): arm for arm in surface.arms[1:]}
    sides = [sorted({shape[i] for shape in by_shape}) for i in range(4)]
    seen = [surface.measure(surface.arms[0], launch=0, seed=seed, noise=noise.sd, per=noise.per)]
    values: dict[str, float] = {}
    for _ in range(40 * budget):
        if len(seen) >= budget:
            break
        trial = study.ask()
        shape = tuple(
            trial.suggest_categorical(name, side) if name == "graphs" else _suggest(trial, name, side)
            for name, side in zip(("steps", "topk", "tokens", "graphs"), sides, strict=True)
        )
        if shape[1] == 1 and len(sides[1]) == 1:
            shape = (shape[2], 1, shape[2], shape[3])
        arm = by_shape.get(shape)
        if arm is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        if arm.arm_id not in values:
            observed = surface.measure(arm, launch=len(seen), seed=seed, noise=noise.sd, per=noise.per)
            seen.append(observed)
            values[arm.arm_id] = observed.tok_per_s
        study.tell(trial, values[arm.arm_id])
    best = max(seen, key=lambda o: o.tok_per_s)
    return Result.of(surface, best.arm, seen)


def _suggest(trial: Any, name: str, side: list[Any]) -> Any:
    return side[trial.suggest_int(name, 0, len(side) - 1)] if len(side) > 1 else side[0]


def _shape(arm: Arm) -> tuple[Any, ...]:
    knobs = arm.knobs
    return knobs.num_steps, knobs.topk, knobs.num_draft_tokens, knobs.cuda_graphs


SEARCHES: dict[str, Search] = {
    "predict": predict,
    "predict to its end": predict_to_its_end,
    "one-factor": one_factor,
    "grid": grid,
    "random": random_search,
    "tpe": tpe,
    "oracle": oracle,
    "full grid": full_grid,
    "full grid + model": full_grid_model,
}


def summary(results: Sequence[tuple[str, Result]]) -> dict[str, Any]:
    """Over all seeds and surfaces; ``worst_surface`` is the largest mean of one surface."""
    regrets = sorted(r.regret for _, r in results)
    by_surface: dict[str, list[float]] = {}
    for name, result in results:
        by_surface.setdefault(name, []).append(result.regret)
    means = {name: statistics.fmean(values) for name, values in by_surface.items()}
    worst = sorted(means, key=lambda name: -means[name])
    launches = [r.launches for _, r in results]
    return {
        "mean_regret": statistics.fmean(regrets),
        "mean_regret_standard_error": statistics.stdev(regrets) / math.sqrt(len(regrets)),
        "p95_regret": regrets[min(len(regrets) - 1, math.ceil(0.95 * len(regrets)) - 1)],
        "p99_regret": regrets[min(len(regrets) - 1, math.ceil(0.99 * len(regrets)) - 1)],
        "worst_regret": regrets[-1],
        "share_above_5_percent": sum(r > 0.05 for r in regrets) / len(regrets),
        "mean_not_launched": statistics.fmean(r.not_launched for _, r in results),
        "worst_surface_mean_regret": means[worst[0]],
        "worst_surfaces": {name: means[name] for name in worst[:3]},
        "surfaces_above_5_percent": sum(mean > 0.05 for mean in means.values()),
        "mean_launches": statistics.fmean(launches),
        "max_launches": max(launches),
        "runs": len(results),
    }


def tail(
    surfaces: Sequence[Surface], found: Sequence[Sequence[Result]], *, above: float
) -> list[dict[str, Any]]:
    """Surfaces with a run that lost more than ``above``, the most such runs first, and what these launched."""
    rows = []
    for surface, of_surface in zip(surfaces, found, strict=True):
        bad = [r for r in of_surface if r.regret > above]
        if not bad:
            continue
        ways = Counter(r.launched for r in bad).most_common(1)
        rows.append(
            {
                "surface": surface.name,
                "runs_above": len(bad),
                "runs": len(of_surface),
                "worst_regret": max(r.regret for r in bad),
                "none_launched_within": sum(r.not_launched > above for r in bad),
                "launched_most_often": ways[0][0],
                "best": max(surface.arms, key=lambda arm: surface.speed[id_of(arm)]).name,
            }
        )
    return sorted(rows, key=lambda row: -row["runs_above"])


def _run_surface(
    surface: Surface, name: str, *, seeds: int, budget: int, noise: Noise
) -> tuple[list[Result], float]:
    """Results of one strategy by seed, and the processor's seconds."""
    began, results = time.process_time(), []
    for seed in range(seeds):
        sd = random.Random(f"noise/{surface.name}/{seed}").uniform(0.02, 0.10)
        results.append(SEARCHES[name](surface, seed, budget, replace(noise, sd=sd)))
    return results, time.process_time() - began


def run_space(
    surfaces: Sequence[Surface],
    *,
    seeds: int,
    budget: int,
    noise: Noise,
    names: Sequence[str],
    jobs: int = 1,
    tail_above: float | None = None,
) -> dict[str, Any]:
    table: dict[str, Any] = {}
    with ProcessPoolExecutor(jobs) as pool:
        for name in names:
            run = partial(_run_surface, name=name, seeds=seeds, budget=budget, noise=noise)
            found = list(map(run, surfaces) if jobs == 1 else pool.map(run, surfaces))
            results = [
                (surface.name, result)
                for surface, (of_surface, _) in zip(surfaces, found, strict=True)
                for result in of_surface
            ]
            seconds = math.fsum(seconds for _, seconds in found)
            table[name] = {**summary(results), "cpu_s_per_run": seconds / len(results)}
            if tail_above is not None:
                table[name]["tail"] = tail(surfaces, [of for of, _ in found], above=tail_above)
    return {
        "surfaces": len(surfaces),
        "legal_arms": len(surfaces[0].arms),
        "budget_launches": budget,
        "seeds": seeds,
        "noise_per": noise.per,
        "strategies": table,
    }


def _print(space: str, found: dict[str, Any]) -> None:
    print(
        f"{space}: {found['surfaces']} surfaces x {found['seeds']} seeds, {found['legal_arms']} legal arms, "
        f"at most {found['budget_launches']} launches, noise 2-10 % per {found['noise_per']}"
    )
    print(
        "| strategy | mean regret | 95th | 99th | above 5 % | worst | worst surface's mean | launches, mean (most) |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, row in found["strategies"].items():
        print(
            f"| {name} | {row['mean_regret']:.2%} | {row['p95_regret']:.1%} | {row['p99_regret']:.1%} "
            f"| {row['share_above_5_percent']:.1%} | {row['worst_regret']:.1%} "
            f"| {row['worst_surface_mean_regret']:.2%} | {row['mean_launches']:.1f} ({row['max_launches']}) |"
        )
    for name, row in found["strategies"].items():
        for bad in row.get("tail", ()):
            print(
                f"{name} on {bad['surface']}: {bad['runs_above']} of {bad['runs']} runs, "
                f"worst {bad['worst_regret']:.1%}, {bad['none_launched_within']} launched nothing near; "
                f"best {bad['best']}, launched {', '.join(bad['launched_most_often'])}"
            )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--curves", type=Path, help="CSV: model,mode,k1,...,k8")
    parser.add_argument("--drawn", type=int, help="so many drawn surfaces instead of the curves'")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--space", choices=("chain", "tree", "both"), default="both")
    parser.add_argument(
        "--launches", type=int, help="at most so many, instead of 4 for chains and 10 for trees"
    )
    parser.add_argument("--first-share", type=float, help="predict's first probe, of the longest chain")
    parser.add_argument("--per", choices=("prompt", "launch"), default="prompt")
    parser.add_argument("--strategies", default=None, help="comma list; default: all that can run")
    parser.add_argument("--tail", type=float, help="list the runs that lose more than this share")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    names = args.strategies.split(",") if args.strategies else list(SEARCHES)
    if "tpe" in names:
        try:
            import optuna  # noqa: F401
        except ImportError:
            names.remove("tpe")
            print("optuna is not installed: no TPE row", file=sys.stderr)
    if args.launches is not None and args.launches < 2:
        parser.error("--launches: plain decoding is one, so at least 2")
    if (args.curves is None) == (args.drawn is None):
        parser.error("one of --curves and --drawn")
    document: dict[str, Any] = {"schema_version": 1, "spaces": {}}
    for space in ("chain", "tree") if args.space == "both" else (args.space,):
        surfaces = surfaces_of(space, curves=args.curves, drawn=args.drawn)
        found = run_space(
            surfaces,
            seeds=args.seeds,
            budget=args.launches or BUDGET[space],
            noise=Noise(0.0, args.per, args.first_share),
            names=names,
            jobs=args.jobs,
            tail_above=args.tail,
        )
        document["spaces"][space] = found
        if not args.json:
            _print(space, found)
    if args.json:
        print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
