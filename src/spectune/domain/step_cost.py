"""Cost of a verify step in baseline steps, as a function of what it drafts and verifies.

``cost = 1 + overhead + verify * tokens + draft * steps + branch * steps * (topk - 1)
+ eager (graphs off) + eager_draft * steps (graphs off) + growth with batch + cliff``

where 1 is the baseline's own forward pass at the same concurrency. Fitted from
*served* rounds, ``acceptance length / speedup``, never from isolated forward
passes, which were about three times too cheap where it was tried. Bayesian
linear regression with weak priors; averaged over where a cliff may lie (tile
and captured graph sizes make cost jump at some number of tokens) and over the
size of a smooth discrepancy, each weighted by how well it explains the arms
measured (Hoeting et al. 1999).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spectune.domain.arm import Arm
from spectune.domain.prediction_estimate import Observed
from spectune.domain.prediction_shape import arm_facts
from spectune.domain.statistics_regression import Posterior, Prior, fit

COMPONENTS = ("overhead", "verification", "drafting", "branching", "eager", "eager_drafting")
_PRIOR = Prior(
    means=(0.08, 0.02, 0.06, 0.004, 0.2, 0.03, 0.005, 0.0, 0.0, 0.15),
    sds=(0.25, 0.06, 0.15, 0.015, 0.5, 0.10, 0.03, 0.03, 0.02, 0.25),
)
"""Of ``features`` and of the cliff, in that order, in baseline steps."""
_DISCREPANCIES = ((0.01, 0.5), (0.06, 0.5))
"""Relative sizes of the smooth discrepancy and their prior weights."""
_CLIFFS = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64)
"""Numbers of drafted tokens at which cost may jump."""
_NO_CLIFF_WEIGHT = 0.5
_NUGGET = 0.01
_PINNED_SD = 1e-6
_NEGLIGIBLE = 0.03


@dataclass(frozen=True)
class CostPoint:
    """One measured arm: ``cost`` in baseline steps, its standard error, and where it was measured."""

    arm: Arm
    cost: float
    sd: float
    concurrency: int = 1
    context_tokens: float | None = None


def features(arm: Arm, *, concurrency: int = 1, context_tokens: float | None = None) -> tuple[float, ...]:
    """Of the regression, without the cliff; all zero for plain decoding with graphs."""
    shape = arm_facts(arm).shape
    speculating = 0.0 if arm.is_baseline else 1.0
    eager = 1.0 if arm.knobs.cuda_graphs is False else 0.0
    batch = math.log2(max(concurrency, 1))
    context = math.log2(max(context_tokens, 1) / 1024) if context_tokens else 0.0
    return (
        speculating,
        float(shape.tokens),
        float(shape.steps),
        float(shape.steps * (shape.topk - 1)),
        eager,
        eager * shape.steps,
        shape.tokens * batch,
        shape.steps * batch,
        shape.tokens * context,
    )


def _coordinates(arm: Arm, concurrency: int) -> tuple[float, ...]:
    where = arm_facts(arm).coordinates
    return (*where, math.log2(max(concurrency, 1)) / 2.0)


@dataclass(frozen=True)
class Component:
    """A part of a step, in baseline steps."""

    name: str
    cost: Observed
    separated: bool
    """Whether the arms measured tell it from the other parts; else the prior split them."""


@dataclass(frozen=True)
class _Candidate:
    """One explanation: a discrepancy of this size, and a cliff at one of ``cliffs`` (``(None,)``: none)."""

    size: float
    cliffs: tuple[tuple[int | None, float], ...]
    """With prior weights; these all split the measured arms alike."""
    posterior: Posterior
    weight: float = 0.0


class StepCostModel:
    """Fitted once; predicts the cost of any arm of the same engine and target."""

    def __init__(self, points: Sequence[CostPoint]) -> None:
        self._points = tuple(points)
        self._where = [_coordinates(p.arm, p.concurrency) for p in points]
        self._facts = [arm_facts(p.arm) for p in points]
        self._scale = math.fsum(p.cost for p in points) / len(points) if points else 1.0
        n = len(points)
        self._alike = [[self._likeness(i, j) for j in range(n)] for i in range(n)]
        found = [
            _Candidate(size, cliffs, self._fit(size, pattern), weight * math.fsum(w for _, w in cliffs))
            for size, weight in _DISCREPANCIES
            for pattern, cliffs in self._patterns().items()
        ]
        self._candidates = _weighted(found)
        self._main = max(self._candidates, key=lambda c: c.weight)

    def _patterns(self) -> dict[tuple[bool, ...], tuple[tuple[int | None, float], ...]]:
        """Cliffs by which measured arms lie behind them."""
        none = tuple(False for _ in self._points)
        found: dict[tuple[bool, ...], list[tuple[int | None, float]]] = {none: [(None, _NO_CLIFF_WEIGHT)]}
        total = math.fsum(1 / cliff for cliff in _CLIFFS)
        for cliff in _CLIFFS:
            pattern = tuple(f.shape.tokens >= cliff for f in self._facts)
            found.setdefault(pattern, []).append((cliff, (1 - _NO_CLIFF_WEIGHT) / cliff / total))
        return {pattern: tuple(cliffs) for pattern, cliffs in found.items()}

    def _likeness(self, a: int, b: int) -> float:
        same = self._facts[a].family == self._facts[b].family
        return _smooth(self._where[a], self._where[b]) * (1.0 if same else 0.6)

    def _kernel(self, a: int, b: int, size: float) -> float:
        nugget = _NUGGET**2 if self._facts[a].arm_id == self._facts[b].arm_id else 0.0
        return float((size**2 * self._alike[a][b] + nugget) * self._scale**2)

    def _fit(self, size: float, pattern: Sequence[bool]) -> Posterior:
        rows = [
            (*features(p.arm, concurrency=p.concurrency, context_tokens=p.context_tokens), float(behind))
            for p, behind in zip(self._points, pattern, strict=True)
        ]
        prior = _PRIOR
        while True:
            posterior = fit(
                rows,
                [p.cost - 1 for p in self._points],
                prior=prior,
                noise_sds=[p.sd for p in self._points],
                discrepancy=lambda i, j: self._kernel(i, j, size),
            )
            means = posterior.coefficients
            worst = min((*range(len(COMPONENTS)), len(means) - 1), key=lambda i: means[i])
            if means[worst] >= -1e-4 or prior.sds[worst] <= _PINNED_SD:
                return posterior
            prior = _pinned(prior, worst)

    def predict(self, arm: Arm, *, concurrency: int = 1, context_tokens: float | None = None) -> Observed:
        """Cost in baseline steps; the standard deviation includes what was never measured."""
        row = features(arm, concurrency=concurrency, context_tokens=context_tokens)
        facts, here = arm_facts(arm), _coordinates(arm, concurrency)
        alike = [
            _smooth(here, where) * (1.0 if facts.family == other.family else 0.6)
            for where, other in zip(self._where, self._facts, strict=True)
        ]
        own = [_NUGGET**2 if facts.arm_id == other.arm_id else 0.0 for other in self._facts]
        floor = 1.0 if arm.is_baseline else 0.7
        parts = []
        for candidate in self._candidates:
            for behind, weight in _split(candidate, facts.shape.tokens):
                size2, scale2 = candidate.size**2, self._scale**2
                m, sd = candidate.posterior.predict(
                    (*row, behind),
                    discrepancy=[(size2 * s + o) * scale2 for s, o in zip(alike, own, strict=True)],
                    variance=(size2 + _NUGGET**2) * scale2,
                )
                parts.append((weight, max(1 + m, floor), sd))
        mean = math.fsum(weight * m for weight, m, _ in parts)
        square = math.fsum(weight * (sd * sd + (m - mean) ** 2) for weight, m, sd in parts)
        return Observed(mean, math.sqrt(square), tuple(parts))

    def components(
        self, arm: Arm, *, concurrency: int = 1, context_tokens: float | None = None
    ) -> tuple[Component, ...]:
        """What is added to the baseline's forward pass; branching counts as drafting."""
        tokens = arm_facts(arm).shape.tokens
        cliff = self._main.cliffs[0][0]
        behind = float(cliff is not None and tokens >= cliff)
        row = (*features(arm, concurrency=concurrency, context_tokens=context_tokens), behind)
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


def _split(candidate: _Candidate, tokens: int) -> list[tuple[float, float]]:
    """The candidate's weight, divided into the chance of lying before and behind its cliff."""
    total = math.fsum(w for _, w in candidate.cliffs)
    behind = math.fsum(w for cliff, w in candidate.cliffs if cliff is not None and tokens >= cliff) / total
    parts = ((0.0, candidate.weight * (1 - behind)), (1.0, candidate.weight * behind))
    return [(value, weight) for value, weight in parts if weight > 0]


def _pinned(prior: Prior, index: int) -> Prior:
    """The prior with one coefficient held at zero: a part of a step never takes negative time."""
    means = tuple(0.0 if i == index else m for i, m in enumerate(prior.means))
    sds = tuple(_PINNED_SD if i == index else s for i, s in enumerate(prior.sds))
    return Prior(means, sds)


def _smooth(a: Sequence[float], b: Sequence[float]) -> float:
    return math.exp(-0.5 * math.dist(a, b) ** 2)
