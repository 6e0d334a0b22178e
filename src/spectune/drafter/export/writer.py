"""The same draft in the form of each engine, read back and judged before it appears under its name."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spectune.checkpoints.config import LAYERS_KEY
from spectune.checkpoints.facts import CheckpointFacts
from spectune.checkpoints.gguf import read_gguf
from spectune.checkpoints.read import read_checkpoint
from spectune.domain.record import Record
from spectune.drafter.config import unsaid
from spectune.drafter.draft_source import DraftSource, read_draft
from spectune.drafter.engine_view import engine_view
from spectune.drafter.export.forms import (
    folder_form,
    gguf_form,
    interleaved,
    names_in_gguf,
    speculators_form,
)
from spectune.drafter.export.gguf import decode_q8_0, write_gguf
from spectune.drafter.inspect import layer_inputs
from spectune.drafter.weights import Weight, read_weights, write_weights
from spectune.errors import BadInput, EnvironmentFailed
from spectune.preflight.draft.layer_reading import read_place
from spectune.store.replacing import check_made_anew, replace_folder

FORMS = ("sglang", "vllm", "speculators", "llamacpp")
_ENGINE = {"speculators": "vllm"}
_RELATIVE_ERROR = {"F32": 0.0, "F16": 2.0**-11, "BF16": 2.0**-8}
_Q8_STEP = 0.5 * 1.02
"""Half a step of a block's scale, and its rounding to half precision."""


@dataclass(frozen=True)
class ExportRequest:
    draft: str
    out: Path
    target: str
    target_gguf: Path | None = None
    forms: tuple[str, ...] | None = None
    """``None``: all that can be made with what is given."""
    gguf_type: str = "Q8_0"
    layers: tuple[int, ...] | None = None
    verifier_name: str | None = None
    num_draft_tokens: int = 3
    force: bool = False


class Exported(Record):
    """One form on disk."""

    form: str
    engine: str
    path: str
    num_bytes: int
    sha256: str
    """Of the weights' file."""
    layers_as_written: tuple[int, ...]
    flag: str
    not_checked: tuple[str, ...] = ()


class ExportReport(Record):
    schema_version: int = 1
    draft: str
    layer_inputs: tuple[int, ...]
    forms: tuple[Exported, ...]
    notes: tuple[str, ...] = ()


def export_draft(request: ExportRequest) -> ExportReport:
    """Raises ``BadInput``: no draft, a form that cannot hold it, an engine that would not serve it as it is."""
    target = read_checkpoint(request.target, network=False)
    if target.kind == "absent":
        raise BadInput(
            f"--target {request.target}: no such folder or file; give the model the draft was made for"
        )
    sizes = {"hidden_size": target.hidden_size, "num_hidden_layers": target.num_layers} | {
        "vocab_size": target.vocab_size
    }
    unknown = [name for name, value in sizes.items() if value is None]
    if unknown:
        raise BadInput(f"--target {unsaid(target, *unknown)}")
    draft = read_draft(request.draft, target=target, layers=request.layers)
    forms, notes = _forms(request)
    if draft.weights.get("embed_tokens.weight") is not None and "llamacpp" in forms:
        notes.append("llama.cpp: the draft's own embeddings are left out; it takes the target's")
    exported = _make_all(forms, draft, target, request)
    return ExportReport(
        draft=request.draft,
        layer_inputs=draft.layers,
        forms=exported,
        notes=(*draft.notes, *notes),
    )


def _forms(request: ExportRequest) -> tuple[tuple[str, ...], list[str]]:
    unknown = sorted(set(request.forms or ()) - set(FORMS))
    if unknown or request.forms == ():
        raise BadInput(f"--for: {', '.join(unknown) or 'names nothing'}; valid are {', '.join(FORMS)}")
    if request.forms is not None:
        if "llamacpp" in request.forms and request.target_gguf is None:
            raise BadInput(
                "--for llamacpp needs --target-gguf FILE: the draft's file carries the target's tokenizer"
            )
        return tuple(dict.fromkeys(request.forms)), []
    if request.target_gguf is None:
        return FORMS[:3], ["llama.cpp: not made; give --target-gguf with the target as llama.cpp serves it"]
    return FORMS, []


def _file_name(form: str, gguf_type: str) -> str:
    return f"draft-{gguf_type.lower()}.gguf" if form == "llamacpp" else form


def _make_all(
    forms: tuple[str, ...], draft: DraftSource, target: CheckpointFacts, request: ExportRequest
) -> tuple[Exported, ...]:
    """All forms or none: written beside their places, checked there, and only then renamed."""
    places = {form: request.out / _file_name(form, request.gguf_type) for form in forms}
    for place in places.values():
        _check_place(place, force=request.force)
    try:
        request.out.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=".export-", dir=request.out))
    except OSError as error:
        raise EnvironmentFailed(f"{request.out}: {error.strerror or error}") from error
    try:
        exported = tuple(_make(form, making, place, draft, target, request) for form, place in places.items())
        folders = [place for place in places.values() if (making / place.name).is_dir()]
        for place in folders:
            check_made_anew(making / place.name, place)
        for place in places.values():
            if place in folders:
                replace_folder(making / place.name, place)
            else:
                (making / place.name).replace(place)
    except OSError as error:
        raise EnvironmentFailed(f"{request.out}: could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return exported


def _check_place(place: Path, *, force: bool) -> None:
    """Raises ``BadInput`` for what is there and is not to be replaced: a folder that no export has made never is."""
    if place.exists() and not force:
        raise BadInput(f"{place}: exists; give --force to replace it, or another --out")
    if place.is_dir() and any(place.iterdir()) and not _is_export(place):
        raise BadInput(f"{place}: not an exported draft, so it is not replaced; give another --out")


def _is_export(folder: Path) -> bool:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and LAYERS_KEY in config


def _make(
    form: str,
    making: Path,
    place: Path,
    draft: DraftSource,
    target: CheckpointFacts,
    request: ExportRequest,
) -> Exported:
    path = making / place.name
    try:
        if form == "llamacpp":
            weights_file = path
            _write_gguf(path, draft, request)
        else:
            weights_file = path / "model.safetensors"
            _write_folder(path, form, draft, target, request)
        facts, judged, skipped = _judge(path, form, draft, target, request)
        with weights_file.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        num_bytes = weights_file.stat().st_size
    except OSError as error:
        raise EnvironmentFailed(f"{place}: could not be written: {error.strerror or error}") from error
    layers = read_place(_ENGINE.get(form, form), facts)
    return Exported(
        form=form,
        engine=_ENGINE.get(form, form),
        path=str(place),
        num_bytes=num_bytes,
        sha256=digest,
        layers_as_written=layers.ids if layers else (),
        flag=judged,
        not_checked=skipped,
    )


def _write_folder(
    path: Path, form: str, draft: DraftSource, target: CheckpointFacts, request: ExportRequest
) -> None:
    config: dict[str, Any]
    weights: dict[str, Weight]
    if form == "speculators":
        config, weights = speculators_form(
            draft,
            target,
            verifier_name=request.verifier_name or request.target,
            num_draft_tokens=request.num_draft_tokens,
        )
    else:
        config, weights = folder_form(draft, target)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    write_weights(path / "model.safetensors", weights)
    back = read_weights(path)
    for name, weight in weights.items():
        same = back[name].shape == weight.shape and np.array_equal(back[name].data, weight.data)
        if not same:
            raise EnvironmentFailed(
                f"{path}: {name} does not read back as it was written: is the disk in order?"
            )


def _write_gguf(path: Path, draft: DraftSource, request: ExportRequest) -> None:
    assert request.target_gguf is not None
    metadata, tensors = gguf_form(draft, request.target_gguf, tensor_type=request.gguf_type)
    write_gguf(path, metadata, tensors)
    header = read_gguf(path)
    content = np.memmap(path, dtype=np.uint8, mode="r")
    heads = {
        "q_proj": int(draft.config["num_attention_heads"]),
        "k_proj": int(draft.config["num_key_value_heads"]),
    }
    for name, gguf_name in names_in_gguf().items():
        info, begin = header.tensors[gguf_name], header.begins[gguf_name]
        data = content[begin : begin + (info.num_bytes or 0)]
        wanted = draft.weights[name].floats()
        part = name.split(".")[-2]
        if part in heads:
            wanted = interleaved(wanted, num_heads=heads[part])
        if not _close(data, info.dtype, info.shape, wanted):
            raise EnvironmentFailed(f"{path.name}: {gguf_name} does not read back as {name}")


def _close(data: Any, dtype: str, shape: tuple[int, ...], wanted: Any) -> bool:
    """Within the rounding of the type."""
    if dtype == "Q8_0":
        error = np.abs(decode_q8_0(data.tobytes(), shape) - wanted).reshape(-1, 32)
        step = np.abs(wanted).reshape(-1, 32).max(axis=1, keepdims=True) / 127
        return bool((error <= step * _Q8_STEP + np.abs(wanted).reshape(-1, 32) * 2.0**-10 + 1e-8).all())
    got = Weight(dtype, shape, data).floats()
    return bool((np.abs(got - wanted) <= np.abs(wanted) * _RELATIVE_ERROR[dtype] + 1e-7).all())


def _judge(
    path: Path, form: str, draft: DraftSource, target: CheckpointFacts, request: ExportRequest
) -> tuple[CheckpointFacts, str, tuple[str, ...]]:
    """What was written, its flag, and what could not be checked; raises ``BadInput`` for any finding."""
    engine = _ENGINE.get(form, form)
    against = target
    if form == "llamacpp" and request.target_gguf is not None:
        against = read_checkpoint(str(request.target_gguf), network=False)
    facts = read_checkpoint(str(path), network=False)
    inputs, _ = layer_inputs(facts, num_layers=target.num_layers)
    if inputs != draft.layers:
        raise BadInput(f"{form}: its layers read back as {inputs}, not {draft.layers}")
    view = engine_view(facts, engine=engine, family="eagle3", target=against)
    assert view is not None
    if view.findings:
        told = "\n".join(
            f"  {finding.severity}: {finding.message}"
            + (f"\n    -> {finding.remedy}" if finding.remedy else "")
            for finding in view.findings
        )
        raise BadInput(
            f"{form}: the engine would not serve this draft as it was trained; nothing was written\n{told}"
        )
    return facts, view.flag or view.method, view.not_checked
