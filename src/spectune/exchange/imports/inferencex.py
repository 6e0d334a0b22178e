"""Golden acceptance lengths of InferenceX: ``model -> thinking_on | thinking_off -> draft tokens: length``.

https://github.com/SemiAnalysisAI/InferenceX/tree/main/infx/golden_al_distribution
There is no speed in them: `compare` and `report` show acceptance alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spectune.domain.arm import Knobs
from spectune.domain.measurement import LoadResult, LoadTotals
from spectune.domain.workload import LoadPoint
from spectune.domain.yaml_values import NotYaml, yaml_values
from spectune.errors import BadInput
from spectune.exchange.imports.reading import Fields, SourceFile, shown, well_formed
from spectune.exchange.imports.results import (
    UNKNOWN_METHOD,
    ArmHints,
    ImportedResults,
    ImportedRun,
    arm_name,
)

TOOL = "inferencex"
MAX_YAML_BYTES = 2**20
_METHODS = ("eagle3", "dspark", "dflash", "mtp", "eagle")


def read_inferencex(sources: list[SourceFile], names: Mapping[Path, str], hints: ArmHints) -> ImportedResults:
    results = ImportedResults(TOOL, sources, [], unknown=("machine", "prompts", "sampling", "loads"))
    for source in sources:
        results.runs += _runs(source, _document(source), names.get(source.path), hints)
    results.missing += ["every speed: the files hold acceptance lengths alone", "concurrency"]
    return results


def _document(source: SourceFile) -> dict[Any, Any]:
    if len(source.text) > MAX_YAML_BYTES:
        raise BadInput(
            f"{source.path}: {len(source.text)} characters; at most {MAX_YAML_BYTES} are read as YAML"
        )
    try:
        document = yaml_values(source.text)
    except NotYaml as error:
        raise BadInput(f"{source.path}: is not YAML: {error}") from error
    if not is_golden(document):
        raise BadInput(
            f"{source.path}: is no golden acceptance file: expected model -> thinking_on or thinking_off -> "
            "number of draft tokens: acceptance length"
        )
    return dict(document)


def is_golden(document: Any) -> bool:
    """Models with modes with lengths; keys that begin with ``_`` are metadata."""
    if not isinstance(document, dict) or not document:
        return False
    models = [value for key, value in document.items() if not str(key).startswith("_")]
    return bool(models) and all(
        isinstance(modes, dict) and modes and all(isinstance(curve, dict) for curve in modes.values())
        for modes in models
    )


def _runs(
    source: SourceFile, document: dict[Any, Any], given: str | None, hints: ArmHints
) -> list[ImportedRun]:
    metadata = document.get("_metadata")
    drafter = metadata.get("draft-model") if isinstance(metadata, dict) else None
    method = hints.method or _method(source)
    found = []
    for model, modes in document.items():
        if str(model).startswith("_"):
            continue
        for mode, curve in modes.items():
            for drafted, length in curve.items():
                place = f"{source.path}: {model}.{mode}"
                k = _draft_tokens(drafted, place)
                value = Fields({str(k): length}, place).number(str(k), minimum=1.0)
                if value is not None and value > k + 1:
                    raise BadInput(
                        f"{place}: {k}: {value:g} tokens per step of only {k} drafted and one bonus token"
                    )
                prefix = f"{given} " if given else f"{model} " if len(document) > 1 + bool(metadata) else ""
                found.append(
                    ImportedRun(
                        name=arm_name(f"{prefix}{mode} k{k}"),
                        knobs=Knobs(
                            method=method,
                            drafter=hints.drafter
                            or (well_formed(drafter) if isinstance(drafter, str) else None),
                            num_draft_tokens=k,
                        ),
                        target=hints.target or well_formed(str(model)),
                        engine=hints.engine or "vllm",
                        result=LoadResult(
                            load=LoadPoint.closed(1),
                            requests=(),
                            duration_s=0.0,
                            totals=LoadTotals(acceptance_length=value),
                        ),
                        place=place,
                        flags={"mode": well_formed(str(mode))},
                    )
                )
    return found


def _draft_tokens(value: Any, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
        raise BadInput(f"{place}: number of draft tokens: must be a whole number from 1, got {shown(value)}")
    return value


def _method(source: SourceFile) -> str:
    """From the file's name, or a comment's ``method=``: the document itself does not say it."""
    stated = re.search(r"^#.*\bmethod=([a-z0-9_]{1,40})\b", source.text, re.MULTILINE)
    if stated:
        return stated[1]
    name = source.path.stem.lower()
    return next((m for m in _METHODS if re.search(rf"(^|[_.-]){m}([_.-]|$)", name)), UNKNOWN_METHOD)
