"""Findings about one configuration, judged at every load point: what holds at concurrency 1 may not at 64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from spectune.analysis import finding_kinds as kinds
from spectune.analysis.pooling import acceptance_length, load_of, pooled_acceptance
from spectune.analysis.records import ArmSummary, LoadSummary
from spectune.analysis.words import count, listing, percent
from spectune.domain.findings import Finding
from spectune.domain.parity import OutputParity
from spectune.domain.prompt_cache import CacheUse, cache_use
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.engines.flags import length_imposed_on

DEAD_MIN_STEPS = 20
DEAD_ACCEPTANCE_LENGTH = 1.02
LENGTH_TOLERANCE = 0.05
IMPOSED_TOLERANCE = 0.05
REUSED_FRAC = 0.01
"""Of prompt tokens; less changes no figure that can be seen."""
_MOST_SHOWN = 8
_EXPLAINED = "the engine differs from itself as much: its arithmetic depends on the batch"
_READ_DIFFERENCES = (
    "read the first differences in the report; look for lossy settings (acceptance thresholds, typical acceptance) "
    "and different precision; repeat the baseline to learn its own noise"
)


def _where(loads: Sequence[LoadSummary], of: Sequence[LoadSummary]) -> str:
    """`` at c=8``, or nothing where there is one load point only."""
    return f" at {listing(load.label for load in loads)}" if len(of) > 1 else ""


def _speculating(
    arms: Sequence[ArmSummary], is_so: Callable[[LoadSummary], bool]
) -> Iterator[tuple[ArmSummary, list[LoadSummary], str]]:
    """Arms that asked for speculation, with their load points of which ``is_so`` is true, and these in words."""
    for arm in arms:
        if arm.arm.knobs.method != "none" and (found := [load for load in arm.loads if is_so(load)]):
            yield arm, found, _where(found, arm.loads)


def dead_drafters(arms: Sequence[ArmSummary]) -> Iterable[Finding]:
    for arm, loads, where in _speculating(arms, _is_dead):
        lengths = listing(f"{load.acceptance_length.value:.3f}" for load in loads if load.acceptance_length)
        yield kinds.DEAD_DRAFTER.found(
            arm.name,
            f"every draft is rejected{where}: acceptance length {lengths}",
            evidence=[(load.acceptance_source or "acceptance", _kept(load)) for load in loads[:_MOST_SHOWN]],
        )


def _is_dead(load: LoadSummary) -> bool:
    counts, length = load.acceptance_counts, load.acceptance_length
    if counts is None or length is None or (counts.num_drafts or 0) <= DEAD_MIN_STEPS:
        return False
    return length.value < DEAD_ACCEPTANCE_LENGTH


def _kept(load: LoadSummary) -> str:
    counts = load.acceptance_counts
    assert counts is not None
    return (
        f"{counts.num_accepted_tokens} of {counts.num_draft_tokens} drafted tokens kept in "
        f"{counts.num_drafts} verify steps"
    )


def speculation_off(arms: Sequence[ArmSummary]) -> Iterable[Finding]:
    """Counted and nothing seen: what an engine does not say shows nothing."""
    for arm, loads, where in _speculating(arms, _never_verified):
        requests = sum(load.num_requests for load in loads)
        yield kinds.SPECULATION_OFF.found(
            arm.name,
            f"asked for {arm.arm.knobs.method}, but it made no verify step{where}",
            evidence=(("acceptance", f"over {count(requests, 'request')}"),),
        )


def _never_verified(load: LoadSummary) -> bool:
    return load.acceptance_counts is not None and load.acceptance_counts.num_drafts == 0


def unknown_acceptance(arms: Sequence[ArmSummary]) -> Iterable[Finding]:
    for arm, loads, where in _speculating(arms, lambda load: load.acceptance_length is None):
        loads = [load for load in loads if load.acceptance_counts is None]
        if loads:
            yield kinds.ACCEPTANCE_UNKNOWN.found(
                arm.name,
                f"its acceptance is unknown{where}: neither its answers, its counters nor its log give it",
                evidence=[(load.label, count(load.num_requests, "request")) for load in loads[:_MOST_SHOWN]],
            )


def changed_outputs(arms: Sequence[ArmSummary]) -> Iterable[Finding]:
    """One finding an arm: a note only where the baseline differs from itself as much, load point by load point."""
    baseline = next(a for a in arms if a.is_baseline)
    own = {load.label: load.parity for load in baseline.loads}
    for arm in arms:
        changed = [load for load in arm.loads if _share_equal(load.parity) < 1]
        if arm.is_baseline or not changed:
            continue
        unexplained = [
            load
            for load in changed
            if (floor := own.get(load.label)) is None
            or floor.equal_frac is None
            or _share_equal(load.parity) < floor.equal_frac
        ]
        told = unexplained or changed
        worst = min(told, key=lambda load: _share_equal(load.parity)).parity
        assert worst is not None
        evidence = [
            pair
            for load in told
            for pair in (
                (f"outputs{_where([load], arm.loads)}", _first_difference(load.parity)),
                (baseline.name, _itself(own.get(load.label))),
            )
        ]
        yield kinds.OUTPUT_CHANGED.found(
            arm.name,
            f"{worst.num_equal} of {worst.num_compared} greedy outputs equal plain decoding's"
            f"{_where(told, arm.loads)}",
            severity="warning" if unexplained else "note",
            evidence=evidence[:_MOST_SHOWN],
            effect=None if unexplained else _EXPLAINED,
            remedy=_READ_DIFFERENCES if unexplained else None,
        )


def _share_equal(parity: OutputParity | None) -> float:
    """1 where nothing was compared: what is not known differs from nothing."""
    return 1.0 if parity is None or parity.equal_frac is None else parity.equal_frac


def _first_difference(parity: OutputParity | None) -> str:
    assert parity is not None
    return f"median first difference after {parity.median_first_divergence:g} {parity.unit}"


def _itself(parity: OutputParity | None) -> str:
    if parity is None or parity.equal_frac is None:
        return "the baseline was measured once, so whether it repeats itself is unknown"
    return f"the baseline repeats itself in {parity.num_equal} of {parity.num_compared}"


def changed_lengths(arms: Sequence[ArmSummary]) -> Iterable[Finding]:
    for arm in arms:
        changed = [
            (load, ratio)
            for load in arm.loads
            if (ratio := load.output_length_ratio) is not None
            and not 1 - LENGTH_TOLERANCE <= ratio <= 1 + LENGTH_TOLERANCE
        ]
        if changed:
            load, ratio = max(changed, key=lambda pair: abs(pair[1] - 1))
            yield kinds.LENGTH_CHANGED.found(
                arm.name,
                f"outputs are {ratio:.2f} times as long as the baseline's on the same prompts"
                f"{_where([load], arm.loads)}",
                evidence=[
                    (
                        "usage",
                        f"output tokens of the prompts both answered: {ratio:.2f}{_where([load], arm.loads)}",
                    )
                    for load, ratio in changed[:_MOST_SHOWN]
                ],
            )


def cached_prompts(study: Study, trials: Sequence[Trial]) -> Iterable[Finding]:
    """``trials``: those that are compared. The load points of each arm that reused most are told."""
    seen: list[tuple[str, str, CacheUse]] = []
    for arm_id, name in {t.arm_id: t.arm.name for t in trials}.items():
        for point in study.workload.loads:
            loads = [load_of(t, point) for t in trials if t.arm_id == arm_id]
            requests = [r for load in loads if load is not None for r in load.requests]
            use = cache_use(requests, study.workload.prompts)
            if use is not None and use.reused_frac >= REUSED_FRAC:
                seen.append((name, point.label, use))
    if seen:
        seen.sort(key=lambda row: -row[2].reused_frac)
        labels = [p.label for p in study.workload.loads if p.label in {label for _, label, _ in seen}]
        where = f" at {listing(labels)}" if len(study.workload.loads) > 1 else ""
        yield kinds.CACHED_PROMPTS.found(
            listing(dict.fromkeys(name for name, _, _ in seen)),
            f"prompt tokens of measured requests came from a prefix cache{where}",
            evidence=[
                (name, f"{percent(use.reused_frac)} of prompt tokens at {label}")
                for name, label, use in seen[:_MOST_SHOWN]
            ],
        )


def imposed_but_not_reached(study: Study, trials: Sequence[Trial]) -> Iterable[Finding]:
    """Imposed acceptance against what was counted, over all launches of an arm at a load point."""
    complete = [t for t in trials if t.status == "complete" and t.soak is None and t.arm.is_synthetic]
    for arm_id in dict.fromkeys(t.arm_id for t in complete):
        own = [t for t in complete if t.arm_id == arm_id]
        wanted = length_imposed_on(own[-1].arm)
        if wanted is None:
            continue
        off = []
        for point in study.workload.loads:
            loads = [load for t in own if (load := load_of(t, point)) is not None]
            total = pooled_acceptance(loads)
            length = acceptance_length(total, loads, level=study.level)
            if length is None or total is None or (total.num_drafts or 0) <= DEAD_MIN_STEPS:
                continue
            within = (
                length.low is not None and length.high is not None and length.low <= wanted <= length.high
            )
            if abs(length.value - wanted) > IMPOSED_TOLERANCE * wanted and not within:
                off.append((point.label, f"{length.value:.2f} in {total.num_drafts} verify steps"))
        if off:
            yield kinds.IMPOSED_NOT_REACHED.found(
                own[-1].arm.name,
                f"acceptance length {wanted:.2f} was imposed, and {off[0][1].split()[0]} was counted",
                evidence=off[:_MOST_SHOWN],
            )
