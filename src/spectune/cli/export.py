"""``spectune export``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spectune.errors import EnvironmentFailed
from spectune.exchange.exports import ExportOptions, export_parquet, export_text
from spectune.exchange.loaded import load_study
from spectune.store.study_dir import write_atomically

_SCRIPTS = ("command", "docker", "slurm")


def export_command(args: argparse.Namespace) -> int:
    options = ExportOptions(
        arm=args.arm,
        rows=args.rows,
        host=args.host,
        port=args.port,
        image=args.image,
        program=args.program,
        time_limit=args.time,
    )
    loaded = load_study(args.study)
    path = None if args.output in (None, "-") else Path(args.output)
    if args.form == "parquet" and path is not None:
        try:
            export_parquet(loaded, options, path)
        except OSError as error:
            raise EnvironmentFailed(f"{path}: {error.strerror or error}") from error
        return 0
    text = export_text(loaded, args.form, options).encode("utf-8", "replace").decode("utf-8")
    if path is None:
        sys.stdout.write(text)
        return 0
    try:
        write_atomically(path, text)
        if args.form in _SCRIPTS:
            path.chmod(path.stat().st_mode | 0o111)
    except OSError as error:
        raise EnvironmentFailed(f"{path}: {error.strerror or error}") from error
    return 0
