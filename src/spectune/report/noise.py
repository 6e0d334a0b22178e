"""The noise floor: what two launches of one and the same arm differ by, and what that lets a study tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from spectune.domain.planning import Noise, describe_noise, detectable_ratio, noise_floor
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.report.arms import comparable_trials
from spectune.report.pooling import load_of, speed_by_prompt
from spectune.report.records import NoiseSummary


def noise_of(study: Study, trials: Sequence[Trial]) -> Noise | None:
    """From every arm that was launched twice or more (on one node), at the first load point; ``None`` without one.

    Two launches that several arms shared tell of their difference once.
    """
    point = study.workload.loads[0]
    by_arm: dict[tuple[str, str], list[tuple[int, dict[str, float]]]] = {}
    for trial in comparable_trials(study, trials):
        load = load_of(trial, point)
        if load is not None:
            own = by_arm.setdefault((trial.arm_id, trial.place), [])
            own.append((trial.launch_number, speed_by_prompt([load])))
    pairs: dict[tuple[int, int], dict[str, float]] = {}
    for launches in by_arm.values():
        for (first, a), (second, b) in pairwise(launches):
            pairs.setdefault((first, second), {p: math.log(b[p] / a[p]) for p in a if p in b})
    return noise_floor(list(pairs.values()))


def summarize_noise(study: Study, trials: Sequence[Trial]) -> NoiseSummary | None:
    """What differences the study's repetitions and prompts can find, at its level, with a chance of 80 %."""
    noise = noise_of(study, trials)
    prompts = len(study.workload.prompts)
    if noise is None or prompts < 2:
        return None
    launches = max(1, study.repetitions)
    return NoiseSummary(
        launch_frac=noise.launch,
        prompt_frac=noise.prompt,
        detectable_frac=detectable_ratio(noise, launches=launches, prompts=prompts, level=study.level) - 1,
        num_launches=launches,
        num_prompts=prompts,
        sentence=describe_noise(noise, launches=launches, prompts=prompts, level=study.level),
    )
