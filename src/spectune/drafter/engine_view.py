"""What one engine would make of a draft under one method: preflight's rules, without a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from spectune.checkpoints.facts import CheckpointFacts
from spectune.domain.findings import Finding
from spectune.domain.record import Record
from spectune.engines.registry import adapter_for, title_of
from spectune.preflight.command.reading import read_command
from spectune.preflight.draft.family import identify
from spectune.preflight.draft.method_names import method_flag
from spectune.preflight.draft.rules import RULES
from spectune.preflight.rules import judge
from spectune.preflight.situation import EngineVersion

Verdict = Literal["fits", "doubts", "fails", "unknown", "other-form"]

_K = 3
_WORDS: dict[str, dict[str, str]] = {
    "sglang": {
        "eagle3": "EAGLE3",
        "eagle": "EAGLE",
        "standalone": "STANDALONE",
        "mtp": "NEXTN",
        "dflash": "DFLASH",
    },
    "vllm": {
        "eagle3": "eagle3",
        "eagle": "eagle",
        "standalone": "draft_model",
        "mtp": "mtp",
        "dflash": "dflash",
    },
    "llamacpp": {
        "eagle3": "draft-eagle3",
        "standalone": "draft-simple",
        "mtp": "draft-mtp",
        "dflash": "draft-dflash",
    },
}
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
    for engine in _WORDS:
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
    word = _WORDS[engine].get(family)
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
    read = read_command(_command(engine, word, draft.source, target.source if target else "TARGET"))
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


def _command(engine: str, word: str, draft: str, target: str) -> Sequence[str]:
    if engine == "sglang":
        return (
            *(
                "python",
                "-m",
                "sglang.launch_server",
                "--model-path",
                target,
                "--speculative-algorithm",
                word,
            ),
            *("--speculative-draft-model-path", draft, "--speculative-num-steps", str(_K)),
            *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(_K + 1)),
        )
    if engine == "vllm":
        config = {"method": word, "model": draft, "num_speculative_tokens": _K}
        return ("vllm", "serve", target, "--speculative-config", json.dumps(config))
    return ("llama-server", "-m", target, "-md", draft, "--spec-type", word, "--spec-draft-n-max", str(_K))
