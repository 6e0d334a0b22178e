"""Wrong verdicts, coverage and power of a speedup on simulated machines, cell by cell.

    noise_table.py [--studies 400] [--only WORD] [--json]

Each row is a machine (``noise_machine.py``), a number of launches of each arm and of prompts. ``wrong``: an equal arm
called FASTER or SLOWER; ``table``: any arm of the table, intervals widened to hold together; ``found``: a true gain
called FASTER; ``half``: half width of the interval of the log speedup. ``looks``: the study ends at the first verdict,
looked for after each launch of the arm from the second to the last.
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
from typing import Any

from noise import share_interval
from noise_machine import Drawn, Machine, draw

from spectune.statistics.intervals import Comparison, compare_with_baseline
from spectune.statistics.multiple import simultaneous

MARGIN = 0.02
DIFFERENT = ("FASTER", "SLOWER")


@dataclass(frozen=True)
class Cell:
    """One row: ``needed`` is what the share named there must not exceed, or for ``found`` must reach."""

    name: str
    machine: Machine
    launches: int
    speedups: tuple[float, ...] = (1.0,)
    prompts: int = 12
    looks: bool = False
    needed: dict[str, float] = field(default_factory=dict)


EQUAL = (1.0,) * 5
QUIET = Machine(0.01, 0.05)
SLOW = Machine(0.01, 0.05, slow=0.2)


def cells(
    name: str, machine: Machine, launches: Sequence[int], needed: dict[str, float], **others: Any
) -> list[Cell]:
    """A row for each number of launches, of five equal arms unless ``others`` say more."""
    return [Cell(name, machine, m, needed=needed, **{"speedups": EQUAL, **others}) for m in launches]


WRONG_5, WRONG_7 = {"wrong": 0.05, "table": 0.05}, {"wrong": 0.07, "table": 0.07}
CELLS = (
    *cells("quiet", QUIET, (1, 2, 3, 5), WRONG_5, prompts=6),
    *cells("quiet", QUIET, (1, 2, 3, 5), WRONG_5),
    *cells("quiet", QUIET, (1, 2, 3, 5), WRONG_5, prompts=48),
    *cells("launches 11 %", Machine(0.11, 0.12), (1, 2, 3, 5), WRONG_5),
    *cells("plain 0.5 %, drafting 11 %", Machine(0.005, 0.05, drafting=0.11), (1, 2, 3, 5), WRONG_5),
    *cells("one arm 10 %, others 1 %", Machine(0.01, 0.05, noisy=0.1), (2, 3, 5), WRONG_7),
    *cells("tails of t with 3 degrees", Machine(0.05, 0.05, tails=3.0), (2, 3, 5), WRONG_5),
    *cells("drift of 10 %", Machine(0.01, 0.05, drift=0.1), (2, 3, 5), WRONG_5),
    *cells("gain differs by prompt, 10 %", Machine(0.01, 0.05, interaction=0.1), (2, 3), WRONG_5),
    *cells("slow noise 20 %", SLOW, (2, 3, 5), WRONG_5, speedups=(1.0,)),
    *cells("slow noise 20 %, true gain 20 %", SLOW, (3, 5), {"found": 0.8}, speedups=(1.2,)),
    *cells("quiet, true gain 5 %", QUIET, (2, 3, 5), {}, speedups=(1.05,)),
    *cells("looks, launches 5 %", Machine(0.05, 0.05), (5, 8), WRONG_5, looks=True, speedups=(1.0,)),
)


def compared(drawn: Drawn) -> dict[str, Comparison]:
    return compare_with_baseline(drawn.arms, drawn.baselines, margin=MARGIN)


def measure(cell: Cell, *, studies: int, seed: int = 1) -> dict[str, Any]:
    """Shares over so many studies of a cell."""
    rng = random.Random(f"{cell.name}/{cell.launches}/{cell.prompts}/{seed}")
    wrong = table = covered = found = 0
    halves = []
    for _ in range(studies):
        drawn = draw(rng, cell.machine, speedups=cell.speedups, launches=cell.launches, prompts=cell.prompts)
        results = compared(drawn)
        first, truth = results["arm0"], cell.speedups[0]
        verdict = _first_verdict(drawn, cell) if cell.looks else first.verdict
        wrong += truth == 1 and verdict in DIFFERENT
        found += truth > 1 and verdict == "FASTER"
        together = simultaneous(results, margin=MARGIN)
        table += any(r.verdict in DIFFERENT for i, r in enumerate(together.values()) if cell.speedups[i] == 1)
        low, high = first.speedup.low, first.speedup.high
        assert low is not None and high is not None
        covered += low <= truth <= high
        halves.append(math.log(high / low) / 2)
    shares = {"wrong": wrong / studies, "table": table / studies, "found": found / studies}
    return {
        "cell": cell.name,
        "launches": cell.launches,
        "prompts": cell.prompts,
        "arms": len(cell.speedups),
        "true_speedup": cell.speedups[0],
        "studies": studies,
        **shares,
        "covered": covered / studies,
        "half": statistics.fmean(halves),
        "needed": cell.needed,
        "broken": [n for n, limit in cell.needed.items() if not _keeps(n, shares[n], limit, studies)],
    }


def _first_verdict(drawn: Drawn, cell: Cell) -> str:
    """What somebody says who looks after each launch and stops at the first verdict."""
    verdict = "CANNOT_TELL"
    for launches in range(2, cell.launches + 1):
        arms = [s for s in drawn.arms if s.arm_id == "arm0"][:launches]
        plain = [b for b in drawn.baselines if b.order <= arms[-1].order + len(cell.speedups)]
        looked = simultaneous(
            compare_with_baseline(arms, plain, margin=MARGIN), margin=MARGIN, looks=launches - 1
        )
        verdict = looked["arm0"].verdict
        if verdict in DIFFERENT:
            break
    return verdict


def _mark(broken: Sequence[str]) -> str:
    return f" (NOT KEPT: {', '.join(broken)})" if broken else ""


def _keeps(name: str, share: float, limit: float, studies: int) -> bool:
    """Whether the simulation does not contradict the promise."""
    low, high = share_interval(round(share * studies), studies)
    return high >= limit if name == "found" else low <= limit


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument("--only", default="", help="cells whose name holds this")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows = []
    if not args.json:
        print(
            "| machine | launches | prompts | arms | wrong | in the table | covered | found | half | needed |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
    for cell in CELLS:
        if args.only not in cell.name:
            continue
        row = measure(cell, studies=args.studies)
        rows.append(row)
        if not args.json:
            needed = ", ".join(f"{name} {limit:.0%}" for name, limit in cell.needed.items())
            print(
                f"| {row['cell']} | {row['launches']} | {row['prompts']} | {row['arms']} | {row['wrong']:.1%} "
                f"| {row['table']:.1%} | {row['covered']:.1%} | {row['found']:.0%} | {row['half']:.3f} "
                f"| {needed}{_mark(row['broken'])} |",
                flush=True,
            )
    if args.json:
        print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
