"""Cost of a verify step in baseline steps, as a function of what it drafts and verifies.

``cost = 1 + overhead + verify * tokens + draft * steps + branch * steps * (topk - 1)
+ eager (graphs off) + eager_draft * steps (graphs off) + growth with batch + cliff``

where 1 is the baseline's own forward pass at the same concurrency. Fitted from
*served* rounds, ``acceptance length / speedup``, never from isolated forward
passes, which were about three times too cheap where it was tried. Bayesian
linear regression with weak priors; averaged over where a cliff may lie
(``step_cost_cliffs``) and over the size of a smooth discrepancy, each weighted by how well it explains the arms
measured (Hoeting et al. 1999).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import mul

from spectune.domain.arm import Arm
from spectune.models import step_cost_cliffs as cliffs_at
from spectune.models.step_cost_features import CostPoint, Place, likeness, place_of
from spectune.statistics.estimate import Observed
from spectune.statistics.regression import Posterior, Prior, fit_covariance, forward

__all__ = ["COMPONENTS", "Component", "CostPoint", "JointCost", "StepCostModel"]

COMPONENTS = ("overhead", "verification", "drafting", "branching", "eager", "eager_drafting")
_PRIOR = Prior(
    means=(0.08, 0.02, 0.06, 0.004, 0.4, 0.08, 0.005, 0.0, 0.0, cliffs_at.MEAN),
    sds=(0.25, 0.06, 0.15, 0.015, 0.3, 0.08, 0.03, 0.03, 0.02, cliffs_at.SD),
)
"""Of a place's features and of the cliff, in that order, in baseline steps."""
_DISCREPANCIES = ((0.01, 0.5), (0.06, 0.5))
"""Relative sizes of the smooth discrepancy and their prior weights."""
_NUGGET = 0.01
_PINNED_SD = 1e-6
_NEGLIGIBLE = 0.03
_MUCH_LIKELIER = 3.0


@dataclass(frozen=True)
class Component:
    """A part of a step, in baseline steps."""

    name: str
    cost: Observed
    separated: bool
    """Whether the arms measured tell it from the other parts; else the prior split them."""


@dataclass(frozen=True)
class JointCost:
    """Costs of several arms under one explanation of what was measured."""

    weight: float
    means: tuple[float, ...]
    variances: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    """Of the first arms (those looked at) with all."""


@dataclass(frozen=True)
class _Candidate:
    """One explanation: a discrepancy of this size, and a cliff at one of ``cliffs`` (``(None,)``: none)."""

    size: float
    cliffs: cliffs_at.Cliffs
    """These all split the measured arms alike."""
    walks: bool
    """Several cliffs, anywhere: their sum is a random walk along the tokens."""
    posterior: Posterior
    across: tuple[float, ...]
    """The cliff's covariance with the observations, solved by the factor: what a prediction behind it adds."""
    step: float
    """Posterior mean of the cliff."""
    step_variance: float
    weight: float = 0.0
    behind: dict[int, float] = field(default_factory=dict)
    """By tokens, as asked for: the chance of lying behind the cliff."""

    def chance_behind(self, tokens: int) -> float:
        known = self.behind.get(tokens)
        if known is None:
            known = self.behind[tokens] = cliffs_at.share_behind(self.cliffs, tokens)
        return known


@dataclass(frozen=True)
class _View:
    """A place under one explanation, before its cliff."""

    mean: float
    variance: float
    solved: list[float]


class StepCostModel:
    """Fitted once; predicts the cost of any arm of the same engine and target."""

    def __init__(self, points: Sequence[CostPoint]) -> None:
        self._points = tuple(points)
        launches = [p.launch for p in self._points if p.launch is not None]
        self._shares_launches = len(set(launches)) < len(launches)
        self._places = [
            place_of(p.arm, concurrency=p.concurrency, context_tokens=p.context_tokens, drafted=p.drafted)
            for p in points
        ]
        self._scale2 = (math.fsum(p.cost for p in points) / len(points)) ** 2 if points else 1.0
        self._alike = [self._likenesses(a, self._places[: i + 1]) for i, a in enumerate(self._places)]
        self._own = [self._own_parts(a, self._places[: i + 1]) for i, a in enumerate(self._places)]
        self._grams: dict[Prior, list[list[float]]] = {}
        found = [
            self._explain(size, pattern, cliffs, weight=weight * math.fsum(w for _, w in cliffs))
            for size, weight in _DISCREPANCIES
            for pattern, cliffs in cliffs_at.patterns([p.tokens for p in self._places]).items()
        ]
        none = tuple(0.0 for _ in points)
        found += [
            self._explain(size, none, ((None, 1.0),), weight=weight * cliffs_at.SEVERAL_WEIGHT, walks=True)
            for size, weight in _DISCREPANCIES
        ]
        self._candidates = _weighted(found)
        self._main = _plainest(self._candidates)

    def _likenesses(self, here: Place, places: Sequence[Place]) -> list[float]:
        return [self._scale2 * likeness(here, other) for other in places]

    def _own_parts(self, here: Place, places: Sequence[Place]) -> list[float]:
        """Variance that an arm shares with itself alone."""
        own, arm_id = _NUGGET**2 * self._scale2, here.facts.arm_id
        return [own if arm_id == other.facts.arm_id else 0.0 for other in places]

    def _explain(
        self,
        size: float,
        behind: tuple[float, ...],
        cliffs: cliffs_at.Cliffs,
        *,
        weight: float,
        walks: bool = False,
    ) -> _Candidate:
        """The posterior under one explanation; parts that come out negative are held at zero."""
        rows = [(*place.row[:-1], b) for place, b in zip(self._places, behind, strict=True)]
        values = [p.cost - 1 for p in self._points]
        if walks:
            values = [v - cliffs_at.walk(p.tokens)[0] for v, p in zip(values, self._places, strict=True)]
        prior = _PRIOR
        while True:
            covariance = self._covariance(prior, size, behind, walks=walks)
            posterior = fit_covariance(rows, values, prior=prior, covariance=covariance)
            means = posterior.coefficients
            worst = min((*range(len(COMPONENTS)), len(means) - 1), key=lambda i: means[i])
            if means[worst] >= -1e-4 or prior.sds[worst] <= _PINNED_SD:
                break
            prior = _pinned(prior, worst)
        step2 = prior.sds[-1] ** 2
        across = forward(posterior.lower, [step2 * b for b in behind])
        left = step2 - sum(map(mul, across, across))
        return _Candidate(size, cliffs, walks, posterior, tuple(across), means[-1], left, weight)

    def _covariance(
        self, prior: Prior, size: float, behind: Sequence[float], *, walks: bool
    ) -> list[list[float]]:
        """Of the observations; its lower half."""
        gram = self._grams.get(prior)
        if gram is None:
            gram = self._grams[prior] = prior.gram([p.row for p in self._places])
        step2, size2, found = prior.sds[-1] ** 2, size**2, []
        for i, parts in enumerate(zip(gram, self._alike, self._own, strict=True)):
            row = [g + size2 * s + o for g, s, o in zip(*parts, strict=False)]
            if behind[i]:
                row = [r + step2 * b for r, b in zip(row, behind, strict=False)]
            if walks:
                row = [r + _shared_walk(self._places[i], p) for r, p in zip(row, self._places, strict=False)]
            row[i] += self._points[i].sd ** 2
            if self._shares_launches:
                row = [r + s for r, s in zip(row, self._of_the_launch(i), strict=True)]
            found.append(row)
        return found

    def _of_the_launch(self, i: int) -> list[float]:
        """What point ``i`` has in common with the ones before it on its launch, which its own ``sd`` holds."""
        here = self._points[i]
        return [
            here.launch_sd * p.launch_sd if p.launch is not None and p.launch == here.launch else 0.0
            for p in self._points[:i]
        ] + [0.0]

    def _views(self, here: Place) -> list[_View]:
        """One for each candidate."""
        alike, own = self._likenesses(here, self._places), self._own_parts(here, self._places)
        linear: dict[int, tuple[float, float, list[float]]] = {}
        found = []
        for candidate in self._candidates:
            posterior, size2 = candidate.posterior, candidate.size**2
            prior = posterior.prior
            known = linear.get(id(prior))
            if known is None:
                scaled = prior.scaled(here.row)
                cross = [sum(map(mul, scaled, p.row)) + o for p, o in zip(self._places, own, strict=True)]
                known = linear[id(prior)] = prior.mean(here.row), sum(map(mul, scaled, here.row)), cross
            mean, variance, cross = known
            cross = [c + size2 * s for c, s in zip(cross, alike, strict=True)]
            variance += (size2 + _NUGGET**2) * self._scale2
            if candidate.walks:
                drift, spread = cliffs_at.walk(here.tokens)
                mean, variance = mean + drift, variance + spread
                cross = [c + _shared_walk(here, p) for c, p in zip(cross, self._places, strict=True)]
            solved = forward(posterior.lower, cross)
            mean += 1 + sum(map(mul, cross, posterior.weights))
            found.append(_View(mean, variance - sum(map(mul, solved, solved)), solved))
        return found

    def predict(
        self,
        arm: Arm,
        *,
        concurrency: int = 1,
        context_tokens: float | None = None,
        drafted: float | None = None,
    ) -> Observed:
        """Cost in baseline steps; the standard deviation includes what was never measured.

        ``drafted``: mean tokens per step, of an arm that stops early.
        """
        here = place_of(arm, concurrency=concurrency, context_tokens=context_tokens, drafted=drafted)
        floor = _floor(arm)
        parts = []
        for candidate, view in zip(self._candidates, self._views(here), strict=True):
            behind = candidate.chance_behind(here.tokens)
            if behind < 1:
                sd = math.sqrt(max(0.0, view.variance))
                parts.append((candidate.weight * (1 - behind), max(view.mean, floor), sd))
            if behind:
                added = candidate.step_variance - 2 * sum(map(mul, view.solved, candidate.across))
                sd = math.sqrt(max(0.0, view.variance + added))
                parts.append((candidate.weight * behind, max(view.mean + candidate.step, floor), sd))
        mean = math.fsum(weight * m for weight, m, _ in parts)
        square = math.fsum(weight * (sd * sd + (m - mean) ** 2) for weight, m, sd in parts)
        return Observed(mean, math.sqrt(square), tuple(parts))

    def joint(
        self,
        arms: Sequence[Arm],
        *,
        looked: int,
        concurrency: int = 1,
        drafted: Sequence[float | None] = (),
    ) -> list[JointCost]:
        """Costs of ``arms`` together, one for each explanation; covariances of the first ``looked`` with all."""
        by_arm = drafted or [None] * len(arms)
        places = [place_of(a, concurrency=concurrency, drafted=d) for a, d in zip(arms, by_arm, strict=True)]
        tokens, floors = [p.tokens for p in places], [_floor(a) for a in arms]
        views = [self._views(p) for p in places]
        grams: dict[tuple[int, float, bool], list[list[float]]] = {}
        found = []
        for number, candidate in enumerate(self._candidates):
            prior = candidate.posterior.prior
            key = (id(prior), candidate.size, candidate.walks)
            before = grams.get(key)
            if before is None:
                before = grams[key] = self._prior_covariance(places, looked, candidate)
            own = [view[number] for view in views]
            shared = [
                [b - sum(map(mul, own[i].solved, o.solved)) for b, o in zip(before[i], own, strict=True)]
                for i in range(looked)
            ]
            added = [sum(map(mul, o.solved, candidate.across)) for o in own]
            for behind, share in cliffs_at.divided(candidate.cliffs, tokens).items():
                means = tuple(
                    max(o.mean + candidate.step * b, f) for o, b, f in zip(own, behind, floors, strict=True)
                )
                variances = tuple(
                    max(0.0, o.variance + b * (candidate.step_variance - 2 * a))
                    for o, b, a in zip(own, behind, added, strict=True)
                )
                covariance = tuple(
                    tuple(
                        c + candidate.step_variance * behind[i] * b - behind[i] * a - b * added[i]
                        for c, b, a in zip(shared[i], behind, added, strict=True)
                    )
                    for i in range(looked)
                )
                found.append(JointCost(candidate.weight * share, means, variances, covariance))
        return found

    def _prior_covariance(
        self, places: Sequence[Place], looked: int, candidate: _Candidate
    ) -> list[list[float]]:
        """Of places with each other, before the cliff and before what was measured."""
        size2, found = candidate.size**2, []
        for here in places[:looked]:
            scaled = candidate.posterior.prior.scaled(here.row)
            parts = zip(
                (sum(map(mul, scaled, other.row)) for other in places),
                self._likenesses(here, places),
                self._own_parts(here, places),
                strict=True,
            )
            row = [linear + size2 * s + o for linear, s, o in parts]
            if candidate.walks:
                row = [r + _shared_walk(here, other) for r, other in zip(row, places, strict=True)]
            found.append(row)
        return found

    def components(
        self,
        arm: Arm,
        *,
        concurrency: int = 1,
        context_tokens: float | None = None,
        drafted: float | None = None,
    ) -> tuple[Component, ...]:
        """What is added to the baseline's forward pass; branching counts as drafting."""
        place = place_of(arm, concurrency=concurrency, context_tokens=context_tokens, drafted=drafted)
        cliff = self._main.cliffs[0][0]
        behind = float(cliff is not None and place.tokens >= cliff)
        row = (*place.row[:-1], behind)
        groups = {"verification": (1, 6, 8, 9), "drafting": (2, 3, 7), "overhead": (0,), "no graphs": (4, 5)}
        found = []
        for name, indices in groups.items():
            chosen = tuple(x if i in indices else 0.0 for i, x in enumerate(row))
            if not any(chosen):
                continue
            mean, sd = self._main.posterior.combination(chosen)
            before = math.sqrt(_PRIOR.covariance(chosen, chosen))
            found.append(Component(name, Observed(max(0.0, mean), sd), sd < 0.5 * before))
        return tuple(found)


def _weighted(found: Sequence[_Candidate]) -> list[_Candidate]:
    """Candidates by prior weight times evidence; the negligible are dropped and the rest add up to 1."""
    best = max(c.posterior.log_evidence for c in found)
    raw = [c.weight * math.exp(c.posterior.log_evidence - best) for c in found]
    least = _NEGLIGIBLE * math.fsum(raw)
    kept = [(c, weight) for c, weight in zip(found, raw, strict=True) if weight >= least]
    total = math.fsum(weight for _, weight in kept)
    return [replace(c, weight=weight / total) for c, weight in kept]


def _plainest(candidates: Sequence[_Candidate]) -> _Candidate:
    """What the parts of a step are told from: one with no cliff, unless one with a cliff is much likelier."""
    likeliest = max((c for c in candidates if not c.walks), default=candidates[0], key=lambda c: c.weight)
    plain = [c for c in candidates if c.cliffs[0][0] is None and not c.walks]
    best = max(plain, default=likeliest, key=lambda c: c.weight)
    return best if best.weight * _MUCH_LIKELIER >= likeliest.weight else likeliest


def _floor(arm: Arm) -> float:
    """A step costs at least about what plain decoding's does."""
    return 1.0 if arm.is_baseline else 0.7


def _shared_walk(a: Place, b: Place) -> float:
    return cliffs_at.walk(min(a.tokens, b.tokens))[1]


@cache
def _pinned(prior: Prior, index: int) -> Prior:
    """The prior with one coefficient held at zero: a part of a step never takes negative time."""
    means = tuple(0.0 if i == index else m for i, m in enumerate(prior.means))
    sds = tuple(_PINNED_SD if i == index else s for i, s in enumerate(prior.sds))
    return Prior(means, sds)
