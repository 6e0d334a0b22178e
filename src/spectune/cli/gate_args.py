"""The arguments of ``spectune gate``: the parser is built for every command."""

from __future__ import annotations

import argparse

from spectune.cli.compare_args import add_allow_aspect


def add_gate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments; imports nothing that takes time."""
    parser = commands.add_parser(
        "gate",
        help="fail if a study fell behind another: for continuous integration",
        epilog="Exit code 1 if speed or acceptance length fell by more than the limit, 0 if not or if noise hides "
        "it, 2 if the studies cannot be compared.",
    )
    parser.add_argument("study", metavar="STUDY_DIR", help="the new study")
    parser.add_argument(
        "--against", required=True, metavar="STUDY_DIR", help="the study it must not fall behind"
    )
    parser.add_argument(
        "--max-slowdown",
        type=share,
        default=0.03,
        metavar="SHARE",
        help="the fall that is let through, e.g. 3%% or 0.03 (default: 3%%)",
    )
    parser.add_argument(
        "--error-rate",
        type=_share_above_zero,
        default=0.05,
        metavar="SHARE",
        help="how often noise alone may fail the gate, over all arms together (default: 5%%)",
    )
    parser.add_argument(
        "--figures",
        choices=("both", "speed", "acceptance"),
        default="both",
        help="what must not fall (default: %(default)s)",
    )
    parser.add_argument(
        "--basis",
        choices=("speedup", "tok/s"),
        help="what of speed is tested (default: speedups where both studies have plain decoding, else tok/s)",
    )
    parser.add_argument(
        "--require-answer", action="store_true", help="exit code 1 also where noise hides whether it fell"
    )
    add_allow_aspect(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def share(text: str) -> float:
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(
            f"must be a share from 0 to below 1, such as 3% or 0.03, got {text!r}"
        )
    return value


def _share_above_zero(text: str) -> float:
    value = share(text)
    if not 0 < value <= 0.5:
        raise argparse.ArgumentTypeError(f"must be a share above 0 and at most 50%, got {text!r}")
    return value
