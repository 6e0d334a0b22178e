"""Which launch a node of a cluster makes next: each is a lane with baseline launches of its own around its arms."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import Trial, num_launches
from spectune.engines.registry import traits_for
from spectune.runner.order import block_of
from spectune.runner.parallel import gpus_of_arm

Block = tuple[PlannedTrial, ...]
"""Trials that one launch serves."""


def open_blocks(study: Study, trials: Sequence[Trial], *, retry_failed: bool = False) -> list[Block]:
    """Arms of the plan that have not ended, in its order, those of one launch together. Baselines are the lanes'."""
    ended = {(t.arm_id, t.repetition) for t in trials if t.status != "failed" or not retry_failed}
    by_id = {arm.arm_id: arm for arm in study.arms}
    baseline = study.baseline.arm_id
    blocks: dict[str, list[PlannedTrial]] = {}
    for planned in study.plan:
        if planned.arm_id != baseline and (planned.arm_id, planned.repetition) not in ended:
            arm = by_id.get(planned.arm_id)
            if arm is None:
                continue  # of an earlier form of the study
            key = block_of(arm, planned.repetition, study)
            blocks.setdefault(key, []).append(planned)
    return [tuple(block) for block in blocks.values()]


@dataclass(frozen=True)
class Lane:
    """What a host, or a node of a cluster, has measured so far, in order."""

    trials: tuple[Trial, ...]
    baseline_id: str
    baseline_every: int
    twice: bool
    """It is the one that shows what equal launches differ by."""
    is_node: bool

    @classmethod
    def of_host(cls, study: Study, trials: Sequence[Trial]) -> Lane:
        own = tuple(t for t in trials if t.soak is None)
        return cls(own, study.baseline.arm_id, study.baseline_every, study.noise_floor, is_node=False)

    @classmethod
    def of_node(cls, place: str, study: Study, trials: Sequence[Trial], *, twice: bool = False) -> Lane:
        own = sorted((t for t in trials if t.place == place and t.soak is None), key=lambda t: t.number)
        return cls(tuple(own), study.baseline.arm_id, study.baseline_every, twice, is_node=True)

    @property
    def has_baseline(self) -> bool:
        return any(t.arm_id == self.baseline_id and t.status == "complete" for t in self.trials)

    @property
    def launches_since_baseline(self) -> int:
        since = itertools.takewhile(lambda trial: trial.arm_id != self.baseline_id, reversed(self.trials))
        return num_launches(since)

    def opening_reason(self) -> str | None:
        """Why plain decoding comes before the first arm of all; ``None``: it does not."""
        if not self.has_baseline:
            return (
                f"plain decoding first{' on this node' if self.is_node else ': every speedup is against it'}"
            )
        if self.twice and len(self.trials) == 1:
            return "plain decoding twice: what equal launches differ by"
        return None

    def again_reason(self) -> str | None:
        """Why it comes before the next arm, so that a drift is seen, and met by every arm from both sides."""
        since = self.launches_since_baseline
        return f"plain decoding again, {since} launches later" if since >= self.baseline_every else None

    def closing_reason(self) -> str | None:
        """Why it is launched although no arm is left."""
        if self.has_baseline and self.launches_since_baseline:
            return f"plain decoding last{' on this node' if self.is_node else ', to see a drift'}"
        return None


def next_baseline(study: Study, trials: Sequence[Trial], running: Collection[PlannedTrial]) -> int:
    """A repetition of the baseline that nobody has."""
    baseline = study.baseline.arm_id
    used = {t.repetition for t in trials if t.arm_id == baseline}
    used |= {p.repetition for p in running if p.arm_id == baseline}
    return max(used, default=-1) + 1


def place_for_noise(study: Study, trials: Sequence[Trial]) -> str | None:
    """Where the baseline was launched twice in a row; ``None``: nowhere yet, or it is not wanted."""
    baseline = study.baseline.arm_id
    for place in dict.fromkeys(t.place for t in trials):
        own = [t for t in trials if t.place == place and t.soak is None]
        if any(a.arm_id == b.arm_id == baseline for a, b in itertools.pairwise(own)):
            return place
    return None


def bundle_for(study: Study, resources: Mapping[str, float]) -> dict[str, float] | None:
    """What a lane asks of each of its nodes, of one with these resources; ``None``: it has too little.

    It is enough for every arm of the study, so that a node's arms and its
    baseline are measured on the same devices.
    """
    settings = study.cluster
    assert settings is not None
    share = settings.trials_per_node
    cpus = resources.get("CPU", 0.0) // share if settings.cpus is None else settings.cpus
    gpus = settings.gpus
    if gpus is None:
        wanted = max(gpus_of_arm(arm, study) for arm in study.arms)
        of_engine = traits_for(study.engine.name).parallel is None
        gpus = resources.get("GPU", 0.0) // share if of_engine else float(wanted)
    bundle = {"CPU": cpus, "GPU": gpus, **settings.resources}
    bundle = {name: amount for name, amount in bundle.items() if amount > 0}
    fits = all(resources.get(name, 0.0) >= amount * share for name, amount in bundle.items())
    return bundle if bundle and fits else None


def bundle_of_all(study: Study, resources: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """The same of each of several nodes: the least that any of them is asked for."""
    bundles = [bundle_for(study, of_node) for of_node in resources]
    found = [bundle for bundle in bundles if bundle is not None]
    if len(found) < len(bundles):
        return None
    names = dict.fromkeys(name for bundle in found for name in bundle)
    return {name: min(bundle.get(name, 0.0) for bundle in found) for name in names}


def place_of(names: Sequence[str]) -> str:
    """The name of a set of nodes that serve together, rank 0's first: what is compared ran on the same set."""
    return _TOGETHER.join(names)


def sets_of(free: Sequence[str], size: int, *, before: Collection[str] = ()) -> list[tuple[str, ...]]:
    """Nodes that serve together, out of those that are free. Sets that have measured before stay what they are.

    ``before``: places of earlier trials. Nodes that are left over wait for others.
    """
    left = list(free)
    found = []
    for place in before:
        names = tuple(place.split(_TOGETHER))
        if len(names) == size and all(name in left for name in names):
            found.append(names)
            left = [name for name in left if name not in names]
    return found + [tuple(left[i : i + size]) for i in range(0, len(left) - size + 1, size)]


_TOGETHER = "+"
