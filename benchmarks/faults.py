"""Brings about every fault that can befall a server, for real, and writes what was seen as a table.

    python benchmarks/faults.py --write docs/reliability.md

Process trees, sockets, signals and file systems are real. The scripted fake server stands in for an engine where
the fault must come at an exact moment; rows marked ``llama.cpp`` run the real one. After each fault the place is
searched for processes, ports, shared memory and damaged records. Exit code 1: a row is not as expected.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from faults_document import document, summary_lines, with_rows, written_by_hand
from faults_place import Place
from faults_table import FAULTS, Fault, Row, Seen, Unexpected

MODULES = (
    "faults_start",
    "faults_service",
    "faults_tree",
    "faults_spectune",
    "faults_neighbours",
    "faults_records",
    "faults_lost",
    "faults_disk",
    "faults_clock",
    "faults_gpu",
    "faults_llama",
)
OPTIONAL_MODULES = ("faults_ssh",)


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    load_faults()
    chosen = [FAULTS[name] for name in options.only or FAULTS if name in FAULTS]
    unknown = [name for name in options.only or () if name not in FAULTS]
    if unknown or options.list:
        print("\n".join(f"{f.name}: {f.title}" for f in FAULTS.values()))
        return 2 if unknown else 0
    began, segments = time.monotonic(), shared_memory()
    rows = run_all(chosen, workers=options.workers)
    took_s = time.monotonic() - began
    if added := shared_memory() - segments:
        print(f"new in /dev/shm since the beginning, ours or another's: {', '.join(sorted(added))}")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    if options.write:
        page = Path(options.write)
        old = page.read_text(encoding="utf-8") if page.exists() else ""
        page.write_text(document(rows, took_s=took_s) + written_by_hand(old), encoding="utf-8")
    if options.add:
        page = Path(options.add)
        page.write_text(with_rows(page.read_text(encoding="utf-8"), rows), encoding="utf-8")
    print("\n".join(["", *summary_lines(rows, took_s=took_s)]))
    return 0 if all(row.as_expected for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="this fault; repeatable")
    parser.add_argument("--list", action="store_true", help="print the names of all faults")
    parser.add_argument("--json", metavar="FILE", help="the rows as JSON")
    parser.add_argument("--write", metavar="FILE", help="the table as Markdown, e.g. docs/reliability.md")
    parser.add_argument(
        "--add", metavar="FILE", help="puts the rows into a page that --write made, e.g. with --only"
    )
    parser.add_argument("--workers", type=int, default=4, help="faults at a time where no time is measured")
    return parser


def shared_memory() -> set[str]:
    """Names in /dev/shm."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def load_faults() -> None:
    """Registers the rows of every module, the optional ones too where they are there."""
    for name in MODULES:
        importlib.import_module(name)
    for name in OPTIONAL_MODULES:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def run_all(faults: Sequence[Fault], *, workers: int) -> list[Row]:
    """Timed faults one after another, the others side by side; rows in the order of ``faults``."""
    rows = {fault.name: run_one(fault) for fault in faults if fault.is_timed}
    with ThreadPoolExecutor(workers) as pool:
        for row in pool.map(run_one, [fault for fault in faults if not fault.is_timed]):
            rows[row.name] = row
    return [rows[fault.name] for fault in faults]


def run_one(fault: Fault) -> Row:
    """Plays one fault in a place of its own, then looks for what is left there."""
    place, began = Place(), time.monotonic()
    try:
        try:
            seen, as_expected = fault.play(place), True
        except Unexpected as error:
            seen, as_expected = Seen(str(error)), False
        except Exception as error:  # noqa: BLE001 - a row, not the end of the table
            seen, as_expected = Seen(f"{type(error).__name__}: {error}"), False
        took_s = time.monotonic() - began
        if not as_expected:
            place("down", "--all")  # the row ended before it could
        left = tuple(_without_paths(item, place) for item in place.leftovers())
    finally:
        place.close()
    if took_s > fault.limit_s and as_expected:
        seen, as_expected = Seen(f"took {took_s:.0f} s, more than {fault.limit_s:g} s"), False
    row = Row(
        name=fault.name,
        title=fault.title,
        expected=fault.expected,
        server=fault.server,
        as_expected=as_expected and not left,
        seen=_without_paths(seen.words, place),
        took_s=round(took_s, 2),
        noticed_s=seen.noticed_s,
        is_death=seen.is_death,
        ready_lag_s=seen.ready_lag_s,
        left=left,
    )
    mark = "ok  " if row.as_expected else "FAIL"
    known = "" if row.noticed_s is None else f", noticed {row.noticed_s:.3f} s"
    print(f"{mark} {row.name} ({row.took_s:.1f} s{known}): {row.seen[:1500]}", flush=True)
    for item in row.left:
        print(f"       left: {item}", flush=True)
    return row


def _without_paths(words: str, place: Place) -> str:
    """``words`` as they would be on any machine; programs given on a command line are cut."""
    words = words.replace(str(place.folder), "FOLDER").replace(sys.executable, "python")
    return re.sub(r"python -c \?.*?(?=\): |\)?$)", "python -c ...", words, flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
