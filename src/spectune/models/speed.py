"""Speed of every arm, measured or not: acceptance length over step cost, times the baseline.

``speedup of decoding = acceptance length / cost``, with the cost of a step in
baseline steps. What is measured, asked for and predicted is the speed of whole
requests, which also have the time to the first token in them; ``cost_model_requests``
goes from the one to the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spectune.domain.arm import Arm
from spectune.domain.request_time import RequestTimes
from spectune.models.acceptance_family import AcceptanceModel, ArmLength
from spectune.models.arm_shape import arm_facts
from spectune.models.observation import Observation
from spectune.models.request_speed import Requests, whole_log
from spectune.models.step_cost import CostPoint, JointCost, StepCostModel
from spectune.statistics.estimate import LogEstimate, Observed, mixture

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
    """Of a step, in baseline steps."""
    baseline_tok_per_s: float
    measured: bool

    times: RequestTimes | None = None
    """Where the time of its requests goes; ``None``: all of it is taken for decoding."""

    @property
    def zero_overhead_tok_per_s(self) -> float:
        """If a verify step cost as much as a baseline step."""
        return self.at_decode_speedup(self.acceptance.length.value)

    def at_decode_speedup(self, speedup: float) -> float:
        """tok/s of whole requests."""
        return self.baseline_tok_per_s * math.exp(whole_log(self.times, math.log(speedup))[0])

    def length_for(self, tok_per_s: float) -> float | None:
        """Acceptance length that reaches a speed; ``None``: none does, for the time before the first token."""
        speedup = tok_per_s / self.baseline_tok_per_s
        if self.times is None:
            return speedup * self.cost.value
        faster = self.times.faster_for(speedup)
        return None if faster is None else faster * self.times.decode_speedup * self.cost.value


@dataclass(frozen=True)
class JointSpeed:
    """Log tok/s of several arms under one explanation of what was measured."""

    weight: float
    logs: tuple[float, ...]
    variances: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    """Of the first arms (those looked at) with all."""


def machine_ceiling_tok_per_s(
    *, bytes_per_step: float, bandwidth_bytes_per_s: float, length: float = 1.0
) -> float:
    """Speed at which reading the weights alone fills a step; ``length`` tokens come of each."""
    return bandwidth_bytes_per_s / bytes_per_step * length


def launch_log_sd(observations: Sequence[Observation], *, declared: float = DEFAULT_LAUNCH_LOG_SD) -> float:
    """Spread between launches of one arm, shrunk towards the declared value while repeats are few.

    Arms that shared their launches tell of them once, each for its part.
    """
    groups: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for o in observations:
        found = groups.setdefault((arm_facts(o.arm).arm_id, o.concurrency), [])
        found.append((o.launch, math.log(o.tok_per_s)))
    repeated = {key: found for key, found in groups.items() if len(found) > 1}
    sharing = Counter((c, launch) for (_, c), found in repeated.items() for launch, _ in found)
    squares, degrees = 0.0, 0.0
    for (_, concurrency), found in repeated.items():
        part = len(found) / sum(sharing[concurrency, launch] for launch, _ in found)
        mean = math.fsum(log for _, log in found) / len(found)
        squares += part * math.fsum((log - mean) ** 2 for _, log in found)
        degrees += part * (len(found) - 1)
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
        self.requests = Requests(observations)
        decoding = [replace(o, tok_per_s=o.decode_tok_per_s) for o in observations if o.decode_tok_per_s]
        self._decoding = _baselines([o for o in decoding if o.arm.is_baseline and o.speedup is None])
        points = [p for o in observations if (p := self._cost_point(o)) is not None]
        self.num_points = len(points)
        self._direct = self._direct_speedups()
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

    def forward_s(self, concurrency: int = 1) -> float | None:
        """A forward pass of the baseline; the time of a token of whole requests where nothing tells them apart."""
        speed = self._decoding.get(concurrency) or self.baseline_tok_per_s(concurrency)
        return None if speed is None else 1 / speed

    def _cost_point(self, observation: Observation) -> CostPoint | None:
        if observation.arm.is_baseline and observation.arm.knobs.cuda_graphs is not False:
            return None
        speedup = self._speedup_of(observation)
        known = self.acceptance.of(observation.arm)
        own = observation.acceptance_length
        length = own if observation.synthetic and own is not None else known.length.value
        if not speedup or length <= 0:
            return None
        length_sd = 0.0 if observation.synthetic else known.speed_log_sd
        whole = LogEstimate(speedup, math.sqrt(self._speed_variance(observation)))
        decode = self.requests.decode(observation.arm, observation.concurrency, whole)
        sd = math.hypot(decode.log_sd, min(length_sd, 0.3))
        cost = length / decode.value
        return CostPoint(
            observation.arm,
            cost,
            sd * cost,
            observation.concurrency,
            observation.context_tokens,
            drafted=self.drafted(observation.arm),
            launch=observation.launch,
            launch_sd=self.launch_log_sd * decode.log_sd / whole.log_sd * cost,
        )

    def drafted(self, arm: Arm) -> float | None:
        """Mean tokens per step of an arm that stops early: its own, or from its family with another limit.

        ``None`` for arms that draft what they may, and while nothing tells.
        A step that went on to position i goes on to the next with one chance
        q, so ``q + q^2 + ... + q^limit`` tokens are drafted.
        """
        facts = arm_facts(arm)
        if not facts.stops_early:
            return None
        seen = [
            (arm_facts(o.arm), o.drafted)
            for o in self.observations
            if o.drafted is not None and arm_facts(o.arm).family == facts.family
        ]
        own = [drafted for other, drafted in seen if other.shape == facts.shape]
        if own:
            return math.fsum(own) / len(own)
        if not seen:
            return None
        longest, drafted = max(seen, key=lambda pair: pair[0].shape.tokens)
        chance = _chance_to_go_on(drafted, longest.shape.tokens)
        return math.fsum(chance**i for i in range(1, facts.shape.tokens + 1))

    def _speedup_of(self, observation: Observation) -> float | None:
        if observation.speedup is not None:
            return observation.speedup
        baseline = self.baseline_tok_per_s(observation.concurrency)
        return observation.tok_per_s / baseline if baseline else None

    def _speed_variance(self, observation: Observation) -> float:
        """Of the log speedup as measured: the arm's own error, and its and the baseline's launch."""
        own = observation.log_sd if observation.log_sd is not None else DEFAULT_LOG_SD
        return float(own**2 + 2 * self.launch_log_sd**2)

    def _direct_speedups(self) -> dict[tuple[str, int], tuple[float, float]]:
        """(log speedup of decoding, variance) of every measured arm, over its launches."""
        sums: dict[tuple[str, int], tuple[float, float]] = {}
        for o in self.observations:
            speedup = self._speedup_of(o)
            if o.synthetic or o.arm.is_baseline or not speedup:
                continue
            weight = 1 / max(self._speed_variance(o), 1e-9)
            key = (arm_facts(o.arm).arm_id, o.concurrency)
            total, moment = sums.get(key, (0.0, 0.0))
            sums[key] = total + weight, moment + weight * math.log(speedup)
        arms = {arm_facts(o.arm).arm_id: o.arm for o in self.observations}
        found = {}
        for (arm_id, concurrency), (total, moment) in sums.items():
            whole = LogEstimate(math.exp(moment / total), math.sqrt(1 / total))
            decode = self.requests.decode(arms[arm_id], concurrency, whole)
            found[arm_id, concurrency] = decode.log, decode.log_sd**2
        return found

    def joint(
        self, arms: Sequence[Arm], *, looked: int, concurrencies: Sequence[int] = (1,)
    ) -> list[JointSpeed]:
        """Speeds of unmeasured arms together, one for each explanation of the costs; geometric means
        over the concurrencies. Covariances are those of the first ``looked`` arms with all."""
        lengths = [self.acceptance.of(arm) for arm in arms]
        by_concurrency = []
        for concurrency in concurrencies:
            baseline = self.baseline_tok_per_s(concurrency)
            if baseline is None:
                raise ValueError("no baseline was measured")
            costs = self.cost.joint(
                arms, looked=looked, concurrency=concurrency, drafted=[self.drafted(arm) for arm in arms]
            )
            times = self.requests.slopes(arms, concurrency)
            by_concurrency.append([_speed_terms(cost, lengths, math.log(baseline), times) for cost in costs])
        return [_mean_speed(parts) for parts in zip(*by_concurrency, strict=True)]

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
            else self.cost.predict(
                arm, concurrency=concurrency, context_tokens=context_tokens, drafted=self.drafted(arm)
            )
        )
        decode = _speedup(acceptance, cost, self._direct.get((arm_facts(arm).arm_id, concurrency)))
        speedup = decode if plain else self.requests.whole(arm, concurrency, decode)
        return ArmPrediction(
            arm=arm,
            concurrency=concurrency,
            tok_per_s=speedup.scaled(baseline),
            speedup=speedup,
            acceptance=acceptance,
            cost=cost,
            baseline_tok_per_s=baseline,
            measured=(arm_facts(arm).arm_id, concurrency) in self._measured,
            times=None if plain else self.requests.of(arm, concurrency),
        )


def _chance_to_go_on(drafted: float, limit: int) -> float:
    """q with ``q + ... + q^limit = drafted``, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if math.fsum(middle**i for i in range(1, limit + 1)) < drafted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _mean_speed(parts: Sequence[JointSpeed]) -> JointSpeed:
    """Of one explanation at several concurrencies; their errors are taken as one."""
    n = len(parts)
    if n == 1:
        return parts[0]
    return JointSpeed(
        weight=parts[0].weight,
        logs=tuple(math.fsum(x) / n for x in zip(*(p.logs for p in parts), strict=True)),
        variances=tuple(math.fsum(x) / n for x in zip(*(p.variances for p in parts), strict=True)),
        covariance=tuple(
            tuple(math.fsum(x) / n for x in zip(*rows, strict=True))
            for rows in zip(*(p.covariance for p in parts), strict=True)
        ),
    )


def _speed_terms(
    costs: JointCost,
    lengths: Sequence[ArmLength],
    baseline_log: float,
    times: Sequence[RequestTimes | None],
) -> JointSpeed:
    """Costs as log speeds of whole requests; errors of the lengths are each arm's own."""
    own = [length.speed_log_sd**2 for length in lengths]
    by = [1 / mean for mean in costs.means]
    speeds = [
        whole_log(t, length.length.log + math.log(b)) for t, length, b in zip(times, lengths, by, strict=True)
    ]
    slopes = [slope for _, slope in speeds]
    return JointSpeed(
        weight=costs.weight,
        logs=tuple(baseline_log + log for log, _ in speeds),
        variances=tuple(
            (v * b * b + o) * g * g for v, b, o, g in zip(costs.variances, by, own, slopes, strict=True)
        ),
        covariance=tuple(
            tuple(
                (c * by[i] * b + (own[i] if i == j else 0.0)) * slopes[i] * slopes[j]
                for j, (c, b) in enumerate(zip(row, by, strict=True))
            )
            for i, row in enumerate(costs.covariance)
        ),
    )


def _speedup(length: ArmLength, cost: Observed, direct: tuple[float, float] | None) -> LogEstimate:
    """Length over cost; of a measured arm, that together with the speed as measured.

    A measured cost is a length over a speed, and the errors of both are in it.
    What the model moves it by is divided between the two in proportion to
    their variances, which is the joint posterior of length, speed and cost.
    """
    parts = cost.parts or ((1.0, cost.value, cost.sd),)
    log, sd = length.length.log, length.speed_log_sd
    if direct is None:
        return mixture([(w, log - math.log(c), math.hypot(sd, s / c)) for w, c, s in parts])
    measured, variance = direct
    total = variance + min(sd, 0.3) ** 2
    share = variance / total
    found = []
    for weight, c, s in parts:
        left = min(1.0, (s / c) ** 2 / total)
        moved = share * (log - measured - math.log(c))
        found.append((weight, measured + moved, math.sqrt(variance * (1 - share * (1 - left)))))
    return mixture(found)


def _baselines(observations: Sequence[Observation]) -> dict[int, float]:
    """By concurrency: with graphs, or without where none has them, or what speedups imply."""
    logs: dict[int, list[float]] = {}
    eager: dict[int, list[float]] = {}
    for o in observations:
        if o.arm.is_baseline and o.arm.knobs.cuda_graphs is not False:
            logs.setdefault(o.concurrency, []).append(math.log(o.tok_per_s))
        elif o.arm.is_baseline:
            eager.setdefault(o.concurrency, []).append(math.log(o.tok_per_s))
        elif o.speedup:
            logs.setdefault(o.concurrency, [])
    for concurrency, values in eager.items():
        logs[concurrency] = logs.get(concurrency) or values
    found = {c: math.exp(math.fsum(values) / len(values)) for c, values in logs.items() if values}
    for concurrency in [c for c, values in logs.items() if not values]:
        implied = [
            math.log(o.tok_per_s / o.speedup)
            for o in observations
            if o.concurrency == concurrency and o.speedup
        ]
        found[concurrency] = math.exp(math.fsum(implied) / len(implied))
    return found
