"""``manifest.json``: what a data set is, where it came from, and the hashes that show it is whole."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spectune import __version__
from spectune.domain.record import Record
from spectune.drafter.data.journal import Journal
from spectune.drafter.data.parts import Part
from spectune.drafter.data.plan_records import SCHEMA_VERSION, DataSampling, Plan, PlannedSource
from spectune.errors import BadInput
from spectune.store.study_dir import write_atomically

MANIFEST = "manifest.json"
RUNS = "runs.jsonl"
_MAX_FAILURES = 50


class RunBegin(Record):
    """The server one run talked to."""

    started: str
    engine: str
    engine_version: str | None
    model: str
    """As served."""
    target: str | None
    concurrency: int
    command: tuple[str, ...] = ()
    """That started the server, redacted; empty: it was running."""
    replicas: int | None = None
    """Servers asked for at once; ``None``: one, without a cluster."""


class ReplicaRecord(Record):
    """What one replica of a run did, through all its restarts."""

    nodes: tuple[str, ...]
    """Where it ran, one after the other."""
    num_starts: int
    """Of its process: more than one where it, or its node, was killed."""
    num_server_starts: int
    num_samples: int
    completion_tokens: int


class RunEnd(Record):
    """What one run that was not cut off did."""

    num_samples: int
    completion_tokens: int
    elapsed_s: float
    num_compared: int
    """Prompts whose rendering by our tokenizer was compared with the server's, and equal."""
    replicas: tuple[ReplicaRecord, ...] = ()


class Run(Record):
    begin: RunBegin
    end: RunEnd | None
    """``None``: it was cut off."""


class DataFile(Record):
    file: str
    sha256: str
    num_rows: int
    num_bytes: int


class Manifest(Record):
    schema_version: int = SCHEMA_VERSION
    spectune_version: str
    complete: bool
    sources: tuple[PlannedSource, ...]
    prompts_sha256: str
    sampling: DataSampling
    seed: int
    held_out_frac: float
    turns: str
    num_prompts: int
    num_duplicate_prompts: int
    num_answered: int
    num_empty: int
    """Left out: the target said nothing."""
    num_failed: int
    """Left out: two tries without a usable answer."""
    num_retried: int
    num_rows: int
    prompt_tokens: int
    answer_tokens: int
    rows_by_category: dict[str, int]
    rows_by_split: dict[str, int]
    answer_tokens_by_category: dict[str, int]
    finish_reasons: dict[str, int]
    token_ids_from: dict[str, int]
    """``server``: as generated; ``tokenizer``: the text made into ids once more."""
    failures: tuple[str, ...]
    files: tuple[DataFile, ...]
    runs: tuple[Run, ...]

    @property
    def tok_per_s(self) -> float | None:
        """Of the last run that ended."""
        ended = [run.end for run in self.runs if run.end is not None and run.end.elapsed_s > 0]
        return ended[-1].completion_tokens / ended[-1].elapsed_s if ended else None


def note_begin(out: Path, begin: RunBegin) -> None:
    """Raises ``BadInput`` if earlier answers are another model's."""
    for run in read_runs(out):
        if run.begin.model != begin.model:
            raise BadInput(
                f"{out}: its answers so far are of {run.begin.model!r}, and the server serves {begin.model!r}; serve "
                "the same model (or name it with --model), or give another --out"
            )
    _append(out, "begin", begin)


def note_end(out: Path, end: RunEnd) -> None:
    _append(out, "end", end)


def _append(out: Path, kind: str, record: Record) -> None:
    with (out / RUNS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({kind: record.model_dump(mode="json")}) + "\n")


def read_runs(out: Path) -> tuple[Run, ...]:
    """A line that a kill tore is left out."""
    runs: list[Run] = []
    path = out / RUNS
    if not path.exists():
        return ()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            body: Any = json.loads(line)
            if "begin" in body:
                runs.append(Run(begin=RunBegin.model_validate(body["begin"]), end=None))
            elif runs:
                runs[-1] = Run(begin=runs[-1].begin, end=RunEnd.model_validate(body["end"]))
        except (ValueError, KeyError, TypeError, ValidationError):
            continue
    return tuple(runs)


def make_manifest(out: Path, plan: Plan, journal: Journal) -> Manifest:
    """Over the finished parts; a data set that is not complete says so."""
    parts = [journal.parts[number] for number in sorted(journal.parts)]
    files = tuple(
        DataFile(
            file=f"parts/{part.file}", sha256=part.sha256, num_rows=part.num_rows, num_bytes=part.num_bytes
        )
        for part in parts
        if part.file is not None and part.sha256 is not None
    )
    return Manifest(
        spectune_version=__version__,
        complete=sum(part.num_prompts for part in parts) == plan.num_prompts,
        sources=plan.sources,
        prompts_sha256=plan.prompts_sha256,
        sampling=plan.sampling,
        seed=plan.seed,
        held_out_frac=plan.held_out_frac,
        turns=plan.turns,
        num_prompts=plan.num_prompts,
        num_duplicate_prompts=plan.num_duplicates,
        num_answered=sum(part.num_answered for part in parts),
        num_empty=sum(part.num_empty for part in parts),
        num_failed=sum(part.num_failed for part in parts),
        num_retried=sum(part.num_retried for part in parts),
        num_rows=sum(part.num_rows for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        answer_tokens=sum(part.answer_tokens for part in parts),
        rows_by_category=_summed(parts, "rows_by_category"),
        rows_by_split=_summed(parts, "rows_by_split"),
        answer_tokens_by_category=_summed(parts, "answer_tokens_by_category"),
        finish_reasons=_summed(parts, "finish_reasons"),
        token_ids_from=_summed(parts, "ids_from"),
        failures=tuple(failure for part in parts for failure in part.failures)[:_MAX_FAILURES],
        files=files,
        runs=read_runs(out),
    )


def _summed(parts: list[Part], name: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(getattr(part, name))
    return dict(sorted(total.items()))


def write_manifest(out: Path, manifest: Manifest) -> None:
    write_atomically(out / MANIFEST, manifest.model_dump_json(indent=1) + "\n")


def read_manifest(out: Path) -> Manifest:
    """Raises ``BadInput``."""
    path = out / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(f"{out}: no {MANIFEST}: not a finished data set") from None
    except (ValidationError, OSError) as error:
        raise BadInput(f"{path}: damaged: {' '.join(str(error).split())[:200]}") from error
