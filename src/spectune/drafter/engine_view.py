"""What one engine would make of a draft under one method: preflight's rules, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from spectune.checkpoints.facts import CheckpointFacts
from spectune.domain.arm import Arm, Knobs
from spectune.domain.findings import Finding
from spectune.domain.record import Record
from spectune.engines.adapter import EngineSetup, Launch
from spectune.engines.registry import ENGINE_NAMES, adapter_for, title_of, traits_for
from spectune.preflight.command.reading import read_command
from spectune.preflight.draft.family import identify
from spectune.preflight.draft.method_names import drafting_method, method_flag
from spectune.preflight.draft.rules import RULES
from spectune.preflight.rules import judge
from spectune.preflight.situation import EngineVersion

Verdict = Literal["fits", "doubts", "fails", "unknown", "other-form"]

_K = 3
_OFTEN_CONFUSED = {"eagle3": ("eagle",), "eagle": ("eagle3",), "standalone": ("eagle3",)}


class EngineView(Record):
    """One engine and one method.

    ``unknown``: the draft's weights were not read; ``other-form``: it cannot load this kind of file at all.
    """

    engine: str
    version: str | None
    method: str
    """In the engine's own words: ``EAGLE3``."""
    flag: str | None
    own_method: bool
    """The method the draft was made for."""
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[str, ...] = ()


def views_of(
    draft: CheckpointFacts, *, target: CheckpointFacts | None, versions: dict[str, str | None]
) -> tuple[EngineView, ...]:
    """Each engine with the draft's own method, then with those it is often confused with."""
    family = identify(draft, target=target).family
    if family is None:
        return ()
    views = []
    for engine in ENGINE_NAMES:
        for asked in (family, *_OFTEN_CONFUSED.get(family, ())):
            view = engine_view(
                draft,
                engine=engine,
                family=asked,
                target=target,
                version=versions.get(engine),
                own=asked == family,
            )
            if view is not None:
                views.append(view)
    return tuple(views)


def engine_view(
    draft: CheckpointFacts,
    *,
    engine: str,
    family: str,
    target: CheckpointFacts | None,
    version: str | None = None,
    own: bool = True,
) -> EngineView | None:
    """``None``: the engine has no such method."""
    method = drafting_method(family)
    word = traits_for(engine).methods.get(method)
    if word is None:
        return None
    view = EngineView(
        engine=engine,
        version=version,
        method=word,
        flag=method_flag(engine, family),
        own_method=own,
        verdict="other-form",
    )
    is_gguf, loads_gguf = draft.kind == "gguf", adapter_for(engine).model_format == "gguf"
    if is_gguf != loads_gguf:
        form = "a GGUF file" if loads_gguf else "a folder with config.json and safetensors"
        note = f"{title_of(engine)} loads {form}: make one with `spectune drafter export`"
        return view.model_copy(update={"not_checked": (note,)})
    read = read_command(_command(engine, method, draft.source, target.source if target else "TARGET"))
    known = EngineVersion(version, "given" if version else "not given: the rules of the newest version known")
    judgement = judge(read.situation(known, subject=draft.source, target=target, draft=draft), RULES)
    severities = {finding.severity for finding in judgement.findings}
    verdict: Verdict = "fits"
    if "error" in severities:
        verdict = "fails"
    elif draft.tensors is None:
        verdict = "unknown"
    elif "warning" in severities:
        verdict = "doubts"
    told = {"verdict": verdict, "findings": judgement.findings, "not_checked": judgement.not_checked}
    return view.model_copy(update=told)


def _command(engine: str, method: str, draft: str, target: str) -> Sequence[str]:
    """What spectune would launch."""
    adapter = adapter_for(engine)
    launch = Launch(
        arm=Arm(name=method, engine=engine, target=target, knobs=Knobs(method=method, num_draft_tokens=_K)),
        setup=EngineSetup(name=engine),
        host=adapter.traits.host,
        port=adapter.traits.port,
        target_path=target,
        drafter_path=draft,
        max_concurrency=1,
    )
    return adapter.command(launch).argv
