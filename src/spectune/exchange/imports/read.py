"""Which tool wrote these files, and what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spectune.domain.yaml_values import NotYaml, yaml_values
from spectune.errors import BadInput
from spectune.exchange.imports import guidellm, inferencex, sglang, specforge, vllm
from spectune.exchange.imports.reading import MAX_FILES, SourceFile, json_documents, read_source
from spectune.exchange.imports.results import ArmHints, ImportedResults

FORMATS = (
    vllm.BENCH,
    vllm.SWEEP,
    sglang.SERVING,
    sglang.SPECULATIVE,
    specforge.TOOL,
    guidellm.TOOL,
    inferencex.TOOL,
)
_READERS = {
    vllm.BENCH: vllm.read_bench,
    sglang.SERVING: sglang.read_serving,
    sglang.SPECULATIVE: sglang.read_speculative,
    specforge.TOOL: specforge.read_specforge,
    guidellm.TOOL: guidellm.read_guidellm,
    inferencex.TOOL: inferencex.read_inferencex,
}


def read_results(
    paths: Sequence[Path], *, names: Mapping[Path, str], form: str, hints: ArmHints
) -> ImportedResults:
    """``form`` is one of ``FORMATS``, or ``auto``: all files must then be of one tool."""
    if len(paths) > MAX_FILES:
        raise BadInput(f"import: {len(paths)} files; at most {MAX_FILES}")
    folders = [path for path in paths if path.is_dir()]
    if form == vllm.SWEEP or (form == "auto" and folders):
        return vllm.read_sweep(list(paths), names, hints)
    if folders:
        raise BadInput(f"{folders[0]}: is a folder; only --as {vllm.SWEEP} takes folders")
    sources = [read_source(path) for path in paths]
    if form == "auto":
        found = {source.path: detect(source) for source in sources}
        form = found[sources[0].path]
        other = next((path for path, tool in found.items() if tool != form), None)
        if other is not None:
            raise BadInput(
                f"{other}: is of {found[other]}, but {sources[0].path} is of {form}: import each tool's files into a "
                "study of its own, and use `spectune compare`"
            )
        if form == vllm.SWEEP:
            return vllm.read_sweep(list(paths), names, hints)
    return _READERS[form](sources, names, hints)


def detect(source: SourceFile) -> str:
    """The tool by the shape of its document; ``BadInput`` lists what is known."""
    try:
        documents = json_documents(source)
    except BadInput as error:
        if _is_golden(source):
            return inferencex.TOOL
        raise error
    first: Any = documents[0]
    if isinstance(first, list) and first and vllm.is_bench_result(first[0]):
        return vllm.SWEEP
    if vllm.is_bench_result(first):
        return vllm.SWEEP if "run_number" in first else vllm.BENCH
    if guidellm.is_report(first):
        return guidellm.TOOL
    if sglang.is_serving_result(first):
        return sglang.SERVING
    if sglang.is_speculative_result(first):
        return sglang.SPECULATIVE
    if specforge.is_result(first):
        return specforge.TOOL
    raise BadInput(
        f"{source.path}: is of no tool that is known here; say which with --as ({', '.join(FORMATS)})"
    )


def _is_golden(source: SourceFile) -> bool:
    if len(source.text) > inferencex.MAX_YAML_BYTES:
        return False
    try:
        return inferencex.is_golden(yaml_values(source.text))
    except NotYaml:
        return False
