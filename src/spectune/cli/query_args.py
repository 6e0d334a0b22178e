"""The arguments of ``spectune query``: the parser is built for every command."""

from __future__ import annotations

import argparse


def add_query(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments; imports nothing that takes time."""
    parser = commands.add_parser(
        "query",
        help="SQL over the records of studies (needs spectune[query])",
        epilog="Views: studies, arms, trials, requests; --columns describes them. Only SELECT.",
    )
    parser.add_argument("sql", metavar="SQL", nargs="?", help="one SELECT statement")
    parser.add_argument(
        "studies", metavar="STUDY_DIR", nargs="*", help="study directories, or folders of them"
    )
    parser.add_argument("--columns", action="store_true", help="list the views and their columns")
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
