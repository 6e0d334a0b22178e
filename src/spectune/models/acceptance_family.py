"""Acceptance length of every arm: derived from a longer chain where that is allowed, else measured.

Arms of one method and drafter are a family. In a chain family one run gives
every shorter chain; a residual check against each measured length decides
whether the family really behaves so. Otherwise lengths are regressed on the
shape of the draft with a smooth discrepancy: close arms inform each other,
and an unmeasured one keeps a wide interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from spectune.domain.arm import Arm
from spectune.models.acceptance import (
    LENGTH_LOG_SD,
    TYPICAL,
    ChainProfile,
    length_log_sd,
    profile_from_counts,
    profile_from_lengths,
)
from spectune.models.acceptance_depth import DepthModel, fit_depths
from spectune.models.arm_shape import Family, Shape, arm_facts, shape_of
from spectune.models.observation import Observation
from spectune.statistics.estimate import LogEstimate
from spectune.statistics.regression import Posterior, Prior, fit

AcceptanceCase = Literal["own", "derived", "regressed", "unknown"]

_RESIDUAL_FLOOR = 0.05
_PRIOR = Prior(means=(0.0, 0.0, 0.05, 0.02), sds=(0.35, 0.15, 0.08, 0.08))
_PRIOR_BY_DEPTH = Prior(means=(0.0, 0.0, 0.0, 0.0), sds=(0.03, 0.02, 0.02, 0.02))
_DISCREPANCY_SD = 0.04
_NUGGET_SD = 0.01


@dataclass(frozen=True)
class LengthResidual:
    """A measured acceptance length against what the other runs of its family say."""

    arm: Arm
    predicted: float
    measured: float
    limit: float

    @property
    def log_ratio(self) -> float:
        return math.log(self.measured / self.predicted)

    @property
    def large(self) -> bool:
        return abs(self.log_ratio) > self.limit


@dataclass(frozen=True)
class ArmLength:
    """An arm's acceptance length and where it comes from."""

    length: LogEstimate
    case: AcceptanceCase
    invented: int = 0
    apart_log_sd: float | None = None
    """Of the length beside an error that all lengths of its family share; ``None``: they share none."""

    @property
    def speed_log_sd(self) -> float:
        """What the length's error is worth in a speed, whose cost was derived from such lengths."""
        return self.length.log_sd if self.apart_log_sd is None else self.apart_log_sd


@dataclass
class _Family:
    profile: ChainProfile | None
    own: dict[str, LogEstimate]
    residuals: tuple[LengthResidual, ...]
    posterior: Posterior | None = None
    arms: list[Arm] = field(default_factory=list)
    depths: DepthModel | None = None
    """Of all runs together, from which regressed lengths differ."""
    means: dict[Shape, LogEstimate] = field(default_factory=dict)

    @property
    def derivable(self) -> bool:
        return self.profile is not None and not any(r.large for r in self.residuals)

    def mean(self, shape: Shape) -> LogEstimate:
        """Length by shape alone; without counts by depth, a decent drafter's chain."""
        known = self.means.get(shape)
        if known is None:
            typical = LogEstimate(TYPICAL.length(shape.steps).value, 0.0)
            known = self.means[shape] = self.depths.length(shape) if self.depths else typical
        return known


class AcceptanceModel:
    """Fitted from observations; asks nothing of arms that were not measured."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        groups: dict[Family, list[Observation]] = {}
        for observation in observations:
            usable = observation.acceptance_length is not None and not observation.synthetic
            if usable and not observation.arm.is_baseline:
                groups.setdefault(arm_facts(observation.arm).family, []).append(observation)
        self._families = {key: _fit_family(group) for key, group in groups.items()}

    def of(self, arm: Arm) -> ArmLength:
        """Acceptance length of an arm; of plain decoding it is one token per step."""
        if arm.is_baseline:
            return ArmLength(LogEstimate(1.0, 0.0), "own")
        family = self._families.get(arm_facts(arm).family)
        shape = shape_of(arm)
        if family is None:
            typical = TYPICAL.length(shape.steps)
            return ArmLength(LogEstimate(typical.value, 0.35), "unknown", shape.steps)
        key = _acceptance_key(arm)
        profile = family.profile if arm_facts(arm).is_chain and family.derivable else None
        if key in family.own and (profile is None or profile.from_lengths):
            return ArmLength(family.own[key], "own")
        if profile is not None:
            case: AcceptanceCase = "own" if key in family.own else "derived"
            steps = shape.steps
            return ArmLength(
                profile.length(steps), case, profile.invented(steps), profile.apart_log_sd(steps)
            )
        return ArmLength(_regressed(family, arm), "regressed", shape.steps)

    def residuals(self) -> tuple[LengthResidual, ...]:
        """Of every family with more than one measured chain."""
        return tuple(r for family in self._families.values() for r in family.residuals)

    def derivable(self, arm: Arm) -> bool | None:
        """Whether the arm's family passes the residual check; ``None`` while nothing was measured."""
        family = self._families.get(arm_facts(arm).family)
        return None if family is None else arm_facts(arm).is_chain and family.derivable

    def profile(self, arm: Arm) -> ChainProfile | None:
        family = self._families.get(arm_facts(arm).family)
        return None if family is None else family.profile


def _acceptance_key(arm: Arm) -> str:
    shape = shape_of(arm)
    return f"{arm_facts(arm).setting}/{shape.steps}/{shape.topk}/{shape.tokens}"


def _own_sd(observation: Observation) -> float:
    if observation.length_log_sd is not None:
        return observation.length_log_sd
    return length_log_sd(observation.acceptance) if observation.acceptance is not None else LENGTH_LOG_SD


def _fit_family(group: Sequence[Observation]) -> _Family:
    chains = [o for o in group if arm_facts(o.arm).is_chain]
    own: dict[str, LogEstimate] = {}
    arms: dict[str, Arm] = {}
    pooled: dict[str, list[Observation]] = {}
    for observation in group:
        pooled.setdefault(_acceptance_key(observation.arm), []).append(observation)
    for key, same in pooled.items():
        weights = [1 / max(_own_sd(o), 1e-6) ** 2 for o in same]
        log = math.fsum(w * math.log(o.acceptance_length or 1.0) for w, o in zip(weights, same, strict=True))
        own[key] = LogEstimate(math.exp(log / math.fsum(weights)), 1 / math.sqrt(math.fsum(weights)))
        arms[key] = same[0].arm
    profile = _profile(chains)
    depths = fit_depths([(shape_of(o.arm), o.acceptance) for o in group if o.acceptance is not None])
    family = _Family(profile, own, _residuals(chains), arms=list(arms.values()), depths=depths)
    if not family.derivable or len(chains) < len(group):
        family.posterior = _regress(family, [own[key] for key in arms])
    return family


def _profile(chains: Sequence[Observation]) -> ChainProfile | None:
    counts = [o.acceptance for o in chains if o.acceptance is not None]
    profile = profile_from_counts(counts)
    if profile is not None or not chains:
        return profile
    return profile_from_lengths({shape_of(o.arm).steps: o.acceptance_length or 1.0 for o in chains})


def _residuals(chains: Sequence[Observation]) -> tuple[LengthResidual, ...]:
    """Each measured length against the profile of the family's longest other chain."""
    found = []
    longest = max(chains, key=lambda o: shape_of(o.arm).steps, default=None)
    if longest is None:
        return ()
    profile = _profile([longest])
    for observation in chains:
        steps, measured = shape_of(observation.arm).steps, observation.acceptance_length
        if profile is None or measured is None or steps == shape_of(longest.arm).steps:
            continue
        predicted = profile.length(steps)
        limit = max(_RESIDUAL_FLOOR, 2.5 * math.hypot(predicted.log_sd, _own_sd(observation)))
        found.append(LengthResidual(observation.arm, predicted.value, measured, limit))
    return tuple(found)


@cache
def _features(shape: Shape) -> tuple[float, ...]:
    per_step = max(shape.tokens / shape.steps, 1e-3)
    return 1.0, math.log2(shape.steps) - 2, math.log2(shape.topk), math.log2(per_step)


@cache
def _where(shape: Shape) -> tuple[float, float, float]:
    """Lengths of shapes one unit apart are alike by ``exp(-1/2)``."""
    return math.log2(shape.steps) / 0.7, math.log2(shape.topk), math.log2(shape.tokens) / 0.7


def _covariance(a: Arm, b: Arm) -> float:
    one, other = arm_facts(a), arm_facts(b)
    distance = math.dist(_where(one.shape), _where(other.shape))
    same_setting = 1.0 if one.setting == other.setting else 0.5
    return float(_DISCREPANCY_SD**2 * same_setting * math.exp(-0.5 * distance * distance))


def _regress(family: _Family, lengths: Sequence[LogEstimate]) -> Posterior:
    arms = family.arms
    return fit(
        [_features(shape_of(arm)) for arm in arms],
        [length.log - family.mean(shape_of(arm)).log for arm, length in zip(arms, lengths, strict=True)],
        prior=_PRIOR if family.depths is None else _PRIOR_BY_DEPTH,
        noise_sds=[math.hypot(length.log_sd, _NUGGET_SD) for length in lengths],
        discrepancy=lambda i, j: _covariance(arms[i], arms[j]),
    )


def _regressed(family: _Family, arm: Arm) -> LogEstimate:
    if family.posterior is None:
        family.posterior = _regress(family, [family.own[_acceptance_key(a)] for a in family.arms])
    shape = shape_of(arm)
    mean, sd = family.posterior.predict(
        _features(shape),
        discrepancy=[_covariance(arm, other) for other in family.arms],
        variance=_DISCREPANCY_SD**2,
    )
    known = family.mean(shape)
    extra = _NUGGET_SD if any(arm_facts(a).setting == arm_facts(arm).setting for a in family.arms) else 0.15
    log = max(0.0, min(mean + known.log, math.log(shape.steps + 1)))
    return LogEstimate(math.exp(log), math.hypot(sd, extra, known.log_sd))
