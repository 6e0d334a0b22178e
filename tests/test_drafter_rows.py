"""Data for training: read, checked, dealt into batches; and the vocabulary made from it."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

from spectune.drafter.train.batches import Plan, serving_starts, training_starts  # noqa: E402
from spectune.drafter.train.rows import Rows, prepare_rows  # noqa: E402
from spectune.drafter.vocabulary import choose_vocabulary  # noqa: E402
from spectune.errors import BadInput  # noqa: E402

pytestmark = pytest.mark.drafter


def row(
    name: str, ids: list[int], mask: list[int], *, split: str = "train", category: str = "a"
) -> dict[str, Any]:
    return {"prompt_id": name, "category": category, "split": split, "input_ids": ids, "loss_mask": mask}


ROWS = [
    row("one", [5, 6, 7, 8], [0, 0, 1, 1]),
    row("two", [9, 7, 7, 8, 8], [0, 1, 1, 1, 1], split="held-out", category="b"),
    row("three", [4, 8, 8], [0, 1, 1], category="b"),
]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(item) + "\n" for item in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text)
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return path


def prepare(tmp_path: Path, *files: Path, max_length: int = 100, vocab_size: int = 50) -> Rows:
    return prepare_rows(list(files), tmp_path / "rows", max_length=max_length, vocab_size=vocab_size)


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz", "data.parquet"])
def test_rows_of_every_format_read_alike(tmp_path: Path, name: str) -> None:
    path = (write_parquet if name.endswith("parquet") else write_jsonl)(tmp_path / name, ROWS)
    rows = prepare(tmp_path, path)
    assert [(ids.tolist(), mask.tolist()) for ids, mask in map(rows.row, range(3))] == [
        (r["input_ids"], r["loss_mask"]) for r in ROWS
    ]
    assert rows.of_split("train").tolist() == [0, 2]
    assert [rows.category(i) for i in range(3)] == ["a", "b", "b"]
    assert rows.prompt_ids() == ["one", "two", "three"]


@pytest.mark.parametrize("name", ["data.jsonl", "data.parquet"])
@pytest.mark.parametrize("absent", [True, False])
def test_prompts_of_no_category_are_rows_as_good_as_others(tmp_path: Path, name: str, absent: bool) -> None:
    """ShareGPT, and most prompts of users, have none: `drafter data` writes null."""
    bare = [{key: value for key, value in item.items() if key != "category"} for item in ROWS]
    if not absent:
        bare = [{**item, "category": None} for item in bare]
    rows = prepare(
        tmp_path, (write_parquet if name.endswith("parquet") else write_jsonl)(tmp_path / name, bare)
    )
    assert [rows.category(i) for i in range(3)] == ["none"] * 3
    assert rows.row(0)[0].tolist() == ROWS[0]["input_ids"]


def test_parquet_and_jsonl_of_the_same_rows_have_one_fingerprint(tmp_path: Path) -> None:
    first = prepare_rows(
        [write_jsonl(tmp_path / "a.jsonl", ROWS)], tmp_path / "1", max_length=9, vocab_size=50
    )
    second = prepare_rows(
        [write_parquet(tmp_path / "a.parquet", ROWS)], tmp_path / "2", max_length=9, vocab_size=50
    )
    assert first.fingerprint == second.fingerprint


def test_prepared_rows_are_not_read_again_until_the_file_changes(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "data.jsonl", ROWS)
    prepare(tmp_path, path)
    written = (tmp_path / "rows" / "tokens.i32").stat().st_ino
    assert prepare(tmp_path, path).fingerprint
    assert (tmp_path / "rows" / "tokens.i32").stat().st_ino == written
    write_jsonl(path, ROWS[:2])
    assert len(prepare(tmp_path, path)) == 2


def test_long_rows_are_cut_and_those_without_an_answer_left_are_counted(tmp_path: Path) -> None:
    rows = prepare(
        tmp_path,
        write_jsonl(
            tmp_path / "d.jsonl",
            [row("a", [1] * 8, [0] * 3 + [1] * 5), row("b", [1] * 8, [0] * 6 + [1, 1]), *ROWS],
        ),
        max_length=5,
    )
    assert (len(rows), rows.num_truncated, rows.num_too_long) == (4, 2, 1)
    assert rows.row(0)[1].tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row("x", [5, 6, 7], [0, 0, 0]), r"1 rows have no answer token.*row 4; leave them out"),
        (row("x", [5, 6, 70], [0, 1, 1]), r"row 4: token id 70, but the target's ids end at 49.*tokenizer"),
        (row("x", [5, 6, 7], [0, 1]), r"row 4: 3 input_ids and 2 loss_mask entries"),
        (row("x", [5, 6, 7], [0, 1, 2]), r"row 4: loss_mask holds other numbers than 0 and 1"),
        (
            row("x", [5, 6, 7], [0, 1, 1], split="test"),
            r"row 4: split is 'test'; it is one of train, held-out",
        ),
        ({"prompt_id": "x"}, r"row 4: no split, input_ids, loss_mask"),
        (row("x", ["a", 6, 7], [0, 1, 1]), r"row 4: input_ids and loss_mask must be lists of whole numbers"),  # type: ignore[list-item]
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        prepare(tmp_path, write_jsonl(tmp_path / "d.jsonl", [*ROWS, bad]))


def test_a_bad_file_leaves_what_was_prepared_before(tmp_path: Path) -> None:
    prepare(tmp_path, write_jsonl(tmp_path / "good.jsonl", ROWS))
    with pytest.raises(BadInput):
        prepare(tmp_path, write_jsonl(tmp_path / "bad.jsonl", [row("x", [5, 6, 7], [0, 0, 0])]))
    assert len(prepare(tmp_path, tmp_path / "good.jsonl")) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x04\x95cos\nsystem", r"neither Parquet nor JSONL.*pickle, which can run code.*never read"),
        (b'{"prompt_id": "x"\n', r"line 1: not JSON"),
        (b"", r"is empty"),
        (gzip.compress(b'{"prompt_id": 1}\n' * 500, mtime=0)[:40], r"cut short or damaged|not JSON"),
        (b"PAR1 and then nothing of use", r"damaged Parquet file"),
    ],
)
def test_a_file_that_is_no_data_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        prepare(tmp_path, path)


def test_a_parquet_file_cut_short_is_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "d.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(BadInput, match=r"d.parquet: damaged Parquet file"):
        prepare(tmp_path, path)


def test_a_parquet_file_without_a_column_says_which(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table({"prompt_id": ["a"], "input_ids": [[1, 2]]}), path)
    with pytest.raises(BadInput, match="no column loss_mask, split"):
        prepare(tmp_path, path)


def test_the_vocabulary_holds_the_most_frequent_answer_tokens_of_the_training_rows(tmp_path: Path) -> None:
    rows = prepare(tmp_path, write_jsonl(tmp_path / "d.jsonl", ROWS))
    # Training answers: 7, 8 and 8, 8. Held-out answers: 7, 7, 8, 8. Prompts do not count.
    vocabulary = choose_vocabulary(rows, size=1, vocab_size=50)
    assert vocabulary.target_ids.tolist() == [8]
    assert (vocabulary.coverage, vocabulary.held_out_coverage) == (0.75, 0.5)
    wider = choose_vocabulary(rows, size=3, vocab_size=50)
    assert wider.target_ids.tolist() == [0, 7, 8]  # of the tokens that never occur, the lowest
    assert wider.d2t.tolist() == [0, 6, 6]
    assert np.flatnonzero(wider.t2d).tolist() == [0, 7, 8]
    assert wider.coverage == 1.0


def test_each_epoch_deals_every_row_once_and_in_another_order() -> None:
    plan = Plan(np.arange(100, 120), np.arange(20) % 7 + 3, 4, seed=1)
    first, second = plan.epoch(0), plan.epoch(1)
    assert sorted(np.concatenate(first).tolist()) == list(range(100, 120))
    assert [b.tolist() for b in first] != [b.tolist() for b in second]
    assert [b.tolist() for b in first] == [b.tolist() for b in plan.epoch(0)]


def test_fewer_rows_than_a_batch_are_refused() -> None:
    with pytest.raises(BadInput, match="3 training rows, fewer than one batch of 4"):
        Plan(np.arange(3), np.ones(3), 4, seed=0)


def test_a_server_drafts_behind_the_first_answer_token_and_training_at_it() -> None:
    mask = np.array([0, 0, 1, 1, 1, 0], np.uint8)
    assert training_starts(mask).tolist() == [0, 1, 2]
    assert serving_starts(mask).tolist() == [1, 2]


def test_a_smaller_choice_of_training_rows_is_part_of_a_larger_one(tmp_path: Path) -> None:
    some = [
        row(str(n), [5, 6, n % 40], [0, 1, 1], split="held-out" if n % 10 == 9 else "train")
        for n in range(60)
    ]
    rows = prepare(tmp_path, write_jsonl(tmp_path / "data.jsonl", some))
    few, more = (rows.with_train_rows(count, seed=3) for count in (6, 18))
    chosen = [set(r.of_split("train").tolist()) for r in (few, more, rows)]
    assert [len(c) for c in chosen] == [6, 18, 54] and chosen[0] < chosen[1] < chosen[2]
    assert few.of_split("held-out").tolist() == rows.of_split("held-out").tolist()
    assert few.fingerprint == rows.fingerprint and rows.with_train_rows(54, seed=3) is rows


def test_the_vocabulary_comes_from_the_chosen_rows_only(tmp_path: Path) -> None:
    some = [row(str(n), [5, 6, 10 + n], [0, 0, 1]) for n in range(30)]
    rows = prepare(tmp_path, write_jsonl(tmp_path / "data.jsonl", some)).with_train_rows(4, seed=0)
    vocabulary = choose_vocabulary(rows, size=4, vocab_size=50)
    assert vocabulary.target_ids.tolist() == [10 + n for n in rows.of_split("train")]
    assert vocabulary.num_answer_tokens == 4


@pytest.mark.parametrize("ids", [[4, 8.5, 8], ["4", "8", "8"], [4.0, 8.0, 8.0]])
def test_ids_that_are_no_whole_numbers_are_refused(tmp_path: Path, ids: list[Any]) -> None:
    path = write_jsonl(tmp_path / "data.jsonl", [row("one", ids, [0, 1, 1])])
    with pytest.raises(BadInput, match="row 1: input_ids and loss_mask must be lists of whole numbers"):
        prepare(tmp_path, path)


def test_a_failed_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").touch()
    with pytest.raises(BadInput, match=r"data.jsonl: is empty"):
        prepare(tmp_path, tmp_path / "data.jsonl")
    assert {path.name for path in tmp_path.iterdir()} == {"data.jsonl", ".rows.lock"}


def test_more_training_rows_than_there_are_is_refused(tmp_path: Path) -> None:
    rows = prepare(tmp_path, write_jsonl(tmp_path / "data.jsonl", ROWS))
    assert len(rows.with_train_rows(2, seed=0).of_split("train")) == 2
    with pytest.raises(BadInput, match="--train-rows 3: the data has 2 training rows"):
        rows.with_train_rows(3, seed=0)


def test_data_without_training_rows_says_so() -> None:
    with pytest.raises(BadInput, match="no training rows"):
        Plan(np.zeros(0, np.int64), np.zeros(0, np.int64), 8, 0)


@pytest.mark.parametrize("name", ["tokens.i32", "mask.u8", "offsets.i64", "splits.u8", "rows.json"])
@pytest.mark.parametrize("kept", [0, 5, None])
def test_rows_that_are_not_all_on_disk_are_read_again(tmp_path: Path, name: str, kept: int | None) -> None:
    """A machine that stops may keep the last file and lose what the first ones held."""
    path = write_jsonl(tmp_path / "d.jsonl", ROWS)
    prepare(tmp_path, path)
    file = tmp_path / "rows" / name
    if kept is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:kept])
    again = prepare(tmp_path, path)
    assert [again.row(index)[0].tolist() for index in range(3)] == [item["input_ids"] for item in ROWS]


@pytest.mark.parametrize("name", ["tokens.i32", "mask.u8", "offsets.i64", "splits.u8", "categories.i32"])
def test_rows_that_a_disk_has_changed_are_read_again(tmp_path: Path, name: str) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", ROWS)
    prepare(tmp_path, path)
    file = tmp_path / "rows" / name
    whole = file.read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        file.write_bytes(damaged)
        prepare(tmp_path, path)
        assert file.read_bytes() == whole


def test_runs_that_share_a_folder_take_turns(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", ROWS * 300)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: prepare(tmp_path, path), range(4)))
    assert {(len(rows), rows.fingerprint) for rows in found} == {(900, found[0].fingerprint)}
    assert len(prepare(tmp_path, path)) == 900


def test_rows_that_a_run_did_not_begin_with_do_not_replace_its_own(tmp_path: Path) -> None:
    path, other = (
        write_jsonl(tmp_path / name, rows) for name, rows in (("a.jsonl", ROWS), ("b.jsonl", ROWS[:2]))
    )
    begun = prepare(tmp_path, path).fingerprint
    kept = (tmp_path / "rows" / "tokens.i32").stat().st_ino
    with pytest.raises(BadInput, match=f"rows was {begun}, now .*; give the data it began with"):
        prepare_rows([other], tmp_path / "rows", max_length=100, vocab_size=50, expected=begun)
    assert (tmp_path / "rows" / "tokens.i32").stat().st_ino == kept


def test_a_folder_of_rows_that_is_somebody_elses_is_not_replaced(tmp_path: Path) -> None:
    """`--data rows/mine.jsonl --cache .`: the rows made from the data would lie where the data are."""
    (tmp_path / "rows").mkdir()
    path = write_jsonl(tmp_path / "rows" / "mine.jsonl", ROWS)
    with pytest.raises(BadInput, match=r"holds mine.jsonl, which is not ours.*another --out or --cache"):
        prepare(tmp_path, path)
    assert path.exists()
