"""A study and its trials -> the summary every report is drawn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from spectune.analysis import pooling
from spectune.analysis.arms import PointView, comparable_trials, summarize_arms, view_point
from spectune.analysis.explained_study import explain_study
from spectune.analysis.findings import all_findings
from spectune.analysis.headline import best_arm, headline
from spectune.analysis.noise import summarize_noise
from spectune.analysis.records import StudyFacts, StudySummary, TrialSummary
from spectune.analysis.timeline import where_time_went
from spectune.domain.study import Study
from spectune.domain.trial import Trial


def summarize(
    study: Study, trials: Sequence[Trial], *, machine_ceiling_tok_per_s: float | None = None
) -> StudySummary:
    """Pools, compares, judges, doubts and explains; ``trials`` in any order, the study finished or not.

    ``machine_ceiling_tok_per_s``: plain decoding, were a step only the reading of the weights.
    """
    trials = sorted(trials, key=lambda t: t.number)
    comparable = comparable_trials(study, trials)
    views = [view_point(study, comparable, point) for point in study.workload.loads]
    arms = tuple(summarize_arms(study, trials, views))
    best = best_arm(arms)
    facts = _facts(study, trials)
    simulated = any(t.simulated for t in trials)
    launches = tuple(_summarize_trial(study, t, views[0] if views else None) for t in trials)
    best_arm_id = best.arm_id if best else None
    noise = summarize_noise(study, views[0] if views else None)
    return StudySummary(
        headline=headline(study, arms, num_remaining=facts.num_remaining_trials, simulated=simulated),
        simulated=simulated,
        study=facts,
        baseline_arm_id=study.baseline.arm_id,
        best_arm_id=best_arm_id,
        arms=arms,
        trials=launches,
        findings=all_findings(study, trials, arms),
        time=where_time_went(trials),
        noise=noise,
        explanation=explain_study(
            study,
            trials,
            arms,
            launches,
            best_arm_id=best_arm_id,
            noise=noise,
            machine_ceiling_tok_per_s=machine_ceiling_tok_per_s,
        ),
    )


def _summarize_trial(study: Study, trial: Trial, view: PointView | None) -> TrialSummary:
    """The figures are those of the first load point; a failed trial has none, whatever it got done."""
    load = pooling.load_of(trial, view.point) if view is not None and trial.status != "failed" else None
    loads = [] if load is None else [load]
    is_baseline = trial.arm_id == study.baseline.arm_id
    comparable = view is not None and view.has(trial)
    comparison = view.trial_comparison(trial) if view is not None and comparable and not is_baseline else None
    counts = pooling.pooled_acceptance(loads)
    server = trial.server
    return TrialSummary(
        trial_id=trial.trial_id,
        number=trial.number,
        arm_id=trial.arm_id,
        name=trial.arm.name,
        repetition=trial.repetition,
        is_baseline=is_baseline,
        arm=trial.arm,
        command=trial.command,
        env=trial.env,
        ranks=trial.ranks,
        status=trial.status,
        cause=trial.failure.cause if trial.failure else None,
        failure=trial.failure,
        node=trial.node,
        started_at=trial.started_at,
        ended_at=trial.ended_at,
        load=load.load.label if load is not None else None,
        e2e_tok_per_s=pooling.pooled_speed(loads, pooling.end_to_end, level=study.level),
        decode_tok_per_s=pooling.pooled_speed(loads, pooling.decode, level=study.level),
        output_tok_per_s=pooling.output_tok_per_s(loads),
        acceptance_length=pooling.acceptance_length(counts, loads, level=study.level)
        or pooling.stated_acceptance_length(loads, level=study.level),
        acceptance_source=load.acceptance_source if load is not None else None,
        acceptance_rate=counts.acceptance_rate if counts else None,
        accepted_per_position=counts.marginal_acceptance if counts else None,
        speedup=comparison.speedup if comparison else None,
        verdict=comparison.verdict if comparison else None,
        parity_frac=view.parity([trial]).equal_frac if view is not None and comparable else None,
        hypothesis=trial.hypothesis,
        phases_s=trial.phases_s,
        launch=trial.launch_number,
        ended_early=trial.ended_early,
        stop=trial.stop,
        soak=trial.soak,
        engine_version=server.version if server else None,
        model=server.model if server else None,
        effective=server.effective if server else None,
        simulated=trial.simulated,
    )


def _facts(study: Study, trials: Sequence[Trial]) -> StudyFacts:
    workload = study.workload
    ended = {
        (t.arm_id, t.repetition)
        for t in trials
        if t.status != "failed" or t.arm_id != study.baseline.arm_id  # a failed baseline is tried again
    }
    versions = (t.server.version for t in trials if t.server is not None and t.server.version)
    return StudyFacts(
        name=study.name,
        question=study.question,
        created_at=study.created_at,
        spectune_version=study.spectune_version,
        engine=study.engine.name,
        engine_versions=tuple(dict.fromkeys(versions)),
        targets=tuple(dict.fromkeys(arm.target for arm in study.arms)),
        machine=study.machine,
        workload_hash=workload.workload_hash,
        num_prompts=len(workload.prompts),
        categories=dict(Counter(p.category for p in workload.prompts if p.category is not None)),
        api=workload.api,
        sampling=workload.sampling,
        loads=tuple(point.label for point in workload.loads),
        requests_per_load=workload.requests_per_load,
        warmup_requests=study.warmup_requests,
        level=study.level,
        margin=study.margin,
        num_planned_trials=len(study.plan),
        num_remaining_trials=sum((p.arm_id, p.repetition) not in ended for p in study.plan),
        skipped_arms=study.skipped_arms,
        host=study.host,
        repetitions=study.repetitions,
        search=study.search,
        search_end=study.search_end,
        pruned_arms=study.pruned_arms,
        imported=study.imported,
    )
