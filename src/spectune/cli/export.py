"""``spectune export``."""

from __future__ import annotations

import argparse
import os
import sys

from spectune.analysis.words import count, one_line
from spectune.api.results import open_study
from spectune.cli.output import show_document
from spectune.errors import BadInput
from spectune.exchange.exports.options import ExportOptions
from spectune.exchange.whole_study import LoadedStudy
from spectune.store.opening import open_study as open_directory


def _to_mlflow(args: argparse.Namespace) -> int:
    from spectune.exchange.exports.mlflow import export_mlflow  # draws the report: only for those who ask

    uri = args.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise BadInput(
            "export --as mlflow: say where to with --tracking-uri, e.g. --tracking-uri http://127.0.0.1:5000"
        )
    if args.output is not None or args.arm is not None:
        raise BadInput("export --as mlflow: writes every trial to the server; --arm and -o do not go with it")
    directory = open_directory(args.study, whole=True)
    loaded = LoadedStudy(directory.place, directory.read_study(), tuple(directory.read_trials()))
    done = export_mlflow(loaded, directory, tracking_uri=uri, experiment=args.experiment)
    runs = f"{count(done.added, 'trial')} added, {done.known} known already"
    sys.stdout.write(
        f"MLflow experiment {one_line(done.experiment)}: {runs}; the study is run {done.run_id}\n"
    )
    if uri.startswith(("http://", "https://")) and "@" not in uri:
        sys.stdout.write(f"{uri.rstrip('/')}/#/experiments/{done.experiment_id}/runs/{done.run_id}\n")
    return 0


def export_command(args: argparse.Namespace) -> int:
    if args.form == "mlflow":
        return _to_mlflow(args)
    options = ExportOptions(
        arm=args.arm,
        rows=args.rows,
        host=args.host,
        port=args.port,
        image=args.image,
        program=args.program,
        time_limit=args.time,
    )
    results = open_study(args.study)
    if args.output in (None, "-"):
        show_document(results.export(args.form, options))
    else:
        results.write_export(args.form, args.output, options)
    return 0
