"""The default strategy: measure little, predict the rest, and distrust the predictions where they failed.

1. The baseline, and arms of imposed acceptance, which tell what steps cost. 2.
The probe that teaches most about all arms. 3. Then the arm with the best
expected gain per minute, until no arm is likely to beat the best by more than
the margin. 4. The winner's neighbours are always measured, as far as the
budget goes: acceptance and cost can fall off a cliff between two lengths. When
predictions miss, the model's own discrepancy grows, intervals widen, and more
is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spectune.domain.arm import Arm
from spectune.models.arm_shape import id_of, shape_of
from spectune.models.speed import DEFAULT_LAUNCH_LOG_SD, SpeedModel
from spectune.search.lookahead import worth_of_looking
from spectune.search.neighbours import neighbours
from spectune.search.probe import FIRST_SHARE, first_probe
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
    imposed_next,
    split_baseline,
)
from spectune.statistics.estimate import LogEstimate

_MOST_LOOKED, _MOST_ARMS = 8, 12
"""Arms weighed as the next launch, and as the one after it: those with the best expected gain."""
_IMAGINED_LOG_SD = 0.01
AHEAD = "of two launches from here, the first that makes both worth most"
NEXT = "best expected gain per minute of launch"


@dataclass(frozen=True)
class Predict:
    """``margin``: a gain smaller than this is not worth a launch; ``patience``: the chance of one that is.

    An arm of the launch that runs costs its measurement alone, and is worth it at a chance that is smaller by as much.
    """

    arms: Sequence[LegalArm]
    budget: Budget = UNLIMITED
    objective: Objective = SINGLE_STREAM
    margin: float = 0.02
    patience: float = 0.10
    launch_log_sd: float = DEFAULT_LAUNCH_LOG_SD
    """Noise floor of this machine between launches, where it was measured."""
    first_share: float = FIRST_SHARE
    name: str = field(default="predict", init=False)

    def ask(self, history: History) -> Ask | Stop:
        baseline, others = split_baseline(self.arms)
        if id_of(baseline.arm) in history.failed:
            return Stop(BASELINE_FAILED, None)
        spent = self.budget.spent(history)
        if id_of(baseline.arm) not in history.measured:
            if spent:
                return Stop(spent, None)
            return Ask(baseline.arm, "plain decoding first: every speedup is against it")
        imposed = None if spent else imposed_next(others, history)
        if imposed is not None:
            return imposed
        others = [a for a in others if not a.imposed]
        model = SpeedModel(history.observations, declared_launch_log_sd=self.launch_log_sd)
        best = self.best(history, model)
        ended, measured = history.ended, history.measured
        open_arms = self.budget.within([a for a in others if id_of(a.arm) not in ended], history)
        if not open_arms:
            return Stop(spent or ALL_ENDED, best)
        tried = [a.arm for a in others if id_of(a.arm) in measured]
        if not tried:
            return self._probe(open_arms, model)
        return self._choose(open_arms, model, history, best)

    def best(self, history: History, model: SpeedModel | None = None) -> Arm | None:
        """The measured arm whose speed, measurement and model together, is the highest."""
        if not history.observations:
            return None
        model = model or SpeedModel(history.observations, declared_launch_log_sd=self.launch_log_sd)
        measured = history.measured - history.stopped
        known = [a.arm for a in self.arms if id_of(a.arm) in measured]
        return max(known, key=lambda arm: self.speed(model, arm).value, default=None)

    def speed(self, model: SpeedModel, arm: Arm) -> LogEstimate:
        """At the objective: geometric mean over its concurrencies (their errors taken as one)."""
        parts = [model.predict(arm, concurrency=c).tok_per_s for c in self.objective.concurrencies]
        if len(parts) == 1:
            return parts[0]
        log = math.fsum(p.log for p in parts) / len(parts)
        return LogEstimate(math.exp(log), math.fsum(p.log_sd for p in parts) / len(parts))

    @cached_property
    def _first(self) -> Arm:
        _, others = split_baseline(self.arms)
        return first_probe([a.arm for a in others if not a.imposed], self.first_share)

    def _probe(self, open_arms: Sequence[LegalArm], model: SpeedModel) -> Ask:
        arms = [a.arm for a in open_arms]
        arm = self._first if self._first in arms else first_probe(arms, self.first_share)
        shape = shape_of(arm)
        reason = (
            f"the probe that teaches most: {shape.steps} draft steps and {shape.tokens} tokens show acceptance "
            "at every position a shorter draft has, and a step's cost well away from plain decoding's"
        )
        return Ask(arm, reason, self.speed(model, arm))

    def _choose(
        self, open_arms: Sequence[LegalArm], model: SpeedModel, history: History, best: Arm | None
    ) -> Ask | Stop:
        top = self.speed(model, best) if best is not None else None
        now = top.value if top else 1e-9
        limit = now * (1 + self.margin)
        scored = []
        for legal in open_arms:
            speed = self.speed(model, legal.arm)
            minutes = max(self._seconds(legal, history), 1.0) / 60
            scored.append((speed.expected_gain(now) / minutes, speed, legal.arm))
        _, speed, arm = max(scored, key=lambda item: item[0])
        hopeful = any(
            speed.chance_above(limit)
            > self.patience * self._seconds(legal, history) / max(legal.total_s, 1e-9)
            for legal, (_, speed, _) in zip(open_arms, scored, strict=True)
        )
        if hopeful and best is not None and self._looks_ahead(open_arms, history):
            arm, speed = self._worth_most(scored, model, history)
            return Ask(arm, self._reason(AHEAD, speed, limit, best, model), speed)
        if hopeful:
            return Ask(arm, self._reason(NEXT, speed, limit, best, model), speed)
        return self._check_neighbours(open_arms, scored, model, history, best)

    def _reason(self, why: str, speed: LogEstimate, limit: float, best: Arm | None, model: SpeedModel) -> str:
        chance = (
            f"{speed.chance_above(limit):.0%} chance to beat {best.name if best else 'nothing'} "
            f"by more than {self.margin:.0%}"
        )
        return self._with_doubts(f"{why}: {chance}", model)

    def _looks_ahead(self, open_arms: Sequence[LegalArm], history: History) -> bool:
        """Where launches are too few for all that may be worth one; else the next best does as well."""
        left = self.budget.left(history)
        needed = len({a.launch_key or id_of(a.arm) for a in open_arms if not history.runs(a)})
        scarce = 2 <= left < needed if left is not None else len(history.measured) <= 2
        return scarce and len(open_arms) >= 2

    def _worth_most(
        self, scored: Sequence[tuple[float, LogEstimate, Arm]], model: SpeedModel, history: History
    ) -> tuple[Arm, LogEstimate]:
        """The arm after which, with one more launch, the winner is expected to be fastest."""
        measured = history.measured - history.stopped
        best_log = max(self.speed(model, a.arm).log for a in self.arms if id_of(a.arm) in measured)
        promising = sorted(scored, key=lambda item: -item[0])[:_MOST_ARMS]
        looked = min(len(promising), _MOST_LOOKED)
        joint = model.joint(
            [arm for _, _, arm in promising], looked=looked, concurrencies=self.objective.concurrencies
        )
        seconds = {id_of(a.arm): max(self._seconds(a, history), 1.0) for a in self.arms}
        noise = math.hypot(_IMAGINED_LOG_SD, model.launch_log_sd)

        def gain_per_s(place: int) -> float:
            after = worth_of_looking(joint, place, best_log=best_log, noise_log_sd=noise)
            return (after - best_log) / seconds[id_of(promising[place][2])]

        _, speed, arm = promising[max(range(looked), key=gain_per_s)]
        return arm, speed

    def _check_neighbours(
        self,
        open_arms: Sequence[LegalArm],
        scored: Sequence[tuple[float, LogEstimate, Arm]],
        model: SpeedModel,
        history: History,
        best: Arm | None,
    ) -> Ask | Stop:
        """Those of the launch that runs first: they cost no other."""
        around = neighbours(best, [a.arm for a in self.arms]) if best is not None else []
        ids = {id_of(arm) for arm in around}
        open_around = [
            (history.runs(legal), speed.value, speed, arm)
            for legal, (_, speed, arm) in zip(open_arms, scored, strict=True)
            if id_of(arm) in ids
        ]
        if open_around:
            _, _, speed, arm = max(open_around, key=lambda item: item[:2])
            reason = (
                f"a neighbour of the winner {best.name if best else ''}: cliffs exist and no model sees them"
            )
            return Ask(arm, reason, speed)
        return Stop(
            f"no arm left has a chance of {self.patience:.0%} or more to beat the best by {self.margin:.0%}",
            best,
        )

    def _seconds(self, legal: LegalArm, history: History) -> float:
        return legal.measure_s if history.runs(legal) else legal.total_s

    def _with_doubts(self, reason: str, model: SpeedModel) -> str:
        large = [r for r in model.acceptance.residuals() if r.large]
        if not large:
            return reason
        worst = max(large, key=lambda r: abs(r.log_ratio))
        return (
            f"{reason}; acceptance is measured, not derived: {worst.arm.name} was predicted "
            f"{worst.predicted:.2f} and measured {worst.measured:.2f}"
        )
