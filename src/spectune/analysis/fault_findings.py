"""Findings about what went wrong or ran differently from what was asked."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from spectune.analysis import finding_kinds as kinds
from spectune.analysis.pooling import pooled_acceptance
from spectune.analysis.words import count, listing
from spectune.domain.arm import FACTORS, Arm, Knobs, differing_factors
from spectune.domain.findings import Finding
from spectune.domain.study import Study
from spectune.domain.trial import Trial

LOG_LINES = 5
MIN_DRAFTED = 100
"""Fewer drafted tokens may come to the same number by chance."""


def failed_arms(trials: Sequence[Trial]) -> Iterable[Finding]:
    """One finding per arm and cause."""
    grouped: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in trials:
        if trial.failure is not None and trial.soak is None:
            key = (trial.arm_id, trial.failure.phase, trial.failure.cause)
            grouped.setdefault(key, []).append(trial)
    for (arm_id, phase, cause), failed in grouped.items():
        failure = failed[-1].failure
        assert failure is not None
        evidence = [("trials", listing(t.trial_id for t in failed))]
        if failure.rank is not None:
            evidence.append(("rank", f"{failure.rank} on {failure.node}"))
        if failure.exit_code is not None:
            evidence.append(("exit code", str(failure.exit_code)))
        tail = [line for line in failure.log_tail if line.strip()][-LOG_LINES:]
        evidence += [("log tail", line) for line in tail]
        measured = any(t.arm_id == arm_id and t.status == "complete" for t in trials)
        yield kinds.ARM_FAILED.found(
            failed[-1].arm.name,
            f"failed in {phase}: {cause}",
            evidence=tuple(evidence),
            effect="its other launches were measured" if measured else "nothing is known about this arm",
            remedy=failure.remedy or "read the server's log in the trial's folder",
        )


def failed_requests(trials: Sequence[Trial]) -> Iterable[Finding]:
    grouped: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.status == "complete" and any(load.failed for load in trial.loads):
            grouped.setdefault(trial.arm_id, []).append(trial)
    for group in grouped.values():
        failed = [r for t in group for load in t.loads for r in load.failed]
        total = sum(len(load.requests) for t in group for load in t.loads)
        reasons: dict[str, int] = {}
        for request in failed:
            reasons[request.error or "unknown"] = reasons.get(request.error or "unknown", 0) + 1
        yield kinds.REQUESTS_FAILED.found(
            group[0].arm.name,
            f"{len(failed)} of {count(total, 'request')} failed",
            evidence=tuple(
                (count(times, "request"), reason[:300])
                for reason, times in sorted(reasons.items(), key=lambda item: -item[1])[:3]
            ),
        )


def launched_again(trials: Sequence[Trial]) -> Iterable[Finding]:
    for trial in trials:
        if trial.relaunches:
            evidence = [(trial.trial_id, reason) for reason in trial.relaunches]
            yield kinds.LAUNCHED_AGAIN.found(trial.arm.name, trial.relaunches[-1], evidence=evidence)


def search_end(study: Study) -> Iterable[Finding]:
    if study.search_end is not None:
        yield kinds.SEARCH_ENDED.found("study", study.search_end)


def stopped_early(trials: Sequence[Trial]) -> Iterable[Finding]:
    for trial in trials:
        end = trial.ended_early
        evidence = [("trial", trial.trial_id)]
        if end is not None and end.saved_s is not None:
            evidence.append(("saved", f"about {end.saved_s:.1f} s of measuring"))
        if trial.pruned is not None:
            yield kinds.STOPPED_EARLY.found(trial.arm.name, trial.pruned, evidence=evidence)
        elif end is not None:
            yield kinds.ENOUGH_PROMPTS.found(trial.arm.name, end.reason, evidence=evidence)


def soaks(trials: Sequence[Trial]) -> Iterable[Finding]:
    """How the best arm held under load for long: the last try of each arm."""
    last = {trial.arm_id: trial for trial in trials if trial.soak is not None}
    for trial in last.values():
        soak = trial.soak
        assert soak is not None
        evidence = [
            ("time", f"{soak.ran_s:.0f} of {soak.asked_s:.0f} s"),
            ("requests", f"{soak.num_requests}, {soak.num_failed} failed"),
        ]
        if soak.first_tok_per_s is not None and soak.last_tok_per_s is not None:
            detail = f"{soak.first_tok_per_s:.1f} in the first quarter, {soak.last_tok_per_s:.1f} in the last"
            evidence.append(("tok/s, all requests together", detail))
        held = trial.failure is None and soak.num_failed == 0
        if held:
            yield kinds.SOAK_HELD.found(
                trial.arm.name, f"held {soak.ran_s:.0f} s under load", evidence=evidence
            )
            continue
        why = trial.failure.cause if trial.failure else f"{soak.num_failed} requests failed"
        yield kinds.SOAK_FAILED.found(
            trial.arm.name, f"failed after {soak.ran_s:.0f} s under load: {why}", evidence=evidence
        )


def settings_that_differ(trials: Sequence[Trial]) -> Iterable[Finding]:
    """What the server says it runs against what was asked for; unknown on either side is no difference."""
    seen: set[str] = set()
    for trial in trials:
        effective = trial.server.effective if trial.server is not None else None
        if effective is None or trial.arm_id in seen:
            continue
        differences = differing_knobs(trial.arm.knobs, effective)
        if differences:
            seen.add(trial.arm_id)
            yield kinds.SETTINGS_DIFFER.found(
                trial.arm.name,
                f"runs with other settings than asked for: {listing(d[0] for d in differences)}",
                evidence=tuple(
                    (name, f"asked for {asked!r}, runs {runs!r}") for name, asked, runs in differences
                ),
            )


def models_that_differ(trials: Sequence[Trial]) -> Iterable[Finding]:
    """The model that the server lists against the words of its command: its path, or its served name."""
    seen: set[str] = set()
    for trial in trials:
        served = trial.server.model if trial.server is not None else None
        if served is None or trial.arm_id in seen:
            continue
        words = [*trial.command, *(word.partition("=")[2] for word in trial.command)]
        if any(same_model(served, word) for word in [trial.arm.target, *words] if word.strip("-")):
            continue
        seen.add(trial.arm_id)
        yield kinds.MODEL_DIFFERS.found(
            trial.arm.name,
            "serves another model than it was started with",
            evidence=(
                ("asked for", trial.arm.target),
                ("served", served[:300]),
            ),
        )


def ignored_request_fields(trials: Sequence[Trial]) -> Iterable[Finding]:
    """Fields of requests whose values made no difference to what was drafted; ``trials`` are comparable ones.

    A field is heeded as soon as two of its values differ: others may still come to the same.
    """
    counted: dict[str, set[tuple[int, int]]] = {}
    arms: dict[str, Arm] = {}
    for trial in trials:
        counts = pooled_acceptance(trial.loads[:1])
        if counts is not None and counts.num_draft_tokens >= MIN_DRAFTED:
            seen = (counts.num_accepted_tokens, counts.num_draft_tokens)
            counted.setdefault(trial.arm_id, set()).add(seen)
            arms[trial.arm_id] = trial.arm
    launches: dict[str, list[Arm]] = {}
    for arm in arms.values():
        launches.setdefault(arm.model_copy(update={"request": {}}).arm_id, []).append(arm)
    pairs: dict[str, dict[tuple[str, ...], list[tuple[Arm, Arm]]]] = {}
    for launch, alike_else in launches.items():
        for one, other in itertools.combinations(alike_else, 2):
            pairs.setdefault(launch, {}).setdefault(differing_factors(one, other), []).append((one, other))
    ignored: dict[tuple[str, ...], dict[str, Arm]] = {}
    for by_fields in pairs.values():
        told: list[set[str]] = []
        for changed in sorted(by_fields, key=len):
            alike = all(counted[one.arm_id] & counted[other.arm_id] for one, other in by_fields[changed])
            if alike and not any(fields < set(changed) for fields in told):
                told.append(set(changed))
                same = {arm.arm_id: arm for pair in by_fields[changed] for arm in pair}
                ignored.setdefault(changed, {}).update(same)
    for changed, same in ignored.items():
        yield _ignored(changed, [(arm, counted[arm_id]) for arm_id, arm in same.items()])


def _ignored(changed: Sequence[str], arms: Sequence[tuple[Arm, set[tuple[int, int]]]]) -> Finding:
    fields = [name.removeprefix("request.") for name in changed]
    evidence = []
    for arm, counted in arms[:8]:
        sent = ", ".join(f"{f} {arm.request[f]!r}" if f in arm.request else f"no {f}" for f in fields)
        drafts = ", ".join(f"{kept} of {drafted} drafted tokens kept" for kept, drafted in sorted(counted))
        evidence.append((arm.name, f"{sent}: {drafts}"))
    return kinds.REQUEST_FIELD_IGNORED.found(
        listing(arm.name for arm, _ in arms),
        f"{listing(fields)} of the requests changed nothing: as many tokens drafted and kept, whatever the value",
        evidence=evidence,
    )


def differing_knobs(asked: Knobs, effective: Knobs) -> list[tuple[str, object, object]]:
    found = []
    for name in FACTORS:
        ours, theirs = getattr(asked, name), getattr(effective, name)
        if ours is None or theirs is None or ours == theirs:
            continue
        if name == "drafter" and same_model(ours, theirs):
            continue
        found.append((name, ours, theirs))
    return found


def same_model(ours: str, theirs: str) -> bool:
    """A model's short name and the path it was resolved to are one model."""
    return PurePath(ours).name in PurePath(theirs).parts or PurePath(theirs).name in PurePath(ours).parts


def other_workloads(study: Study, trials: Sequence[Trial]) -> Iterable[Finding]:
    wanted = study.workload.workload_hash
    others = [t for t in trials if t.status == "complete" and t.workload_hash != wanted]
    if others:
        yield kinds.WORKLOAD_CHANGED.found(
            "study",
            f"another workload, left out of every comparison: {count(len(others), 'complete trial')}",
            evidence=(
                ("trials", listing(t.trial_id for t in others)),
                ("workload", f"{others[0].workload_hash} there, {wanted} now"),
            ),
        )
