"""The explanation of a study: its measured arms as rows, and what was predicted of every arm."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from spectune.analysis.explain.explanation import explain
from spectune.analysis.explain.measured import MeasuredRow, Prediction, log_sd_of
from spectune.analysis.explain.records import Explanation
from spectune.analysis.grouping import commands_of
from spectune.analysis.observations import observations, skips_steps
from spectune.analysis.records import ArmSummary, LoadSummary, NoiseSummary, TrialSummary
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.models.arm_shape import VARIABLE_METHODS, known_depth
from spectune.models.observation import Observation
from spectune.models.speed import SpeedModel

_LEVEL = 0.8
_PAIRED = "speeds are plain decoding's times the speedup paired prompt by prompt: no drift of the machine is in them"


def explain_study(
    study: Study,
    trials: Sequence[Trial],
    arms: Sequence[ArmSummary],
    launches: Sequence[TrialSummary],
    *,
    best_arm_id: str | None,
    noise: NoiseSummary | None = None,
    machine_ceiling_tok_per_s: float | None = None,
) -> Explanation | None:
    """``None`` without a complete trial of the baseline, and of something beside it, be its acceptance imposed."""
    rows = measured_rows(arms)
    observed = observations(study, trials)
    others = any(not row.is_baseline for row in rows) or any(o.synthetic for o in observed)
    if not others or not any(row.is_baseline for row in rows):
        return None
    return explain(
        rows,
        predictions=list(predictions(study, observed, arms, launches)),
        imposed=[o for o in observed if o.synthetic],
        tried=[arm.arm for arm in arms if arm.status in ("failed", "pruned")],
        winner_id=best_arm_id,
        winning_command=_winning_command(launches, best_arm_id),
        machine_ceiling_tok_per_s=machine_ceiling_tok_per_s,
        first_concurrency=study.workload.loads[0].concurrency,
        margin=study.margin,
        detectable_frac=None if noise is None or noise.launch_frac is None else noise.detectable_frac,
        assumptions=(_PAIRED,),
    )


def measured_rows(arms: Sequence[ArmSummary]) -> list[MeasuredRow]:
    """Every arm at every closed load point where the baseline was measured too."""
    plain = {
        load.load.streams: load.e2e_tok_per_s.value
        for arm in arms
        if arm.is_baseline
        for load in arm.loads
        if load.load.shape != "open" and load.e2e_tok_per_s is not None
    }
    rows = []
    for arm in arms:
        for load in arm.loads:
            concurrency = load.load.streams
            if load.load.shape != "open" and concurrency in plain:
                row = _row(arm, load, plain[concurrency])
                rows += [] if row is None else [row]
    return rows


def _row(arm: ArmSummary, load: LoadSummary, plain_tok_per_s: float) -> MeasuredRow | None:
    if load.e2e_tok_per_s is None:
        return None
    counts, frac = load.acceptance_counts, load.verify_step_frac
    if counts is not None and counts.num_drafts and frac and skips_steps(frac):
        counts = counts.model_copy(update={"num_drafts": round(counts.num_drafts / frac)})
    stated = load.acceptance_counts is None and not arm.is_baseline and load.acceptance_length is not None
    speedup = load.speedup.value if load.speedup else None
    observation = Observation(
        arm=arm.arm,
        tok_per_s=load.e2e_tok_per_s.value if speedup is None else plain_tok_per_s * speedup,
        speedup=speedup,
        acceptance=None if arm.is_baseline else counts,
        concurrency=load.load.streams,
        log_sd=log_sd_of(load.speedup or load.e2e_tok_per_s),
        length=load.acceptance_length.value if stated and load.acceptance_length else None,
        length_log_sd=log_sd_of(load.acceptance_length),
        times=load.times,
        decode_tok_per_s=load.decode_tok_per_s.value if load.decode_tok_per_s else None,
    )
    length = None if arm.is_baseline else load.acceptance_length
    depth = None if arm.is_baseline else known_depth(arm.arm)
    return MeasuredRow(arm.name, observation, length, verdict=load.verdict, depth=depth)


def predictions(
    study: Study,
    observed: Sequence[Observation],
    arms: Sequence[ArmSummary],
    launches: Sequence[TrialSummary],
) -> Iterator[Prediction]:
    """Of each arm, as written before its first launch; of an arm never launched, as the model sees it now."""
    first: dict[str, TrialSummary] = {}
    for launch in launches:
        if not launch.is_baseline and not launch.arm.is_synthetic and launch.soak is None:
            first.setdefault(launch.arm_id, launch)
    model = SpeedModel(observed)
    concurrency = study.workload.loads[0].streams
    for arm in arms:
        launched = first.get(arm.arm_id)
        if launched is not None:
            hypothesis = launched.hypothesis
            point = arm.first
            speed = launched.e2e_tok_per_s if point is None else point.e2e_tok_per_s
            yield Prediction(
                arm.name,
                predicted_tok_per_s=hypothesis.predicted_tok_per_s,
                predicted_speedup=hypothesis.predicted_speedup,
                measured_tok_per_s=None if speed is None else speed.value,
                measured_speedup=point.speedup.value if point is not None and point.speedup else None,
            )
        elif not arm.is_baseline and not arm.arm.is_synthetic and _is_predictable(model, arm, concurrency):
            found = model.predict(arm.arm, concurrency=concurrency)
            n = model.num_points
            yield Prediction(
                arm.name,
                predicted_tok_per_s=found.tok_per_s.interval(unit="tok/s", level=_LEVEL, n=n),
                predicted_speedup=found.speedup.interval(unit="x baseline", level=_LEVEL, n=n),
                measured_tok_per_s=None,
                measured_speedup=None,
            )


def _is_predictable(model: SpeedModel, arm: ArmSummary, concurrency: int) -> bool:
    known = model.baseline_tok_per_s(concurrency) is not None and model.num_points > 0
    case = model.acceptance.of(arm.arm).case
    looked_up = case == "regressed" and arm.arm.knobs.method in VARIABLE_METHODS
    return known and case != "unknown" and not looked_up


def _winning_command(launches: Sequence[TrialSummary], best_arm_id: str | None) -> str | None:
    for launch in launches:
        if launch.arm_id == best_arm_id and launch.status == "complete":
            parts = commands_of(launch)
            return "\n".join(
                word for title, _, command in parts for word in (title, shlex.join(command)) if word
            )
    return None
