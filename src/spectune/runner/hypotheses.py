"""What a launch is expected to show, and what it showed: proposed before it, judged after it."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.analysis.arms import compare_with_new
from spectune.analysis.pooling import end_to_end, pooled_speed, speed_by_prompt
from spectune.analysis.stretches import stretch_places
from spectune.domain.findings import Finding
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.measurement import LoadResult
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import Trial
from spectune.findings.catalogue import all_kinds
from spectune.models.observation import Observation
from spectune.models.prediction import judge_hypothesis, propose
from spectune.statistics.intervals import Comparison, SpeedSample, compare_with_baseline


def hypothesis_for(
    planned: PlannedTrial,
    study: Study,
    observed: Sequence[Observation],
    *,
    checked: Sequence[Finding] = (),
) -> Hypothesis:
    """What the launch is expected to show, from what was measured before it, and from what a check found."""
    arm = study.arm(planned.arm_id)
    hypothesis = propose(
        arm,
        baseline=study.baseline,
        observed=observed,
        expectation=study.expectations.get(arm.arm_id),
        concurrency=study.workload.loads[0].streams,
    )
    slowing = {kind.code for kind in all_kinds() if kind.slows}
    slowed = next((f for f in checked if f.code in slowing), None)
    is_guess = hypothesis.predicted_tok_per_s is None and arm.arm_id not in study.expectations
    if slowed is not None and is_guess and hypothesis.expectation == "faster":
        found = f"{slowed.code}: {slowed.message}"
        hypothesis = hypothesis.model_copy(update={"expectation": "slower", "why": found})
    if planned.reason is None:
        return hypothesis
    return hypothesis.model_copy(update={"why": f"{planned.reason}. {hypothesis.why}"})


def soak_hypothesis(study: Study) -> Hypothesis:
    return Hypothesis(
        compared_with=None,
        changed=(),
        expectation="same",
        predicted_tok_per_s=None,
        why=f"the best arm is expected to hold {study.soak_s:g} s of load without a failure",
    )


def judged(
    hypothesis: Hypothesis,
    own: SpeedSample,
    loads: tuple[LoadResult, ...],
    *,
    study: Study,
    trials: Sequence[Trial],
) -> Hypothesis:
    """The hypothesis with its verdict; ``own`` is the trial's speed at the first of its ``loads``.

    Without one where acceptance was imposed: such a speed is no result.
    """
    if study.arm(own.arm_id).is_synthetic:
        return hypothesis

    baseline = study.baseline.arm_id

    def over(arm_id: str | None) -> Comparison | None:
        if arm_id == baseline and own.arm_id != baseline:
            return compare_with_new(study, trials, own)
        complete = [t for t in trials if t.status == "complete" and t.soak is None]
        stretches = stretch_places(complete, baseline)
        here = [stretches[t.trial_id] for t in complete if t.place == own.place]
        reference = [
            SpeedSample(t.arm_id, t.number, speed_by_prompt(t.loads[:1]), t.place)
            for t in complete
            if t.arm_id == arm_id and (t.place != own.place or stretches[t.trial_id] == here[-1])
        ]
        compared = compare_with_baseline([own], reference, level=study.level, margin=study.margin)
        return compared.get(own.arm_id)

    plain = None if own.arm_id == baseline else over(baseline)
    return judge_hypothesis(
        hypothesis,
        observed=pooled_speed(loads[:1], end_to_end, level=study.level),
        over_reference=over(hypothesis.compared_with),
        speedup=None if plain is None else plain.speedup,
    )
