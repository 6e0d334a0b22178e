"""The arguments of ``spectune ls``: the parser is built for every command."""

from __future__ import annotations

import argparse


def add_ls(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments; imports nothing that takes time."""
    parser = commands.add_parser("ls", help="studies below a folder, one line each")
    parser.add_argument("folder", metavar="DIR", nargs="?", default="studies", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
