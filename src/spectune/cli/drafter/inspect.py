"""``spectune drafter inspect``."""

from __future__ import annotations

import argparse

from spectune.cli.output import show, show_json
from spectune.domain.sizes import in_bytes
from spectune.drafter.engine_view import EngineView
from spectune.drafter.inspect import Inspection, inspect_draft
from spectune.engines.registry import ENGINE_NAMES, title_of

_SHOWN = 12


def inspect_command(args: argparse.Namespace) -> int:
    """1 unless an engine can serve the draft with its own method, as far as its files say."""
    versions = {engine: getattr(args, f"{engine}_version") for engine in ENGINE_NAMES}
    found = inspect_draft(args.path, target=args.target, versions=versions)
    if args.json:
        show_json(found.model_dump_json(indent=1) + "\n")
    else:
        show(inspection_lines(found))
    own = [view for view in found.engines if view.own_method]
    return 0 if any(view.verdict in ("fits", "doubts") for view in own) else 1


def inspection_lines(found: Inspection) -> list[str]:
    """The draft, then each engine, in words."""
    method = found.method or "unknown"
    lines = [
        f"{found.path}: {method} draft, {', '.join(found.architectures) or 'no architecture'} ({found.format})"
    ]
    lines += [f"  because of {evidence}" for evidence in found.evidence]
    lines += [
        _row("size", _size(found)),
        _row(
            "shape",
            f"hidden {_or(found.hidden_size)}, mlp {_or(found.intermediate_size)}, {_or(found.num_layers)} layer(s), "
            f"heads {_or(found.num_heads)}/{_or(found.num_kv_heads)} of {_or(found.head_dim)}, "
            f"{_or(found.max_positions)} positions, rope base {_or(found.rope_theta)}",
        ),
        _row("reads", _states(found)),
        _row("vocabulary", _vocabulary(found)),
        _row("norms", ", ".join(f"{k}={v}" for k, v in found.norm_options.items()) or "no option written"),
        _row("own parts", f"embeddings {_yes(found.own_embeddings)}, output head {_yes(found.own_head)}"),
    ]
    lines += [_row("values", _values(found))] if found.not_finite is not None else []
    lines += [_row("fault", fault) for fault in found.faults]
    lines += [_row("not read", note) for note in found.not_read]
    for view in found.engines:
        lines += _view(view)
    return lines


def _row(name: str, text: str) -> str:
    return f"  {name:<11}{text}"


def _or(value: object) -> str:
    return "?" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no (the target's)"


def _size(found: Inspection) -> str:
    count = found.num_parameters
    number = "unknown" if count is None else f"{count / 1e6:.1f} M" if count >= 1e5 else f"{count:,}"
    parameters = f"{number} parameters"
    size = "" if found.size_bytes is None else f", {in_bytes(found.size_bytes)}"
    types = ", ".join(f"{name} x {count}" for name, count in found.dtypes.items())
    return f"{parameters}{size}; {types or 'no tensors read'}"


def _values(found: Inspection) -> str:
    if not found.not_finite:
        return "all finite"
    named = [f"{name} ({count})" for name, count in found.not_finite.items()]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return f"not finite: {', '.join(named[:_SHOWN])}{more}"


def _states(found: Inspection) -> str:
    states = found.auxiliary_states
    if states.count is None and states.layer_inputs is None:
        return "no auxiliary states"
    where = f" ({states.note or states.where or 'as written'})"
    layers = (
        "unknown layers" if states.layer_inputs is None else f"inputs of layers {list(states.layer_inputs)}"
    )
    return f"{_or(states.count)} hidden states of {_or(states.width)} from the target: {layers}{where}"


def _vocabulary(found: Inspection) -> str:
    vocabulary = found.vocabulary
    if vocabulary.draft_size is None:
        return f"the target's {_or(vocabulary.target_size)}"
    share = "" if vocabulary.coverage_frac is None else f" ({vocabulary.coverage_frac:.0%})"
    map_ = "no d2t" if vocabulary.entries is None else f"d2t holds {vocabulary.meaning}"
    return f"{vocabulary.draft_size} of {_or(vocabulary.target_size)} tokens{share}, {map_}"


def _view(view: EngineView) -> list[str]:
    words = {
        "fits": "fits",
        "doubts": "starts, with doubts",
        "fails": "does not work",
        "unknown": "not judged, its weights were not read",
        "other-form": "cannot load this form",
    }
    version = f" {view.version}" if view.version else ""
    lines = [f"{title_of(view.engine)}{version} with {view.method}: {words[view.verdict]}"]
    lines += [f"  {finding.severity}: {finding.message}" for finding in view.findings]
    lines += [f"    -> {finding.remedy}" for finding in view.findings if finding.remedy]
    notes = view.not_checked if view.own_method else ()
    lines += [f"  not checked: {note}" for note in notes[:_SHOWN]]
    return lines
