"""Arms of a study: pooled over repetitions, compared with the baseline, load point by load point."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spectune.analysis import pooling
from spectune.analysis.contexts import Range, context_ranges, summarize_contexts
from spectune.analysis.latencies import latencies
from spectune.analysis.records import ArmSummary, CategorySummary, LoadSummary
from spectune.analysis.request_times import PromptTimes, arm_times, plain_times, prompt_times
from spectune.analysis.stretches import stretch_places
from spectune.domain.acceptance import request_weighted_acceptance_length
from spectune.domain.interval import Interval
from spectune.domain.measurement import LoadResult, RequestRecord
from spectune.domain.parity import OutputParity, output_parity
from spectune.domain.request_time import RequestTimes, all_decode
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.domain.workload import LoadPoint
from spectune.models.arm_shape import known_depth
from spectune.statistics.intervals import Comparison, SpeedSample, compare_with_baseline
from spectune.statistics.multiple import simultaneous, simultaneous_level
from spectune.statistics.sample_size import more_needed


def comparable_trials(study: Study, trials: Sequence[Trial]) -> list[Trial]:
    """Complete trials of the study's present workload: only these can be compared with each other."""
    wanted = study.workload.workload_hash
    return [t for t in trials if _is_result(t) and t.workload_hash == wanted]


def _is_result(trial: Trial) -> bool:
    """A long run is not compared, and neither is one whose acceptance was imposed."""
    return trial.status == "complete" and trial.soak is None and not trial.arm.is_synthetic


@dataclass(frozen=True)
class PointView:
    """One load point of a study: its trials, their comparisons, and the baseline's reference outputs."""

    study: Study
    point: LoadPoint
    trials: tuple[Trial, ...]
    by_arm: dict[str, Comparison]
    by_trial: dict[str, Comparison]
    by_category: dict[str, dict[str, Comparison]]
    reference: Trial | None
    """The first baseline trial; every parity is against its outputs."""
    baseline_tokens: dict[str, float]
    """The baseline's mean output tokens by prompt."""
    plain: PromptTimes
    """The baseline's times by prompt."""
    context_ranges: tuple[Range, ...] = ()
    """Of context lengths, the same for every arm."""

    def has(self, trial: Trial) -> bool:
        return any(t is trial for t in self.trials)

    def loads(self, arm_id: str) -> list[LoadResult]:
        found = (pooling.load_of(t, self.point) for t in self.trials if t.arm_id == arm_id)
        return [load for load in found if load is not None]

    def trial_comparison(self, trial: Trial) -> Comparison | None:
        """A trial's own; its arm's, which knows more about launches, when it is the arm's only one."""
        pooled = self.by_arm.get(trial.arm_id)
        return pooled if pooled and pooled.num_trials == 1 else self.by_trial.get(trial.trial_id)

    def parity(self, trials: Sequence[Trial]) -> OutputParity:
        imported = self.study.imported
        if imported is not None and "sampling" in imported.unknown:
            return OutputParity(
                num_compared=0,
                num_equal=0,
                equal_frac=None,
                unit=None,
                not_compared="sampling is not recorded",
            )
        others = [self._requests(t) for t in trials if t is not self.reference]
        return output_parity(
            [requests for requests in others if requests],
            baseline=None if self.reference is None else self._requests(self.reference),
            sampling=self.study.workload.sampling,
        )

    def _requests(self, trial: Trial) -> tuple[RequestRecord, ...]:
        load = pooling.load_of(trial, self.point)
        return load.requests if load is not None else ()


def view_point(study: Study, trials: Sequence[Trial], point: LoadPoint) -> PointView:
    """``trials`` are comparable ones in the order of their start."""
    baseline_id = study.baseline.arm_id
    present = [t for t in trials if pooling.load_of(t, point) is not None]
    categories = sorted({p.category for p in study.workload.prompts if p.category is not None})
    all_loads = [pooling.load_of(t, point) for t in present]
    baseline_loads = [
        load for t in present if t.arm_id == baseline_id and (load := pooling.load_of(t, point)) is not None
    ]
    return PointView(
        study=study,
        point=point,
        trials=tuple(present),
        by_arm=_compare(study, present, point),
        by_trial=_compare(study, present, point, per_trial=True),
        by_category={c: _compare(study, present, point, category=c) for c in categories},
        reference=next((t for t in present if t.arm_id == baseline_id), None),
        baseline_tokens=pooling.tokens_by_prompt(baseline_loads),
        plain=prompt_times(baseline_loads),
        context_ranges=context_ranges(load for load in all_loads if load is not None),
    )


def _compare(
    study: Study,
    trials: Sequence[Trial],
    point: LoadPoint,
    *,
    category: str | None = None,
    per_trial: bool = False,
) -> dict[str, Comparison]:
    baselines, others = _samples(study, trials, point, category=category, per_trial=per_trial)
    compared = compare_with_baseline(others, baselines, level=study.level, margin=study.margin)
    return (
        compared
        if per_trial
        else simultaneous(compared, margin=study.margin, looks=looks_at(study, [s.arm_id for s in others]))
    )


def compare_with_new(study: Study, trials: Sequence[Trial], own: SpeedSample) -> Comparison | None:
    """Of the arm of a launch that has just ended, at the first load point: as the table will have it."""
    comparable = comparable_trials(study, trials)
    baselines, others = _samples(study, comparable, study.workload.loads[0])
    places = stretch_places(comparable, study.baseline.arm_id)
    here = [places[t.trial_id] for t in comparable if t.place == own.place]
    own = replace(own, place=here[-1] if here else own.place)
    compared = compare_with_baseline([*others, own], baselines, level=study.level, margin=study.margin)
    return simultaneous(compared, margin=study.margin, looks=looks_at(study, [s.arm_id for s in others])).get(
        own.arm_id
    )


def looks_at(study: Study, launched: Sequence[str]) -> int:
    """How often the figures decided whether to launch again: before more repetitions were asked for, after the plan,
    and for ``precision`` after each launch since. ``launched``: the arm of each launch that is no baseline's."""
    looks = 1 + study.earlier_looks
    if study.precision is None:
        return looks
    most = max(Counter(launched).values(), default=0)
    return looks + max(0, most - study.repetitions)


def _samples(
    study: Study,
    trials: Sequence[Trial],
    point: LoadPoint,
    *,
    category: str | None = None,
    per_trial: bool = False,
) -> tuple[list[SpeedSample], list[SpeedSample]]:
    """Of the baseline, and of the others."""
    baselines: list[SpeedSample] = []
    others: list[SpeedSample] = []
    places = stretch_places(trials, study.baseline.arm_id)
    for trial in trials:
        load = pooling.load_of(trial, point)
        loads = [] if load is None else [load]
        speeds = pooling.speed_by_prompt(pooling.only(loads, category) if category is not None else loads)
        is_baseline = trial.arm_id == study.baseline.arm_id
        key = trial.trial_id if per_trial and not is_baseline else trial.arm_id
        if speeds:
            sample = SpeedSample(key, trial.launch_number, speeds, places[trial.trial_id])
            (baselines if is_baseline else others).append(sample)
    return baselines, others


def summarize_arms(
    study: Study, trials: Sequence[Trial], views: Sequence[PointView]
) -> tuple[ArmSummary, ...]:
    """In the study's order; arms that only older trials know follow."""
    arms = {arm.arm_id: arm for arm in study.arms}
    for trial in trials:
        arms.setdefault(trial.arm_id, trial.arm)
    summaries = []
    for arm_id, arm in arms.items():
        own = [t for t in trials if t.arm_id == arm_id]
        failures = [t.failure for t in own if t.failure is not None]
        complete = [t for t in own if _is_result(t)]
        loads = tuple(s for view in views if (s := _summarize_load(view, arm_id)) is not None)
        status = "complete" if complete else own[-1].status if own else "not run"
        summary = ArmSummary(
            arm_id=arm_id,
            name=arm.name,
            is_baseline=arm_id == study.baseline.arm_id,
            arm=arm,
            status=status,
            num_trials=len(own),
            num_complete=len(complete),
            cause=failures[-1].cause if failures else None,
            loads=loads,
        )
        summaries.append(_with_break_even(summary))
    return tuple(summaries)


def _with_break_even(arm: ArmSummary) -> ArmSummary:
    """Adds the cost of a decode step, and what the arm would have to keep to equal the baseline.

    With T tokens per forward pass and a speedup S of decoding, a step costs T / S baseline steps, and decoding is as
    fast as without speculation at so many tokens per pass. Where every step is a verify step, T is the acceptance
    length L; a drafter that skips steps (ngram, ``p_min``) has T = 1 + f (L - 1) with f the share of verify steps,
    taken to stay as it is.

    Assumes that a step's cost does not depend on how many drafts are kept. Approximate when f is unknown, because
    then T is taken to be L, and when nothing says how long the first token took.
    """
    load = arm.first
    if load is None or load.speedup is None or load.acceptance_length is None:
        return arm
    known, verify_frac = load.tokens_per_pass, load.verify_step_frac
    tokens = load.acceptance_length.value if known is None else known
    if not verify_frac or not load.skips_passes:
        verify_frac = 1.0
    times = load.times or all_decode(load.speedup.value)
    cost, depth = tokens / times.decode_speedup, known_depth(arm.arm)
    return arm.model_copy(
        update={
            "step_cost_ratio": cost,
            "break_even_tokens_per_pass": cost,
            "break_even_reachable": None if not depth else cost <= 1 + verify_frac * depth,
            "break_even_acceptance_length": 1 + (cost - 1) / verify_frac,
            "break_even_approximate": known is None or load.times is None,
        }
    )


def _summarize_load(view: PointView, arm_id: str) -> LoadSummary | None:
    loads = view.loads(arm_id)
    if not loads:
        return None
    study = view.study
    is_baseline = arm_id == study.baseline.arm_id
    comparison = view.by_arm.get(arm_id)
    needed = None
    if comparison is not None and comparison.verdict == "CANNOT_TELL":
        level = simultaneous_level(study.level, len(view.by_arm))
        needed = more_needed(comparison, margin=study.margin, level=level)
    counts = pooling.pooled_acceptance(loads)
    parts = pooling.request_acceptance(loads)
    sources = {load.acceptance_source for load in loads if load.acceptance_source is not None}
    times = _times(view, loads, comparison, is_baseline=is_baseline)
    speed = pooling.pooled_speed(loads, pooling.end_to_end, level=study.level)
    decode = pooling.pooled_speed(loads, pooling.decode, level=study.level)
    drift = None if comparison is None or is_baseline else _drift(view, speed, comparison)
    return LoadSummary(
        label=view.point.label,
        load=view.point,
        num_trials=len(loads),
        num_requests=sum(pooling.num_requests(load) for load in loads),
        num_failed_requests=sum(pooling.num_failed_requests(load) for load in loads),
        e2e_tok_per_s=_scaled(speed, drift),
        decode_tok_per_s=_scaled(decode, drift),
        drift_correction=drift,
        output_tok_per_s=pooling.output_tok_per_s(loads),
        steady_frac=pooling.steady_frac(loads),
        **latencies(loads),
        acceptance_length=pooling.acceptance_length(counts, loads, level=study.level)
        or pooling.stated_acceptance_length(loads, level=study.level),
        request_weighted_acceptance_length=request_weighted_acceptance_length(parts),
        acceptance_rate=counts.acceptance_rate if counts else None,
        accepted_per_position=counts.marginal_acceptance if counts else None,
        conditional_per_position=counts.conditional_acceptance if counts else None,
        acceptance_counts=counts,
        acceptance_source=sources.pop() if len(sources) == 1 else None,
        tokens_per_decode_step=pooling.tokens_per_decode_step(loads, counts),
        verify_step_frac=pooling.verify_step_frac(loads, counts),
        speedup=comparison.speedup if comparison else None,
        these_prompts=comparison.these_prompts if comparison else None,
        verdict=comparison.verdict if comparison else None,
        more_prompts_needed=needed.more_prompts if needed else None,
        more_launches_needed=needed.more_launches if needed else None,
        quieter_machine_needed=needed is not None and needed.quieter,
        trial_noise_frac=comparison.trial_noise_frac if comparison else None,
        parity=view.parity([t for t in view.trials if t.arm_id == arm_id]),
        output_length_ratio=None
        if is_baseline
        else pooling.output_length_ratio(pooling.tokens_by_prompt(loads), view.baseline_tokens),
        cached_token_frac=pooling.cached_token_frac(loads),
        foreign_tokens=pooling.foreign_tokens(loads),
        first_token_share=None if times is None else 1 - times.decode_share(),
        times=times,
        categories=_summarize_categories(view, arm_id, loads, drift),
        contexts=() if is_baseline else summarize_contexts(loads, view.context_ranges, level=study.level),
    )


def _drift(view: PointView, speed: Interval | None, comparison: Comparison) -> float | None:
    """Plain decoding's speed times the speedup, which was paired in time, over the speed as measured."""
    logs = [math.log(value) for value in view.plain.tok_per_s.values()]
    if speed is None or not logs:
        return None
    return math.exp(math.fsum(logs) / len(logs)) * comparison.speedup.value / speed.value


def _scaled(speed: Interval | None, factor: float | None) -> Interval | None:
    if speed is None or factor is None:
        return speed
    low, high = (None if bound is None else bound * factor for bound in (speed.low, speed.high))
    return speed.model_copy(update={"value": speed.value * factor, "low": low, "high": high})


def _times(
    view: PointView, loads: Sequence[LoadResult], comparison: Comparison | None, *, is_baseline: bool
) -> RequestTimes | None:
    if is_baseline:
        return plain_times(view.plain)
    if comparison is None:
        return None
    return arm_times(prompt_times(loads), view.plain, speedup=comparison.speedup.value)


def _summarize_categories(
    view: PointView, arm_id: str, loads: Sequence[LoadResult], drift: float | None
) -> tuple[CategorySummary, ...]:
    level = view.study.level
    rows = []
    for category, comparisons in view.by_category.items():
        within = pooling.only(loads, category)
        comparison = comparisons.get(arm_id)
        rows.append(
            CategorySummary(
                category=category,
                num_prompts=len({r.prompt_id for load in within for r in load.completed}),
                e2e_tok_per_s=_scaled(pooling.pooled_speed(within, pooling.end_to_end, level=level), drift),
                speedup=comparison.speedup if comparison else None,
                verdict=comparison.verdict if comparison else None,
                acceptance_length=pooling.acceptance_length(
                    pooling.pooled_acceptance(within), within, level=level
                ),
            )
        )
    return tuple(rows)
