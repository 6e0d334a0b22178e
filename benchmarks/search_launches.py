"""How many launches a search takes to its end, against what a study's grid is made of.

    search_launches.py [--grids 300] [--most-arms 1000] [--strategy predict|one-factor] [--jobs 1] [--json]

Grids are drawn (``search_surfaces.drawn_grid``), from a chain of four arms to a thousand arms and more; those of more
than ``--most-arms`` are left out. No limit of launches, noise of a prompt 2 to 10 %, the strategy as ``spectune run``
makes it. Printed are launches by the number of arms, the estimate that ``spectune.search.plan`` makes before the start,
and the least squares of relative errors from which its constants are: launches = a + b * neighbours * log2(arms) for
``predict``, a + b * changes for ``one-factor``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

from search_regret import Noise, run_strategy
from search_surfaces import LAUNCH_S, MEASURE_S, drawn_grid

from spectune.search.plan import estimate_search, make_strategy, num_changes, num_neighbours
from spectune.search.protocol import LegalArm

BINS = (12, 30, 60, 120, 250, 500, 1001)


@dataclass(frozen=True)
class Row:
    """One grid searched once."""

    grid: int
    arms: int
    neighbours: int
    changes: int
    launches: int
    estimate: int
    regret: float


def search(number: int, *, strategy: str, most_arms: int) -> Row | None:
    """``None``: the grid has too many arms."""
    surface = drawn_grid(number)
    if len(surface.arms) > most_arms:
        return None
    legal = [LegalArm(arm, launch_s=LAUNCH_S, measure_s=MEASURE_S) for arm in surface.arms]
    noise = Noise(random.Random(f"n{number}").uniform(0.02, 0.10), "prompt")
    result = run_strategy(make_strategy(strategy, legal), surface, 0, noise)
    others = surface.arms[1:]
    return Row(
        grid=number,
        arms=len(surface.arms),
        neighbours=num_neighbours(others),
        changes=num_changes(others),
        launches=result.launches,
        estimate=estimate_search(strategy, legal).launches_likely,
        regret=result.regret,
    )


def least_squares(rows: Sequence[Row], strategy: str) -> tuple[float, float]:
    """``a`` and ``b`` with the smallest squares of relative errors."""
    sums = [0.0] * 5
    for row in rows:
        x = row.changes if strategy == "one-factor" else row.neighbours * math.log2(row.arms)
        one, slope = 1 / row.launches, x / row.launches
        for place, value in enumerate((one * one, one * slope, slope * slope, one, slope)):
            sums[place] += value
    aa, ab, bb, a, b = sums
    determinant = aa * bb - ab * ab
    return (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant


def summary(rows: Sequence[Row], strategy: str) -> dict[str, object]:
    errors = sorted(abs(row.estimate / row.launches - 1) for row in rows)
    table, low = [], 0
    for high in BINS:
        some = [row for row in rows if low <= row.arms < high]
        if some:
            table.append(
                {
                    "arms": f"{low} to {high - 1}",
                    "grids": len(some),
                    "mean_launches": statistics.fmean(row.launches for row in some),
                    "most_launches": max(row.launches for row in some),
                    "mean_estimate": statistics.fmean(row.estimate for row in some),
                }
            )
        low = high
    return {
        "strategy": strategy,
        "grids": len(rows),
        "median_error_frac": statistics.median(errors),
        "p90_error_frac": errors[math.ceil(0.9 * len(errors)) - 1],
        "mean_regret": statistics.fmean(row.regret for row in rows),
        "least_squares": least_squares(rows, strategy),
        "by_arms": table,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--grids", type=int, default=300)
    parser.add_argument("--most-arms", type=int, default=1000)
    parser.add_argument("--strategy", choices=("predict", "one-factor"), default="predict")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", action="store_true", help="with a row for each grid")
    args = parser.parse_args(argv)
    run = partial(search, strategy=args.strategy, most_arms=args.most_arms)
    with ProcessPoolExecutor(args.jobs) as pool:
        found = list(map(run, range(args.grids)) if args.jobs == 1 else pool.map(run, range(args.grids)))
    rows = [row for row in found if row is not None]
    document = summary(rows, args.strategy)
    if args.json:
        print(json.dumps({"schema_version": 1, **document, "rows": [asdict(row) for row in rows]}, indent=1))
        return 0
    for key, value in document.items():
        if key != "by_arms":
            print(f"{key}: {value}")
    for line in document["by_arms"]:  # type: ignore[attr-defined]
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
