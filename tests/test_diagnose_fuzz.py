"""Whatever stands in a file, reading it ends with findings and not with a crash."""

import json
from pathlib import Path

import pytest
from diagnose_logs import LOGS, RECORDED, judged
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.cli.findings_text import printable
from spectune.diagnose.facts import RunFacts
from spectune.diagnose.log.reader import LogReader
from spectune.engines.registry import ENGINE_NAMES
from spectune.findings.catalogue import kinds_made_by

FINDINGS = {kind.code for kind in kinds_made_by("diagnose")}
FILES = [*sorted(LOGS.glob("*.log")), *sorted(RECORDED.glob("*/eagle3/server.log"))]
REAL_LINES = sorted({line for path in FILES for line in path.read_bytes().split(b"\n") if line.strip()})
BITS = [
    b"\x1b[2J",
    b"\x1b]0;",
    b"\x00",
    b"\xff\xfe",
    b"nan",
    b"inf",
    b"-1",
    b"9" * 400,
    b"1e999",
    b"'",
    b"{",
    b"[",
    b"\r",
]


def read(lines: list[bytes], *, engine: str | None = None) -> tuple[RunFacts, ...]:
    reader = LogReader("log", engine=engine)
    reader.read(lines)
    runs = reader.runs()
    result = judged(runs)
    for run in runs:  # no NaN, nothing that JSON does not know
        json.dumps(run.model_dump(mode="json"), allow_nan=False)
    for finding in result.findings:
        text = printable(finding.message + "".join(e.source + e.detail for e in finding.evidence))
        assert "\x1b" not in text
        assert finding.code in FINDINGS
    return runs


@given(st.lists(st.binary(max_size=300), max_size=20), st.sampled_from([None, *ENGINE_NAMES]))
@settings(max_examples=200, deadline=None)
def test_random_bytes(lines: list[bytes], engine: str | None) -> None:
    read(lines, engine=engine)


@st.composite
def damaged_lines(draw: st.DrawFn) -> bytes:
    line = draw(st.sampled_from(REAL_LINES))
    kind = draw(st.sampled_from(["cut", "insert", "swap", "double", "digits"]))
    at = draw(st.integers(0, len(line)))
    if kind == "cut":
        return line[:at]
    if kind == "insert":
        return line[:at] + draw(st.sampled_from(BITS)) + line[at:]
    if kind == "swap":
        return line[at:] + line[:at]
    if kind == "double":
        return line + line[:at]
    return line.translate(bytes.maketrans(b"0123456789", draw(st.permutations(b"0123456789").map(bytes))))


@given(st.lists(damaged_lines(), max_size=30), st.sampled_from([None, *ENGINE_NAMES]))
@settings(max_examples=300, deadline=None)
def test_damaged_lines_of_real_logs(lines: list[bytes], engine: str | None) -> None:
    read(lines, engine=engine)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_log_cut_anywhere(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    for end in range(0, len(lines), max(1, len(lines) // 12)):
        read([*lines[:end], lines[end][: len(lines[end]) // 2]])


def test_the_order_of_lines_is_not_trusted() -> None:
    for path in FILES:
        read(path.read_bytes().split(b"\n")[::-1])


@pytest.mark.parametrize(
    "text",
    [
        "server_args=" + "{'a': " * 20000,
        "Decode batch" + ", #running-req: 1" * 20000,
        "SpecDecoding metrics: Accepted: " + "9" * 100000 + " tokens, Drafted: 1 tokens",
        "Speculative metrics: " + "Number of accepted tokens: 1, " * 20000,
        "speculative_config={" + "'method': " * 20000,
        "Capture " * 30000 + "avail mem=",
        "llama-server " + "-" * 200000,
        "draft acceptance = " + "1" * 200000 + " (",
        "Traceback " * 30000 + "Error",
        "\x1b" * 200000,
        "[DP0 " + "TP0 " * 50000,
    ],
    ids=range(11),
)
def test_long_lines_cost_no_more_than_their_length(text: str) -> None:
    import time

    started = time.process_time()
    for engine in (None, *ENGINE_NAMES):
        read([text.encode()], engine=engine)
    assert time.process_time() - started < 5
