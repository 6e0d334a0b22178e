"""Features for batches of rows: made when needed, or read from a cache on disk.

::

    RUN/features/
      cache.json                  what the features were made from, and the rows of each shard
      ends.safetensors            the target's embedding and head, so that training need not load the target
      shard-00000.safetensors     states, final, logsum, top of consecutive rows, one after the other

A shard appears whole or not at all, so an interrupted cache goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from spectune.domain.sizes import in_bytes
from spectune.drafter.config import DraftConfig
from spectune.drafter.files import write_tensors
from spectune.drafter.target import Ends, Features, Target
from spectune.drafter.train.rows import Ints, Rows
from spectune.errors import BadInput, EnvironmentFailed
from spectune.store.study_dir import write_atomically

_SHARD_BYTES = 128_000_000
_TOKENS_AT_ONCE = 4096
_FREE_BYTES_LEFT = 500_000_000
NAMES = ("states", "final", "logsum", "top")
Progress = Callable[[str], None]


class FeatureSource(Protocol):
    """Where training gets the target's states from."""

    ends: Ends

    def features(self, rows: Ints, tokens_BL: Ints, needed_BL: Ints) -> Features:
        """Of the rows with these indexes, padded as ``tokens_BL`` is."""
        ...


class OnTheFly:
    """The target runs for every batch."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.ends = target.ends

    def features(self, rows: Ints, tokens_BL: Ints, needed_BL: Ints) -> Features:
        return self.target.features(tokens_BL, needed_BL)


def needed_positions(mask_BL: Ints) -> Ints:
    """Positions whose logits predict an answer token."""
    needed: Ints = np.concatenate([mask_BL[:, 1:], np.zeros_like(mask_BL[:, :1])], axis=1) == 1
    return needed


def bytes_per_token(config: DraftConfig, *, dtype: str) -> int:
    """Of the cache: fused states and final state, a float32 log-sum and an int32 token."""
    width = 2 if dtype == "bfloat16" else 4
    return (len(config.layers) + 1) * config.hidden_size * width + 8


@dataclass(frozen=True)
class CachePlan:
    """Which rows go into which shard. The size is known before the target runs."""

    folder: Path
    rows: Rows
    config: DraftConfig
    dtype: str
    target_identity: str

    @property
    def num_bytes(self) -> int:
        return int(self.rows.offsets[-1]) * bytes_per_token(self.config, dtype=self.dtype)

    @cached_property
    def shards(self) -> list[tuple[int, int]]:
        """First row and the row behind the last one."""
        per_shard = max(1, _SHARD_BYTES // bytes_per_token(self.config, dtype=self.dtype))
        bounds, first = [], 0
        offsets = self.rows.offsets
        while first < len(self.rows):
            last = int(np.searchsorted(offsets, offsets[first] + per_shard, "right")) - 1
            last = min(max(last, first + 1), len(self.rows))
            bounds.append((first, last))
            first = last
        return bounds

    def shard_path(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.safetensors"

    @property
    def made_from(self) -> dict[str, Any]:
        return {
            "rows": self.rows.fingerprint,
            "target": self.target_identity,
            "layers": list(self.config.layers),
            "dtype": self.dtype,
        }

    def missing(self) -> list[int]:
        """Shards still to make; raises ``BadInput`` if the folder holds the features of something else."""
        try:
            described = json.loads((self.folder / "cache.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return list(range(len(self.shards)))
        except ValueError as error:
            raise BadInput(
                f"{self.folder}/cache.json: not JSON; delete the folder to make it again"
            ) from error
        made_from = described.get("made_from") if isinstance(described, dict) else None
        if not isinstance(made_from, dict):
            raise BadInput(
                f"{self.folder}/cache.json: not the description of a cache; delete the folder to make it again"
            )
        if made_from != self.made_from:
            changed = [key for key, value in self.made_from.items() if made_from.get(key) != value]
            raise BadInput(
                f"{self.folder}: these features were made with other {', '.join(changed) or 'settings'}; "
                "delete the folder, or give another --cache or --out"
            )
        return [number for number in range(len(self.shards)) if not self.shard_path(number).exists()]

    @property
    def ends_path(self) -> Path:
        return self.folder / "ends.safetensors"

    def is_whole(self) -> bool:
        """Raises ``BadInput`` as ``missing`` does."""
        return not self.missing() and self.ends_path.exists()

    def check_space(self, missing: list[int]) -> None:
        """Raises ``EnvironmentFailed`` if what is missing does not fit the disk."""
        wanted = self.num_bytes * len(missing) // max(1, len(self.shards))
        free = shutil.disk_usage(self.folder).free
        if wanted + _FREE_BYTES_LEFT > free:
            raise EnvironmentFailed(
                f"{self.folder}: the feature cache needs {in_bytes(wanted)} more, {in_bytes(_FREE_BYTES_LEFT)} are to "
                f"stay free, and {in_bytes(free)} are; free space, or train with --features on-the-fly"
            )


def make_cache(plan: CachePlan, target: Target, *, writes: bool, on_progress: Progress) -> None:
    """Makes the missing shards. With several processes all compute, and one ``writes``."""
    missing = plan.missing()
    if writes:
        plan.folder.mkdir(parents=True, exist_ok=True)
        plan.check_space(missing)
        description = {"made_from": plan.made_from, "num_bytes": plan.num_bytes, "shards": plan.shards}
        write_atomically(plan.folder / "cache.json", json.dumps(description) + "\n")
        write_tensors(plan.ends_path, target.ends.tensors())
    for done, number in enumerate(missing):
        tensors = _shard(plan, target, *plan.shards[number])
        if writes:
            write_tensors(plan.shard_path(number), tensors)
        on_progress(f"features: shard {done + 1} of {len(missing)}")


def _shard(plan: CachePlan, target: Target, first: int, last: int) -> dict[str, Tensor]:
    """Features of consecutive rows; rows of similar length run together."""
    lengths = plan.rows.lengths()[first:last]
    pieces: list[dict[str, Tensor]] = [{} for _ in lengths]
    order = np.argsort(lengths, kind="stable")
    begin = 0
    while begin < len(order):
        some = order[begin : begin + max(1, _TOKENS_AT_ONCE // int(lengths[order[begin]]))]
        while len(some) > 1 and len(some) * int(lengths[some[-1]]) > 2 * _TOKENS_AT_ONCE:
            some = some[: len(some) // 2]
        for index, piece in zip(some, _features_of(plan, target, some + first), strict=True):
            pieces[int(index)] = piece
        begin += len(some)
    return {name: torch.cat([piece[name] for piece in pieces]) for name in NAMES}


def _features_of(plan: CachePlan, target: Target, indexes: Ints) -> list[dict[str, Tensor]]:
    pairs = [plan.rows.row(int(index)) for index in indexes]
    longest = max(len(ids) for ids, _ in pairs)
    tokens_BL = np.stack([np.pad(ids, (0, longest - len(ids))) for ids, _ in pairs]).astype(np.int64)
    mask_BL = np.stack([np.pad(mask, (0, longest - len(mask))) for _, mask in pairs])
    got = target.features(tokens_BL, needed_positions(mask_BL))
    dtype = getattr(torch, plan.dtype)
    whole = {
        "states": got.states_BLF.to(dtype).cpu(),
        "final": got.final_BLD.to(dtype).cpu(),
        "logsum": got.logsum_BL.cpu(),
        "top": got.top_BL.to(torch.int32).cpu(),
    }
    return [{name: x[b, : len(ids)] for name, x in whole.items()} for b, (ids, _) in enumerate(pairs)]


class Cached:
    """Features from a complete cache. Files are mapped: memory does not grow with their size."""

    def __init__(self, plan: CachePlan, *, device: str) -> None:
        self._plan = plan
        self._device = device
        self._shard_of = np.concatenate(
            [np.full(last - first, number) for number, (first, last) in enumerate(plan.shards)]
        )
        self._open: dict[int, Any] = {}
        self.ends = _read_ends(plan.ends_path, device=device)
        for number in range(len(plan.shards)):
            self._shard(number)

    def features(self, rows: Ints, tokens_BL: Ints, needed_BL: Ints) -> Features:
        B, L = tokens_BL.shape
        width, dtype = self._plan.config.hidden_size, getattr(torch, self._plan.dtype)
        states = torch.zeros(B, L, width * len(self._plan.config.layers), dtype=dtype)
        final = torch.zeros(B, L, width, dtype=dtype)
        logsum, top = torch.zeros(B, L), torch.full((B, L), -1, dtype=torch.int64)
        offsets = self._plan.rows.offsets
        for b, row in enumerate(map(int, rows)):
            number = int(self._shard_of[row])
            begin = int(offsets[row] - offsets[self._plan.shards[number][0]])
            place = slice(begin, begin + int(offsets[row + 1] - offsets[row]))
            for into, name in ((states, "states"), (final, "final"), (logsum, "logsum"), (top, "top")):
                piece = self._shard(number).get_slice(name)[place]
                into[b, : len(piece)] = piece
            if not torch.isfinite(final[b]).all():
                raise BadInput(
                    f"{self._plan.shard_path(number)}: values of row {row} are not finite: a damaged shard; "
                    "delete it, and it is made again"
                )
        return Features(*(x.to(self._device) for x in (states, final, logsum, top)))

    def _shard(self, number: int) -> Any:
        if number not in self._open:
            path = self._plan.shard_path(number)
            first, last = self._plan.shards[number]
            tokens = int(self._plan.rows.offsets[last] - self._plan.rows.offsets[first])
            try:
                file: Any = safe_open(path, framework="pt")
                lengths = {name: file.get_slice(name).get_shape()[0] for name in NAMES}
            except (SafetensorError, OSError) as error:
                raise BadInput(
                    f"{path}: damaged feature shard: {error}; delete it, and it is made again"
                ) from error
            if set(lengths.values()) != {tokens}:
                raise BadInput(
                    f"{path}: holds {lengths['states']} positions, the rows have {tokens}; "
                    "delete it, and it is made again"
                )
            self._open[number] = file
        return self._open[number]


def _read_ends(path: Path, *, device: str) -> Ends:
    try:
        tensors = read_tensors(path)
    except BadInput as error:
        raise BadInput(f"{error}; delete it, and it is made again") from error
    if "embedding" not in tensors:
        raise BadInput(f"{path}: holds no embedding; delete it, and it is made again")
    return Ends.of_tensors(tensors, device=device)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one file. Raises ``BadInput`` naming it."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file") from error
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path}: damaged, or not safetensors: {error}") from error


def target_identity(source: str) -> str:
    """Changes when the target's files do: names, sizes and times of its configuration and weights."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return source
    parts = [
        f"{entry.name}:{entry.stat().st_size}:{entry.stat().st_mtime_ns}"
        for entry in sorted(os.scandir(folder), key=lambda e: e.name)
        if entry.name == "config.json" or entry.name.endswith(".safetensors")
    ]
    return "|".join([str(folder.resolve()), *parts])
