"""What a trial is expected to show, from what was measured so far; and the judgement afterwards.

The numbers come from ``cost_model.SpeedModel``. An arm whose method, drafter
or flags were never measured gets a direction and no number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from spectune.domain.arm import Arm, differing_factors
from spectune.domain.hypothesis import Expectation, Hypothesis, Judgement
from spectune.domain.interval import Interval
from spectune.domain.study import ArmExpectation
from spectune.models.arm_shape import VARIABLE_METHODS, arm_facts
from spectune.models.observation import Observation
from spectune.models.speed import ArmPrediction, SpeedModel
from spectune.statistics.estimate import LogEstimate
from spectune.statistics.intervals import Comparison, Verdict

__all__ = ["Observation", "PredictionError", "judge_hypothesis", "prediction_error", "propose"]

_LEVEL = 0.8
_REPEAT_LOG_SD = 0.08
"""Of one arm's speed in another launch, until launches tell: restarts alone move speeds by 10-20 %."""


def propose(
    arm: Arm,
    *,
    baseline: Arm,
    observed: Sequence[Observation],
    expectation: ArmExpectation | None = None,
    concurrency: int = 1,
) -> Hypothesis:
    """The hypothesis of the next trial of ``arm``, at ``concurrency``; ``observed`` in order of measurement."""
    here = [o for o in observed if o.concurrency == concurrency]
    same = [o for o in here if o.arm.arm_id == arm.arm_id]
    is_baseline = arm.arm_id == baseline.arm_id
    if same:
        last = same[-1]
        return Hypothesis(
            compared_with=arm.arm_id,
            compared_with_name=arm.name,
            changed=(),
            expectation="same",
            predicted_tok_per_s=_around(last.tok_per_s),
            predicted_speedup=None if last.speedup is None else _around(last.speedup, unit="x baseline"),
            why="the same configuration in a new process: what differs is the noise of launches and of the machine",
        )
    if is_baseline:
        return Hypothesis(
            compared_with=None,
            changed=(),
            expectation="reference",
            predicted_tok_per_s=None,
            why="plain decoding: every speedup of this study is defined against it",
        )
    reference = _nearest(arm, [o for o in here if not o.synthetic]) or baseline
    changed = differing_factors(arm, reference)
    prediction, reason = _predict(arm, reference, changed, observed, concurrency)
    n = len({o.launch for o in observed})
    predicted = speedup = None
    if prediction is not None:
        predicted = prediction.tok_per_s.interval(unit="tok/s", level=_LEVEL, n=n)
        speedup = prediction.speedup.interval(unit="x baseline", level=_LEVEL, n=n)
    expected: Expectation = "faster"
    if expectation and expectation.expect:
        expected = expectation.expect
        reference = baseline
        changed = differing_factors(arm, baseline)
    elif predicted is not None:
        before = next(o for o in reversed(here) if o.arm.arm_id == reference.arm_id)
        expected = "faster" if predicted.value > before.tok_per_s else "slower"
    why = expectation.why if expectation and expectation.why else reason
    return Hypothesis(
        compared_with=reference.arm_id,
        compared_with_name=reference.name,
        changed=changed,
        expectation=expected,
        predicted_tok_per_s=predicted,
        predicted_speedup=speedup,
        why=why,
    )


def _nearest(arm: Arm, observed: Sequence[Observation]) -> Arm | None:
    """The measured arm that differs in the fewest factors; the later of equals."""
    best: Arm | None = None
    for observation in observed:
        other = observation.arm
        if best is None or len(differing_factors(arm, other)) <= len(differing_factors(arm, best)):
            best = other
    return best


def _predict(
    arm: Arm,
    reference: Arm,
    changed: tuple[str, ...],
    observed: Sequence[Observation],
    concurrency: int,
) -> tuple[ArmPrediction | None, str]:
    facts = arm_facts(arm)
    settings = {arm_facts(o.arm).setting for o in observed if o.acceptance_length is not None}
    if reference.knobs.method != arm.knobs.method:
        return None, f"first arm with {arm.knobs.method}: its acceptance on these prompts is not known yet"
    if facts.setting not in settings:
        return (
            None,
            f"{', '.join(changed)} changed against {reference.name}; nothing measured so far predicts it",
        )
    model = SpeedModel(observed)
    if model.baseline_tok_per_s(concurrency) is None:
        return None, "no baseline was measured yet, so nothing predicts a speed"
    prediction = model.predict(arm, concurrency=concurrency)
    if arm.knobs.method in VARIABLE_METHODS and prediction.acceptance.case == "regressed":
        return None, f"{', '.join(changed)} changed: what is looked up at one length says nothing of another"
    return prediction, _reason(prediction, model)


def _reason(prediction: ArmPrediction, model: SpeedModel) -> str:
    acceptance, cost = prediction.acceptance, prediction.cost
    sources = {
        "own": "measured",
        "derived": "from the acceptance by position of a longer draft",
        "regressed": "from drafts of other shapes, not derived",
        "unknown": "not known",
    }
    invented = (
        f", {acceptance.invented} positions extrapolated"
        if acceptance.case == "derived" and acceptance.invented
        else ""
    )
    return (
        f"acceptance length {acceptance.length.value:.2f} ({sources[acceptance.case]}{invented}); "
        f"step cost {cost.value:.2f} ± {cost.sd:.2f} baseline steps, fitted from {model.num_points} "
        f"measured arm{'s' if model.num_points != 1 else ''}"
    )


def _around(value: float, *, unit: str = "tok/s") -> Interval:
    return LogEstimate(value, _REPEAT_LOG_SD).interval(unit=unit, level=_LEVEL, n=1)


@dataclass(frozen=True)
class PredictionError:
    """How wrong predictions were, over the trials that had one."""

    n: int
    median_abs_frac: float
    worst_abs_frac: float
    inside_frac: float
    """Share of observed speeds inside the predicted interval."""
    level: float


def prediction_error(pairs: Sequence[tuple[Interval, float]]) -> PredictionError | None:
    """From (predicted, observed) speeds; ``None`` for none."""
    if not pairs:
        return None
    errors = [abs(math.expm1(math.log(predicted.value / observed))) for predicted, observed in pairs]
    inside = [
        p.low is not None and p.high is not None and p.low <= observed <= p.high for p, observed in pairs
    ]
    return PredictionError(
        n=len(pairs),
        median_abs_frac=median(errors),
        worst_abs_frac=max(errors),
        inside_frac=sum(inside) / len(pairs),
        level=pairs[0][0].level,
    )


def judge_hypothesis(
    hypothesis: Hypothesis,
    *,
    observed: Interval | None,
    over_reference: Comparison | None,
    speedup: Interval | None = None,
) -> Hypothesis:
    """``hypothesis`` with its verdict; ``speedup`` is over plain decoding.

    A direction is confirmed or refuted by the comparison's own verdict, the rule that the tables go by. A predicted
    number that came true confirms no direction that the comparison cannot tell.
    """
    verdict: Judgement | None
    if hypothesis.expectation == "reference" or observed is None:
        verdict = None if hypothesis.expectation == "reference" else "undecided"
        text = None if observed is None else f"{observed.value:.1f} tok/s"
        return hypothesis.model_copy(update={"verdict": verdict, "observed": text})
    predicted, seen = hypothesis.predicted_tok_per_s, observed
    if hypothesis.predicted_speedup is not None and speedup is not None:
        predicted, seen = hypothesis.predicted_speedup, speedup
    if predicted is not None:
        verdict = _inside(predicted, seen)
        if over_reference is not None and verdict == "confirmed":
            direction = _direction(hypothesis.expectation, over_reference.verdict)
            told = direction != "undecided" or hypothesis.expectation == "same"
            verdict = "refuted" if direction == "refuted" else verdict if told else "undecided"
    elif over_reference is None:
        verdict = "undecided"
    else:
        verdict = _direction(hypothesis.expectation, over_reference.verdict)
    text = f"{observed.value:.1f} tok/s"
    if over_reference is not None:
        ratio, name = over_reference.speedup.value, hypothesis.compared_with_name or "the reference"
        text += f", {ratio:.2f}x {name} ({over_reference.verdict.lower().replace('_', ' ')})"
    return hypothesis.model_copy(update={"verdict": verdict, "observed": text})


def _inside(predicted: Interval, observed: Interval) -> Judgement:
    assert predicted.low is not None and predicted.high is not None
    if predicted.low <= observed.value <= predicted.high:
        return "confirmed"
    low = observed.low if observed.low is not None else observed.value
    high = observed.high if observed.high is not None else observed.value
    return "refuted" if high < predicted.low or low > predicted.high else "undecided"


def _direction(expectation: Expectation, verdict: Verdict) -> Judgement:
    if verdict == "CANNOT_TELL":
        return "undecided"
    wanted: dict[Expectation, Verdict] = {"faster": "FASTER", "slower": "SLOWER", "same": "SAME"}
    return "confirmed" if wanted.get(expectation) == verdict else "refuted"
