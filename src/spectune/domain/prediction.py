"""What a trial is expected to show, from what was measured so far; and the judgement afterwards.

The model is deliberately small: a chain's acceptance length follows from the
per-position acceptance of a longer chain, and its step cost is taken as linear
in the number of drafted tokens. Its allowance is declared, not fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm, differing_factors
from spectune.domain.hypothesis import Expectation, Hypothesis, Judgement
from spectune.domain.interval import Interval
from spectune.domain.study import ArmExpectation

_CHAIN_METHODS = frozenset({"eagle", "eagle3", "mtp", "draft_model"})
_ALLOWANCE_FRAC = 0.10
_ALLOWANCE_PER_NEW_POSITION_FRAC = 0.04
_LENGTH_FACTORS = frozenset({"num_draft_tokens", "num_steps"})


@dataclass(frozen=True)
class Observation:
    """One measured trial: end-to-end tok/s, and its ratio to the baseline measured before it."""

    arm: Arm
    tok_per_s: float
    speedup: float | None
    acceptance: AcceptanceCounts | None


def propose(
    arm: Arm,
    *,
    baseline: Arm,
    observed: Sequence[Observation],
    expectation: ArmExpectation | None = None,
) -> Hypothesis:
    """The hypothesis of the next trial of ``arm``; ``observed`` in order of measurement."""
    same = [o for o in observed if o.arm.arm_id == arm.arm_id]
    is_baseline = arm.arm_id == baseline.arm_id
    if same:
        last = same[-1]
        return Hypothesis(
            compared_with=arm.arm_id,
            compared_with_name=arm.name,
            changed=(),
            expectation="same",
            predicted_tok_per_s=_around(last.tok_per_s, _ALLOWANCE_FRAC),
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
    reference = _nearest(arm, observed) or baseline
    changed = differing_factors(arm, reference)
    predicted, reason = _predict(arm, reference, changed, observed)
    expected: Expectation = "faster"
    if expectation and expectation.expect:
        expected = expectation.expect
        reference = baseline
        changed = differing_factors(arm, baseline)
    elif predicted is not None:
        before = next(o for o in reversed(observed) if o.arm.arm_id == reference.arm_id)
        expected = "faster" if predicted.value > before.tok_per_s else "slower"
    why = expectation.why if expectation and expectation.why else reason
    return Hypothesis(
        compared_with=reference.arm_id,
        compared_with_name=reference.name,
        changed=changed,
        expectation=expected,
        predicted_tok_per_s=predicted,
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
    arm: Arm, reference: Arm, changed: tuple[str, ...], observed: Sequence[Observation]
) -> tuple[Interval | None, str]:
    method, length = arm.knobs.method, arm.knobs.num_draft_tokens
    if reference.knobs.method != method:
        return None, f"first arm with {method}: its acceptance on these prompts is not known yet"
    if not set(changed) <= _LENGTH_FACTORS or method not in _CHAIN_METHODS or length is None:
        return (
            None,
            f"{', '.join(changed)} changed against {reference.name}; nothing measured so far predicts it",
        )
    family = [
        o
        for o in observed
        if o.arm.knobs.num_draft_tokens is not None
        and o.speedup is not None
        and o.acceptance is not None
        and o.acceptance.acceptance_length is not None
        and set(differing_factors(arm, o.arm)) <= _LENGTH_FACTORS
    ]
    with_positions = [o for o in family if o.acceptance is not None and o.acceptance.accepted_per_position]
    if not family or not with_positions:
        return (
            None,
            f"acceptance per position of {reference.name} is not known, so nothing predicts this length",
        )
    longest = max(with_positions, key=lambda o: o.arm.knobs.num_draft_tokens or 0)
    assert longest.acceptance is not None
    expected_length, invented = chain_acceptance_length(longest.acceptance, length)
    cost = _step_cost(length, family)
    if expected_length is None or cost is None or cost <= 0:
        return None, f"the measurements of {reference.name} do not determine a prediction"
    baseline_tok_per_s = longest.tok_per_s / (longest.speedup or 1)
    speedup = expected_length / cost
    allowance = _ALLOWANCE_FRAC + _ALLOWANCE_PER_NEW_POSITION_FRAC * invented
    why = (
        f"from {longest.arm.name}: acceptance length {expected_length:.2f} at {length} drafted tokens, "
        f"step cost {cost:.2f} baseline steps if linear in them; allowance {allowance:.0%} (declared, not fitted)"
    )
    return _around(baseline_tok_per_s * speedup, allowance), why


def chain_acceptance_length(counts: AcceptanceCounts, length: int) -> tuple[float | None, int]:
    """Acceptance length of a chain of ``length``, and how many of its positions had to be invented.

    Exact for positions measured in a chain at least as long (a chain's first
    positions do not know how long it is); beyond, the last conditional
    acceptance is held, which is optimistic where acceptance decays.
    """
    marginal = counts.marginal_acceptance
    if not marginal:
        return None, 0
    positions = list(marginal[:length])
    invented = length - len(positions)
    if invented > 0:
        conditional = counts.conditional_acceptance
        last = conditional[-1] if conditional else None
        for _ in range(invented):
            positions.append(positions[-1] * (last if last is not None else 0.0))
    return 1 + sum(positions), max(0, invented)


def _step_cost(length: int, family: Sequence[Observation]) -> float | None:
    """Baseline steps per verify step at ``length``: a line through the two nearest known lengths, or through (0, 1)."""
    points = {0: 1.0}
    for observation in family:
        known, speedup = observation.arm.knobs.num_draft_tokens, observation.speedup
        taken = observation.acceptance.acceptance_length if observation.acceptance else None
        if known is not None and speedup and taken is not None:
            points[known] = taken / speedup
    nearest = sorted(points, key=lambda k: (abs(k - length), -k))[:2]
    if len(nearest) < 2:
        return None
    (a, b) = nearest
    return points[a] + (points[b] - points[a]) * (length - a) / (b - a)


def _around(value: float, allowance_frac: float) -> Interval:
    return Interval(
        value=value,
        low=value * (1 - allowance_frac),
        high=value * (1 + allowance_frac),
        level=0.8,
        n=1,
        unit="tok/s",
    )


def judge_hypothesis(
    hypothesis: Hypothesis, *, observed: Interval | None, speedup_over_reference: Interval | None
) -> Hypothesis:
    """``hypothesis`` with its verdict.

    A prediction in tok/s is judged by whether the observed value lies in it
    (undecided where only part of the observed interval does); a bare
    direction, by the interval of the speedup over the reference.
    """
    verdict: Judgement | None
    if hypothesis.expectation == "reference" or observed is None:
        verdict = None if hypothesis.expectation == "reference" else "undecided"
        text = None if observed is None else f"{observed.value:.1f} tok/s"
        return hypothesis.model_copy(update={"verdict": verdict, "observed": text})
    predicted = hypothesis.predicted_tok_per_s
    if predicted is not None:
        verdict = _inside(predicted, observed)
    elif speedup_over_reference is None:
        verdict = "undecided"
    else:
        verdict = _direction(hypothesis.expectation, speedup_over_reference)
    text = f"{observed.value:.1f} tok/s"
    if speedup_over_reference is not None:
        text += f", {speedup_over_reference.value:.2f}x {hypothesis.compared_with_name or 'the reference'}"
    return hypothesis.model_copy(update={"verdict": verdict, "observed": text})


def _inside(predicted: Interval, observed: Interval) -> Judgement:
    assert predicted.low is not None and predicted.high is not None
    if predicted.low <= observed.value <= predicted.high:
        return "confirmed"
    low = observed.low if observed.low is not None else observed.value
    high = observed.high if observed.high is not None else observed.value
    return "refuted" if high < predicted.low or low > predicted.high else "undecided"


def _direction(expectation: Expectation, speedup: Interval) -> Judgement:
    if speedup.low is None or speedup.high is None:
        return "undecided"
    faster, slower = speedup.low > 1, speedup.high < 1
    if expectation == "faster":
        return "confirmed" if faster else "refuted" if slower else "undecided"
    if expectation == "slower":
        return "confirmed" if slower else "refuted" if faster else "undecided"
    return "refuted" if faster or slower else "undecided"
