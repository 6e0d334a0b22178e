"""The arguments of ``spectune watch``: the parser is built for every command."""

from __future__ import annotations

import argparse


def add_watch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments; imports nothing that takes time."""
    parser = commands.add_parser("watch", help="the report as a page that follows a study while it runs")
    parser.add_argument("study_dir", metavar="STUDY_DIR", help="e.g. studies/demo")
    parser.add_argument("--port", type=_port, default=0, help="default: a free one")
    parser.add_argument(
        "--bind",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: %(default)s, this machine alone); 0.0.0.0 for all: whoever has the "
        "printed token may then read and abort the study, and the connection is not encrypted",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document with the address")


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535, got {text!r}")
    return int(text)
