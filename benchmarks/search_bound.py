"""What the best possible plan of a few launches loses in its worst case, where only the places of cliffs are unknown.

    search_bound.py --curves FILE.csv [--slope 0.05] [--size 0.5] [--launches 3]

Acceptance, slope and the size of each cliff are known, nothing is noisy, and
plain decoding was measured. Every plan is tried: each next launch may depend on
what the ones before showed. Regret is that of the fastest arm launched, plain
decoding among them, at the places of the cliffs that are worst for the plan.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

from search_surfaces import read_curves

Places = tuple[int, ...]


def worst_case(
    lengths: Sequence[float], *, slope: float, size: float, cliffs: int, launches: int = 3
) -> float:
    """Regret of the plan whose worst case is smallest; up to so many cliffs behind the first token."""
    longest = len(lengths) - 1
    cases = [places for n in range(cliffs + 1) for places in combinations(range(2, longest + 1), n)]

    def speeds(places: Places) -> list[float]:
        costs = [1 + slope * k + size * sum(k >= at for at in places) for k in range(longest + 1)]
        return [length / cost for length, cost in zip(lengths, costs, strict=True)]

    speed = {places: speeds(places) for places in cases}

    @cache
    def best_plan(possible: tuple[Places, ...], launched: frozenset[int], left: int) -> float:
        if not left:
            return max(1 - max(speed[p][k] for k in launched) / max(speed[p]) for p in possible)
        found = 1.0
        for k in range(1, longest + 1):
            if k in launched:
                continue
            shown: dict[float, list[Places]] = {}
            for places in possible:
                shown.setdefault(round(speed[places][k], 9), []).append(places)
            worst = max(best_plan(tuple(same), launched | {k}, left - 1) for same in shown.values())
            found = min(found, worst)
        return found

    return best_plan(tuple(cases), frozenset({0}), launches)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--curves", type=Path, required=True, help="CSV: model,mode,k1,...,k8")
    parser.add_argument("--slope", type=float, default=0.05)
    parser.add_argument("--size", type=float, default=0.5)
    parser.add_argument("--launches", type=int, default=3, help="beside plain decoding")
    args = parser.parse_args(argv)
    print("| curve | one cliff | two cliffs |")
    print("|---|---|---|")
    for curve in read_curves(args.curves):
        row = [
            worst_case(curve.lengths, slope=args.slope, size=args.size, cliffs=n, launches=args.launches)
            for n in (1, 2)
        ]
        print(f"| {curve.name} | " + " | ".join(f"{value:.1%}" for value in row) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
