"""The arguments of ``spectune diagnose``, apart from its work: the parser is built for every command."""

from __future__ import annotations

import argparse

from spectune.engines.registry import ENGINE_NAMES


def add_diagnose(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments; imports nothing that takes time."""
    parser = commands.add_parser(
        "diagnose", help="say what is wrong, from a log, a running server or a study"
    )
    parser.add_argument(
        "inputs",
        metavar="FILE|URL|STUDY_DIR|-",
        nargs="+",
        help="server logs (also compressed), a base URL, a study directory, or - for standard input; "
        "several logs are compared with the first",
    )
    parser.add_argument("--engine", choices=ENGINE_NAMES, help="default: told from the lines")
    parser.add_argument(
        "--api-key-env",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="environment variable that holds the API key of a URL (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
