"""A checked study file -> a ``Study`` with every arm, prompt and launch written out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spectune import __version__
from spectune.bench.prompts import load_prompts, merge_prompts
from spectune.domain.arm import FACTORS, Arm, FlagValue, Knobs, baseline_arm
from spectune.domain.machine import Machine
from spectune.domain.study import (
    ArmExpectation,
    Budget,
    ClusterSettings,
    EngineSettings,
    PlannedTrial,
    Study,
)
from spectune.domain.workload import WAVES, LoadPoint, Prompt, Sampling, Workload
from spectune.engines.adapter import EngineAdapter, EngineSetup, Launch, Rank
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput, Problem, StudyFileError
from spectune.hosts.choose import LOCAL, is_cluster
from spectune.runner.order import plan_trials
from spectune.runner.parallel import check_divides
from spectune.study_file.schema import ArmSpec, EngineRun, ModelSpec, StudySpec, WorkloadSpec
from spectune.study_file.yaml_lines import Document

_MAX_ARMS = 10_000
_STUCK_AFTER_S = 300.0
_LEASE_S = 30.0
_LEASE_OVER_SSH_S = 120.0


def resolve_study(
    spec: StudySpec, document: Document, *, path: Path, machine: Machine, now: datetime | None = None
) -> Study:
    """Everything the study will do; raises ``StudyFileError`` with every remaining mistake.

    File names in the study are relative to the study file.
    """
    problems: list[Problem] = []

    def problem(where: Sequence[str | int], message: str) -> None:
        dotted = ".".join(str(part) for part in where)
        problems.append(Problem(dotted, message, document.line_of(tuple(where))))

    adapter = adapter_for(spec.engine.name)
    engine = _engine_settings(spec, base=path.parent)
    target = _model(spec.target, adapter, path.parent)
    if target is None:
        problem(("target",), f"gives no {adapter.model_format} form, which {adapter.name} needs")
        target = "?"
    arms, expectations, skipped, places = _arms(spec, adapter, target, path.parent, problem)
    prompts = _prompts(spec.workload, path.parent, problem)
    workload = _workload(spec.workload, prompts)
    pruned: dict[str, str] = {}
    nodes = 1 if spec.ray is None else spec.ray.nodes
    if nodes > 1 and adapter.one_node_reason is not None:
        problem(("ray", "nodes"), f"{nodes} nodes for a server: {adapter.one_node_reason}; give nodes: 1")
        nodes = 1
    for arm in list(arms):
        place = places.get(arm.arm_id, ("arms",))
        try:
            adapter.command(sample_launch(arm, engine, workload, nodes=nodes))
            check_divides(arm, engine.flags, nodes=nodes)
        except BadInput as error:
            if place == ("factors",):  # a corner of a space of combinations, not an arm that somebody wrote
                pruned[arm.name] = str(error)
                arms.remove(arm)
            else:
                problem(place, f"arm {arm.name}: {error}")
    search = _search_of(spec)
    if search is not None and spec.order == "abba":
        problem(("order",), f"a search ({search}) chooses each next launch itself: abba needs `search: all`")
    if search is not None and workload is not None and all(p.concurrency is None for p in workload.loads):
        problem(
            ("workload", "request_rate"),
            f"a search ({search}) looks for the fastest request and needs `concurrency` beside it; with arrivals "
            "alone measure every arm: `search: all`",
        )
    if len(arms) == 1 and not problems:
        nothing = "; ".join(f"{name}: {reason}" for name, reason in list(pruned.items())[:3])
        problem(
            ("factors",) if pruned else ("arms",),
            f"no combination can be launched: {nothing}"
            if pruned
            else "no arm beside the baseline; give arms or factors",
        )
    if problems:
        unique = list(dict.fromkeys(problems))
        raise StudyFileError(str(path), sorted(unique, key=lambda p: p.line or 0))
    on_cluster = is_cluster(spec.host)
    if search is None and on_cluster:
        others = range(spec.repetitions)
        plan = tuple(PlannedTrial(arm_id=arm.arm_id, repetition=n) for n in others for arm in arms[1:])
    elif search is None:
        ids = [arm.arm_id for arm in arms]
        plan = tuple(
            plan_trials(
                ids,
                repetitions=spec.repetitions,
                baseline_every=spec.baseline_every,
                noise_floor=spec.noise_floor,
                order=spec.order,
                launch_ids={arm.arm_id: arm.launch_id for arm in arms},
            )
        )
    else:
        first = arms[0].arm_id
        known = 0 if on_cluster else 2 if spec.noise_floor else 1
        plan = tuple(PlannedTrial(arm_id=first, repetition=i) for i in range(known))
    return Study(
        name=spec.name or name_from(path),
        question=spec.question,
        created_at=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
        spectune_version=__version__,
        machine=machine,
        host=spec.host,
        cluster=_cluster_settings(spec) if on_cluster else None,
        lease_s=spec.lease_s or (_LEASE_S if spec.host == LOCAL or on_cluster else _LEASE_OVER_SSH_S),
        soak_s=spec.soak_s,
        engine=engine,
        arms=tuple(arms),
        expectations=expectations,
        skipped_arms=tuple(skipped),
        pruned_arms=pruned,
        search=search,
        repetitions=spec.repetitions,
        baseline_every=spec.baseline_every,
        order=spec.order,
        noise_floor=spec.noise_floor,
        precision=spec.precision,
        plan=plan,
        workload=workload,
        warmup_requests=spec.workload.warmup_requests,
        budget=Budget(max_trials=spec.budget.max_trials, max_minutes=spec.budget.max_minutes),
        level=spec.level,
        margin=spec.margin,
    )


def _cluster_settings(spec: StudySpec) -> ClusterSettings:
    return ClusterSettings() if spec.ray is None else ClusterSettings(**spec.ray.model_dump())


def _search_of(spec: StudySpec) -> str | None:
    """The strategy; arms that are listed are all wanted, factors span a space to be searched."""
    if spec.search == "all":
        return None
    return spec.search or ("predict" if spec.factors and not spec.arms else None)


def name_from(path: Path) -> str:
    """A study's name from its file's: letters of any script, digits, dots, dashes; never a path of its own."""
    return re.sub(r"[^\w.-]+", "-", path.stem).strip(".-_")[:80] or "study"


def setup_of(engine: EngineSettings) -> EngineSetup:
    """The adapter's view of how the engine is run."""
    return EngineSetup(
        name=engine.name,
        python=engine.python,
        executable=engine.executable,
        command=engine.command,
        flags=engine.flags,
        env=engine.env,
    )


def sample_launch(
    arm: Arm,
    engine: EngineSettings,
    workload: Workload,
    *,
    port: int = 30000,
    target_path: str | None = None,
    drafter_path: str | None = None,
    nodes: int = 1,
    rank: Rank | None = None,
) -> Launch:
    """The launch of an arm; with the model references themselves where no paths are given yet.

    Of a server over several ``nodes`` it is rank 0's, with addresses that stand for those chosen later.
    """
    if rank is None and nodes > 1:
        rank = Rank(number=0, of=nodes, address="127.0.0.1", head="127.0.0.1", head_port=port + 1)
    return Launch(
        arm=arm,
        setup=setup_of(engine),
        host="127.0.0.1",
        port=port,
        target_path=target_path or arm.target,
        drafter_path=drafter_path or arm.knobs.drafter,
        max_concurrency=_max_concurrency(workload),
        rank=rank,
    )


def _max_concurrency(workload: Workload) -> int:
    """Requests a server must hold at once; an open loop is given 64 places."""
    return max(64 if load.shape == "open" else load.streams for load in workload.loads)


def _engine_settings(spec: StudySpec, *, base: Path) -> EngineSettings:
    chosen: EngineRun = spec.engine
    shared = spec.engines.get(spec.engine.name, EngineRun())
    how = chosen if chosen.python or chosen.executable or chosen.command else shared
    return EngineSettings(
        name=spec.engine.name,
        python=_program(how.python, base),
        executable=_program(how.executable, base),
        command=how.command,
        flags={**shared.flags, **chosen.flags},
        env={**shared.env, **chosen.env},
        ready_timeout_s=chosen.ready_timeout_s or shared.ready_timeout_s,
        stuck_after_s=chosen.stuck_after_s or shared.stuck_after_s or _STUCK_AFTER_S,
        allow_busy_gpus=chosen.allow_busy_gpus or shared.allow_busy_gpus,
    )


def _program(value: str | None, base: Path) -> str | None:
    if value is None or "/" not in value:
        return value
    expanded = Path(value).expanduser()
    return str(expanded if expanded.is_absolute() else (base / expanded).absolute())


def _model(model: ModelSpec | None, adapter: EngineAdapter, base: Path) -> str | None:
    """The reference for this engine; a path that exists is made absolute, anything else stays a name."""
    reference = model.for_format(adapter.model_format) if model else None
    if reference is None:
        return None
    candidate = base / Path(reference).expanduser()
    return str(candidate.absolute()) if candidate.exists() else reference


def _arms(
    spec: StudySpec, adapter: EngineAdapter, target: str, base: Path, problem: Any
) -> tuple[list[Arm], dict[str, ArmExpectation], list[str], dict[str, tuple[str | int, ...]]]:
    baseline = baseline_arm(engine=adapter.name, target=target)
    arms: dict[str, Arm] = {}
    names: set[str] = set()
    expectations: dict[str, ArmExpectation] = {}
    skipped: list[str] = []
    places: dict[str, tuple[str | int, ...]] = {}
    for arm_spec, place in [*_listed(spec), *_combinations(spec, problem)]:
        name = arm_spec.name or _name_of(arm_spec)
        if place == ("factors",):
            name = _told_apart(name, arm_spec, spec, adapter)
        if arm_spec.only_engines and adapter.name not in arm_spec.only_engines:
            skipped.append(name)
            continue
        arm = _arm(arm_spec, name, spec, adapter, target, base)
        if arm.arm_id == baseline.arm_id:
            continue
        if arm.arm_id in arms:
            both = place == ("factors",) and spec.arms
            there = "; leave it out of one of `arms` and `factors`" if both else "; give it once"
            problem(place, f"arm {name} is the same configuration as arm {arms[arm.arm_id].name}{there}")
            continue
        if name in names and place == ("factors",):  # nobody can give a combination another name
            name = next(n for i in itertools.count(2) if (n := f"{name[:56]}-{i}") not in names)
            arm = arm.model_copy(update={"name": name})
        if name in names or name == baseline.name:
            problem(place, f"two arms are called {name!r}; give them names of their own")
            continue
        arms[arm.arm_id] = arm
        names.add(name)
        places[arm.arm_id] = place
        if arm_spec.expect or arm_spec.why:
            expectations[arm.arm_id] = ArmExpectation(expect=arm_spec.expect, why=arm_spec.why)
    return [baseline, *arms.values()], expectations, skipped, places


def _told_apart(name: str, arm: ArmSpec, spec: StudySpec, adapter: EngineAdapter) -> str:
    """With the factors that a name leaves out, where they have several values."""
    more = ""
    reference = arm.drafter.for_format(adapter.model_format) if arm.drafter is not None else None
    if reference is not None and len(spec.factors.get("drafter", ())) > 1:
        more += f"-{Path(reference).name[:30]}"
    if arm.cuda_graphs is True and None in spec.factors.get("cuda_graphs", ()):
        more += "-graphs"
    return name[: 60 - len(more)] + more


def _listed(spec: StudySpec) -> list[tuple[ArmSpec, tuple[str | int, ...]]]:
    return [(arm, ("arms", index)) for index, arm in enumerate(spec.arms)]


def _combinations(spec: StudySpec, problem: Any) -> list[tuple[ArmSpec, tuple[str | int, ...]]]:
    if not spec.factors:
        return []
    count = 1
    for values in spec.factors.values():
        count *= len(values)
    if count > _MAX_ARMS:
        problem(("factors",), f"{count} combinations; at most {_MAX_ARMS}")
        return []
    found: list[tuple[ArmSpec, tuple[str | int, ...]]] = []
    for values in itertools.product(*spec.factors.values()):
        chosen = dict(zip(spec.factors, values, strict=True))
        knobs = {k: v for k, v in chosen.items() if k in FACTORS and v is not None}
        flags = {k.removeprefix("flags."): v for k, v in chosen.items() if k.startswith("flags.")}
        request = {k.removeprefix("request."): v for k, v in chosen.items() if k.startswith("request.")}
        if knobs.get("method") == "none" and not flags and not request:
            continue
        try:
            found.append(
                (ArmSpec.model_validate({**knobs, "flags": flags, "request": request}), ("factors",))
            )
        except ValidationError as error:
            for details in error.errors():
                message, where = details["msg"].removeprefix("Value error, "), details["loc"]
                if where[0] == "flags":
                    message, where = "must be a text, a number, true or false", where[:2]
                dotted = ".".join(str(part) for part in where)
                got = details["input"]
                shown = "" if details["type"] == "missing" else f", got {got!r:.80}"
                problem(("factors",), f"{dotted}: {message}{shown}")
    return found


def _arm(arm: ArmSpec, name: str, spec: StudySpec, adapter: EngineAdapter, target: str, base: Path) -> Arm:
    drafter = _model(arm.drafter, adapter, base)
    if drafter is None and arm.method in adapter.traits.needs_drafter:
        drafter = _model(spec.drafter, adapter, base)
    flags: dict[str, FlagValue] = dict(arm.flags)
    return Arm(
        name=name,
        engine=adapter.name,
        target=target,
        knobs=Knobs(
            method=arm.method,
            drafter=drafter,
            num_steps=arm.num_steps,
            topk=arm.topk,
            num_draft_tokens=arm.num_draft_tokens,
            cuda_graphs=arm.cuda_graphs,
        ),
        flags=flags,
        env=arm.env,
        request={field: value for field, value in arm.request.items() if value is not None},
        synthetic_acceptance_length=arm.synthetic_acceptance_length,
        synthetic_acceptance_rates=arm.synthetic_acceptance_rates,
    )


def _name_of(arm: ArmSpec) -> str:
    parts = [arm.method]
    if arm.num_steps is not None and arm.num_steps != arm.num_draft_tokens:
        parts.append(f"s{arm.num_steps}")
    if arm.topk is not None and arm.topk != 1:
        parts.append(f"t{arm.topk}")
    if arm.num_draft_tokens is not None:
        parts.append(f"k{arm.num_draft_tokens}")
    if arm.cuda_graphs is False:
        parts.append("nographs")
    if arm.synthetic_acceptance_length is not None:
        parts.append(f"synth{arm.synthetic_acceptance_length:g}")
    if arm.synthetic_acceptance_rates is not None:
        parts.append(f"synth{1 + sum(arm.synthetic_acceptance_rates[: arm.num_draft_tokens]):.3g}")
    parts.extend(f"{name.split('-')[-1]}={value}" for name, value in arm.flags.items())
    parts.extend(
        f"{field.split('.')[-1]}={value}" for field, value in arm.request.items() if value is not None
    )
    return "-".join(parts)[:60]


def _prompts(spec: WorkloadSpec, base: Path, problem: Any) -> tuple[Prompt, ...]:
    sets: list[tuple[Prompt, ...]] = []
    for index, source in enumerate(spec.prompts):
        try:
            sets.append(load_prompts(source, limit=spec.num_prompts, turns=spec.turns, base_dir=base))
        except BadInput as error:
            problem(("workload", "prompts", index), str(error))
    return merge_prompts(sets, limit=spec.num_prompts)


def _workload(spec: WorkloadSpec, prompts: tuple[Prompt, ...]) -> Workload:
    loads = [LoadPoint.closed(c) for c in spec.concurrency]
    loads += [LoadPoint.open(rate) for rate in spec.request_rate]
    return Workload(
        prompts=prompts,
        sampling=Sampling(
            max_tokens=spec.max_tokens,
            temperature=spec.temperature,
            seed=spec.seed,
            ignore_eos=spec.ignore_eos,
            extra_body=spec.extra_body,
        ),
        loads=tuple(loads) or (LoadPoint.closed(1),),
        api=spec.api,
        requests_per_load=spec.requests_per_load,
        waves=None if spec.requests_per_load is not None else WAVES,
        request_timeout_s=spec.request_timeout_s,
    )
