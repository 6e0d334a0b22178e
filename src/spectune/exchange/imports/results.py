"""What every reader yields, and the study that is made of it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from spectune import __version__
from spectune.domain.acceptance import pool_counts
from spectune.domain.arm import Arm, Knobs, baseline_arm
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.machine import Machine
from spectune.domain.measurement import LoadResult, LoadTotals
from spectune.domain.study import EngineSettings, Import, ImportedFile, PlannedTrial, Study, UnknownPart
from spectune.domain.trial import ServerFacts, Trial
from spectune.domain.workload import LoadPoint, Prompt, Sampling, Workload
from spectune.errors import BadInput
from spectune.exchange.imports.reading import SourceFile, well_formed

NOT_RECORDED = "not recorded"
UNKNOWN_METHOD = "unknown"


@dataclass(frozen=True)
class ArmHints:
    """What the user says of the runs, where files do not."""

    method: str | None = None
    """Of runs that speculated."""
    drafter: str | None = None
    engine: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class ImportedRun:
    """One arm at one load point, measured once."""

    name: str
    knobs: Knobs
    target: str
    engine: str
    result: LoadResult
    place: str
    """For complaints."""
    flags: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    started_at: datetime | None = None
    version: str | None = None
    prompts: tuple[Prompt, ...] = ()
    asked: tuple[tuple[str, str], ...] = ()
    """Parts of the workload that the file says; runs of one study must agree in them."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Runs of one arm."""
        return (
            self.name,
            self.engine,
            self.target,
            self.knobs.model_dump_json() + repr(sorted(self.flags.items())),
        )


@dataclass
class ImportedResults:
    """Everything read from one tool's files."""

    tool: str
    files: list[SourceFile]
    runs: list[ImportedRun]
    missing: list[str] = field(default_factory=list)
    unknown: tuple[UnknownPart, ...] = ("machine", "prompts", "sampling")
    sampling: Sampling = field(default_factory=Sampling)
    os: str | None = None


def speculates(knobs: Knobs) -> bool:
    return knobs.method != "none"


def hinted(knobs: Knobs, hints: ArmHints) -> Knobs:
    """With what the user says, where the file does not."""
    if not speculates(knobs):
        return knobs
    method = hints.method if knobs.method == UNKNOWN_METHOD and hints.method else knobs.method
    return knobs.model_copy(update={"method": method, "drafter": knobs.drafter or hints.drafter})


def assemble(
    results: ImportedResults,
    *,
    name: str,
    baseline: str | None = None,
    run_is_launch: bool = False,
    now: datetime | None = None,
) -> tuple[Study, list[Trial]]:
    """A study and its trials. Runs of one arm are one launch, unless ``run_is_launch``."""
    if not results.runs:
        raise BadInput(f"{results.files[0].path}: holds no result of {results.tool}")
    _check_agreement(results.runs)
    made = now or datetime.now(UTC)
    groups = _grouped(results.runs)
    arms = _arms(groups, baseline=baseline, results=results)
    by_key = dict(zip(groups, arms, strict=True))
    reference = _baseline(arms, named=baseline, results=results)
    ordered = [reference, *(arm for arm in arms if arm is not reference)]
    prompts = tuple({p.prompt_id: p for run in results.runs for p in run.prompts}.values())
    study = Study(
        name=name,
        question=f"What did {results.tool} measure?",
        created_at=made.isoformat(timespec="seconds"),
        spectune_version=__version__,
        machine=_no_machine(results.os),
        host="imported",
        engine=EngineSettings(name=reference.engine),
        arms=tuple(ordered),
        plan=(),
        workload=Workload(
            prompts=prompts,
            sampling=results.sampling,
            loads=tuple(dict.fromkeys(run.result.load for run in results.runs)),
        ),
        warmup_requests=0,
        imported=Import(
            tool=results.tool,
            files=tuple(ImportedFile(name=f.name, sha256=f.sha256) for f in results.files),
            missing=tuple(dict.fromkeys([*results.missing, *_always_missing(results, run_is_launch)])),
            unknown=results.unknown,
        ),
    )
    trials = _trials(study, groups, by_key, run_is_launch=run_is_launch, made=made)
    plan = tuple(PlannedTrial(arm_id=t.arm_id, repetition=t.repetition) for t in trials)
    return study.model_copy(update={"plan": plan}), trials


def _no_machine(os: str | None) -> Machine:
    return Machine(
        hostname=NOT_RECORDED,
        os=os or NOT_RECORDED,
        cpu=None,
        cores=None,
        memory_bytes=None,
        gpus=None,
        python=NOT_RECORDED,
    )


def _always_missing(results: ImportedResults, run_is_launch: bool) -> list[str]:
    found = ["the server's command, settings and log"]
    if not any(run.result.requests for run in results.runs):
        found.append("single requests, so no interval comes from them")
    if not run_is_launch:
        found.append("which runs are launches of their own: runs of one arm are taken as one launch")
    return found


def _check_agreement(runs: Sequence[ImportedRun]) -> None:
    """Arms measured with different requests are not arms of one study."""
    seen: dict[str, tuple[str, str]] = {}
    for run in runs:
        for key, value in run.asked:
            first = seen.setdefault(key, (value, run.place))
            if first[0] != value:
                raise BadInput(
                    f"{run.place}: {key} is {value}, but {first[0]} in {first[1]}: these runs asked different "
                    "things of the server; import each kind into a study of its own"
                )


def _grouped(runs: Sequence[ImportedRun]) -> dict[tuple[str, str, str, str], list[ImportedRun]]:
    groups: dict[tuple[str, str, str, str], list[ImportedRun]] = {}
    for run in runs:
        groups.setdefault(run.key, []).append(run)
    return groups


def _arms(
    groups: dict[tuple[str, str, str, str], list[ImportedRun]],
    *,
    baseline: str | None,
    results: ImportedResults,
) -> list[Arm]:
    """One per group; a flag keeps apart those that differ in nothing the files say, a number those of one name."""
    names: Counter[str] = Counter()
    ids: set[str] = set()
    arms = []
    for runs in groups.values():
        run = runs[0]
        names[run.name] += 1
        shown = run.name if names[run.name] == 1 else f"{run.name} ({names[run.name]})"
        arm = Arm(name=shown, engine=run.engine, target=run.target, knobs=run.knobs, flags=run.flags)
        if shown == baseline and speculates(arm.knobs):
            arm = arm.model_copy(update={"knobs": Knobs()})
        if arm.arm_id in ids:
            arm = arm.model_copy(update={"flags": {**arm.flags, "imported-as": shown}})
        if arm.arm_id in ids:
            raise BadInput(f"{run.place}: two arms with the same settings and the name {shown!r}")
        ids.add(arm.arm_id)
        arms.append(arm)
    if baseline is not None and baseline not in {arm.name for arm in arms}:
        known = ", ".join(arm.name for arm in arms)
        raise BadInput(f"--baseline {baseline}: no arm of this name in the files; there is {known}")
    return arms


def _baseline(arms: Sequence[Arm], *, named: str | None, results: ImportedResults) -> Arm:
    """The named arm, else the first that does not speculate, else one that nobody measured."""
    found = next((a for a in arms if a.name == named), None) if named is not None else None
    found = found or next((a for a in arms if a.is_baseline), None)
    if found is not None:
        return found
    results.missing.append(
        "plain decoding: no file holds it, so there is no speedup (name one with --baseline)"
    )
    first = arms[0]
    return baseline_arm(engine=first.engine, target=first.target)


def _trials(
    study: Study,
    groups: dict[tuple[str, str, str, str], list[ImportedRun]],
    by_key: dict[tuple[str, str, str, str], Arm],
    *,
    run_is_launch: bool,
    made: datetime,
) -> list[Trial]:
    launches: list[tuple[datetime, Arm, int, list[LoadResult], ImportedRun]] = []
    for key, runs in groups.items():
        for repetition, together in enumerate(_launches(runs, run_is_launch=run_is_launch)):
            by_load: dict[LoadPoint, list[LoadResult]] = {}
            for run in together:
                by_load.setdefault(run.result.load, []).append(run.result)
            loads = [_merged(found, place=together[0].place) for found in by_load.values()]
            started = min((r.started_at for r in together if r.started_at is not None), default=made)
            launches.append((started, by_key[key], repetition, loads, together[0]))
    launches.sort(key=lambda launch: launch[0])
    return [_trial(study, number, *launch) for number, launch in enumerate(launches, start=1)]


def _launches(runs: Sequence[ImportedRun], *, run_is_launch: bool) -> list[list[ImportedRun]]:
    """All runs, or the first of each load point, the second of each, and so on."""
    if not run_is_launch:
        return [list(runs)]
    found: list[list[ImportedRun]] = []
    seen: Counter[LoadPoint] = Counter()
    for run in runs:
        place = seen[run.result.load]
        seen[run.result.load] += 1
        if place == len(found):
            found.append([])
        found[place].append(run)
    return found


def _after(moment: datetime, seconds: float) -> datetime:
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:  # past the year 9999
        return moment


def _trial(
    study: Study,
    number: int,
    started: datetime,
    arm: Arm,
    repetition: int,
    loads: Sequence[LoadResult],
    run: ImportedRun,
) -> Trial:
    took_s = math.fsum(load.duration_s for load in loads)
    assert study.imported is not None
    return Trial(
        trial_id=f"{number:04d}-{arm.arm_id}",
        number=number,
        arm=arm,
        arm_id=arm.arm_id,
        repetition=repetition,
        workload_hash=study.workload.workload_hash,
        status="complete",
        hypothesis=Hypothesis(
            compared_with=None,
            changed=(),
            expectation="reference",
            predicted_tok_per_s=None,
            why=f"imported from {study.imported.tool}: nothing was predicted",
        ),
        command=(),
        started_at=started.isoformat(timespec="milliseconds"),
        ended_at=_after(started, took_s).isoformat(timespec="milliseconds"),
        phases_s={"measure": took_s} if took_s else {},
        server=ServerFacts(engine=arm.engine, version=run.version, model=run.target),
        loads=tuple(loads),
    )


def _merged(results: Sequence[LoadResult], *, place: str) -> LoadResult:
    """Several runs of one launch at one load point."""
    if len(results) == 1:
        return results[0]
    totals = [r.totals for r in results if r.totals is not None]
    if len({bool(r.requests) for r in results}) > 1:
        raise BadInput(
            f"{place}: some runs of this arm have single requests and some have not; import them separately"
        )
    durations_s = [r.duration_s for r in results]
    offsets_s = [math.fsum(durations_s[:i]) for i in range(len(results))]
    known = [r.acceptance for r in results if r.acceptance is not None]
    return replace_result(
        results[0],
        requests=tuple(
            request.model_copy(update={"start_s": request.start_s + offset_s})
            for result, offset_s in zip(results, offsets_s, strict=True)
            for request in result.requests
        ),
        duration_s=math.fsum(durations_s),
        acceptance=pool_counts(known) if len(known) == len(results) else None,
        totals=_merged_totals(totals) if len(totals) == len(results) else None,
    )


def replace_result(result: LoadResult, **changes: object) -> LoadResult:
    return result.model_copy(update=changes)


def _merged_totals(totals: Sequence[LoadTotals]) -> LoadTotals:
    """Counts add up; rates and latencies are averaged; what one run does not know, nothing knows."""

    def known(name: str) -> list[float]:
        values = [getattr(t, name) for t in totals]
        found = [v for v in values if v is not None]
        return found if len(found) == len(values) else []

    def mean(name: str) -> float | None:
        values = known(name)
        return math.fsum(values) / len(values) if values else None

    def total(name: str) -> int | None:
        values = known(name)
        return int(sum(values)) if values else None

    speeds = known("stream_tok_per_s")
    groups = [t.stream_tok_per_s_by_group for t in totals]
    shared = set(groups[0]).intersection(*groups[1:])
    return LoadTotals(
        num_completed=total("num_completed"),
        num_failed=total("num_failed"),
        prompt_tokens=total("prompt_tokens"),
        output_tokens=total("output_tokens"),
        output_tok_per_s=mean("output_tok_per_s"),
        stream_tok_per_s=_geometric_mean(speeds) if speeds else None,
        stream_tok_per_s_by_group={g: _geometric_mean([by[g] for by in groups]) for g in sorted(shared)},
        median_ttft_s=mean("median_ttft_s"),
        p99_ttft_s=mean("p99_ttft_s"),
        median_tpot_s=mean("median_tpot_s"),
        p99_tpot_s=mean("p99_tpot_s"),
        median_itl_s=mean("median_itl_s"),
        p99_itl_s=mean("p99_itl_s"),
        acceptance_length=mean("acceptance_length"),
    )


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def load_point(*, concurrency: int | None, request_rate: float | None, num_requests: int | None) -> LoadPoint:
    """Closed at the given concurrency; without any, all requests at once are as many in flight."""
    if request_rate is not None and math.isfinite(request_rate) and request_rate > 0:
        return LoadPoint.open(request_rate)
    return LoadPoint.closed(max(1, concurrency or num_requests or 1))


_UNSAFE = re.compile(r"[\x00-\x1f\x7f]+")


def arm_name(text: str) -> str:
    """A name from a file: one line, of bounded length."""
    return _UNSAFE.sub(" ", well_formed(text)).strip()[:120] or "unnamed"
