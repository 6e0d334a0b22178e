"""The careful engineer's protocol: one factor at a time from the best so far, kept or reverted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spectune.domain.arm import Arm, differing_factors
from spectune.models.arm_shape import id_of
from spectune.models.speed import SpeedModel
from spectune.search.neighbours import changed_knobs, is_neighbour
from spectune.search.protocol import (
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
    imposed_next,
    split_baseline,
)
from spectune.statistics.estimate import LogEstimate


@dataclass(frozen=True)
class OneFactor:
    """Starts at ``arms``' first speculating arm; ends when no single change is left."""

    arms: Sequence[LegalArm]
    budget: Budget = UNLIMITED
    objective: Objective = SINGLE_STREAM
    name: str = field(default="one-factor", init=False)

    def ask(self, history: History) -> Ask | Stop:
        baseline, others = split_baseline(self.arms)
        best = best_measured(self.arms, history, self.objective)
        if id_of(baseline.arm) in history.failed:
            return Stop(BASELINE_FAILED, None)
        spent = self.budget.spent(history)
        if spent:
            return Stop(spent, best[0] if best else None)
        if id_of(baseline.arm) not in history.ended:
            return Ask(baseline.arm, "plain decoding first: every speedup is against it")
        imposed = imposed_next(others, history)
        if imposed is not None:
            return imposed
        others = [a for a in others if not a.imposed]
        ended, speeds = history.ended, self.objective.measured(history)
        open_arms = [a.arm for a in others if id_of(a.arm) not in ended]
        # An arm that was stopped early has no speed at the loads behind the first.
        tried = [a.arm for a in others if id_of(a.arm) in speeds]
        if not tried:
            if not open_arms:
                return Stop("no arm is left to try", best[0] if best else None)
            which = "the first arm of the study" if len(open_arms) == len(others) else "the next arm"
            return Ask(open_arms[0], f"{which}, as the place to start from")
        centre = max(tried, key=lambda arm: speeds[id_of(arm)])
        lost = [
            f"{a.arm.name} ({'failed' if id_of(a.arm) in history.failed else 'stopped early'})"
            for a in others
            if id_of(a.arm) in ended and id_of(a.arm) not in speeds
        ]
        ruled_out = self._ruled_out(centre, tried, speeds, lost)
        step = self._next_change(centre, open_arms)
        if step is None:
            return Stop(
                f"no single change of {centre.name} is left; ruled out: {ruled_out}",
                best[0] if best else None,
            )
        return self._ask(step, centre, speeds[id_of(centre)], history, ruled_out)

    def _next_change(self, centre: Arm, candidates: Sequence[Arm]) -> Arm | None:
        """One factor, one notch; if every notch is done, one factor by any distance."""
        single = [arm for arm in candidates if len(changed_knobs(arm, centre)) == 1]
        all_arms = [a.arm for a in self.arms]
        near = [arm for arm in single if is_neighbour(arm, centre, all_arms)]
        return next(iter(near or single), None)

    def _ask(self, arm: Arm, centre: Arm, now: float, history: History, ruled_out: str) -> Ask:
        factor = changed_knobs(arm, centre)[0]
        expected = self._expected(arm, history)
        direction = "no model says what it does"
        if expected is not None:
            word = "faster" if expected.value > now else "slower"
            direction = f"expected {word}: {expected.value:.1f} against {now:.1f} tok/s"
        reason = f"change {factor} of {centre.name} (best so far), all else equal; {direction}; ruled out: {ruled_out}"
        return Ask(arm, reason, expected)

    def _expected(self, arm: Arm, history: History) -> LogEstimate | None:
        concurrency = self.objective.concurrencies[0]
        if len(self.objective.concurrencies) > 1 or not history.observations:
            return None
        try:
            return SpeedModel(history.observations).predict(arm, concurrency=concurrency).tok_per_s
        except ValueError:
            return None

    def _ruled_out(
        self, centre: Arm, tried: Sequence[Arm], speeds: dict[str, float], lost: Sequence[str]
    ) -> str:
        now = speeds[id_of(centre)]
        parts = list(lost)
        for arm in tried:
            if id_of(arm) != id_of(centre) and id_of(arm) in speeds:
                changed = ", ".join(differing_factors(arm, centre)) or "nothing"
                parts.append(f"{arm.name} ({changed}: {speeds[id_of(arm)] / now - 1:+.1%})")
        return "; ".join(parts) or "nothing yet"
