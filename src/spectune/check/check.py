"""Is a launch sound, before it is made? Commands and their models -> findings. Nothing is started or downloaded.

``spectune check`` shows the result; ``spectune run`` refuses errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spectune.analysis.words import listing
from spectune.check.sources import NOT_A_MODEL, Sources, known_path, missing
from spectune.domain.arm import Arm
from spectune.domain.findings import Finding, Severity
from spectune.domain.machine import Machine
from spectune.domain.secrets import redact_argv, redact_env
from spectune.domain.study import Study
from spectune.domain.workload import Workload
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput
from spectune.findings.catalogue import finding_kind
from spectune.hosts.choose import LOCAL
from spectune.hosts.facts import Gpu, memory_bytes_of
from spectune.hosts.seen_gpus import gpus_of_container, visible_gpus
from spectune.preflight.command.reading import ReadCommand, read_command
from spectune.preflight.draft import rules as draft_fit
from spectune.preflight.flags.form import judge_form
from spectune.preflight.flags.rules import judge_flags, rules_for
from spectune.preflight.memory import fit as memory
from spectune.preflight.rules import Judgement, judge
from spectune.preflight.situation import EngineVersion
from spectune.runner.parallel import gpus_of_arm, parts_of
from spectune.runner.plan import sample_launch

SCHEMA_VERSION = 1
_BYTES_PER_TOKEN = 6
"""Hardly any text has more: a prompt of 600 bytes has at least 100 tokens."""
_MOST_NAMES = 8
_MOST_SERVERS = 20
"""Of one text."""
_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class CheckResult:
    """What stands against the launches, the worst first."""

    findings: tuple[Finding, ...]
    """Each once; ``subject`` names the arms it holds for."""
    not_checked: tuple[str, ...]
    facts: Mapping[str, Any]
    """What was read, for people and scripts."""
    by_arm: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    """By arm id; arms without a finding are absent."""
    further: tuple[CheckResult, ...] = ()
    """Of the other servers in the same text."""

    def errors(self, *, allowed: Sequence[str] = ()) -> tuple[Finding, ...]:
        """Errors that nobody allowed by their code, those of ``further`` included."""
        own = tuple(f for f in self.findings if f.severity == "error" and f.code not in allowed)
        return own + tuple(error for result in self.further for error in result.errors(allowed=allowed))

    def document(self) -> dict[str, Any]:
        """The stable form for scripts."""
        return {
            "schema_version": SCHEMA_VERSION,
            "facts": dict(self.facts),
            "findings": [finding.model_dump(mode="json") for finding in self.findings],
            "not_checked": list(self.not_checked),
            **({"further": [result.document() for result in self.further]} if self.further else {}),
        }


@dataclass(frozen=True)
class _Launch:
    """One command with its judgement."""

    name: str
    arm_id: str | None
    command: tuple[str, ...]
    version: EngineVersion | None
    judgement: Judgement


def without_refused(
    study: Study, checked: CheckResult, *, allowed: Sequence[str]
) -> tuple[Study, CheckResult]:
    """A search goes on without the arms that have errors; they are kept with their reason as ``pruned_arms``.

    Unchanged where the study lists what it wants, where the baseline has an
    error, or where no arm would be left: then the study itself is wrong.
    """
    refused = {
        arm_id: error
        for arm_id, findings in checked.by_arm.items()
        if (error := next((f for f in findings if f.severity == "error" and f.code not in allowed), None))
    }
    kept = tuple(arm for arm in study.arms if arm.arm_id not in refused)
    if study.search is None or not refused or kept[:1] != study.arms[:1] or len(kept) < 2:
        return study, checked
    reasons = {study.arm(arm_id).name: f"check: {e.code}: {e.message}" for arm_id, e in refused.items()}
    standing = {f.code for arm in kept for f in checked.by_arm.get(arm.arm_id, ())}
    gone = {e.code for e in refused.values()} - standing
    changed = study.model_copy(update={"arms": kept, "pruned_arms": {**study.pruned_arms, **reasons}})
    findings = tuple(f for f in checked.findings if f.code not in gone)
    by_arm = {arm_id: found for arm_id, found in checked.by_arm.items() if arm_id not in refused}
    return changed, replace(checked, findings=findings, by_arm=by_arm)


def check_study(
    study: Study,
    sources: Sources,
    *,
    arms: Sequence[Arm] | None = None,
    gpus: Sequence[Gpu] | None = None,
    exported: Mapping[str, str] | None = None,
    engine_version: str | None = None,
) -> CheckResult:
    """The launches of ``arms`` (default: all).

    ``gpus``: those of the study's host, ``None`` if not known; ``exported``:
    its variables that choose among them, which a server's own come before.
    """
    engine = study.engine.name
    facts: dict[str, Any] = {"study": study.name, "engine": {"name": engine, "version": None, "how": None}}
    if not rules_for(engine):
        return CheckResult((), (f"everything: there are no rules for the engine {engine}",), facts)
    machine = study.machine if study.host == LOCAL else None
    least_prompt_tokens = least_tokens_of_longest_prompt(study.workload)
    launches = [
        _check_arm(
            arm, study, sources, machine=machine, gpus=gpus, given=engine_version, exported=exported or {}
        )
        for arm in (study.arms if arms is None else arms)
    ]
    facts |= {
        "machine": None if machine is None else machine.model_dump(mode="json"),
        "gpu_memory_bytes": memory_bytes_of(gpus),
        "workload": {
            "max_concurrency": sample_launch(study.baseline, study.engine, study.workload).max_concurrency,
            "least_tokens_of_longest_prompt": least_prompt_tokens,
            "max_tokens": _max_tokens(study.workload),
        },
    }
    return _result(launches, facts, sources)


def check_command(
    words: Sequence[str] | str,
    sources: Sources,
    *,
    machine: Machine | None = None,
    gpus: Sequence[Gpu] | None = None,
    exported: Mapping[str, str] | None = None,
    engine_version: str | None = None,
) -> CheckResult:
    """The server commands of an argument list or a pasted text, the further ones in ``further``.

    Raises ``BadInput`` if it starts no known server.
    """

    def one(number: int) -> tuple[ReadCommand, CheckResult]:
        read = read_command(words, env=exported, engine_version=engine_version, number=number)
        version = sources.version(read, given=engine_version, from_paste=True)
        if version.text not in (None, engine_version):
            read = read_command(words, env=exported, engine_version=version.text, number=number)
        judgement = _judged(read, read.program, version, sources, machine=machine, gpus=gpus)
        launch = _Launch(read.program, None, redact_argv(read.argv), version, judgement)
        facts: dict[str, Any] = {
            "study": None,
            "engine": {"name": read.engine, "version": None, "how": None},
            "machine": None if machine is None else machine.model_dump(mode="json"),
            "gpu_memory_bytes": memory_bytes_of(gpus),
            "workload": None,
        }
        return read, _result([launch], facts, sources)

    read, first = one(0)
    others = tuple(one(number)[1] for number in range(1, 1 + min(len(read.other_servers), _MOST_SERVERS)))
    return replace(first, further=others)


def least_tokens_of_longest_prompt(workload: Workload) -> int:
    """A lower bound without a tokenizer, so that no prompt is called too long that is not."""
    lengths = [sum(len(turn.encode()) for turn in prompt.turns) for prompt in workload.prompts]
    return max(lengths, default=0) // _BYTES_PER_TOKEN


def _max_tokens(workload: Workload) -> int:
    own = [prompt.output_tokens for prompt in workload.prompts if prompt.output_tokens is not None]
    return max([*own, workload.sampling.max_tokens] if len(own) < len(workload.prompts) else own)


def _check_arm(
    arm: Arm,
    study: Study,
    sources: Sources,
    *,
    machine: Machine | None,
    gpus: Sequence[Gpu] | None,
    given: str | None,
    exported: Mapping[str, str],
) -> _Launch:
    adapter = adapter_for(arm.engine)
    local = study.host == LOCAL

    def path(reference: str | None) -> str | None:
        return (
            known_path(reference, model_format=adapter.model_format, home=sources.home)
            if local
            else reference
        )

    launch = sample_launch(
        arm,
        study.engine,
        study.workload,
        target_path=path(arm.target),
        drafter_path=path(arm.knobs.drafter),
        nodes=study.nodes_per_server,
    )
    command = adapter.command(launch)
    argv, env = redact_argv(command.argv), {**exported, **redact_env(command.env)}
    absent = Judgement()
    if local:
        models = {"target": path(arm.target), "drafter": path(arm.knobs.drafter)}
        absent = missing(argv, models, subject=arm.name, model_format=adapter.model_format)
    try:
        read = read_command(argv, env=env)
        version = sources.version(read, given=given, from_paste=False)
        if version.text is not None:
            read = read_command(argv, env=env, engine_version=version.text)
    except BadInput as error:
        unread = Judgement(not_checked=(f"its command: {str(error).splitlines()[0]}",))
        return _Launch(arm.name, arm.arm_id, argv, None, absent + unread)
    judgement = _judged(
        read,
        arm.name,
        version,
        sources,
        machine=machine,
        gpus=gpus,
        max_concurrency=launch.max_concurrency,
        max_prompt_tokens=least_tokens_of_longest_prompt(study.workload),
        max_tokens=_max_tokens(study.workload),
    )
    return _Launch(arm.name, arm.arm_id, argv, version, absent + judgement + _fits_nodes(arm, study))


def _fits_nodes(arm: Arm, study: Study) -> Judgement:
    """On a cluster whose nodes are known: has each the GPUs that the arm's server needs of it?"""
    gpus, wanted = study.machine.gpus, gpus_of_arm(arm, study)
    if study.cluster is None or study.cluster.gpus is not None or not gpus or wanted <= len(gpus):
        return Judgement()
    nodes = study.nodes_per_server
    whole = parts_of(arm, study.engine.flags)
    return Judgement(
        findings=(
            memory.TOO_FEW_GPUS.found(
                arm.name,
                f"its parallel flags multiply to {whole}: {wanted} on each of {nodes} "
                f"{'node' if nodes == 1 else 'nodes'}, which have {len(gpus)}",
                evidence=[("parallel flags", str(whole)), ("GPUs of a node", str(len(gpus)))],
                remedy=f"`ray: {{nodes: {-(-whole // len(gpus))}}}`, or lower the parallel sizes",
            ),
        )
    )


def _judged(
    read: ReadCommand,
    subject: str,
    version: EngineVersion,
    sources: Sources,
    *,
    machine: Machine | None,
    gpus: Sequence[Gpu] | None,
    **workload: int,
) -> Judgement:
    """All rules over one command."""
    in_container = read.container is not None
    target = sources.model(read.target, engine=read.engine, in_container=in_container)
    draft = sources.model(read.draft, engine=read.engine, in_container=in_container)
    situation = read.situation(
        version, subject=subject, target=target, draft=draft, machine=machine, **workload
    )
    memory_bytes = memory_bytes_of(_seen(gpus, read))
    unreadable = [
        NOT_A_MODEL.found(subject, f"{what} {name}: {reason}", evidence=[(name, reason)])
        for what, name in (("target", read.target), ("draft", read.draft))
        if name is not None and (reason := sources.unreadable.get(name)) is not None
    ]
    judgement = (
        Judgement(findings=tuple(unreadable))
        + judge_form(read, subject=subject)
        + judge_flags(situation)
        + judge(situation, (*draft_fit.RULES, *memory.rules(memory_bytes)))
    )
    return _without_absent(judgement, read.arguments.open_words)


def _without_absent(judgement: Judgement, open_words: Sequence[str]) -> Judgement:
    """What is missing may stand in words that only a shell could fill in."""
    absent = [f for f in judgement.findings if finding_kind(f.code).absent] if open_words else []
    if not absent:
        return judgement
    words = ", ".join(open_words)
    return Judgement(
        tuple(f for f in judgement.findings if f not in absent),
        (*judgement.not_checked, *(f"{f.code}: {words} may bring what is missing" for f in absent)),
    )


def _seen(gpus: Sequence[Gpu] | None, read: ReadCommand) -> Sequence[Gpu] | None:
    """The devices that the server could use."""
    if gpus is None or read.container is None:
        return None if gpus is None else visible_gpus(gpus, read.env)
    return gpus_of_container(gpus, read.container.gpus, read.env)


def _result(launches: Sequence[_Launch], facts: dict[str, Any], sources: Sources) -> CheckResult:
    """Launches as one result; what holds for several is said once."""
    versions = list(dict.fromkeys(launch.version for launch in launches if launch.version is not None))
    if versions:
        how = "; ".join(version.source for version in versions)
        facts["engine"] = {**facts["engine"], "version": versions[0].text, "how": how}
    facts["launches"] = [
        {"name": launch.name, "arm_id": launch.arm_id, "command": list(launch.command)} for launch in launches
    ]
    facts["models"] = sources.facts()
    facts["bytes_read"] = sum(model.bytes_read for model in sources.models.values())
    findings, by_arm = _joined(launches)
    return CheckResult(findings, _reasons(launches), facts, by_arm)


def _joined(launches: Sequence[_Launch]) -> tuple[tuple[Finding, ...], dict[str, tuple[Finding, ...]]]:
    groups: dict[str, tuple[Finding, list[_Launch]]] = {}
    for launch in launches:
        for finding in launch.judgement.findings:
            key = finding.model_copy(update={"subject": ""}).model_dump_json()
            _, members = groups.setdefault(key, (finding, []))
            if launch not in members:
                members.append(launch)
    ranked = sorted(groups.values(), key=lambda group: _ORDER[group[0].severity])
    by_arm: dict[str, tuple[Finding, ...]] = {}
    joined = []
    for finding, members in ranked:
        one = finding.model_copy(update={"subject": _names(members)}) if len(members) > 1 else finding
        joined.append(one)
        for launch in members:
            if launch.arm_id is not None:
                by_arm[launch.arm_id] = (*by_arm.get(launch.arm_id, ()), one)
    return tuple(joined), by_arm


def _reasons(launches: Sequence[_Launch]) -> tuple[str, ...]:
    reasons: dict[str, list[_Launch]] = {}
    for launch in launches:
        for reason in launch.judgement.not_checked:
            reasons.setdefault(reason, []).append(launch)
    return tuple(
        reason if len(members) == len(launches) else f"{reason} ({_names(members)})"
        for reason, members in reasons.items()
    )


def _names(launches: Sequence[_Launch]) -> str:
    return listing((launch.name for launch in launches), most=_MOST_NAMES)
