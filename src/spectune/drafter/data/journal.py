"""Samples on disk: a journal per shard while it fills, one Parquet file when it is whole.

::

    OUT/journal/00003.jsonl       one line per finished sample of the shard's prompts, as it finished
    OUT/parts/part-00003.parquet  the same, in the order of the prompts; written whole or not at all
    OUT/parts/part-00003.json     its sha256 and counts; its presence means the shard is done

A process that is killed at any instant loses at most the lines it was waiting
for. Which shard a sample belongs to depends on its prompt alone, so files do
not depend on the order in which answers came.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from spectune.drafter.data.journal_lines import cut_torn_line, line, write_whole
from spectune.drafter.data.parts import Part, damage, part_path, read_part, write_part
from spectune.drafter.data.plan_records import Shards
from spectune.drafter.data.samples import Conversation
from spectune.errors import BadInput
from spectune.store.study_dir import write_atomically

Status = Literal["answered", "empty", "failed"]
_MAX_ERROR = 300


@dataclass
class Tally:
    """Counts over everything on disk, kept while a run goes on."""

    answered: int = 0
    empty: int = 0
    failed: int = 0
    retried: int = 0
    rows: int = 0
    answer_tokens: int = 0

    @property
    def done(self) -> int:
        return self.answered + self.empty + self.failed


@dataclass
class _OpenShard:
    file: IO[bytes]
    num_done: int


@dataclass
class Journal:
    """The samples of one data set. ``tries`` holds prompts that failed once."""

    out: Path
    shards: Shards
    tally: Tally = field(default_factory=Tally)
    tries: set[int] = field(default_factory=set)
    parts: dict[int, Part] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _done: bytearray = field(default_factory=bytearray)
    _open: dict[int, _OpenShard] = field(default_factory=dict)

    @classmethod
    def recover(
        cls,
        out: Path,
        *,
        shards: Shards,
        redo_damaged: bool = False,
        retry_failed: bool = False,
    ) -> Journal:
        """What is on disk, checked: a part that is not what was written raises ``BadInput``."""
        journal = cls(out, shards, _done=bytearray(shards.num_prompts))
        (out / "journal").mkdir(parents=True, exist_ok=True)
        (out / "parts").mkdir(exist_ok=True)
        for leftover in [*(out / "parts").glob(".part-*.parquet.*.tmp"), *out.glob(".prompts.jsonl.*.tmp")]:
            leftover.unlink()
        for number in range(len(shards)):
            journal._recover_shard(number, redo_damaged=redo_damaged, retry_failed=retry_failed)
        return journal

    def is_done(self, index: int) -> bool:
        return bool(self._done[index])

    def add(self, index: int, *, category: str | None, split: str, conversation: Conversation) -> None:
        """One sample that was answered, or of which the answer is empty."""
        status: Status = "answered" if conversation.rows else "empty"
        rows = [
            {
                "prompt_id": row.prompt_id,
                "input_ids": row.input_ids,
                "spans": row.spans,
                "text": row.text,
                "finish_reason": row.finish_reason,
            }
            for row in conversation.rows
        ]
        self._append(
            index,
            {
                "status": status,
                "category": category,
                "split": split,
                "seed": conversation.seed,
                "ids_from": conversation.ids_from,
                "rows": rows,
            },
        )
        if conversation.rows:
            self.tally.answered += 1
        else:
            self.tally.empty += 1
        self.tally.rows += len(conversation.rows)
        self.tally.answer_tokens += sum(row.num_answer_tokens for row in conversation.rows)

    def add_failure(self, index: int, *, prompt_id: str, error: str) -> bool:
        """Notes a failed try; true if it was the first, so that the sample is to be asked again."""
        first = index not in self.tries
        entry = {
            "status": "retry" if first else "failed",
            "prompt_id": prompt_id,
            "error": error[:_MAX_ERROR],
        }
        self._append(index, entry)
        if first:
            self.tries.add(index)
            self.tally.retried += 1
        else:
            self.tries.discard(index)
            self.tally.failed += 1
        return first

    def close(self) -> None:
        for shard in self._open.values():
            shard.file.close()
        self._open.clear()

    def _append(self, index: int, entry: dict[str, Any]) -> None:
        number = self.shards.of(index)
        shard = self._open.get(number)
        if shard is None:
            file = self._path(number).open("ab", buffering=0)
            shard = self._open[number] = _OpenShard(file, 0)
            span = self.shards.indexes(number)
            shard.num_done = sum(self._done[span.start : span.stop])
        write_whole(shard.file, line({"i": index, **entry}).encode())
        if entry["status"] != "retry":
            self._done[index] = 1
            shard.num_done += 1
            if shard.num_done == len(self.shards.indexes(number)):
                self._seal(number)

    def _path(self, number: int) -> Path:
        return self.out / "journal" / f"{number:05d}.jsonl"

    def _recover_shard(self, number: int, *, redo_damaged: bool, retry_failed: bool) -> None:
        part = read_part(self.out, number)
        if part is not None:
            problem = damage(self.out, part)
            if problem is not None and not redo_damaged:
                raise BadInput(
                    f"{problem}\nits {part.num_prompts} prompts can be answered again with --redo-damaged; "
                    "everything else is kept"
                )
            if problem is None and not (retry_failed and part.num_failed):
                self._take(number, part)
                return
            part_path(self.out, number).unlink()
            if problem is not None:
                self._path(number).unlink(missing_ok=True)
                self.notes.append(f"part {number}: its {part.num_prompts} prompts are answered again")
        path = self._path(number)
        if not path.exists():
            return
        cut_torn_line(path)
        if retry_failed:
            self._forget_failures(number)
        self._recover_journal(number)

    def _forget_failures(self, number: int) -> None:
        kept = [entry for entry in self._entries(number) if entry["status"] not in ("failed", "retry")]
        write_atomically(self._path(number), "".join(line(entry) for entry in kept))

    def _recover_journal(self, number: int) -> None:
        for entry in self._entries(number):
            index = entry["i"]
            if self._done[index]:
                continue
            if entry["status"] == "retry":
                self.tries.add(index)
                self.tally.retried += 1
                continue
            self._done[index] = 1
            self.tries.discard(index)
            self._count(entry)
        if all(self._done[index] for index in self.shards.indexes(number)):
            self._seal(number)

    def _take(self, number: int, part: Part) -> None:
        self.parts[number] = part
        for index in self.shards.indexes(number):
            self._done[index] = 1
        self.tally.answered += part.num_answered
        self.tally.empty += part.num_empty
        self.tally.failed += part.num_failed
        self.tally.retried += part.num_retried
        self.tally.rows += part.num_rows
        self.tally.answer_tokens += part.answer_tokens

    def _count(self, entry: dict[str, Any]) -> None:
        status = entry["status"]
        self.tally.answered += status == "answered"
        self.tally.empty += status == "empty"
        self.tally.failed += status == "failed"
        for row in entry.get("rows", ()):
            self.tally.rows += 1
            self.tally.answer_tokens += sum(end - begin for begin, end in row["spans"])

    def _entries(self, number: int) -> Iterator[dict[str, Any]]:
        """Journal lines that can be read; others are noted, and their samples asked again."""
        span = self.shards.indexes(number)
        path = self._path(number)
        with path.open("rb") as file:
            for place, text in enumerate(file, start=1):
                try:
                    entry = json.loads(text)
                    if entry["i"] not in span or not isinstance(entry["status"], str):
                        raise ValueError
                except (ValueError, KeyError, TypeError, RecursionError):
                    self.notes.append(f"{path.name}, line {place}: damaged; its sample is asked again")
                    continue
                yield entry

    def _seal(self, number: int) -> None:
        shard = self._open.pop(number, None)
        if shard is not None:
            os.fsync(shard.file.fileno())
            shard.file.close()
        by_index: dict[int, dict[str, Any]] = {}
        num_retried = 0
        for entry in self._entries(number):
            num_retried += entry["status"] == "retry"
            if entry["status"] != "retry":
                by_index.setdefault(entry["i"], entry)
        ordered = [by_index[index] for index in sorted(by_index)]
        part = write_part(
            self.out, number, ordered, num_prompts=len(self.shards.indexes(number)), num_retried=num_retried
        )
        self.parts[number] = part
        if not part.num_failed:  # else --retry-failed begins from it
            self._path(number).unlink(missing_ok=True)
