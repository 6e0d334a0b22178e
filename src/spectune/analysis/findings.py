"""Doubts about a study's numbers, each with what was seen, what it does, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean

from spectune.analysis import finding_kinds as kinds
from spectune.analysis.arms import comparable_trials
from spectune.analysis.asked_load import loads_not_reached, over_saturated
from spectune.analysis.fault_findings import (
    failed_arms,
    failed_requests,
    ignored_request_fields,
    launched_again,
    models_that_differ,
    other_workloads,
    search_end,
    settings_that_differ,
    soaks,
    stopped_early,
)
from spectune.analysis.load_findings import (
    cached_prompts,
    changed_lengths,
    changed_outputs,
    dead_drafters,
    imposed_but_not_reached,
    speculation_off,
    unknown_acceptance,
)
from spectune.analysis.pooling import load_of, speed_by_prompt
from spectune.analysis.precision import precision_not_reached
from spectune.analysis.records import ArmSummary
from spectune.analysis.words import count, listing, number
from spectune.domain.findings import Finding, Severity
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.domain.workload import LoadPoint
from spectune.statistics.drift import Drift, detect_drift
from spectune.statistics.intervals import SpeedSample
from spectune.statistics.nodes import compare_nodes

DRIFT_RATIO = 1.10
TREND_RATE = 0.05
"""Of false alarms in a study, over all its load points together."""
LAG_LIMIT_S = 0.05
CLIENT_CORE_LIMIT = 0.8

_BETTER: Mapping[str, tuple[str, ...]] = {
    "dead-drafter": ("eagle3-draft-under-eagle", "no-draft-ever-accepted", "draft-contributes-nothing"),
    "speculation-off": ("speculation-silently-off",),
    "draft-tokens-rewritten": ("effective-settings-differ",),
}
"""One fact, one finding: what is left out of an arm beside another that says it and why."""

_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


def all_findings(study: Study, trials: Sequence[Trial], arms: Sequence[ArmSummary]) -> tuple[Finding, ...]:
    """Those the trials recorded and those that follow from the summary; worst first."""
    found: list[Finding] = list(recorded(trials))
    found += imported_figures(study)
    found += no_baseline(arms)
    found += failed_arms(trials)
    found += failed_requests(trials)
    found += dead_drafters(arms)
    found += speculation_off(arms)
    found += unknown_acceptance(arms) if study.imported is None else ()
    found += changed_outputs(arms)
    found += changed_lengths(arms)
    found += settings_that_differ(trials)
    found += models_that_differ(trials)
    found += ignored_request_fields(comparable_trials(study, trials))
    found += soaks(trials)
    found += stopped_early(trials)
    found += launched_again(trials)
    found += search_end(study)
    found += precision_not_reached(study, trials)
    found += cached_prompts(study, comparable_trials(study, trials))
    found += imposed_but_not_reached(study, trials)
    found += foreign_traffic(arms)
    found += loads_not_reached(comparable_trials(study, trials))
    found += over_saturated(comparable_trials(study, trials))
    found += client_limits(trials)
    found += baseline_drift(study, trials)
    found += nodes_that_differ(study, trials)
    found += unknown_launch_noise(arms)
    found += other_workloads(study, trials)
    told = {(finding.code, finding.subject) for finding in found}
    unique = {
        finding.model_dump_json(): finding
        for finding in found
        if not any((better, finding.subject) in told for better in _BETTER.get(finding.code, ()))
    }
    return tuple(sorted(unique.values(), key=lambda f: _ORDER[f.severity]))


def recorded(trials: Sequence[Trial]) -> Iterable[Finding]:
    """What trials recorded. What several launches of an arm say alike, with figures of their own, is said once."""
    seen: set[tuple[str, str]] = set()
    for trial in trials:
        yield from (f for f in trial.findings if (f.code, f.subject) not in seen)
        seen |= {(f.code, f.subject) for f in trial.findings}


def imported_figures(study: Study) -> Iterable[Finding]:
    if study.imported is not None:
        files = listing(f.name for f in study.imported.files)
        missing = "; ".join(study.imported.missing) or "nothing that spectune asks for"
        yield kinds.IMPORTED.found(
            study.name,
            f"the figures were read from {count(len(study.imported.files), 'file')} of {study.imported.tool}; "
            "spectune launched and measured nothing",
            evidence=(("files", files), ("missing", missing)),
        )


def no_baseline(arms: Sequence[ArmSummary]) -> Iterable[Finding]:
    baseline = next(a for a in arms if a.is_baseline)
    if not baseline.loads and any(arm.num_trials for arm in arms):
        seen = baseline.cause or f"status: {baseline.status}"
        yield kinds.NO_BASELINE.found(
            baseline.name,
            "the baseline has no complete trial of this workload",
            evidence=((f"arm {baseline.arm_id}", seen),),
        )


def _worst(pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(pairs[:8])


def foreign_traffic(arms: Sequence[ArmSummary]) -> Iterable[Finding]:
    seen = [(a, load) for a in arms for load in a.loads if load.foreign_tokens]
    if seen:
        yield kinds.FOREIGN_TRAFFIC.found(
            listing(dict.fromkeys(arm.name for arm, _ in seen)),
            "the server generated tokens that were not ours while it was measured",
            evidence=_worst([(a.name, f"{load.foreign_tokens} tokens at {load.label}") for a, load in seen]),
        )


def client_limits(trials: Sequence[Trial]) -> Iterable[Finding]:
    seen: list[tuple[str, str]] = []
    for trial in trials:
        for load in trial.loads:
            if load.max_loop_lag_s is not None and load.max_loop_lag_s > LAG_LIMIT_S:
                lag = f"{number(1000 * load.max_loop_lag_s)} ms late at {load.load.label}"
                seen.append((trial.arm.name, lag))
            busy = load.client_cpu_s / load.duration_s if load.client_cpu_s and load.duration_s > 0 else 0.0
            if busy > CLIENT_CORE_LIMIT:
                seen.append((trial.arm.name, f"{busy:.2f} cores busy at {load.load.label}"))
    if seen:
        yield kinds.CLIENT_LIMITED.found(
            listing(dict.fromkeys(name for name, _ in seen)),
            "the measuring client itself was short of processor time",
            evidence=_worst(seen),
        )


def baseline_drift(study: Study, trials: Sequence[Trial]) -> Iterable[Finding]:
    """On a cluster, node by node: what nodes differ by is no drift. One finding a node, of the widest load point."""
    points = study.workload.loads
    by_place: dict[str, list[tuple[float, Finding]]] = {}
    for point in points:
        samples = _baseline_samples(study, trials, point)
        for place in dict.fromkeys(s.place for s in samples):
            own = [s for s in samples if s.place == place]
            speeds = [geometric_mean(s.speed_by_prompt.values()) for s in own]
            trend = detect_drift(own)
            # Looking at several load points must not find a trend more often than looking at one.
            has_trend = trend is not None and trend.found(rate=TREND_RATE / len(points))
            ratio = max(speeds) / min(speeds)
            if not has_trend and ratio <= DRIFT_RATIO:
                continue
            where = f" at {point.label}" if len(points) > 1 else ""
            where += f" on {place}" if place else ""
            evidence = [("baseline launches", ", ".join(number(s) for s in speeds) + f" tok/s{where}")]
            if trend is not None:
                evidence.append(("trend", _trend_words(trend, has_trend)))
            message = (
                f"plain decoding itself ran from {number(min(speeds))} to {number(max(speeds))} tok/s{where}"
            )
            finding = kinds.BASELINE_DRIFT.found(study.baseline.name, message, evidence=evidence)
            by_place.setdefault(place, []).append((ratio, finding))
    for found in by_place.values():
        widest = max(found, key=lambda pair: pair[0])[1]
        others = [e for _, finding in found if finding is not widest for e in finding.evidence]
        yield widest.model_copy(update={"evidence": (*widest.evidence, *others)[:8]})


def _trend_words(trend: Drift, has_trend: bool) -> str:
    found = "a trend" if has_trend else "no clear trend"
    return (
        f"{found}: {trend.change_frac:+.1%} from the first to the last of {trend.num_launches} "
        f"(p = {trend.p_value:.2g}); {trend.step_frac:.1%} between launches"
    )


def nodes_that_differ(study: Study, trials: Sequence[Trial]) -> Iterable[Finding]:
    """One finding, of the load point at which they differ most."""
    points = study.workload.loads
    looked = [
        (point, seen)
        for point in points
        if (seen := compare_nodes(_baseline_samples(study, trials, point), rate=TREND_RATE / len(points)))
        and (seen.ratio > DRIFT_RATIO if seen.is_found is None else seen.is_found)
        and seen.ratio > 1 + study.margin
    ]
    if looked:
        point, seen = max(looked, key=lambda pair: pair[1].ratio)
        where = f" at {point.label}" if len(points) > 1 else ""
        noise = "nothing was launched twice on a node, so this may be noise between launches"
        if seen.smallest_found is not None:
            noise = f"noise between launches reaches {seen.smallest_found - 1:.1%} in one of twenty studies"
        levels = sorted(seen.levels.items(), key=lambda item: -item[1])
        shown = listing((f"{node} {number(level)}" for node, level in levels), most=8)
        yield kinds.NODES_DIFFER.found(
            f"{seen.fastest} and {seen.slowest}",
            f"plain decoding is {seen.ratio - 1:.1%} faster on {seen.fastest} than on {seen.slowest}{where}",
            evidence=[("the baseline by node", f"{shown} tok/s"), ("noise", noise)],
        )


def _baseline_samples(study: Study, trials: Sequence[Trial], point: LoadPoint) -> list[SpeedSample]:
    samples = []
    for trial in comparable_trials(study, trials):
        load = load_of(trial, point)
        if trial.arm_id == study.baseline.arm_id and load is not None:
            speeds = speed_by_prompt([load])
            samples += [SpeedSample(trial.arm_id, trial.number, speeds, trial.place)] if speeds else []
    return samples


def unknown_launch_noise(arms: Sequence[ArmSummary]) -> Iterable[Finding]:
    compared = [arm for arm in arms if arm.first is not None and arm.first.speedup is not None]
    if compared and all(a.first is not None and a.first.trial_noise_frac is None for a in compared):
        yield kinds.LAUNCH_NOISE.found(
            "study",
            "every arm was launched once",
            evidence=(("launches", "no arm, and not the baseline, was repeated"),),
        )
