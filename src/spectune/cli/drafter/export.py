"""``spectune drafter export``."""

from __future__ import annotations

import argparse
from pathlib import Path

from spectune.cli.cleanup import cleaning_up
from spectune.cli.output import show, show_json
from spectune.domain.sizes import in_bytes
from spectune.drafter.export.writer import ExportReport, ExportRequest, export_draft
from spectune.drafter.out_folder import check_out
from spectune.engines.registry import title_of
from spectune.errors import BadInput


def export_command(args: argparse.Namespace) -> int:
    """0 only if every form was written and would be served as it was trained."""
    forms = None if args.engines == "all" else tuple(filter(None, args.engines.split(",")))
    gguf = Path(args.target_gguf) if args.target_gguf else None
    if gguf is None and args.target.endswith(".gguf"):
        gguf = Path(args.target)
    check_out("--out", Path(args.out))
    request = ExportRequest(
        draft=args.path,
        out=Path(args.out),
        target=args.target,
        target_gguf=gguf,
        forms=forms,
        gguf_type=args.gguf_type.upper(),
        layers=_layers(args.layers),
        verifier_name=args.verifier_name,
        num_draft_tokens=args.num_draft_tokens,
        force=args.force,
    )
    with cleaning_up():
        report = export_draft(request)
    if args.json:
        show_json(report.model_dump_json(indent=1) + "\n")
    else:
        show(export_lines(report))
    return 0


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        layers = tuple(int(part) for part in text.split(","))
    except ValueError:
        layers = ()
    if not layers or list(layers) != sorted(set(layers)) or layers[0] < 0:
        raise BadInput(f"--layers: different layer numbers, lowest first, e.g. 2,15,27; got {text!r}")
    return layers


def export_lines(report: ExportReport) -> list[str]:
    """What was written, and the flag to serve it with."""
    lines = [f"{report.draft}: reads the inputs of layers {list(report.layer_inputs)}"]
    for form in report.forms:
        name = "vLLM, speculators form" if form.form == "speculators" else title_of(form.engine)
        lines.append(f"{name}: {form.path} ({in_bytes(form.num_bytes)}), read back: fits")
        lines.append(
            f"  layer ids as this form counts them: {list(form.layers_as_written)}; serve with {form.flag}"
        )
    lines += [f"note: {note}" for note in report.notes]
    return lines
