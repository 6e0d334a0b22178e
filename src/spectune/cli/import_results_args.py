"""The arguments of ``spectune import``: the parser is built for every command."""

from __future__ import annotations

import argparse

FORMS = (
    "auto",
    "vllm-bench",
    "vllm-sweep",
    "sglang-bench-serving",
    "sglang-bench-speculative",
    "specforge",
    "guidellm",
    "inferencex",
)


def add_import(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments; imports nothing that takes time."""
    parser = commands.add_parser(
        "import",
        help="results of other tools into a study directory",
        epilog="What the files do not say stays unknown, and the study says what is missing.",
    )
    parser.add_argument(
        "files",
        metavar="[NAME=]FILE",
        nargs="+",
        help="with a name for its arm where the file has none; vllm-sweep also takes folders",
    )
    parser.add_argument("--dir", required=True, metavar="NEW_STUDY", help="directory to make")
    parser.add_argument(
        "--as",
        dest="form",
        choices=FORMS,
        default="auto",
        metavar="TOOL",
        help=f"default: %(default)s; one of {', '.join(FORMS)}",
    )
    parser.add_argument(
        "--baseline", metavar="ARM", help="the arm without speculation (default: told from the files)"
    )
    parser.add_argument(
        "--run-is-launch",
        action="store_true",
        help="the server was started anew for every run: their spread is the noise of launches",
    )
    say = parser.add_argument_group("what the files do not say")
    say.add_argument("--method", help="of runs that speculated, e.g. eagle3")
    say.add_argument("--drafter", metavar="MODEL")
    say.add_argument("--target", metavar="MODEL")
    say.add_argument("--engine", help="e.g. vllm, sglang, llamacpp")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
