"""What a study's trials teach the models of speed: one observation per trial and closed load point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spectune.analysis import pooling
from spectune.analysis.request_times import PromptTimes, arm_times, plain_times, prompt_times
from spectune.analysis.stretches import stretch_places
from spectune.domain.acceptance import SKIPS_BELOW, AcceptanceCounts
from spectune.domain.measurement import LoadResult
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.domain.workload import LoadPoint
from spectune.models.observation import Observation
from spectune.statistics.intervals import Comparison, SpeedSample, compare_with_baseline

_FEW_PROMPTS = 4
"""Fewer do not show how much prompts differ."""


def observations(study: Study, trials: Sequence[Trial]) -> list[Observation]:
    """In order of measurement. Trials that were stopped early count, failed ones and soaks do not.

    ``speedup`` is against the baseline launches around the trial, so that a
    drift of the machine is in neither. The speed of a trial that was stopped
    is the baseline's over all prompts, times that ratio.
    """
    counted = [t for t in trials if t.status != "failed" and t.soak is None]
    baseline = [t for t in counted if t.arm_id == study.baseline.arm_id]
    places = stretch_places(counted, study.baseline.arm_id)
    against = {point: _samples(baseline, point, places) for point in study.workload.loads}
    plain = {
        point: prompt_times([load for t in baseline if (load := pooling.load_of(t, point)) is not None])
        for point in study.workload.loads
    }
    found: list[Observation] = []
    for trial in counted:
        for load in trial.loads:
            if load.load.concurrency is not None:
                compared = _compare(study, trial, load, against.get(load.load, []), places)
                observation = _observe(study, trial, load, counted, compared)
                if observation is not None:
                    found.append(_with_times(observation, load, plain.get(load.load)))
    return found


def _observe(
    study: Study,
    trial: Trial,
    load: LoadResult,
    trials: Sequence[Trial],
    compared: Comparison | None,
) -> Observation | None:
    speed = pooling.pooled_speed([load], pooling.end_to_end, level=study.level)
    assert load.load.concurrency is not None
    if speed is None:
        return None
    is_baseline = trial.arm_id == study.baseline.arm_id
    speedup = None if compared is None else compared.speedup.value
    value = speed.value
    if load.cut_short and speedup is not None:
        whole = _baseline_speed(study, load.load, trials)
        value = value if whole is None else whole * speedup
    counts = None if is_baseline else _per_decode_step(load)
    return Observation(
        arm=trial.arm,
        tok_per_s=value,
        speedup=speedup,
        acceptance=counts,
        concurrency=load.load.concurrency,
        log_sd=_prompt_error(compared),
        length=load.totals.acceptance_length if counts is None and load.totals and not is_baseline else None,
        synthetic=trial.arm.is_synthetic,
        stopped=trial.status == "pruned",
        launch=trial.launch_number,
    )


def _with_times(observation: Observation, load: LoadResult, plain: PromptTimes | None) -> Observation:
    if observation.speedup is not None and plain is not None:
        times = arm_times(prompt_times([load]), plain, speedup=observation.speedup)
    elif observation.arm.is_baseline:
        times = plain_times(prompt_times([load]))
    else:
        return observation
    decode = pooling.pooled_speed([load], pooling.decode, level=0.95)
    return replace(observation, times=times, decode_tok_per_s=None if decode is None else decode.value)


def _per_decode_step(load: LoadResult) -> AcceptanceCounts | None:
    """Acceptance with every decode step counted: one without a draft is one that kept nothing.

    Steps that are cut off by the token limit make the count a little too
    small, so it is used only where a drafter is seen to skip steps.
    """
    counts = pooling.pooled_acceptance([load])
    steps = pooling.decode_steps([load], counts)
    if counts is None or steps is None or not skips_steps(pooling.verify_step_frac([load], counts)):
        return counts
    return counts.model_copy(update={"num_drafts": steps})


def skips_steps(verify_step_frac: float | None) -> bool:
    """Whether a drafter leaves some steps without a draft (ngram, ``p_min``): length is then not tokens per step."""
    return verify_step_frac is not None and verify_step_frac < SKIPS_BELOW


def _samples(trials: Sequence[Trial], point: LoadPoint, places: Mapping[str, str]) -> list[SpeedSample]:
    found = []
    for trial in trials:
        load = pooling.load_of(trial, point)
        speeds = {} if load is None else pooling.speed_by_prompt([load])
        place = places[trial.trial_id]
        found += [SpeedSample(trial.arm_id, trial.number, speeds, place)] if speeds else []
    return found


def _compare(
    study: Study,
    trial: Trial,
    load: LoadResult,
    against: Sequence[SpeedSample],
    places: Mapping[str, str],
) -> Comparison | None:
    """``None`` for plain decoding itself."""
    if trial.arm_id == study.baseline.arm_id:
        return None
    place = places[trial.trial_id]
    own = [SpeedSample(trial.arm_id, trial.number, pooling.speed_by_prompt([load]), place)]
    compared = compare_with_baseline(own, against, level=study.level, margin=study.margin)
    return compared.get(trial.arm_id)


def _prompt_error(compared: Comparison | None) -> float | None:
    """Standard error of the log speedup that comes from prompts: large where a trial was stopped after a few."""
    if compared is None or compared.prompt_log_var is None or compared.num_prompts < _FEW_PROMPTS:
        return None
    return math.sqrt(compared.prompt_log_var)


def _baseline_speed(study: Study, point: LoadPoint, trials: Sequence[Trial]) -> float | None:
    loads = [pooling.load_of(t, point) for t in trials if t.arm_id == study.baseline.arm_id]
    speeds = [
        speed.value
        for load in loads
        if load is not None
        and not load.cut_short
        and (speed := pooling.pooled_speed([load], pooling.end_to_end, level=study.level)) is not None
    ]
    return math.exp(math.fsum(map(math.log, speeds)) / len(speeds)) if speeds else None
