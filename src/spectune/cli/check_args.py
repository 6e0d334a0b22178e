"""The arguments of ``spectune check``, apart from its work: the parser is built for every command."""

from __future__ import annotations

import argparse


def add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments; imports nothing that takes time."""
    parser = commands.add_parser(
        "check",
        help="find what is wrong with a study or a server command, before it is launched",
        usage="spectune check [options] STUDY | spectune check [options] -- CMD... | spectune check [options] -",
        epilog="Nothing is launched or downloaded; of models, headers and small files are read. "
        "Exit code 1 if an error finding stands.",
    )
    parser.add_argument(
        "subject",
        metavar="STUDY | -- CMD...",
        nargs="+",
        help="study file or study directory; or, behind --, a server command as it would be typed (also as one "
        "quoted text); - reads pasted text from standard input",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the study file",
    )
    parser.add_argument(
        "--engine-version", metavar="V", help="where the engine cannot be asked, e.g. 0.5.23 or b5000"
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="a command: judge it against this machine's GPUs (a study names its host)",
    )
    parser.add_argument(
        "--offline", action="store_true", help="read hub models from the local cache only, fetch no headers"
    )
    parser.add_argument("--all", action="store_true", help="show notes too, and what was not checked")
    add_allow(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def add_allow(parser: argparse.ArgumentParser) -> None:
    """The option that lets an error finding stand."""
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="CODE",
        help="let this error finding stand, by its code; repeatable",
    )
