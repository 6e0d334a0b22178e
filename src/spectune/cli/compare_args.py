"""The arguments of ``spectune compare``: the parser is built for every command."""

from __future__ import annotations

import argparse

ASPECTS = ("engine", "version", "machine", "target", "prompts", "sampling")


def add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments; imports nothing that takes time."""
    parser = commands.add_parser(
        "compare",
        help="the same arms of several studies side by side",
        epilog="Whether studies are comparable is checked and said; what is not, is not divided. "
        "Exit code 1 if there is no ratio at all.",
    )
    parser.add_argument(
        "studies", metavar="STUDY_DIR", nargs="+", help="two or more; the first is the reference"
    )
    add_allow_aspect(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def add_allow_aspect(parser: argparse.ArgumentParser) -> None:
    """The option that lets a difference stand."""
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=ASPECTS,
        metavar="WHAT",
        help=f"divide although this differs; repeatable, one of {', '.join(ASPECTS)}",
    )
