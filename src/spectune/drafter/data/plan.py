"""The plan of a data set: every prompt once, in order, with its split; written before the first request.

The plan makes a run resumable: a sample is a line of ``prompts.jsonl``, and
what is done is known by line number, whatever order answers come in.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from spectune.domain.workload import Prompt
from spectune.drafter.data.parts import read_part
from spectune.drafter.data.plan_records import (
    SCHEMA_VERSION,
    DataSampling,
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
    """Writes the plan, or reads the one that is there; a request for more prompts makes it grow.

    Growing keeps every prompt that is there in its place and adds the new ones behind them. Raises
    ``BadInput`` for any other request than the one on disk.
    """
    _check(request)
    hashes = [source_hash(source, categories=request.categories) for source in request.sources]
    known = read_plan(out) if (out / PLAN).exists() else None
    if known is not None:
        changed = _changed(known, request, hashes)
        if not changed:
            return known
        if not changed.keys() <= {"prompts", "limit"}:
            raise _other_request(out, changed)
    out.mkdir(parents=True, exist_ok=True)
    plan, temporary = _write_prompts(out, request, hashes, known)
    temporary.replace(out / PROMPTS)  # killed here, the plan on disk still names the prompts it had
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


def unfinished(out: Path) -> str | None:
    """Which prompts of a data set are in no finished file yet; ``None``: all are, or ``out`` is no data set."""
    if not (out / PLAN).is_file():
        return None
    plan = read_plan(out)
    parts = (read_part(out, number) for number in range(len(plan.shards)))
    done = sum(part.num_prompts for part in parts if part is not None)
    if done == plan.num_prompts:
        return None
    return (
        f"{out}: finished files have {done} of its {plan.num_prompts} prompts; the command that made it goes on with "
        "the rest: spectune drafter data, with the same arguments"
    )


def _changed(plan: Plan, request: PlanRequest, hashes: Sequence[str]) -> dict[str, str]:
    """What differs, of every argument that changes a sample or its place."""
    asked: dict[str, Any] = {
        "prompts": [source.sha256 for source in plan.sources],
        "turns": plan.turns,
        "seed": plan.seed,
        "held-out": plan.held_out_frac,
        "shard-size": plan.shard_size,
        "limit": plan.limit,
        **_sampling(plan.sampling),
    }
    now: dict[str, Any] = {
        "prompts": list(hashes),
        "turns": request.turns,
        "seed": request.seed,
        "held-out": request.held_out_frac,
        "shard-size": request.shard_size,
        "limit": request.limit,
        **_sampling(request.sampling),
    }
    return {
        key: key if key == "prompts" else f"{key}: {now[key]}, was {asked[key]}"
        for key in asked
        if asked[key] != now[key]
    }


def _sampling(sampling: DataSampling) -> dict[str, Any]:
    """By the names of the flags; its seed is that of the plan."""
    return {
        "max-tokens": sampling.max_tokens,
        "temperature": ",".join(f"{value:g}" for value in sampling.temperatures),
        "top-p": sampling.top_p,
        "extra-body": sampling.extra_body,
    }


def _other_request(out: Path, changed: dict[str, str]) -> BadInput:
    return BadInput(
        f"{out}: holds data made from another request; changed: {'; '.join(changed.values())}\n"
        "give the same arguments to resume, the same and more prompts to add to it, or another --out"
    )


def _write_prompts(
    out: Path, request: PlanRequest, hashes: Sequence[str], known: Plan | None
) -> tuple[Plan, Path]:
    """The prompts of ``known`` as they are, then those of the request that are not among them."""
    temporary = out / f".{PROMPTS}.{os.getpid()}.tmp"
    writer = _PromptWriter(request)
    planned: list[PlannedSource] = []
    try:
        with temporary.open("wb") as file:
            if known is not None:
                writer.keep(file, out, known)
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
        if writer.num_missing:
            raise BadInput(
                f"{out}: holds {writer.num_missing} prompts that are not among those asked for now, so it cannot be "
                "added to; give the same prompts and more, or another --out"
            )
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    has_grown = known is not None and writer.num_prompts > known.num_prompts
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
        grown_at=()
        if known is None
        else (*known.grown_at, known.num_prompts)
        if has_grown
        else known.grown_at,
        limit=request.limit,
        sampling=request.sampling,
    )
    return plan, temporary


class _PromptWriter:
    """Writes each prompt once; keeps 28 bytes of hashes per prompt, 44 while a set grows, and nothing else."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._seen: set[bytes] = set()
        self._ids: set[bytes] = set()
        self._before: set[bytes] = set()
        """Of the prompts that were there, those not met yet."""
        self._num_met = 0
        self.digest = hashlib.sha256()
        self.categories: Counter[str] = Counter()
        self.splits: Counter[str] = Counter()
        self.num_prompts = 0

    @property
    def num_missing(self) -> int:
        """Prompts that were there and are not in the request."""
        return len(self._before)

    def keep(self, file: IO[bytes], out: Path, known: Plan) -> None:
        """What is planned already, byte by byte. Raises ``BadInput`` if it is not what was planned."""
        for line, planned in _planned_lines(out, known):
            self._before.add(_key(planned.prompt))
            self._ids.add(_id_key(planned.prompt.prompt_id))
            self._put(file, line, planned)
        if self.digest.hexdigest() != known.prompts_sha256:
            raise BadInput(f"{out / PROMPTS}: damaged: not what was planned; make the data set again")

    def write(self, file: IO[bytes], source: PromptSource, place: int) -> tuple[int, int]:
        """Prompts kept, and duplicates left out."""
        request, kept, duplicates = self._request, 0, 0
        for sourced in iterate_source(
            source, seed=request.seed, turns=request.turns, categories=request.categories
        ):
            if request.limit is not None and self._num_met >= request.limit:
                continue  # a file is still read to its end, for its problems
            key = _key(sourced.prompt)
            if key in self._seen:
                duplicates += 1
                continue
            self._seen.add(key)
            self._num_met += 1
            kept += 1
            if key in self._before:
                self._before.remove(key)
                continue
            prompt = self._with_free_id(sourced.prompt, place)
            split = split_of(sourced.group, held_out_frac=request.held_out_frac)
            planned = PlannedPrompt(prompt=prompt, split=split)
            self._put(file, planned.model_dump_json(exclude_defaults=True).encode() + b"\n", planned)
        return kept, duplicates

    def _put(self, file: IO[bytes], line: bytes, planned: PlannedPrompt) -> None:
        file.write(line)
        self.digest.update(line)
        self.categories[planned.prompt.category or "none"] += 1
        self.splits[planned.split] += 1
        self.num_prompts += 1

    def _with_free_id(self, prompt: Prompt, place: int) -> Prompt:
        """Files count their lines, so two of them share ids; later ones get the number of their source."""
        name, number = prompt.prompt_id, place
        while (key := _id_key(name)) in self._ids:
            name = f"{prompt.prompt_id}@{number}"
            number += 1
        self._ids.add(key)
        return prompt if name == prompt.prompt_id else prompt.model_copy(update={"prompt_id": name})


def _key(prompt: Prompt) -> bytes:
    return hashlib.sha256(prompt_key(prompt).encode()).digest()[:16]


def _id_key(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:12]


def planned_prompts(out: Path, plan: Plan) -> Iterator[tuple[int, PlannedPrompt]]:
    """Line by line. Raises ``BadInput`` for a line that is damaged or a file that is too short."""
    for index, (_, planned) in enumerate(_planned_lines(out, plan)):
        yield index, planned


def _planned_lines(out: Path, plan: Plan) -> Iterator[tuple[bytes, PlannedPrompt]]:
    """As many as the plan has; there may be more, of a request for more that was killed in its last moment."""
    number = 0
    try:
        opened = (out / PROMPTS).open("rb")
    except FileNotFoundError as error:
        raise BadInput(f"{out / PROMPTS}: is gone; make the data set again") from error
    with opened as file:
        for number, line in enumerate(itertools.islice(file, plan.num_prompts), start=1):
            try:
                yield line, PlannedPrompt.model_validate_json(line)
            except ValidationError as error:
                raise BadInput(f"{out / PROMPTS}, line {number}: damaged; make the data set again") from error
    if number != plan.num_prompts:
        raise BadInput(f"{out / PROMPTS}: {number} of {plan.num_prompts} prompts: cut short; make it again")


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
