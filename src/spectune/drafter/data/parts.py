"""A finished shard of samples: one Parquet file, and the record that declares it done."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from spectune.domain.record import Record
from spectune.drafter.extra import needed
from spectune.errors import BadInput
from spectune.store.study_dir import write_atomically

_MAX_LISTED = 20


class Part(Record):
    """``part-00003.json``."""

    number: int
    file: str | None
    """``None``: no prompt of it was answered."""
    sha256: str | None
    num_bytes: int
    num_prompts: int
    num_rows: int
    num_answered: int
    num_empty: int
    num_failed: int
    num_retried: int
    prompt_tokens: int
    answer_tokens: int
    rows_by_category: dict[str, int]
    rows_by_split: dict[str, int]
    answer_tokens_by_category: dict[str, int]
    finish_reasons: dict[str, int]
    ids_from: dict[str, int]
    failures: tuple[str, ...] = Field(default=(), max_length=_MAX_LISTED)
    """The first ones: prompt id and reason."""


def part_path(out: Path, number: int) -> Path:
    return out / "parts" / f"part-{number:05d}.json"


def read_part(out: Path, number: int) -> Part | None:
    """``None``: the shard is not done."""
    path = part_path(out, number)
    try:
        return Part.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise BadInput(f"{path}: damaged; remove it to have its prompts answered again") from error


def damage(out: Path, part: Part) -> str | None:
    if part.file is None:
        return None
    path = out / "parts" / part.file
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{path}: is missing"
    if digest != part.sha256:
        return (
            f"{path}: is damaged: sha256 {digest[:16]}..., {part.sha256 and part.sha256[:16]}... was written"
        )
    return None


def whole_files(folder: Path) -> list[Path]:
    """The Parquet files of the finished shards of a data set; raises ``BadInput`` if one is not as it was written."""
    found = []
    for record in sorted((folder / "parts").glob("part-*.json")):
        part = _part_of(record)
        problem = None if part is None else damage(folder, part)
        if problem is not None:
            raise BadInput(
                f"{problem}\nhave its prompts answered again: spectune drafter data --out {folder} --redo-damaged, "
                "with the arguments it was made with"
            )
        if part is not None and part.file is not None:
            found.append(folder / "parts" / part.file)
    return found


def check_file(path: Path) -> None:
    """Raises ``BadInput`` if ``path`` is a shard of a data set and not as it was written."""
    record = path.with_suffix(".json")
    if path.parent.name == "parts" and record.is_file():
        part = _part_of(record)
        problem = None if part is None else damage(path.parent.parent, part)
        if problem is not None:
            raise BadInput(problem)


def _part_of(record: Path) -> Part | None:
    number = record.stem.removeprefix("part-")
    return read_part(record.parent.parent, int(number)) if number.isdecimal() else None


def write_part(
    out: Path, number: int, entries: list[dict[str, Any]], *, num_prompts: int, num_retried: int
) -> Part:
    """The Parquet file first, then the record that declares it done."""
    rows = [(entry, row) for entry in entries for row in entry.get("rows", ())]
    name = f"part-{number:05d}.parquet"
    path = out / "parts" / name
    if rows:
        write_parquet(path, rows)
    else:
        path.unlink(missing_ok=True)
    categories: Counter[str] = Counter()
    splits: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    finishes: Counter[str] = Counter()
    prompt_tokens = 0
    for entry, row in rows:
        answered = sum(end - begin for begin, end in row["spans"])
        category = entry["category"] or "none"
        categories[category] += 1
        tokens[category] += answered
        splits[entry["split"]] += 1
        finishes[row["finish_reason"]] += 1
        prompt_tokens += len(row["input_ids"]) - answered
    statuses = Counter(entry["status"] for entry in entries)
    part = Part(
        number=number,
        file=name if rows else None,
        sha256=_sha256(path) if rows else None,
        num_bytes=path.stat().st_size if rows else 0,
        num_prompts=num_prompts,
        num_rows=len(rows),
        num_answered=statuses["answered"],
        num_empty=statuses["empty"],
        num_failed=statuses["failed"],
        num_retried=num_retried,
        prompt_tokens=prompt_tokens,
        answer_tokens=sum(tokens.values()),
        rows_by_category=dict(sorted(categories.items())),
        rows_by_split=dict(sorted(splits.items())),
        answer_tokens_by_category=dict(sorted(tokens.items())),
        finish_reasons=dict(sorted(finishes.items())),
        ids_from=dict(Counter(entry["ids_from"] for entry in entries if entry.get("ids_from"))),
        failures=tuple(
            f"{entry['prompt_id']}: {entry['error']}" for entry in entries if entry["status"] == "failed"
        )[:_MAX_LISTED],
    )
    write_atomically(part_path(out, number), part.model_dump_json(indent=1) + "\n")
    return part


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_parquet(path: Path, rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Columns ``prompt_id, category, split, input_ids, loss_mask, answer_text, seed, finish_reason``."""
    pa, parquet = needed("pyarrow"), needed("pyarrow.parquet")
    masks = []
    for _, row in rows:
        mask = bytearray(len(row["input_ids"]))
        for begin, end in row["spans"]:
            mask[begin:end] = b"\1" * (end - begin)
        masks.append(list(mask))
    table = pa.table(
        {
            "prompt_id": pa.array([row["prompt_id"] for _, row in rows], pa.string()),
            "category": pa.array([entry["category"] for entry, _ in rows], pa.string()),
            "split": pa.array([entry["split"] for entry, _ in rows], pa.string()),
            "input_ids": pa.array([row["input_ids"] for _, row in rows], pa.list_(pa.int32())),
            "loss_mask": pa.array(masks, pa.list_(pa.int8())),
            "answer_text": pa.array([row["text"] for _, row in rows], pa.string()),
            "seed": pa.array([entry["seed"] for entry, _ in rows], pa.int64()),
            "finish_reason": pa.array([row["finish_reason"] for _, row in rows], pa.string()),
        }
    )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            parquet.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
