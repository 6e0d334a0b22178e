"""The first arm beside the baseline: the one from which most of the others can be told."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spectune.domain.arm import Arm
from spectune.models.arm_shape import arm_facts, shape_of

FIRST_SHARE = 0.625
"""Length of the first chain, of the longest: shorter ones follow, longer ones are near, a cliff lies on one side."""


def first_probe(arms: Sequence[Arm], share: float = FIRST_SHARE) -> Arm:
    """Of the largest family of settings: a chain nearly as long as any, or a tree of middle shape."""
    graphs = [a for a in arms if a.knobs.cuda_graphs is not False] or list(arms)
    sizes: dict[object, int] = {}
    for arm in graphs:
        sizes[arm_facts(arm).setting] = sizes.get(arm_facts(arm).setting, 0) + 1
    most = max(sizes.values())
    family = [a for a in graphs if sizes[arm_facts(a).setting] == most]
    family = [a for a in family if arm_facts(a).setting == arm_facts(family[0]).setting]
    if all(shape_of(a).topk == 1 for a in family):
        return _chain(family, share)
    return _middle(family)


def _chain(chains: Sequence[Arm], share: float) -> Arm:
    """Nearest to this share of the longest; the longer of equals."""
    wanted = share * max(shape_of(a).steps for a in chains)
    return min(chains, key=lambda a: (abs(shape_of(a).steps - wanted), -shape_of(a).steps))


def _middle(family: Sequence[Arm]) -> Arm:
    """Nearest to the mean of the family on the log scale of steps, branching and tokens."""
    logs = [tuple(math.log2(x) for x in _sides(a)) for a in family]
    centre = [math.fsum(side) / len(logs) for side in zip(*logs, strict=True)]
    scored = zip(family, logs, strict=True)
    return min(scored, key=lambda item: math.dist(item[1], centre))[0]


def _sides(arm: Arm) -> tuple[int, int, int]:
    shape = shape_of(arm)
    return shape.steps, shape.topk, shape.tokens
