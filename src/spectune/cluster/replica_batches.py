"""Batches of prompts and of answers, as they cross between the driver of replicas and them: text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spectune.domain.record import Record
from spectune.drafter.data.plan import planned_prompts, read_plan
from spectune.drafter.data.plan_records import PlannedPrompt
from spectune.drafter.data.samples import Conversation

_BATCHES_PER_CONCURRENCY = 4


class AskedPrompt(Record):
    index: int
    planned: PlannedPrompt
    tries_left: int


class AskedBatch(Record):
    prompts: tuple[AskedPrompt, ...]


class AnsweredPrompt(Record):
    """``conversation`` is ``None`` where every try failed; ``errors`` has one for each try that did."""

    index: int
    planned: PlannedPrompt
    conversation: Conversation | None
    errors: tuple[str, ...]


class AnsweredBatch(Record):
    """What one replica made of a batch; prompts that it was told to leave are not in it."""

    replica: str
    prompts: tuple[AnsweredPrompt, ...]


def batch_size(*, concurrency: int, num_missing: int, num_replicas: int) -> int:
    """Prompts of one batch: a quarter of what a replica has in flight, fewer where there is little for each."""
    calls = calls_at_once(concurrency=concurrency)
    most = max(1, concurrency // _BATCHES_PER_CONCURRENCY)
    return max(1, min(most, num_missing // (num_replicas * calls)))


def calls_at_once(*, concurrency: int) -> int:
    """Batches that a replica works on at once: one and a half times its requests in flight.

    So the last requests of one batch run beside those of others, and the next batch comes before they are done.
    What a kill costs is bounded by the same number.
    """
    size = max(1, concurrency // _BATCHES_PER_CONCURRENCY)
    return -(-3 * concurrency // (2 * size))


def missing_batches(out: Path, tries_left: bytes, *, size: int) -> Iterator[str]:
    """``AskedBatch`` after batch over the plan in ``out``; ``tries_left``: of each prompt, 0 where it is done."""
    waiting: list[AskedPrompt] = []
    for index, planned in planned_prompts(out, read_plan(out)):
        if not tries_left[index]:
            continue
        waiting.append(AskedPrompt(index=index, planned=planned, tries_left=tries_left[index]))
        if len(waiting) == size:
            yield AskedBatch(prompts=tuple(waiting)).model_dump_json()
            waiting = []
    if waiting:
        yield AskedBatch(prompts=tuple(waiting)).model_dump_json()
