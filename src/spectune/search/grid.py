"""Everything legal, shuffled in blocks: each measures every arm once, in its own order, those of a launch together."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from spectune.models.arm_shape import id_of
from spectune.search.protocol import (
    ALL_ENDED,
    BASELINE_FAILED,
    SINGLE_STREAM,
    UNLIMITED,
    Ask,
    Budget,
    History,
    LegalArm,
    Objective,
    Stop,
    best_measured,
    split_baseline,
)


@dataclass(frozen=True)
class Grid:
    """A baseline opens every block, so that a drift of the machine meets all arms alike."""

    arms: Sequence[LegalArm]
    repetitions: int = 1
    budget: Budget = UNLIMITED
    objective: Objective = SINGLE_STREAM
    name: str = field(default="grid", init=False)

    def order(self, block: int) -> list[LegalArm]:
        """Of one block; fixed by the arms themselves."""
        baseline, others = split_baseline(self.arms)
        ids = ",".join(sorted(id_of(a.arm) for a in self.arms))
        seed = int.from_bytes(hashlib.sha256(f"{ids}/{block}".encode()).digest()[:8], "big")
        shuffled = sorted(others, key=lambda a: id_of(a.arm))
        random.Random(seed).shuffle(shuffled)  # noqa: S311 - an order, not a secret
        launches: dict[str, list[LegalArm]] = {}
        for legal in shuffled:
            launches.setdefault(legal.launch_key or id_of(legal.arm), []).append(legal)
        return [baseline, *(legal for launch in launches.values() for legal in launch)]

    def ask(self, history: History) -> Ask | Stop:
        best = best_measured(self.arms, history, self.objective)
        if id_of(split_baseline(self.arms)[0].arm) in history.failed:
            return Stop(BASELINE_FAILED, None)
        spent = self.budget.spent(history)
        if spent:
            return Stop(spent, best[0] if best else None)
        done = Counter(arm_id for _, arm_id in {(o.launch, id_of(o.arm)) for o in history.observations})
        for block in range(self.repetitions):
            for place, legal in enumerate(self.order(block)):
                if done[id_of(legal.arm)] <= block and id_of(legal.arm) not in history.failed:
                    where = f"{place + 1} of {len(self.arms)}"
                    return Ask(
                        legal.arm, f"block {block + 1} of {self.repetitions}, {where} in shuffled order"
                    )
        return Stop(ALL_ENDED, best[0] if best else None)
