"""Speed of every arm, measured or not: acceptance length over step cost, times the baseline.

``tok/s = baseline tok/s * acceptance length / cost``, with the cost of a step
in baseline steps. Break-even is the acceptance length at which an arm equals
the baseline, which is that cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spectune.domain.acceptance_model_family import AcceptanceModel, ArmLength
from spectune.domain.arm import Arm
from spectune.domain.prediction_estimate import LogEstimate, Observed, mixture
from spectune.domain.prediction_observation import Observation
from spectune.domain.prediction_shape import arm_facts, shape_of
from spectune.domain.step_cost import CostPoint, StepCostModel

DEFAULT_LAUNCH_LOG_SD = 0.02
"""Spread of one arm's log speed between launches, until an arm was launched twice (declared)."""
DEFAULT_LOG_SD = 0.03
"""Standard error of a speed that came without one (declared)."""
_PRIOR_DEGREES = 2.0


@dataclass(frozen=True)
class ArmPrediction:
    """What an arm does at one concurrency, as far as the measurements tell."""

    arm: Arm
    concurrency: int
    tok_per_s: LogEstimate
    """Of one request."""
    speedup: LogEstimate
    acceptance: ArmLength
    cost: Observed
    """Of a step, in baseline steps; also the break-even acceptance length."""
    baseline_tok_per_s: float
    measured: bool

    @property
    def step_s(self) -> float:
        """Seconds per verify step."""
        return self.cost.value / self.baseline_tok_per_s

    @property
    def zero_overhead_tok_per_s(self) -> float:
        """If a verify step cost as much as a baseline step."""
        return self.baseline_tok_per_s * self.acceptance.length.value

    @property
    def perfect_acceptance_tok_per_s(self) -> float:
        """If every step of the draft's depth were kept, at the present cost."""
        return self.baseline_tok_per_s * (shape_of(self.arm).steps + 1) / self.cost.value

    def at_length(self, length: float) -> float:
        """tok/s at another acceptance length: the cost does not depend on how much is kept."""
        return self.baseline_tok_per_s * length / self.cost.value

    def length_for(self, tok_per_s: float) -> float:
        """Acceptance length that reaches a speed."""
        return tok_per_s / self.baseline_tok_per_s * self.cost.value


def machine_ceiling_tok_per_s(
    *, bytes_per_step: float, bandwidth_bytes_per_s: float, length: float = 1.0
) -> float:
    """Speed at which reading the weights alone fills a step; ``length`` tokens come of each."""
    return bandwidth_bytes_per_s / bytes_per_step * length


def launch_log_sd(observations: Sequence[Observation], *, declared: float = DEFAULT_LAUNCH_LOG_SD) -> float:
    """Spread between launches of one arm, shrunk towards the declared value while repeats are few."""
    groups: dict[tuple[str, int], list[float]] = {}
    for o in observations:
        groups.setdefault((arm_facts(o.arm).arm_id, o.concurrency), []).append(math.log(o.tok_per_s))
    squares, degrees = 0.0, 0
    for logs in groups.values():
        mean = math.fsum(logs) / len(logs)
        squares += math.fsum((x - mean) ** 2 for x in logs)
        degrees += len(logs) - 1
    return math.sqrt((_PRIOR_DEGREES * declared**2 + squares) / (_PRIOR_DEGREES + degrees))


class SpeedModel:
    """Built from all observations so far; deterministic."""

    def __init__(
        self, observations: Sequence[Observation], *, declared_launch_log_sd: float = DEFAULT_LAUNCH_LOG_SD
    ) -> None:
        self.observations = tuple(observations)
        self.acceptance = AcceptanceModel(observations)
        self.launch_log_sd = launch_log_sd(observations, declared=declared_launch_log_sd)
        self._baselines = _baselines(observations)
        points = [p for o in observations if (p := self._cost_point(o)) is not None]
        self.num_points = len(points)
        self.cost = StepCostModel(points)
        self._measured = {(arm_facts(o.arm).arm_id, o.concurrency) for o in observations if not o.synthetic}

    def baseline_tok_per_s(self, concurrency: int = 1) -> float | None:
        """Measured, or between the nearest measured concurrencies on the log scale."""
        known = self._baselines
        if not known or concurrency in known:
            return known.get(concurrency)
        below = max((c for c in known if c < concurrency), default=None)
        above = min((c for c in known if c > concurrency), default=None)
        if below is None or above is None:
            return known[above if below is None else below]  # type: ignore[index]
        share = math.log(concurrency / below) / math.log(above / below)
        return math.exp((1 - share) * math.log(known[below]) + share * math.log(known[above]))

    def _cost_point(self, observation: Observation) -> CostPoint | None:
        if observation.arm.is_baseline and observation.arm.knobs.cuda_graphs is not False:
            return None
        length = 1.0 if observation.arm.is_baseline else observation.acceptance_length
        if length is None:
            length = self.acceptance.of(observation.arm).length.value
        speedup = observation.speedup
        if speedup is None:
            baseline = self.baseline_tok_per_s(observation.concurrency)
            speedup = observation.tok_per_s / baseline if baseline else None
        if not speedup or length <= 0:
            return None
        own = observation.log_sd if observation.log_sd is not None else DEFAULT_LOG_SD
        length_sd = 0.0 if observation.synthetic else self.acceptance.of(observation.arm).length.log_sd
        sd = math.sqrt(own**2 + 2 * self.launch_log_sd**2 + min(length_sd, 0.3) ** 2)
        cost = length / speedup
        return CostPoint(
            observation.arm, cost, sd * cost, observation.concurrency, observation.context_tokens
        )

    def predict(
        self, arm: Arm, *, concurrency: int = 1, context_tokens: float | None = None
    ) -> ArmPrediction:
        """Speed with interval; needs a measured baseline (``ValueError`` without)."""
        baseline = self.baseline_tok_per_s(concurrency)
        if baseline is None:
            raise ValueError("no baseline was measured")
        acceptance = self.acceptance.of(arm)
        plain = arm.is_baseline and arm.knobs.cuda_graphs is not False
        cost = (
            Observed(1.0, self.launch_log_sd)
            if plain
            else self.cost.predict(arm, concurrency=concurrency, context_tokens=context_tokens)
        )
        speedup = _speedup(acceptance.length, cost)
        return ArmPrediction(
            arm=arm,
            concurrency=concurrency,
            tok_per_s=speedup.scaled(baseline),
            speedup=speedup,
            acceptance=acceptance,
            cost=cost,
            baseline_tok_per_s=baseline,
            measured=(arm_facts(arm).arm_id, concurrency) in self._measured,
        )


def _speedup(length: LogEstimate, cost: Observed) -> LogEstimate:
    parts = cost.parts or ((1.0, cost.value, cost.sd),)
    return mixture([(w, length.log - math.log(c), math.hypot(length.log_sd, sd / c)) for w, c, sd in parts])


def _baselines(observations: Sequence[Observation]) -> dict[int, float]:
    logs: dict[int, list[float]] = {}
    for o in observations:
        if o.arm.is_baseline and o.arm.knobs.cuda_graphs is not False:
            logs.setdefault(o.concurrency, []).append(math.log(o.tok_per_s))
        elif o.speedup:
            logs.setdefault(o.concurrency, [])
    found = {c: math.exp(math.fsum(values) / len(values)) for c, values in logs.items() if values}
    for concurrency in [c for c, values in logs.items() if not values]:
        implied = [
            math.log(o.tok_per_s / o.speedup)
            for o in observations
            if o.concurrency == concurrency and o.speedup
        ]
        found[concurrency] = math.exp(math.fsum(implied) / len(implied))
    return found
