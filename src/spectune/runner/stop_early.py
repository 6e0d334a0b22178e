"""Ends a measurement whose arm is clearly worse than the best so far, prompt for prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from spectune.domain.measurement import RequestRecord
from spectune.domain.statistics_sequential import WorthStopping, pool_noise
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.report.pooling import end_to_end, pooled_speed, speed_by_prompt

IsWorse = Callable[[Sequence[RequestRecord]], str | None]
"""Given the requests of the first load point that have ended: why to stop, or ``None``."""

_LEAST_PROMPTS, _BLOCK = 4, 2


def stop_rule(study: Study, trials: Sequence[Trial], arm_id: str, *, launch_log_sd: float) -> IsWorse | None:
    """The rule for the next trial of an arm; ``None`` where it is always measured to its end.

    The baseline is: every comparison needs it whole. So is the best arm, and
    every arm while nothing better than plain decoding is known: the reference
    must be a complete trial of another arm on the same prompts.
    """
    prompts = len(study.workload.prompts)
    if arm_id == study.baseline.arm_id or study.search is None or prompts < 2 * _LEAST_PROMPTS:
        return None
    if study.workload.requests_per_load not in (None, prompts):
        return None
    whole = [t for t in trials if t.status == "complete" and t.soak is None and not t.arm.is_synthetic]
    reference = max(whole, key=lambda t: _speed(study, t), default=None)
    if reference is None or reference.arm_id == arm_id:
        return None
    by_prompt = speed_by_prompt(reference.loads[:1])
    rule = WorthStopping(num_prompts=prompts, block=_BLOCK, least=_LEAST_PROMPTS, launch_log_sd=launch_log_sd)
    noise = pool_noise([_log_ratios(t, by_prompt) for t in whole if t is not reference])

    def is_worse(records: Sequence[RequestRecord]) -> str | None:
        logs = [
            math.log(speed / by_prompt[record.prompt_id])
            for record in records
            if record.ok and record.prompt_id in by_prompt and (speed := end_to_end(record))
        ]
        if rule.verdict(logs, logs, pooled=noise) != "worse":
            return None
        bound, worth = rule.upper_bound(logs, noise), rule.worth_of_the_rest(logs, pooled=noise)
        assert bound is not None and worth is not None
        return (
            f"stopped after {len(logs)} of {prompts} prompts: at most {math.exp(bound):.2f}x of {reference.arm.name} "
            f"on the same prompts (95%); the rest would make the winner {worth[1]:.2%} faster on average"
        )

    return is_worse


def _speed(study: Study, trial: Trial) -> float:
    speed = pooled_speed(trial.loads[:1], end_to_end, level=study.level)
    return speed.value if speed is not None else 0.0


def _log_ratios(trial: Trial, reference: dict[str, float]) -> list[float]:
    speeds = speed_by_prompt(trial.loads[:1])
    return [math.log(speed / reference[p]) for p, speed in speeds.items() if p in reference and speed > 0]
