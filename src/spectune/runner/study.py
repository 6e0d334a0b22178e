"""``run_study``: the main job, from a resolved study to its reports."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from spectune.domain.arm import Arm
from spectune.domain.cost_model import launch_log_sd
from spectune.domain.findings import Finding
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.measurement import LoadResult
from spectune.domain.prediction import judge_hypothesis, propose
from spectune.domain.prediction_observation import Observation
from spectune.domain.statistics import Comparison, SpeedSample, compare_with_baseline
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import Trial, num_launches
from spectune.embedded.models import fetch_embedded_target, resolve_model
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput, EnvironmentFailed, Interrupted
from spectune.hosts.choose import LOCAL
from spectune.hosts.host import Host
from spectune.report.arms import compare_with_new
from spectune.report.noise import summarize_noise
from spectune.report.observed import observations
from spectune.report.pooling import end_to_end, pooled_speed, speed_by_prompt
from spectune.report.summary import summarize
from spectune.report.write import write_reports
from spectune.runner.abort import Aborted, unless_aborted
from spectune.runner.estimate import estimate
from spectune.runner.events import TrialStart, Watcher
from spectune.runner.finding_kinds import SLOWING
from spectune.runner.launch import (
    ModelPaths,
    Place,
    end_kept,
    kept_server,
    launch_key,
    place_on,
    stop_leftovers,
    usable_server,
    without_other_servers,
)
from spectune.runner.optional_flags import lacking_by_version, without_flags
from spectune.runner.order import block_of
from spectune.runner.precision import launch_for_precision
from spectune.runner.quiet import NoiseWatch, Patience, looking_at
from spectune.runner.resume import baseline_before, unused_repetition
from spectune.runner.search import NextLaunch, SearchEnd, next_launch, search_estimate
from spectune.runner.stop_early import stop_rule
from spectune.runner.trial import Keeps, run_trial
from spectune.server.lifecycle import to_the_end
from spectune.store.abort import forget_abort
from spectune.store.study_dir import StudyDir

SOAK_REPETITION = -1
"""A soak is no repetition of the plan."""
NOISE_FLOOR_AGAIN = "the machine was noisy before, and is quiet now"
StopReason = Literal["done", "budget", "baseline failed"]


@dataclass(frozen=True)
class StudyOutcome:
    """How a run of a study ended; ``new_trials`` were measured by this run."""

    reason: StopReason
    new_trials: int
    trials: tuple[Trial, ...]

    @property
    def any_failed(self) -> bool:
        """Whether a launch failed and was not made up for by a later one."""
        last = {(t.arm_id, t.repetition): t.status for t in self.trials}
        return "failed" in last.values()


async def run_study(
    directory: StudyDir,
    *,
    models: ModelPaths,
    watcher: Watcher,
    host: Host,
    retry_failed: bool = False,
    findings: Mapping[str, Sequence[Finding]] | None = None,
    patience: Patience | None = None,
) -> StudyOutcome:
    """Runs what is left of the plan. Finished trials are never repeated; each new one is on disk before the next.

    ``findings``: what a check found before, by arm id; it goes into the records of the arm's trials. ``patience``:
    what to do on a noisy machine; a simulated engine, which measures nothing, needs none unless it is given.
    Raises ``Interrupted`` if somebody asks for the end of the run (``store.abort``).
    """
    with directory.lock():
        forget_abort(directory.path)  # meant for an earlier run
        study = directory.read_study()
        trials = directory.read_trials()
        check_same_workload(directory, study, trials)
        todo = remaining(study, trials, retry_failed=retry_failed)
        watcher.on_study(study, done=len(study.plan) - len(todo), total=len(study.plan))
        if study.search is not None and study.search_end is None:
            watcher.on_message(str(search_estimate(study, trials)))
        if is_finished(study, trials, retry_failed=retry_failed):
            write_reports(directory)
            return StudyOutcome("done", 0, tuple(trials))
        async with host:
            place = await place_on(host, owner=str(directory.path.resolve()), known=findings or {})
            place.lacking.update(await lacking_by_version(study))
            noise = None
            if patience is not None or not adapter_for(study.engine.name).simulated:
                patience = patience or Patience()
                noise = NoiseWatch(patience.look or looking_at(host), patience, say=watcher.on_message)
            try:
                plan = _run_plan(directory, study, trials, todo, models, watcher, place, noise)
                return await unless_aborted(plan, folder=directory.path)
            except Aborted:
                forget_abort(directory.path)
                write_reports(directory)
                raise Interrupted(
                    f"stopped, as somebody asked for. Resume with: spectune run {shlex.quote(directory.place)}"
                ) from None
            finally:
                await to_the_end(end_kept(place))


async def _run_plan(
    directory: StudyDir,
    study: Study,
    trials: list[Trial],
    todo: list[PlannedTrial],
    models: ModelPaths,
    watcher: Watcher,
    place: Place,
    noise_watch: NoiseWatch | None,
) -> StudyOutcome:
    began, new = time.monotonic(), 0
    queue = list(todo)
    if noise_watch is not None and not place.alive:
        await noise_watch.before_the_first_launch()
    while True:
        if not queue:
            study, queue = _ask_search(directory, study, trials, watcher)
        if not queue:
            break
        if new == 0:
            study, queue = _after_a_pause(directory, study, trials, queue, models, watcher, place)
        planned, position = queue.pop(0), new
        if place.kept.server_id is not None:
            place = replace(place, alive=await kept_server(place, on_message=watcher.on_message))
        arm = study.arm(planned.arm_id)
        served = without_flags(study, place.lacking)
        key, block = launch_key(arm, served, models), block_of(arm, planned.repetition, study)
        running = usable_server(place, key=key, block=block)
        counted = running is not None and running.about.get("launch") in {t.launch_number for t in trials}
        if over_budget(study, 0 if counted else num_launches(trials), time.monotonic() - began):
            await stop_leftovers(place, on_message=watcher.on_message)
            write_reports(directory)
            return StudyOutcome("budget", new, tuple(trials))
        place = await without_other_servers(place, key=key, block=block, on_message=watcher.on_message)
        try:
            trial = await _next_trial(
                directory,
                study,
                planned,
                trials,
                models,
                watcher,
                place,
                position=position,
                todo=max(len(todo), position + 1 + len(queue)),
                keeps=partial(_next_shares, study, trials, queue, planned, began),
            )
        except OSError as error:
            raise EnvironmentFailed(
                f"{directory.path}: cannot write the record: {error.strerror or error}\n"
                "The server was stopped and finished trials are kept; make room, then run the study again"
            ) from error
        place = replace(place, alive=())
        trials.append(trial)
        new += 1
        watcher.on_trial_end(trial, trials)
        if told := await directory.settle():
            watcher.on_message(told)
        if _ends_noise_floor(study, planned, queue):
            noise = summarize_noise(study, trials)
            watcher.on_message("noise floor unknown" if noise is None else noise.sentence)
            if noise_watch is not None:
                again, mark = await noise_watch.after_equal_launches(study, trials)
                study = _with_noise(directory, study, trials, again=again, mark=mark)
                queue = remaining(study, trials) if again else queue
        if trial.status == "failed" and planned.arm_id == study.baseline.arm_id and not _any_complete(trials):
            write_reports(directory)
            return StudyOutcome("baseline failed", new, tuple(trials))
    await end_kept(place)
    winner = arm_to_soak(study, trials)
    if winner is not None:
        trials.append(await _soak_trial(directory, study, winner, models, watcher, place))
        new += 1
        watcher.on_trial_end(trials[-1], trials)
    write_reports(directory)
    return StudyOutcome("done", new, tuple(trials))


def _after_a_pause(
    directory: StudyDir,
    study: Study,
    trials: Sequence[Trial],
    queue: list[PlannedTrial],
    models: ModelPaths,
    watcher: Watcher,
    place: Place,
) -> tuple[Study, list[PlannedTrial]]:
    """The launches to make, with plain decoding in front where its last launch is long ago. The plan holds it then.

    Not where the server that an earlier run left for the next trial still runs: there was no pause.
    """
    first = queue[0]
    arm = study.arm(first.arm_id)
    key = launch_key(arm, without_flags(study, place.lacking), models)
    block = block_of(arm, first.repetition, study)
    again = baseline_before(study, trials, first, now=datetime.now(UTC))
    if again is None or usable_server(place, key=key, block=block) is not None:
        return study, queue
    watcher.on_message(again.reason or "")
    at = study.plan.index(first)
    study = study.model_copy(update={"plan": (*study.plan[:at], again, *study.plan[at:])})
    directory.replace_study(study)
    return study, [again, *queue]


def _ends_noise_floor(study: Study, planned: PlannedTrial, queue: Sequence[PlannedTrial]) -> bool:
    """Whether two equal launches of the baseline have just been made, to see what they differ by."""
    if not study.noise_floor or planned.arm_id != study.baseline.arm_id:
        return False
    follows = queue[0].reason == NOISE_FLOOR_AGAIN if queue else False
    return planned.repetition == 1 or (planned.reason == NOISE_FLOOR_AGAIN and not follows)


def _with_noise(
    directory: StudyDir, study: Study, trials: Sequence[Trial], *, again: bool, mark: str | None
) -> Study:
    """The study with what was found about its noise, on disk; ``again``: two launches of the baseline come next."""
    if not again and mark is None:
        return study
    plan = study.plan
    if again:
        baseline = study.baseline.arm_id
        first = unused_repetition(study, trials, baseline)
        ended = [p for p in plan if p not in remaining(study, trials)]
        twice = [
            PlannedTrial(arm_id=baseline, repetition=first + i, reason=NOISE_FLOOR_AGAIN) for i in range(2)
        ]
        plan = (*ended, *twice, *(p for p in plan if p not in ended))
    study = study.model_copy(update={"plan": plan, "noisy": mark})
    directory.replace_study(study)
    return study


def _next_shares(
    study: Study,
    trials: Sequence[Trial],
    queue: Sequence[PlannedTrial],
    planned: PlannedTrial,
    began: float,
    trial: Trial,
) -> bool:
    """Whether the trial after this one is to be measured on its server."""
    if not any(arm.request for arm in study.arms):
        return False
    following = queue[0] if queue else None
    if not queue and study.search is not None and study.search_end is None:
        answer = next_launch(study, [*trials, trial])
        following = answer.planned if isinstance(answer, NextLaunch) else None
    if following is None or over_budget(study, 0, time.monotonic() - began):
        return False
    ours = block_of(study.arm(planned.arm_id), planned.repetition, study)
    return ours == block_of(study.arm(following.arm_id), following.repetition, study)


def _ask_search(
    directory: StudyDir, study: Study, trials: Sequence[Trial], watcher: Watcher
) -> tuple[Study, list[PlannedTrial]]:
    """The study with the launch that its strategy or precision asks for next, on disk before it is made."""
    if study.search is None:
        planned = launch_for_precision(study, trials)
        if planned is None:
            return study, []
        asked, reason = planned, planned.reason or ""
    elif study.search_end is not None:
        return study, []
    else:
        answer = next_launch(study, trials)
        reason = answer.reason
        if isinstance(answer, SearchEnd):
            watcher.on_message(reason)
            study = study.model_copy(update={"search_end": reason})
            directory.replace_study(study)
            return study, []
        asked = answer.planned.model_copy(update={"reason": reason})
    watcher.on_message(reason)
    known = {(p.arm_id, p.repetition) for p in study.plan}
    made = [
        PlannedTrial(arm_id=t.arm_id, repetition=t.repetition)
        for t in trials
        if t.soak is None and (t.arm_id, t.repetition) not in known
    ]
    plan = (*study.plan, *made, asked)
    study = study.model_copy(update={"plan": plan})
    directory.replace_study(study)
    return study, [asked]


def is_finished(study: Study, trials: Sequence[Trial], *, retry_failed: bool = False) -> bool:
    """Whether nothing is left to launch."""
    if remaining(study, trials, retry_failed=retry_failed) or arm_to_soak(study, trials) is not None:
        return False
    if study.search is None:
        return launch_for_precision(study, trials) is None
    return study.search_end is not None


def arm_to_soak(study: Study, trials: Sequence[Trial]) -> Arm | None:
    """The best arm, if a long run of it is asked for and not done; ``None`` if plain decoding is best."""
    if study.soak_s is None:
        return None
    best = summarize(study, list(trials)).best_arm_id
    if best is None or best == study.baseline.arm_id:
        return None
    done = any(t.soak is not None and t.arm_id == best and t.soak.asked_s >= study.soak_s for t in trials)
    return None if done else study.arm(best)


def soak_hypothesis(study: Study) -> Hypothesis:
    return Hypothesis(
        compared_with=None,
        changed=(),
        expectation="same",
        predicted_tok_per_s=None,
        why=f"the best arm is expected to hold {study.soak_s:g} s of load without a failure",
    )


async def _soak_trial(
    directory: StudyDir, study: Study, arm: Arm, models: ModelPaths, watcher: Watcher, place: Place
) -> Trial:
    number, folder = directory.new_trial(arm.arm_id)
    hypothesis = soak_hypothesis(study)
    watcher.on_message(f"soak: {arm.name} under load for {study.soak_s:g} s")
    return await run_trial(
        arm,
        repetition=SOAK_REPETITION,
        study=study,
        hypothesis=hypothesis,
        judge=lambda _loads, _order: hypothesis,
        number=number,
        directory=folder,
        models=models,
        watcher=watcher,
        place=place,
        soak_s=study.soak_s,
    )


async def _next_trial(
    directory: StudyDir,
    study: Study,
    planned: PlannedTrial,
    trials: list[Trial],
    models: ModelPaths,
    watcher: Watcher,
    place: Place,
    *,
    position: int,
    todo: int,
    keeps: Keeps,
) -> Trial:
    arm = study.arm(planned.arm_id)
    observed = observations(study, trials)
    hypothesis = hypothesis_for(planned, study, observed, checked=place.known.get(arm.arm_id, ()))
    number, folder = directory.new_trial(arm.arm_id)
    place_in_study, total, launches = len(study.plan) - todo + position + 1, len(study.plan), None
    if study.search is not None:
        place_in_study = 1 + sum(t.soak is None for t in trials)
        likely = search_estimate(study, trials)
        total = max(place_in_study, likely.trials_likely)
        launches = max(1, likely.launches_likely - num_launches(trials))
    left = total - place_in_study + 1
    watcher.on_trial_start(
        TrialStart(
            number=number,
            position=place_in_study,
            total=total,
            total_is_likely=study.search is not None,
            arm=arm,
            repetition=planned.repetition,
            hypothesis=hypothesis,
            eta_s=estimate(study, trials, remaining=left, launches=launches).seconds if trials else None,
        )
    )

    def judge(loads: tuple[LoadResult, ...], order: int) -> Hypothesis:
        own = SpeedSample(arm.arm_id, order, speed_by_prompt(loads[:1]))
        return judged(hypothesis, own, loads, study=study, trials=trials)

    return await run_trial(
        arm,
        repetition=planned.repetition,
        study=study,
        hypothesis=hypothesis,
        judge=judge,
        number=number,
        directory=folder,
        models=models,
        watcher=watcher,
        place=place,
        ends_early=stop_rule(
            study, trials, planned, hypothesis=hypothesis, launch_log_sd=launch_log_sd(observed)
        ),
        keeps=keeps,
    )


def hypothesis_for(
    planned: PlannedTrial,
    study: Study,
    observed: Sequence[Observation],
    *,
    checked: Sequence[Finding] = (),
) -> Hypothesis:
    """What the launch is expected to show, from what was measured before it, and from what a check found."""
    arm = study.arm(planned.arm_id)
    hypothesis = propose(
        arm,
        baseline=study.baseline,
        observed=observed,
        expectation=study.expectations.get(arm.arm_id),
        concurrency=study.workload.loads[0].concurrency or 1,
    )
    slowed = next((f for f in checked if f.code in SLOWING), None)
    is_guess = hypothesis.predicted_tok_per_s is None and arm.arm_id not in study.expectations
    if slowed is not None and is_guess and hypothesis.expectation == "faster":
        found = f"{slowed.code}: {slowed.message}"
        hypothesis = hypothesis.model_copy(update={"expectation": "slower", "why": found})
    if planned.reason is None:
        return hypothesis
    return hypothesis.model_copy(update={"why": f"{planned.reason}. {hypothesis.why}"})


def remaining(study: Study, trials: Sequence[Trial], *, retry_failed: bool = False) -> list[PlannedTrial]:
    """The plan without what has ended. A failed baseline is always tried again: nothing can be compared without it.

    On a cluster the arms alone: each node sees to its own baseline.
    """
    ended = {
        (t.arm_id, t.repetition)
        for t in trials
        if t.status != "failed" or (not retry_failed and t.arm_id != study.baseline.arm_id)
    }
    todo = [p for p in study.plan if (p.arm_id, p.repetition) not in ended]
    return todo if study.cluster is None else [p for p in todo if p.arm_id != study.baseline.arm_id]


def fetch_models(study: Study, *, home: Path, on_fetch: Callable[[str, int, int | None], None]) -> ModelPaths:
    """Paths of every model of the study; built-in ones are fetched once. Blocks while it downloads.

    On another host every reference is a path there, or a name that the engine there resolves.
    """
    model_format = adapter_for(study.engine.name).model_format
    references = {arm.target for arm in study.arms}
    references |= {arm.knobs.drafter for arm in study.arms if arm.knobs.drafter is not None}
    if study.host != LOCAL:
        return ModelPaths({reference: reference for reference in references})

    def fetch(folder: Path) -> Path:
        return fetch_embedded_target(
            folder, progress=lambda done, total: on_fetch("the embedded model", done, total)
        )

    return ModelPaths(
        {
            reference: resolve_model(reference, model_format=model_format, home=home, fetch=fetch)
            for reference in sorted(references)
        }
    )


def judged(
    hypothesis: Hypothesis,
    own: SpeedSample,
    loads: tuple[LoadResult, ...],
    *,
    study: Study,
    trials: Sequence[Trial],
) -> Hypothesis:
    """The hypothesis with its verdict; ``own`` is the trial's speed at the first of its ``loads``.

    Without one where acceptance was imposed: such a speed is no result.
    """
    if study.arm(own.arm_id).is_synthetic:
        return hypothesis

    baseline = study.baseline.arm_id

    def over(arm_id: str | None) -> Comparison | None:
        if arm_id == baseline and own.arm_id != baseline:
            return compare_with_new(study, trials, own)
        reference = [
            SpeedSample(t.arm_id, t.number, speed_by_prompt(t.loads[:1]), t.place)
            for t in trials
            if t.status == "complete" and t.soak is None and t.arm_id == arm_id
        ]
        compared = compare_with_baseline([own], reference, level=study.level, margin=study.margin)
        return compared.get(own.arm_id)

    plain = None if own.arm_id == baseline else over(baseline)
    return judge_hypothesis(
        hypothesis,
        observed=pooled_speed(loads[:1], end_to_end, level=study.level),
        over_reference=over(hypothesis.compared_with),
        speedup=None if plain is None else plain.speedup,
    )


def check_continues(directory: StudyDir, study: Study) -> None:
    """Raises ``BadInput`` unless ``study`` can go on in a directory that holds trials of an earlier form of it.

    Arms, repetitions and budget may change; what every trial shares may not.
    """
    trials = directory.read_trials()
    if not trials:
        return
    known = directory.read_study()
    check_same_workload(directory, study, trials)
    if known.baseline.arm_id != study.baseline.arm_id:
        was, now = known.baseline, study.baseline
        raise BadInput(
            f"{directory.path}: holds a study of {was.target} on {was.engine}, not of {now.target} on {now.engine}; "
            "give this one its own directory with --dir"
        )
    _check_same_kind(directory, study, trials)
    if known.host != study.host and (known.cluster is None or study.cluster is None):
        raise BadInput(
            f"{directory.path}: holds trials measured on {known.host}, not on {study.host}; "
            "give this host its own directory with --dir"
        )
    if known.nodes_per_server != study.nodes_per_server:
        raise BadInput(
            f"{directory.path}: holds trials made with `ray.nodes` {known.nodes_per_server}, not "
            f"{study.nodes_per_server}; they cannot be compared. Give this one its own directory with --dir"
        )
    ignored = {"ready_timeout_s", "stuck_after_s", "allow_busy_gpus"}
    before, after = known.engine.model_dump(exclude=ignored), study.engine.model_dump(exclude=ignored)
    changed = [f"engine.{key}" for key in before if before[key] != after[key]]
    if changed:
        raise BadInput(
            f"{directory.path}: its trials were measured with other settings of {', '.join(changed)}; "
            "they cannot be compared. Give the changed study its own directory with --dir"
        )


def _check_same_kind(directory: StudyDir, study: Study, trials: Sequence[Trial]) -> None:
    """On a cluster a study stays on one kind of machine, also when most nodes are of another by now."""
    others = [t for t in trials if t.machine is not None and t.machine.kind != study.machine.kind]
    if study.cluster is not None and others and others[0].machine is not None:
        raise BadInput(
            f"{directory.path}: its trials were measured on nodes of another kind "
            f"({others[0].machine.kind_words}; most nodes are now {study.machine.kind_words}); they cannot be "
            "compared. Resume it by its directory to go on with such nodes, or give this one another with --dir"
        )


def check_same_workload(directory: StudyDir, study: Study, trials: Sequence[Trial]) -> None:
    wanted = study.workload.workload_hash
    others = [t for t in trials if t.workload_hash != wanted]
    if others:
        raise BadInput(
            f"{directory.path}: {len(others)} trials there were measured under another workload "
            f"({others[0].workload_hash}, now {wanted}); they cannot be compared. "
            "Give the changed study its own directory with --dir"
        )


def over_budget(study: Study, launches: int, elapsed_s: float) -> bool:
    budget = study.budget
    if budget.max_trials is not None and launches >= budget.max_trials:
        return True
    return budget.max_minutes is not None and elapsed_s >= budget.max_minutes * 60


def _any_complete(trials: Sequence[Trial]) -> bool:
    return any(t.status == "complete" for t in trials)
