"""Training rows on disk: read once from Parquet or JSONL, then mapped, so that their number does not matter.

::

    RUN/rows/
      tokens.i32     every row's token ids, one after the other
      mask.u8        1 on the answer's tokens
      rows.json      offsets are in offsets.i64; split and category of each row; what it was made from
      prompts.jsonl  the prompt ids, one JSON string a line
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from spectune.errors import BadInput, EnvironmentFailed
from spectune.store.replacing import replace_folder
from spectune.store.study_dir import write_atomically

Ints = npt.NDArray[Any]
COLUMNS = ("prompt_id", "category", "split", "input_ids", "loss_mask")
_NEEDED = tuple(name for name in COLUMNS if name != "category")
_NO_CATEGORY = "none"
"""As the manifest of a data set counts prompts without one."""
SPLITS = ("train", "held-out")
_FILES = (
    *("tokens.i32", "mask.u8", "offsets.i64", "splits.u8", "categories.i32"),
    *("prompts.jsonl", "rows.json"),
)
_SHOWN = 3
_ROWS_AT_ONCE = 512
_LEFT_OUT = 255
"""In ``splits``: a training row that is not used."""
_SHORTEST = 3
"""Tokens: one whose state is read, the next one, and one to predict."""


@dataclass(frozen=True)
class Rows:
    """All rows of a data set, memory-mapped."""

    folder: Path
    tokens: Ints
    mask: Ints
    offsets: Ints
    splits: Ints
    """Index into ``SPLITS``."""
    categories: Ints
    category_names: tuple[str, ...]
    fingerprint: str
    """Of tokens, masks and splits."""
    num_truncated: int
    num_too_long: int
    """Rows left out because no answer token lies within the maximal length."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> tuple[Ints, Ints]:
        """Token ids and loss mask of one row."""
        place = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.tokens[place], self.mask[place]

    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def check_length(self, limit: int | None, *, target: str) -> None:
        """Raises ``BadInput`` for rows longer than the target reads: no server of it has answered them either."""
        longest = int(self.lengths().max())
        if limit is not None and longest > limit:
            raise BadInput(
                f"--max-length: a row has {longest} tokens, and {target} reads at most {limit}; give --max-length "
                f"{limit}"
            )

    def of_split(self, split: str) -> Ints:
        """Indexes of the rows of one split."""
        return np.flatnonzero(self.splits == SPLITS.index(split))

    def with_train_rows(self, count: int | None, *, seed: int) -> Rows:
        """Only ``count`` of the training rows, by chance; a smaller choice is part of a larger one.

        Rows keep their indexes and the fingerprint stays, so features of the whole serve every choice.
        Raises ``BadInput`` for more rows than there are: a forecast would take the number for what was trained on.
        """
        train = self.of_split("train")
        if count is not None and count > len(train):
            raise BadInput(
                f"--train-rows {count}: the data has {len(train)} training rows; give at most that"
            )
        if count is None or count == len(train):
            return self
        splits = np.array(self.splits)
        splits[np.random.default_rng(seed).permutation(train)[count:]] = _LEFT_OUT
        return replace(self, splits=splits)

    def category(self, index: int) -> str:
        return self.category_names[int(self.categories[index])]

    def prompt_ids(self) -> list[str]:
        with (self.folder / "prompts.jsonl").open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def prepare_rows(
    files: Sequence[Path],
    folder: Path,
    *,
    max_length: int,
    vocab_size: int,
    expected: str | None = None,
    verify: bool = True,
) -> Rows:
    """Reads ``files`` into ``folder``, or finds them there already. Raises ``BadInput``.

    Runs that share the folder take turns. ``expected``: the only fingerprint that may replace what is there.
    ``verify``: what is found is compared with its fingerprint, and read again from ``files`` where it differs.
    """
    if not files:
        raise BadInput("no data: give at least one Parquet or JSONL file")
    made_from = {"files": [_identity(path) for path in files], "max_length": max_length, "vocab": vocab_size}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = _whole_rows(folder, made_from)
        if rows is None or (verify and _fingerprint(rows) != rows.fingerprint):
            _write_rows(
                files, folder, made_from, max_length=max_length, vocab_size=vocab_size, expected=expected
            )
            rows = _whole_rows(folder, made_from)
    if rows is None:
        raise EnvironmentFailed(f"{folder}: does not read back as it was written: is the disk in order?")
    return rows


def _whole_rows(folder: Path, made_from: dict[str, Any]) -> Rows | None:
    """``None``: not there, made from something else, or cut short where the machine stopped before the disk had it."""
    try:
        described = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
        if described["made_from"] != made_from:
            return None
        rows = Rows(
            folder=folder,
            tokens=np.memmap(folder / "tokens.i32", dtype=np.int32, mode="r"),
            mask=np.memmap(folder / "mask.u8", dtype=np.uint8, mode="r"),
            offsets=np.fromfile(folder / "offsets.i64", dtype=np.int64),
            splits=np.fromfile(folder / "splits.u8", dtype=np.uint8),
            categories=np.fromfile(folder / "categories.i32", dtype=np.int32),
            category_names=tuple(described["categories"]),
            fingerprint=described["fingerprint"],
            num_truncated=described["num_truncated"],
            num_too_long=described["num_too_long"],
        )
        sizes = (len(rows), len(rows.splits), len(rows.categories))
        whole = set(sizes) == {described["num_rows"]}
        return rows if whole and len(rows.tokens) == len(rows.mask) == rows.offsets[-1] else None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _fingerprint(rows: Rows) -> str | None:
    """Of what is on disk; ``None`` where it cannot be that of any rows."""
    indexed = ((rows.splits, len(SPLITS)), (rows.categories, len(rows.category_names)))
    if any(found.min() < 0 or found.max() >= count for found, count in indexed):
        return None
    if rows.offsets[0] != 0 or (rows.lengths() < _SHORTEST).any():
        return None
    digest = hashlib.sha256()
    for index in range(len(rows)):
        digest.update(_hashed(*rows.row(index), SPLITS[rows.splits[index]]))
    return digest.hexdigest()


def _hashed(ids: Ints, marks: Ints, split: str) -> bytes:
    return ids.tobytes() + marks.tobytes() + split.encode()


def _identity(path: Path) -> list[Any]:
    try:
        status = path.stat()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


@dataclass
class _Written:
    """What is collected while rows go by."""

    offsets: list[int] = field(default_factory=lambda: [0])
    splits: list[int] = field(default_factory=list)
    categories: list[int] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    num_empty: int = 0
    num_truncated: int = 0
    num_too_long: int = 0
    hash: Any = field(default_factory=hashlib.sha256)


def _write_rows(
    files: Sequence[Path],
    folder: Path,
    made_from: dict[str, Any],
    *,
    max_length: int,
    vocab_size: int,
    expected: str | None,
) -> None:
    foreign = sorted({path.name for path in folder.iterdir()} - set(_FILES)) if folder.is_dir() else []
    if foreign:
        raise BadInput(
            f"{folder}: holds {foreign[0]}, which is not ours, so it is not replaced; give another --out or --cache"
        )
    scratch = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        fingerprint = _write_scratch(files, scratch, made_from, max_length=max_length, vocab_size=vocab_size)
        if expected not in (None, fingerprint):
            raise BadInput(
                f"{folder.parent}: begun with other settings: rows was {expected}, now {fingerprint}; give the data "
                "it began with, or another --out"
            )
        replace_folder(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_scratch(
    files: Sequence[Path], scratch: Path, made_from: dict[str, Any], *, max_length: int, vocab_size: int
) -> str:
    """The fingerprint."""
    seen = _Written()
    with ExitStack() as stack:
        names = ("tokens.i32", "mask.u8", "prompts.jsonl")
        tokens, mask, prompts = (stack.enter_context((scratch / name).open("wb")) for name in names)
        for path in files:
            for number, row in enumerate(read_rows(path), start=1):
                ids, marks = _checked(row, f"{path}: row {number}", vocab_size)
                if not _keep(seen, ids, marks, f"{path}: row {number}", max_length):
                    continue
                ids, marks = ids[:max_length], marks[:max_length]
                tokens.write(ids.tobytes())
                mask.write(marks.tobytes())
                prompts.write(json.dumps(str(row["prompt_id"])).encode() + b"\n")
                seen.hash.update(_hashed(ids, marks, row["split"]))
                seen.offsets.append(seen.offsets[-1] + len(ids))
                seen.splits.append(SPLITS.index(row["split"]))
                name = _NO_CATEGORY if row.get("category") is None else str(row["category"])
                seen.categories.append(seen.names.setdefault(name, len(seen.names)))
        for file in (tokens, mask, prompts):
            _flush(file)
    if seen.num_empty:
        raise BadInput(
            f"{seen.num_empty} rows have no answer token (their loss_mask is 0 throughout): "
            f"{', '.join(seen.empty)}{', ...' if seen.num_empty > _SHOWN else ''}; "
            "leave them out, or make these answers again"
        )
    if not seen.splits:
        raise BadInput(f"{', '.join(map(str, files))}: no rows of at most {max_length} tokens with an answer")
    _write_array(scratch / "offsets.i64", np.asarray(seen.offsets, np.int64))
    _write_array(scratch / "splits.u8", np.asarray(seen.splits, np.uint8))
    _write_array(scratch / "categories.i32", np.asarray(seen.categories, np.int32))
    description = {
        "made_from": made_from,
        "categories": list(seen.names),
        "fingerprint": seen.hash.hexdigest(),
        "num_rows": len(seen.splits),
        "num_truncated": seen.num_truncated,
        "num_too_long": seen.num_too_long,
    }
    write_atomically(scratch / "rows.json", json.dumps(description, indent=1) + "\n")
    return str(description["fingerprint"])


def _write_array(path: Path, array: Ints) -> None:
    with path.open("wb") as file:
        file.write(array.tobytes())
        _flush(file)


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _keep(seen: _Written, ids: Ints, marks: Ints, place: str, max_length: int) -> bool:
    """Whether the row is used; counts why not."""
    if not marks.any():
        seen.num_empty += 1
        if len(seen.empty) < _SHOWN:
            seen.empty.append(place)
        return False
    if len(ids) > max_length:
        seen.num_truncated += 1
    if len(ids) < _SHORTEST or not marks[2:max_length].any():
        seen.num_too_long += 1
        return False
    return True


def _checked(row: dict[str, Any], place: str, vocab_size: int) -> tuple[Ints, Ints]:
    missing = [name for name in _NEEDED if row.get(name) is None]
    if missing:
        raise BadInput(f"{place}: no {', '.join(missing)}; a row has {', '.join(COLUMNS)}")
    if row["split"] not in SPLITS:
        raise BadInput(f"{place}: split is {row['split']!r}; it is one of {', '.join(SPLITS)}")
    try:
        ids, marks = _whole_numbers(row["input_ids"]), _whole_numbers(row["loss_mask"])
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{place}: input_ids and loss_mask must be lists of whole numbers") from error
    if ids.ndim != 1 or ids.shape != marks.shape:
        raise BadInput(f"{place}: {ids.size} input_ids and {marks.size} loss_mask entries; they must agree")
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        wrong = ids[(ids < 0) | (ids >= vocab_size)][0]
        raise BadInput(
            f"{place}: token id {wrong}, but the target's ids end at {vocab_size - 1}: made with another tokenizer"
        )
    if not np.isin(marks, (0, 1)).all():
        raise BadInput(f"{place}: loss_mask holds other numbers than 0 and 1")
    return ids.astype(np.int32), marks.astype(np.uint8)


def _whole_numbers(values: Any) -> Ints:
    """As int64; what numpy would cut down or read out of text is refused."""
    found = np.asarray(values)
    if found.size and found.dtype.kind not in "iub":
        raise TypeError(found.dtype)
    return found.astype(np.int64)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a Parquet or JSONL file (also ``.gz``), a few at a time."""
    with path.open("rb") as file:
        begin = file.read(4)
    if begin == b"PAR1":
        yield from _parquet_rows(path)
    elif begin[:1] == b"{" or begin[:2] == b"\x1f\x8b":
        yield from _json_rows(path, compressed=begin[:1] != b"{")
    else:
        if not begin:
            raise BadInput(f"{path}: is empty")
        hint = ": a pickle, which can run code when opened and is never read" if begin[:1] == b"\x80" else ""
        raise BadInput(f"{path}: neither Parquet nor JSONL (it begins with {begin!r}){hint}")


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            there = [name for name in COLUMNS if name in file.schema_arrow.names]
            absent = sorted(set(_NEEDED) - set(there))
            if absent:
                raise BadInput(f"{path}: no column {', '.join(absent)}; it needs {', '.join(_NEEDED)}")
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=there):
                lists = [(batch[name], batch[name].type) for name in ("input_ids", "loss_mask")]
                if not all(pa.types.is_list(kind) or pa.types.is_large_list(kind) for _, kind in lists):
                    raise BadInput(f"{path}: input_ids and loss_mask must be lists of whole numbers")
                ids, marks = ([_numbers(item) for item in column] for column, _ in lists)
                texts = batch.select([n for n in there if n not in ("input_ids", "loss_mask")]).to_pylist()
                for text, id_list, mask_list in zip(texts, ids, marks, strict=True):
                    yield {**text, "input_ids": id_list, "loss_mask": mask_list}
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{path}: damaged Parquet file: {str(error)[:200]}") from error


def _numbers(item: Any) -> Any:
    """A list scalar as an array, without a Python number for each token."""
    return None if item.values is None else item.values.to_numpy(zero_copy_only=False)


def _json_rows(path: Path, *, compressed: bool) -> Iterator[dict[str, Any]]:
    number = 0
    try:
        with gzip.open(path, "rb") if compressed else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _json_row(line, f"{path}: line {number}")
    except (EOFError, OSError, zlib.error) as error:
        raise BadInput(f"{path}: cut short or damaged behind line {number}: {error}") from error


def _json_row(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{place}: not JSON: {str(error)[:120]}") from error
    if not isinstance(row, dict):
        raise BadInput(f"{place}: expected an object, got {type(row).__name__}")
    return row
