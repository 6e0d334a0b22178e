"""Reading logs in the tests of ``spectune diagnose``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from spectune.cli.diagnose import diagnose_command
from spectune.cli.diagnose_args import add_diagnose
from spectune.diagnose.facts import RunFacts
from spectune.diagnose.inputs import read_log
from spectune.diagnose.judge import judge, verdict
from spectune.diagnose.log.reader import LogReader
from spectune.diagnose.verdict import NotChecked, Verdict

HERE = Path(__file__).parent
LOGS = HERE / "logs"
RECORDED = HERE / "recorded"

SGLANG_ARGS = (
    "[2026-03-24 10:00:00] server_args={'model_path': 'target', 'attention_backend': 'fa3', "
    "'decode_log_interval': 40, 'max_running_requests': 48, 'speculative_algorithm': 'EAGLE3', "
    "'speculative_draft_model_path': 'draft', 'speculative_num_steps': 3, 'speculative_eagle_topk': 1, "
    "'speculative_num_draft_tokens': 4}"
)
SGLANG_READY = "[2026-03-24 10:04:00] The server is fired up and ready to roll!"


def decode_line(
    length: float | None, *, running: int = 1, tokens: int = 900, head: str = "[2026-03-24 10:05:00]"
) -> str:
    accepted = f"accept len: {length:.2f}, " if length is not None else ""
    return (
        f"{head} Decode batch, #running-req: {running}, #token: {tokens}, token usage: 0.01, {accepted}"
        "cuda graph: True, gen throughput (token/s): 80.00, #queue-req: 0"
    )


def runs_of(lines: Iterable[str], *, engine: str | None = None) -> tuple[RunFacts, ...]:
    reader = LogReader("log", engine=engine)
    reader.read([line.encode() for line in lines])
    return reader.runs()


def run_of(*lines: str, engine: str | None = None) -> RunFacts:
    (run,) = runs_of(lines, engine=engine)
    return run


def judged(*logs: Iterable[RunFacts]) -> Verdict:
    skipped = NotChecked()
    return verdict(judge([tuple(runs) for runs in logs], skipped), skipped)


def judge_file(path: Path) -> Verdict:
    skipped = NotChecked()
    return verdict(judge([read_log(path, engine=None, skipped=skipped)], skipped), skipped)


def codes(result: Verdict, *severities: str) -> list[str]:
    wanted = severities or ("error", "warning", "note")
    return [finding.code for finding in result.findings if finding.severity in wanted]


def command(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_diagnose(parser.add_subparsers())
    return diagnose_command(parser.parse_args(["diagnose", *argv]))
