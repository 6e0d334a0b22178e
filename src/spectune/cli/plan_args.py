"""The arguments of ``spectune plan``: the parser is built for every command."""

from __future__ import annotations

import argparse

from spectune.cli.gate_args import share


def add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments; imports nothing that takes time."""
    parser = commands.add_parser(
        "plan",
        help="how long a study takes on so many nodes: launches, node hours, finish",
        epilog="Nothing is started and no cluster is needed. Times come from what a study recorded, failed trials "
        "included; a plan from assumptions says so, and has no interval.",
    )
    parser.add_argument(
        "study", metavar="STUDY", help="study file, or the directory of a study that is under way"
    )
    parser.add_argument(
        "--nodes",
        type=_numbers,
        default=[1, 2, 4, 8],
        metavar="N[,N...]",
        help="numbers of nodes to plan for (default: 1,2,4,8)",
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="STUDY_DIR",
        help="an earlier study whose phase times are used (default: the study's own trials)",
    )
    parser.add_argument(
        "--failures",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="of the launches, under which a node is lost, so that they are repeated, e.g. 2%% (default: none)",
    )
    parser.add_argument(
        "--repair-min",
        type=_minutes,
        default=10.0,
        metavar="MINUTES",
        help="until a lost node is back; `never` (default: 10)",
    )
    parser.add_argument(
        "--launch-s", type=_seconds, metavar="SECONDS", help="of one launch, instead of recorded ones"
    )
    parser.add_argument(
        "--measure-s", type=_seconds, metavar="SECONDS", help="of measuring one arm, instead of recorded ones"
    )
    parser.add_argument("--dir", help="the study's directory, if it is not studies/NAME")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="as for `spectune run`",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 100_000 for part in parts):
        raise argparse.ArgumentTypeError(
            f"must be whole numbers from 1 to 100000, such as 1,4,16, got {text!r}"
        )
    return [int(part) for part in parts]


def _minutes(text: str) -> float | None:
    return None if text.strip() == "never" else _seconds(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text!r}")
    return value
