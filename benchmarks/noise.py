"""Error rates of spectune's comparisons by simulation, at a machine's noise.

    noise.py [--studies 1000] [--launch-sd 0.11] [--prompt-sd 0.12] [--launches 3] [--prompts 12] [--json]

Defaults are the noise of the demo's machine: launches of one arm differ by 11 %,
a prompt's measurement by 12 % (standard deviations of log speed). Every study
is baseline, arm, baseline, arm, ..., baseline. It reports how often equal arms
are called FASTER or SLOWER, and how often the interval holds the truth.
``ended_early``: the same of arms whose first launch of 48 prompts was asked no more
once a search would have had enough.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spectune.runner.stop_early import ENOUGH_MARGINS
from spectune.statistics.intervals import Comparison, SpeedSample, compare_with_baseline
from spectune.statistics.multiple import simultaneous
from spectune.statistics.sequential import WorthStopping

MARGIN = 0.02
EARLY_PROMPTS = 48


@dataclass(frozen=True)
class Machine:
    """Standard deviations of log speed; ``prompt`` is one measurement's, so a paired ratio has sqrt(2) of it."""

    launch: float
    prompt: float


def draw_study(
    rng: random.Random, machine: Machine, *, speedups: Sequence[float], launches: int, prompts: int
) -> dict[str, Comparison]:
    """One study with ``launches`` of every arm; arm i has the true ratio ``speedups[i]``."""
    base = {f"p{i}": rng.uniform(40, 90) for i in range(prompts)}
    arms: list[SpeedSample] = []
    baselines: list[SpeedSample] = []
    order = 0

    def sample(name: str, ratio: float) -> SpeedSample:
        shift = rng.gauss(0, machine.launch)
        speeds = {p: v * ratio * math.exp(shift + rng.gauss(0, machine.prompt)) for p, v in base.items()}
        return SpeedSample(name, order, speeds)

    for _ in range(launches):
        baselines.append(sample("baseline", 1.0))
        order += 1
        for index, ratio in enumerate(speedups):
            arms.append(sample(f"arm{index}", ratio))
            order += 1
    baselines.append(sample("baseline", 1.0))
    return compare_with_baseline(arms, baselines, margin=MARGIN)


def called_different(found: dict[str, Comparison]) -> bool:
    return any(c.verdict in ("FASTER", "SLOWER") for c in found.values())


def error_rates(
    machine: Machine, *, studies: int, launches: int, prompts: int, seed: int = 1
) -> dict[str, float]:
    """Of equal arms: wrong calls of one arm, wrong calls in a table of five, and interval coverage."""
    rng = random.Random(seed)
    wrong = covered = wrong_table = plain_table = 0
    for _ in range(studies):
        found = draw_study(rng, machine, speedups=[1.0], launches=launches, prompts=prompts)
        wrong += called_different(found)
        speedup = found["arm0"].speedup
        covered += speedup.low is not None and speedup.high is not None and speedup.low <= 1 <= speedup.high
        table = draw_study(rng, machine, speedups=[1.0] * 5, launches=launches, prompts=prompts)
        plain_table += called_different(table)
        wrong_table += called_different(simultaneous(table, margin=MARGIN))
    return {
        "wrong_of_one_arm": wrong / studies,
        "coverage": covered / studies,
        "wrong_in_a_table_of_5": wrong_table / studies,
        "wrong_in_a_table_of_5_unadjusted": plain_table / studies,
    }


def early_rates(
    machine: Machine, *, studies: int, launches: int, prompts: int = EARLY_PROMPTS, seed: int = 3
) -> dict[str, float]:
    """Of equal arms whose first launch ends as enough: wrong calls, coverage, share of its prompts asked."""
    rule = WorthStopping(num_prompts=prompts, precision=ENOUGH_MARGINS * math.log1p(MARGIN))
    rng = random.Random(seed)
    wrong = covered = asked = 0
    for _ in range(studies):
        order = iter(range(2 * launches + 1))
        plain = [_launch(rng, machine, "baseline", next(order), prompts)]
        arms: list[SpeedSample] = []
        for launch in range(launches):
            arm = _launch(rng, machine, "arm", next(order), prompts)
            before = plain[-1].speed_by_prompt
            if launch == 0:
                arm = _until_enough(arm, before, rule)
                asked += len(arm.speed_by_prompt)
            arms.append(arm)
            plain.append(_launch(rng, machine, "baseline", next(order), prompts))
        found = compare_with_baseline(arms, plain, margin=MARGIN)
        wrong += called_different(found)
        speedup = found["arm"].speedup
        covered += speedup.low is not None and speedup.high is not None and speedup.low <= 1 <= speedup.high
    return {
        "wrong_of_one_arm": wrong / studies,
        "coverage": covered / studies,
        "asked_of_first_launch": asked / studies / prompts,
    }


def _launch(rng: random.Random, machine: Machine, name: str, order: int, prompts: int) -> SpeedSample:
    shift = rng.gauss(0, machine.launch)
    speeds = {f"p{i}": 60 * math.exp(shift + rng.gauss(0, machine.prompt)) for i in range(prompts)}
    return SpeedSample(name, order, speeds)


def _until_enough(arm: SpeedSample, before: Mapping[str, float], rule: WorthStopping) -> SpeedSample:
    logs: list[float] = []
    kept: dict[str, float] = {}
    for prompt, speed in arm.speed_by_prompt.items():
        kept[prompt] = speed
        logs.append(math.log(speed / before[prompt]))
        if rule.verdict([], logs) == "enough":
            break
    return SpeedSample(arm.arm_id, arm.order, kept)


def share_interval(hits: int, tries: int) -> tuple[float, float]:
    """At 95 % (Wilson 1927)."""
    z = 1.959964
    middle = (hits + z * z / 2) / (tries + z * z)
    half = z * math.sqrt(hits * (tries - hits) / tries + z * z / 4) / (tries + z * z)
    return middle - half, middle + half


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--launch-sd", type=float, default=0.11)
    parser.add_argument("--prompt-sd", type=float, default=0.12)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    machine = Machine(args.launch_sd, args.prompt_sd)
    found: dict[str, Any] = {
        "schema_version": 1,
        "launch_sd": machine.launch,
        "prompt_sd": machine.prompt,
        "launches": args.launches,
        "prompts": args.prompts,
        "studies": args.studies,
        **error_rates(machine, studies=args.studies, launches=args.launches, prompts=args.prompts),
        "ended_early": early_rates(machine, studies=args.studies, launches=args.launches),
    }
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        for key, value in found.items():
            print(f"{key}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
