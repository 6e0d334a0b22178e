"""How often `gate` fails an equal study of another day, by what of speed it tests.

    gate_days.py [--studies 300]

Both studies are three launches of plain decoding and of two arms, 12 prompts; launches differ by 1 %, a prompt's
measurement by 5 %, and the machine as a whole from day to day by what a row says (standard deviations of log speed).
The limit is 0, the hardest, and the stated rate 5 %.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from exchange_studies import drawn

from spectune.exchange.comparison.gate import gate
from spectune.exchange.comparison.pairing import Basis

LAUNCH_SD, PROMPT_SD = 0.01, 0.05
DAYS = (0.0, 0.03, 0.05)
BASES: tuple[Basis, ...] = ("tok/s", "speedup")


def failures(studies: int, *, day_sd: float, basis: Basis | None, gain: float = 1.0, seed: int = 1) -> int:
    """Of pairs whose arms are ``gain`` times what they were, against plain decoding."""
    rng = random.Random(seed)
    failed = 0
    for _ in range(studies):
        old, new = (
            drawn(
                rng,
                speed=math.exp(rng.gauss(0, day_sd)),
                gain=own,
                launch_sd=LAUNCH_SD,
                prompt_sd=PROMPT_SD,
            )
            for own in (1.0, gain)
        )
        failed += not gate(new, old, max_slowdown=0.0, basis=basis).passed
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--studies", type=int, default=300)
    studies = parser.parse_args(argv).studies
    print("| machine from day to day | tested | equal studies that fail | of arms 10 % slower |")
    print("|---|---|---|---|")
    for day_sd in DAYS:
        for basis in BASES:
            shares = [failures(studies, day_sd=day_sd, basis=basis, gain=g) / studies for g in (1.0, 0.9)]
            print(f"| {day_sd:.0%} | {basis} | {shares[0]:.1%} | {shares[1]:.0%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
