"""Noise: what a study's paired speedups can tell apart, and what two equal launches differ by before there are any."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spectune.analysis.arms import PointView, comparable_trials
from spectune.analysis.pooling import load_of, speed_by_prompt
from spectune.analysis.records import NoiseSummary
from spectune.analysis.words import count, percent
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.statistics.intervals import Comparison
from spectune.statistics.mixed import ASSUMED_LAUNCH_LOG_SD
from spectune.statistics.multiple import simultaneous_level
from spectune.statistics.sample_size import detectable_ratio

_LARGEST_STATED = 2.0
"""A study that tells only larger factors apart tells nothing that a percentage could say."""


def equal_launch_logs(study: Study, trials: Sequence[Trial]) -> list[float]:
    """By what each prompt's log speed differs between the baseline's last two launches, at the first load point."""
    speeds = [
        speed_by_prompt([load])
        for trial in comparable_trials(study, trials)
        if trial.arm_id == study.baseline.arm_id
        and (load := load_of(trial, study.workload.loads[0])) is not None
    ]
    if len(speeds) < 2:
        return []
    before, after = speeds[-2:]
    return [math.log(after[p] / before[p]) for p in before if p in after]


def typical_frac(logs: Sequence[float]) -> float:
    """Of one prompt between two equal launches."""
    return math.expm1(math.sqrt(math.fsum(log * log for log in logs) / len(logs)))


def describe_equal_launches(study: Study, trials: Sequence[Trial]) -> str:
    """One sentence for the start of a study; what it can tell apart is known once an arm is measured."""
    logs = equal_launch_logs(study, trials)
    if not logs:
        return "noise floor unknown"
    mean = math.expm1(abs(math.fsum(logs)) / len(logs))
    return (
        f"two equal launches of plain decoding differ by {percent(mean)} over all prompts, "
        f"one prompt typically by {percent(typical_frac(logs))}"
    )


def summarize_noise(study: Study, view: PointView | None) -> NoiseSummary | None:
    """What the typical arm's speedup could show, at the study's level, with a chance of 80 %; ``None`` without one."""
    compared = [] if view is None else list(view.by_arm.values())
    level = simultaneous_level(study.level, len(compared))
    known = [(r, c) for c in compared if (r := detectable_ratio(c, level=level)) is not None]
    if not known:
        return None
    ratio, typical = sorted(known, key=lambda pair: pair[0])[len(known) // 2]
    return NoiseSummary(
        launch_frac=typical.trial_noise_frac,
        detectable_frac=ratio - 1,
        num_launches=typical.num_trials,
        num_prompts=typical.num_prompts,
        sentence=_sentence(ratio, typical),
    )


def _sentence(ratio: float, typical: Comparison) -> str:
    measured = f"{count(typical.num_prompts, 'prompt')} and {count(typical.num_trials, 'launch')} per arm"
    noise = typical.trial_noise_frac
    launches = (
        f"launches are taken to differ by {percent(ASSUMED_LAUNCH_LOG_SD)}, since no arm was launched twice"
        if noise is None
        else f"launches alone differ by {percent(noise)}"
    )
    if ratio >= _LARGEST_STATED:
        return (
            f"this study has too much noise to tell a speedup from none with {measured} ({launches}): "
            "more launches or a quieter machine would"
        )
    return f"this study can tell {percent(ratio - 1)} apart with {measured} ({launches})"
