"""The plan of a data set: every prompt once, in order, with its split; written before the first request.

The plan makes a run resumable: a sample is a line of ``prompts.jsonl``, and
what is done is known by line number, whatever order answers come in.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from spectune.domain.workload import Prompt
from spectune.drafter.data.plan_records import (
    SCHEMA_VERSION,
    Plan,
    PlannedPrompt,
    PlannedSource,
    PlanRequest,
    Split,
)
from spectune.drafter.data.sources import PromptSource, iterate_source, prompt_key, source_hash
from spectune.errors import BadInput
from spectune.store.study_dir import write_atomically

PROMPTS = "prompts.jsonl"
PLAN = "plan.json"
_SPLIT_SALT = "spectune/split/1"


def split_of(group: str, *, held_out_frac: float) -> Split:
    """By hash alone: the same prompt is held out in every data set, whatever else that holds."""
    digest = hashlib.sha256(f"{_SPLIT_SALT}/{group}".encode()).digest()
    return "held-out" if int.from_bytes(digest[:8], "big") / 2**64 < held_out_frac else "train"


def make_plan(out: Path, request: PlanRequest) -> Plan:
    """Writes the plan, or reads the one that is there and checks that it is of the same request."""
    _check(request)
    hashes = [source_hash(source, categories=request.categories) for source in request.sources]
    if (out / PLAN).exists():
        plan = read_plan(out)
        _same(out, plan, request, hashes)
        return plan
    out.mkdir(parents=True, exist_ok=True)
    plan, temporary = _write_prompts(out, request, hashes)
    temporary.replace(out / PROMPTS)
    _write_json(out / PLAN, plan.model_dump(mode="json"))
    return plan


def _check(request: PlanRequest) -> None:
    if not request.sources:
        raise BadInput("no prompts: give --generate N, --prompts FILE, or both")
    if not 0 <= request.held_out_frac < 1:
        raise BadInput(f"--held-out: must be at least 0 and below 1, got {request.held_out_frac}")
    if request.shard_size < 1:
        raise BadInput(f"--shard-size: must be at least 1, got {request.shard_size}")


def read_plan(out: Path) -> Plan:
    """Raises ``BadInput`` if there is none, or one that is damaged or newer."""
    try:
        body = json.loads((out / PLAN).read_text(encoding="utf-8"))
        version = body.get("schema_version") if isinstance(body, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise BadInput(f"{out / PLAN}: schema version {version}: update spectune")
        return Plan.model_validate(body)
    except FileNotFoundError:
        raise BadInput(
            f"{out}: not a data set (no {PLAN}); `spectune drafter data --out {out}` makes one"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{out / PLAN}: damaged: {' '.join(str(error).split())[:200]}") from error


def _same(out: Path, plan: Plan, request: PlanRequest, hashes: Sequence[str]) -> None:
    """Both forms of every argument that changes a sample or its place."""
    asked: dict[str, Any] = {
        "prompts": [source.sha256 for source in plan.sources],
        "turns": plan.turns,
        "seed": plan.seed,
        "held-out": plan.held_out_frac,
        "shard-size": plan.shard_size,
        "limit": plan.limit,
        "sampling": plan.sampling.model_dump(),
    }
    now: dict[str, Any] = {
        "prompts": list(hashes),
        "turns": request.turns,
        "seed": request.seed,
        "held-out": request.held_out_frac,
        "shard-size": request.shard_size,
        "limit": request.limit,
        "sampling": request.sampling.model_dump(),
    }
    changed = [
        key if key == "prompts" else f"{key}: {now[key]}, was {asked[key]}"
        for key in asked
        if asked[key] != now[key]
    ]
    if changed:
        raise BadInput(
            f"{out}: holds data made from another request; changed: {'; '.join(changed)}\n"
            "give the same arguments to resume, or another --out"
        )


def _write_prompts(out: Path, request: PlanRequest, hashes: Sequence[str]) -> tuple[Plan, Path]:
    temporary = out / f".{PROMPTS}.{os.getpid()}.tmp"
    writer = _PromptWriter(request)
    planned: list[PlannedSource] = []
    try:
        with temporary.open("wb") as file:
            for place, source in enumerate(request.sources, start=1):
                kept, duplicates = writer.write(file, source, place)
                name = f"generated:{source.count}" if source.count is not None else Path(source.name).name
                planned.append(
                    PlannedSource(
                        name=name, sha256=hashes[place - 1], num_prompts=kept, num_duplicates=duplicates
                    )
                )
            file.flush()
            os.fsync(file.fileno())
        if not writer.num_prompts:
            raise BadInput("the sources hold no prompt")
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    plan = Plan(
        sources=tuple(planned),
        turns=request.turns,
        seed=request.seed,
        held_out_frac=request.held_out_frac,
        num_prompts=writer.num_prompts,
        num_duplicates=sum(source.num_duplicates for source in planned),
        by_category=dict(sorted(writer.categories.items())),
        by_split=dict(sorted(writer.splits.items())),
        prompts_sha256=writer.digest.hexdigest(),
        shard_size=request.shard_size,
        limit=request.limit,
        sampling=request.sampling,
    )
    return plan, temporary


class _PromptWriter:
    """Writes each prompt once; keeps 28 bytes of hashes per prompt and nothing else."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._seen: set[bytes] = set()
        self._ids: set[bytes] = set()
        self.digest = hashlib.sha256()
        self.categories: Counter[str] = Counter()
        self.splits: Counter[str] = Counter()
        self.num_prompts = 0

    def write(self, file: IO[bytes], source: PromptSource, place: int) -> tuple[int, int]:
        """Prompts kept, and duplicates left out."""
        request, kept, duplicates = self._request, 0, 0
        for sourced in iterate_source(
            source, seed=request.seed, turns=request.turns, categories=request.categories
        ):
            if request.limit is not None and self.num_prompts >= request.limit:
                continue  # a file is still read to its end, for its problems
            key = hashlib.sha256(prompt_key(sourced.prompt).encode()).digest()[:16]
            if key in self._seen:
                duplicates += 1
                continue
            self._seen.add(key)
            prompt = self._with_free_id(sourced.prompt, place)
            split = split_of(sourced.group, held_out_frac=request.held_out_frac)
            line = PlannedPrompt(prompt=prompt, split=split).model_dump_json(exclude_defaults=True).encode()
            file.write(line + b"\n")
            self.digest.update(line + b"\n")
            self.categories[prompt.category or "none"] += 1
            self.splits[split] += 1
            self.num_prompts += 1
            kept += 1
        return kept, duplicates

    def _with_free_id(self, prompt: Prompt, place: int) -> Prompt:
        """Files count their lines, so two of them share ids; later ones get the number of their source."""
        name, number = prompt.prompt_id, place
        while (key := hashlib.sha256(name.encode()).digest()[:12]) in self._ids:
            name = f"{prompt.prompt_id}@{number}"
            number += 1
        self._ids.add(key)
        return prompt if name == prompt.prompt_id else prompt.model_copy(update={"prompt_id": name})


def planned_prompts(out: Path, plan: Plan) -> Iterator[tuple[int, PlannedPrompt]]:
    """Line by line. Raises ``BadInput`` for a line that is damaged or a file of another length."""
    number = 0
    with (out / PROMPTS).open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number - 1, PlannedPrompt.model_validate_json(line)
            except ValidationError as error:
                raise BadInput(f"{out / PROMPTS}, line {number}: damaged; make the data set again") from error
    if number != plan.num_prompts:
        raise BadInput(f"{out / PROMPTS}: {number} of {plan.num_prompts} prompts: cut short; make it again")


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
