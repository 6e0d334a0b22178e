"""``spectune watch``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from contextlib import suppress

from spectune.cli.output import show_json
from spectune.store.opening import live_study
from spectune.watch.server import WatchServer
from spectune.watch.study_view import StudyView

_NICE = 10
"""The study that is watched is being measured, perhaps on this machine."""


def watch_command(args: argparse.Namespace) -> int:
    """Serves until it is interrupted, which is its proper end: exit code 0."""
    directory = live_study(args.study_dir)
    view = StudyView(directory)
    view.report()  # what cannot be read is said now, not in the browser
    with WatchServer(view, address=args.bind, port=args.port) as server:
        with suppress(OSError):
            os.nice(_NICE)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # shutdown() waits for serve_forever(), which this very thread is in
            signal.signal(number, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
        _announce(server, as_json=args.json)
        server.serve_forever(poll_interval=0.2)
    return 0


def _announce(server: WatchServer, *, as_json: bool) -> None:
    if as_json:
        document = {"schema_version": 1, "url": server.url, "port": server.port, "token": server.token}
        show_json(json.dumps(document) + "\n")
    else:
        sys.stdout.write(f"{server.url}\n")
        sys.stderr.write("open this address in a browser; Ctrl-C ends the page, not the study\n")
    sys.stdout.flush()
