"""The fault table as a page."""

from __future__ import annotations

import platform
import re
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime

from faults_table import Row

import spectune
from spectune.embedded.llama_server import PACKAGE
from spectune.hosts.machine_facts import read_machine

COMMAND = ".venv/bin/python benchmarks/faults.py --write docs/reliability.md"
_CELL = 260


def document(rows: Sequence[Row], *, took_s: float) -> str:
    """The whole page."""
    return "\n".join(
        [
            "# Reliability",
            "",
            "Every row is a fault that was brought about for real: process trees, sockets, signals, file systems.",
            "`fake` is the scripted server, which stands in for an engine where a fault must come at an exact moment;",
            "`llama.cpp` is the real server with the embedded model. After each fault its place was searched, by",
            "marker, by folder and by known process ids: a row counts as expected only if nothing was left.",
            "",
            *(f"- {line}" for line in summary_lines(rows, took_s=took_s)),
            *(f"- {line}" for line in _circumstances()),
            "",
            "Run it again (one row: `--only NAME`; all names: `--list`):",
            "",
            f"    {COMMAND}",
            "",
            "| fault | server | expected | seen | time to notice |",
            "|---|---|---|---|---|",
            *(_line(row) for row in rows),
            "",
            *_notes(),
            "",
        ]
    )


def written_by_hand(page: str) -> str:
    """The sections below the table and its notes: no run makes them, so every run keeps them."""
    at = page.find("\n## ")
    return page[at:] if at >= 0 else ""


def with_rows(page: str, rows: Sequence[Row]) -> str:
    """A page with these rows put into its table: in the place of those with the same fault, or at its end."""
    lines = page.splitlines()
    titles = {_line(row).split(" | ")[0] for row in rows}
    lines = [line for line in lines if line.split(" | ")[0] not in titles]
    first = lines.index("| fault | server | expected | seen | time to notice |") + 2
    end = next((i for i, line in enumerate(lines) if i >= first and not line.startswith("| ")), len(lines))
    lines[end:end] = [_line(row) for row in rows]
    table = lines[first : end + len(rows)]
    good = sum("**not as expected:**" not in line for line in table)
    counted = re.compile(r"- [0-9]+ of [0-9]+ faults as expected")
    return (
        "\n".join(counted.sub(f"- {good} of {len(table)} faults as expected", line) for line in lines) + "\n"
    )


def summary_lines(rows: Sequence[Row], *, took_s: float) -> list[str]:
    """The figures above the table."""
    good = sum(row.as_expected for row in rows)
    left = [item for row in rows for item in row.left]
    deaths = [row.noticed_s for row in rows if row.is_death and row.noticed_s is not None]
    lags = [lag for row in rows for lag in row.ready_lag_s]
    real = sum(row.server == "llama.cpp" for row in rows)
    lines = [f"{good} of {len(rows)} faults as expected, {real} of them on the real llama.cpp server"]
    if deaths:
        lines.append(f"time to notice a death: {_spread(deaths)}")
    if lags:
        lines.append(f"time from a server's own readiness to our knowing of it: {_spread(lags)}")
    lines.append(
        f"left behind (processes, ports, shared memory, damaged records): {'; '.join(left) or 'nothing'}"
    )
    lines.append(f"the whole table took {took_s / 60:.1f} minutes")
    return lines


def _spread(seconds: Sequence[float]) -> str:
    median, worst = statistics.median(seconds), max(seconds)
    return f"median {median * 1000:.0f} ms, worst {worst * 1000:.0f} ms (n = {len(seconds)})"


def _circumstances() -> list[str]:
    machine = read_machine()
    gpus = ", ".join(machine.gpus) if machine.gpus else "no GPU"
    memory = "?" if machine.memory_bytes is None else f"{machine.memory_bytes / 2**30:.0f} GiB"
    return [
        f"{datetime.now(UTC).date()}, {machine.cores} cores of {machine.cpu}, {memory}, {gpus}, {machine.os}",
        f"spectune {spectune.__version__}, Python {platform.python_version()}, {_package_version()}",
    ]


def _package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        return f"without {PACKAGE}"


def _line(row: Row) -> str:
    when = "" if row.noticed_s is None else f"{row.noticed_s * 1000:.0f} ms"
    seen = row.seen if row.as_expected else f"**not as expected:** {row.seen}"
    if row.left:
        seen += f" **left: {'; '.join(row.left)}**"
    cells = (row.title, row.server, row.expected, seen, when)
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) > _CELL:
        text = text[: _CELL - 4] + " ..."
    return text.replace("|", "\\|").replace("<", "&lt;")


def _notes() -> list[str]:
    return [
        "How some of it was brought about:",
        "",
        "- Full and read-only disks are small tmpfs mounts in a mount namespace of their own (`unshare -rm`).",
        "- GPU rows put a shell script called `nvidia-smi` first on the PATH: there is no GPU in them. Everything",
        "  else about them is real.",
        "- The clock jumps by a day every second, both ways, in spectune, supervisor and server alike: a small",
        "  preloaded library answers `clock_gettime` and its relatives. Slow DNS is a `getaddrinfo` that takes 5 s.",
        "- Times come from the monotonic clock that all processes of a machine share: the fake server stamps its own",
        "  readiness and death. A time is from the fault to the moment at which spectune knew, not to its last word.",
    ]
