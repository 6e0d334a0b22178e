"""Training data: nothing lost, nothing twice, and the mask is over exactly what the target generated."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from drafter_data_server import END, Script, answer_of, rendered, vllm_like, word_id
from fake_server_fixture import fake_engine

from spectune.drafter.data.generator import generate_prompts
from spectune.drafter.data.manifest import Manifest
from spectune.drafter.data.plan import make_plan, planned_prompts, split_of
from spectune.drafter.data.plan_records import DataSampling, PlanRequest
from spectune.drafter.data.regenerate import regenerate
from spectune.drafter.data.request import DataRequest
from spectune.drafter.data.sources import PromptSource
from spectune.errors import BadInput, EnvironmentFailed

parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra drafter")
pytestmark = pytest.mark.drafter


def request_for(out: Path, *, generate: int = 40, files: tuple[Path, ...] = (), **more) -> DataRequest:
    sources = [PromptSource("generated", count=generate)] if generate else []
    sources += [PromptSource(str(path)) for path in files]
    own = {key: more.pop(key) for key in ("concurrency", "redo_damaged", "retry_failed") if key in more}
    sampling = more.pop("sampling", DataSampling(max_tokens=32))
    plan = PlanRequest(
        sources=tuple(sources), sampling=sampling, shard_size=more.pop("shard_size", 16), **more
    )
    return DataRequest(out=out, prompts=plan, concurrency=own.pop("concurrency", 8), **own)


def run(url: str, request: DataRequest, **options) -> Manifest:
    return asyncio.run(regenerate(url, request, **options))


def rows_of(out: Path) -> list[dict]:
    return [
        row
        for file in sorted((out / "parts").glob("*.parquet"))
        for row in parquet.read_table(file).to_pylist()
    ]


def prompts_file(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


# The plan


def test_prompts_that_differ_only_in_spaces_are_one_and_the_others_are_counted(tmp_path: Path) -> None:
    file = prompts_file(tmp_path / "p.jsonl", ["one  two", "one two", "three", "one two "])
    plan = make_plan(tmp_path / "out", request_for(tmp_path, generate=0, files=(file,)).prompts)
    assert (plan.num_prompts, plan.num_duplicates) == (2, 2)


def test_two_files_with_the_same_ids_keep_all_prompts_under_different_ids(tmp_path: Path) -> None:
    first, second = prompts_file(tmp_path / "a", ["a", "b"]), prompts_file(tmp_path / "b", ["c", "d"])
    out = tmp_path / "out"
    plan = make_plan(out, request_for(tmp_path, generate=0, files=(first, second)).prompts)
    assert [p.prompt.prompt_id for _, p in planned_prompts(out, plan)] == [
        "line-1",
        "line-2",
        "line-1@2",
        "line-2@2",
    ]


def test_sharegpt_chat_and_turns_are_read(tmp_path: Path) -> None:
    sharegpt, chat, bench = tmp_path / "s", tmp_path / "c", tmp_path / "b"
    sharegpt.write_text(
        json.dumps({"conversations": [{"from": "human", "value": "q1"}, {"from": "gpt", "value": "x"}]})
    )
    chat.write_text(
        json.dumps({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q2"}]})
    )
    bench.write_text(json.dumps({"question_id": 81, "category": "writing", "turns": ["q3", "q4"]}))
    out = tmp_path / "out"
    request = request_for(tmp_path, generate=0, files=(sharegpt, chat, bench), turns="all")
    prompts = [p.prompt for _, p in planned_prompts(out, make_plan(out, request.prompts))]
    assert [(p.system, p.turns, p.category) for p in prompts] == [
        (None, ("q1",), None),
        ("s", ("q2",), None),
        (None, ("q3", "q4"), "writing"),
    ]


def test_the_split_depends_on_the_prompt_alone() -> None:
    groups = [f"g{number}" for number in range(20_000)]
    held = {group for group in groups if split_of(group, held_out_frac=0.1) == "held-out"}
    assert 1_850 < len(held) < 2_150  # 2,000 expected, sd 42
    assert {group for group in groups if split_of(group, held_out_frac=0.05) == "held-out"} < held


def test_prompts_on_one_subject_are_never_on_both_sides(tmp_path: Path) -> None:
    splits: dict[str, set[str]] = {}
    for prompt in generate_prompts(3000):
        splits.setdefault(prompt.group, set()).add(split_of(prompt.group, held_out_frac=0.2))
    assert all(len(sides) == 1 for sides in splits.values())
    assert {"train", "held-out"} == {side for sides in splits.values() for side in sides}


def test_a_broken_prompt_file_is_one_error_with_its_lines_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "fine"}\n{"prompt": 3}\nnot json\n')
    with pytest.raises(BadInput, match=r"2 problems\n  line 2: .*\n  line 3: "):
        make_plan(tmp_path / "out", request_for(tmp_path, generate=0, files=(file,)).prompts)
    assert list((tmp_path / "out").iterdir()) == []


# Answers


def test_every_prompt_is_asked_once_and_its_ids_and_mask_are_the_servers(tmp_path: Path) -> None:
    with vllm_like(Script()) as server:
        manifest = run(server.url, request_for(tmp_path / "d"))
    rows = rows_of(tmp_path / "d")
    plan = [json.loads(line)["prompt"] for line in (tmp_path / "d" / "prompts.jsonl").open()]
    assert [row["prompt_id"] for row in rows] == [prompt["prompt_id"] for prompt in plan]
    assert set(server.asked.values()) == {1} and len(server.asked) == 40
    for row, prompt in zip(rows, plan, strict=True):
        messages = [{"role": "user", "content": prompt["turns"][0]}]
        answer = answer_of(messages, row["seed"])
        masked = [token for token, m in zip(row["input_ids"], row["loss_mask"], strict=True) if m]
        assert row["input_ids"] == [*rendered(messages), *map(word_id, answer.split()), END]
        assert masked == [*map(word_id, answer.split()), END]
        assert row["answer_text"] == answer
    assert manifest.complete and manifest.num_rows == 40
    assert manifest.answer_tokens == sum(sum(row["loss_mask"]) for row in rows)
    assert manifest.token_ids_from == {"server": 40}


def test_columns_and_types_are_those_of_the_contract(tmp_path: Path) -> None:
    with vllm_like(Script()) as server:
        run(server.url, request_for(tmp_path / "d", generate=3))
    schema = parquet.read_schema(tmp_path / "d" / "parts" / "part-00000.parquet")
    assert {name: str(schema.field(name).type) for name in schema.names} == {
        "prompt_id": "string",
        "category": "string",
        "split": "string",
        "input_ids": "list<element: int32>",
        "loss_mask": "list<element: int8>",
        "answer_text": "string",
        "seed": "int64",
        "finish_reason": "string",
    }


def test_as_many_requests_are_in_flight_as_asked_for_and_no_more(tmp_path: Path) -> None:
    with vllm_like(Script(delay_s=0.02)) as server:
        run(server.url, request_for(tmp_path / "d", generate=60, concurrency=13))
    assert server.peak == 13


def test_turns_whose_history_is_shown_unchanged_are_one_row_with_a_span_per_answer(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"question_id": "q", "turns": ["first question", "second question"]}))
    with vllm_like(Script()) as server:
        run(server.url, request_for(tmp_path / "d", generate=0, files=(file,), turns="all"))
    (row,) = rows_of(tmp_path / "d")
    first = [{"role": "user", "content": "first question"}]
    a1 = answer_of(first, row["seed"])
    second = [*first, {"role": "assistant", "content": a1}, {"role": "user", "content": "second question"}]
    a2 = answer_of(second, row["seed"] + 1)
    masked = [token for token, m in zip(row["input_ids"], row["loss_mask"], strict=True) if m]
    # The tiny template marks an assistant turn with 4, as its generation prompt does: history stays as it was.
    assert masked == [*map(word_id, a1.split()), END, *map(word_id, a2.split()), END]
    assert row["input_ids"] == [*rendered(second), *map(word_id, a2.split()), END]


def test_empty_answers_are_counted_and_left_out(tmp_path: Path) -> None:
    file = prompts_file(tmp_path / "p.jsonl", ["say nothing", "say something"])
    with vllm_like(Script(empty="nothing")) as server:
        manifest = run(server.url, request_for(tmp_path / "d", generate=0, files=(file,)))
    assert (manifest.num_empty, manifest.num_answered, manifest.num_failed) == (1, 1, 0)
    assert [row["prompt_id"] for row in rows_of(tmp_path / "d")] == ["line-2"]


def test_a_failure_is_asked_again_once_and_a_second_one_is_counted_with_its_reason(tmp_path: Path) -> None:
    file = prompts_file(tmp_path / "p.jsonl", ["bad luck", "bad always", "good"])
    with vllm_like(Script(fail_once="luck", fail_always="always")) as server:
        manifest = run(server.url, request_for(tmp_path / "d", generate=0, files=(file,)))
        assert server.asked == {"bad luck": 2, "bad always": 2, "good": 1}
    assert (manifest.num_answered, manifest.num_failed, manifest.num_retried) == (2, 1, 2)
    assert manifest.failures == ('line-2: HTTP 500: {"error": "scripted"}',)


def test_what_failed_twice_is_asked_again_only_on_request(tmp_path: Path) -> None:
    file = prompts_file(tmp_path / "p.jsonl", ["bad always", "good"])
    request = request_for(tmp_path / "d", generate=0, files=(file,))
    with vllm_like(Script(fail_always="always")) as server:
        run(server.url, request)
    with vllm_like(Script()) as server:
        assert run(server.url, request).num_failed == 1
        assert server.asked == {}
        again = request_for(tmp_path / "d", generate=0, files=(file,), retry_failed=True)
        manifest = run(server.url, again)
        assert server.asked == {"bad always": 1}
    assert (manifest.num_answered, manifest.num_failed) == (2, 0)
    assert [row["prompt_id"] for row in rows_of(tmp_path / "d")] == ["line-1", "line-2"]


def test_a_connection_that_one_prompt_always_breaks_is_that_prompts_failure(tmp_path: Path) -> None:
    file = prompts_file(tmp_path / "p.jsonl", ["drop me", *[f"good {n}" for n in range(20)]])
    with vllm_like(Script(drop="drop")) as server:
        manifest = run(server.url, request_for(tmp_path / "d", generate=0, files=(file,), concurrency=2))
    assert (manifest.num_answered, manifest.num_failed) == (20, 1)


def test_a_server_that_is_gone_ends_the_run_and_no_sample_is_blamed(tmp_path: Path) -> None:
    request = request_for(tmp_path / "d", generate=60, concurrency=4)
    with vllm_like(Script(delay_s=0.005)) as server:

        def watch(progress) -> None:
            server.gone = server.gone or progress.done >= 20

        with pytest.raises(
            EnvironmentFailed, match=r"stopped answering(.|\n)*are done and kept; run the same command"
        ):
            run(server.url, request, on_progress=watch)
        answered = dict(server.asked)
        # One for each in flight, then whether it lives, and not the 40 that were left; a kept connection tries twice.
        assert server.num_refused <= 2 * (4 + 1)
        server.gone = False
        manifest = run(server.url, request)
    assert (manifest.num_answered, manifest.num_failed) == (60, 0)
    assert len(answered) >= 20
    assert sum(server.asked.values()) <= 60 + 2 * 4  # only what was in flight when it went was asked twice


def test_a_server_that_answers_nothing_but_errors_ends_the_run_and_no_sample_is_blamed(
    tmp_path: Path,
) -> None:
    request = request_for(tmp_path / "d", generate=300, concurrency=4)
    with vllm_like(Script(fail_always="")) as server:
        with pytest.raises(
            EnvironmentFailed, match=r'every answer is an error: HTTP 500: {"error": "scripted"}'
        ):
            run(server.url, request)
        assert sum(server.asked.values()) < 100
        server.fail_always = None
        assert run(server.url, request).num_failed == 0


# Resuming


def test_killed_ten_times_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    num = 240
    with vllm_like(Script(delay_s=0.01)) as server:
        undisturbed = tmp_path / "undisturbed"
        run(server.url, request_for(undisturbed, generate=num))
        server.asked.clear()
        out = tmp_path / "killed"
        command = [sys.executable, "-c", _DRIVER, str(out), server.url, str(num)]
        rng = random.Random(5)
        kills, done_at_kill = 0, []
        while kills < 10:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            # Killed in the middle of its work: after so many samples of its own.
            for _ in range(rng.randint(2, 18)):
                line = process.stdout.readline()
                assert line, "it ended before it could be killed"
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            process.stdout.close()
            kills += 1
            done_at_kill.append(int(line))
        process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done_at_kill == sorted(done_at_kill)
    assert rows_of(out) == rows_of(undisturbed)
    # Asked twice were only requests that a kill caught in flight, 8 at a time.
    assert len(server.asked) == num
    assert sum(server.asked.values()) - num <= 10 * 8
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["num_rows"], manifest["num_failed"], manifest["complete"]) == (num, 0, True)
    assert len(manifest["runs"]) == 11 and sum(run["end"] is not None for run in manifest["runs"]) == 1


_DRIVER = """
import asyncio, sys
from pathlib import Path
from spectune.drafter.data.plan_records import DataSampling, PlanRequest
from spectune.drafter.data.regenerate import regenerate
from spectune.drafter.data.request import DataRequest
from spectune.drafter.data.sources import PromptSource
out, url, num = sys.argv[1:]
plan = PlanRequest((PromptSource("generated", int(num)),), sampling=DataSampling(max_tokens=32), shard_size=16)
request = DataRequest(Path(out), plan, concurrency=8)
asyncio.run(regenerate(url, request, on_progress=lambda p: print(p.done, flush=True)))
"""


def test_a_torn_last_line_costs_that_sample_and_no_other(tmp_path: Path) -> None:
    request = request_for(tmp_path / "d", generate=10)
    with vllm_like(Script()) as server:
        whole = tmp_path / "whole"
        run(server.url, request_for(whole, generate=10))

        def stop(progress) -> None:
            if progress.done == 6:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(server.url, request, on_progress=stop)
    journal = tmp_path / "d" / "journal" / "00000.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:4]) + lines[4][: len(lines[4]) // 2])
    with vllm_like(
        Script()
    ) as server:  # another one: requests of the run that was stopped may still be on their way
        run(server.url, request)
        assert sum(server.asked.values()) == 10 - 4
    assert rows_of(tmp_path / "d") == rows_of(whole)


def test_a_sample_that_stands_in_the_journal_twice_counts_once(tmp_path: Path) -> None:
    request = request_for(tmp_path / "d", generate=6)
    with vllm_like(Script()) as server:

        def stop(progress) -> None:
            if progress.done == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(server.url, request, on_progress=stop)
        journal = tmp_path / "d" / "journal" / "00000.jsonl"
        journal.write_bytes(journal.read_bytes() * 2)
        counted = []
        manifest = run(server.url, request, on_progress=lambda progress: counted.append(progress.done))
    assert max(counted) == 6 == manifest.num_answered
    assert len(rows_of(tmp_path / "d")) == 6


def test_more_prompts_are_added_behind_those_that_are_there_and_nothing_is_asked_again(
    tmp_path: Path,
) -> None:
    out, split = tmp_path / "d", 0.3
    with vllm_like(Script()) as server:
        run(server.url, request_for(out, generate=40, held_out_frac=split))
        before = {path.name: path.read_bytes() for path in (out / "parts").glob("*.parquet")}
        rows = rows_of(out)
        server.asked.clear()
        run(server.url, request_for(out, generate=75, held_out_frac=split))
        assert sum(server.asked.values()) == 35 and set(server.asked.values()) == {1}
        manifest = run(server.url, request_for(out, generate=110, held_out_frac=split))
        fresh = tmp_path / "fresh"
        run(server.url, request_for(fresh, generate=110, held_out_frac=split))
    assert {name: (out / "parts" / name).read_bytes() for name in before} == before
    assert rows_of(out)[:40] == rows
    # Row for row what one run for all of them would have given, splits and seeds included.
    assert rows_of(out) == rows_of(fresh)
    assert (manifest.num_prompts, manifest.num_rows, manifest.complete) == (110, 110, True)
    assert len({file.file for file in manifest.files}) == 3 + 3 + 3  # of 16; the last of each run is shorter


def test_a_set_that_is_not_complete_can_grow_and_a_file_of_prompts_can_be_added(tmp_path: Path) -> None:
    out, file = tmp_path / "d", prompts_file(tmp_path / "p.jsonl", [f"mine {n}" for n in range(9)])

    def stop(progress) -> None:
        if progress.done == 17:
            raise KeyboardInterrupt

    with vllm_like(Script()) as server:
        with pytest.raises(KeyboardInterrupt):
            run(server.url, request_for(out, generate=20), on_progress=stop)
        # The generated ones come first in a request, yet those of the file are behind what is there.
        manifest = run(server.url, request_for(out, generate=26, files=(file,)))
        assert len(server.asked) == 35
        assert sum(server.asked.values()) <= 35 + 8  # in flight at the interrupt
    assert (manifest.num_rows, manifest.complete) == (35, True)
    assert len({row["prompt_id"] for row in rows_of(out)}) == 35


def test_growing_that_is_killed_between_its_two_files_goes_on_with_either_request(tmp_path: Path) -> None:
    out = tmp_path / "d"
    with vllm_like(Script()) as server:
        run(server.url, request_for(out, generate=20))
        plan = (out / "plan.json").read_bytes()
        run(server.url, request_for(out, generate=30))
        for number in (2, 3):
            (out / "parts" / f"part-{number:05d}.json").unlink(missing_ok=True)
        (out / "plan.json").write_bytes(plan)
        assert run(server.url, request_for(out, generate=20)).num_prompts == 20
        assert run(server.url, request_for(out, generate=30)).num_prompts == 30
    assert len(rows_of(out)) == 30


def test_fewer_or_other_prompts_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    out = tmp_path / "d"
    with vllm_like(Script()) as server:
        run(server.url, request_for(out, generate=30))
        kept = (out / "prompts.jsonl").read_bytes(), (out / "plan.json").read_bytes()
        with pytest.raises(BadInput, match="holds 10 prompts that are not among those asked for now"):
            run(server.url, request_for(out, generate=20))
        with pytest.raises(BadInput, match=r"holds \d+ prompts that are not among"):
            run(server.url, request_for(out, generate=50, categories=("code",)))
    assert ((out / "prompts.jsonl").read_bytes(), (out / "plan.json").read_bytes()) == kept
    assert not list(out.glob(".*.tmp"))


def test_another_request_on_the_same_folder_is_refused_with_what_changed(tmp_path: Path) -> None:
    with vllm_like(Script()) as server:
        run(server.url, request_for(tmp_path / "d", generate=4))
        with pytest.raises(BadInput, match=r"changed: prompts; seed: 9, was 0"):
            run(server.url, request_for(tmp_path / "d", generate=5, seed=9))
        with pytest.raises(BadInput, match=r"'tiny', and the server serves 'other'"):
            other = request_for(tmp_path / "e", generate=4)
            run(server.url, other)
            (tmp_path / "e" / "parts" / "part-00000.json").unlink()
            run(server.url, other, model="other")


def test_two_processes_do_not_write_one_data_set(tmp_path: Path) -> None:
    request = request_for(tmp_path / "d", generate=8, concurrency=1)
    second: list[BaseException] = []

    def try_too(progress) -> None:
        if progress.done == 4:
            thread = threading.Thread(target=lambda: second.append(_error_of(server.url, request)))
            thread.start()
            thread.join()

    with vllm_like(Script()) as server:
        run(server.url, request, on_progress=try_too)
    assert isinstance(second[0], BadInput) and "another spectune" in str(second[0])


def _error_of(url: str, request: DataRequest) -> BaseException:
    try:
        run(url, request)
    except BadInput as error:
        return error
    raise AssertionError("it was let in")


# Bad input


def test_a_corrupt_part_is_one_error_and_its_prompts_can_be_answered_again(tmp_path: Path) -> None:
    out = tmp_path / "d"
    with vllm_like(Script()) as server:
        run(server.url, request_for(out, generate=40))
        before = rows_of(out)
        part = out / "parts" / "part-00001.parquet"
        body = bytearray(part.read_bytes())
        body[len(body) // 2] ^= 0xFF
        part.write_bytes(body)
        server.asked.clear()
        with pytest.raises(BadInput, match=r"part-00001.parquet: is damaged: sha256(.|\n)*--redo-damaged"):
            run(server.url, request_for(out, generate=40))
        assert not server.asked
        run(server.url, request_for(out, generate=40, redo_damaged=True))
        assert sum(server.asked.values()) == 16
    assert rows_of(out) == before


def test_a_full_disk_is_one_error_and_what_was_answered_is_kept(tmp_path: Path) -> None:
    """The limit on file size ends a write as a full disk does: in its middle, with an OSError."""
    out = tmp_path / "d"
    with vllm_like(Script()) as server:
        code = (
            "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
            "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n" + _DRIVER
        )
        failed = subprocess.run(
            [sys.executable, "-c", code, str(out), server.url, "600"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert failed.returncode != 0
        assert "EnvironmentFailed" in failed.stderr and "File too large" in failed.stderr
    assert not list(out.rglob("*.tmp"))


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="no /dev/full")
def test_a_journal_that_cannot_grow_says_so_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "d"

    def fill(_: str) -> None:  # as the first samples are about to be written
        (out / "journal" / "00000.jsonl").symlink_to("/dev/full")

    with (
        vllm_like(Script()) as server,
        pytest.raises(EnvironmentFailed, match=r"No space left(.|\n)*are kept; free"),
    ):
        run(server.url, request_for(out, generate=4), on_message=fill)


def test_a_server_without_ids_needs_a_tokenizer(tmp_path: Path) -> None:
    with vllm_like(Script(no_ids=True)) as server, pytest.raises(BadInput, match="give --tokenizer"):
        run(server.url, request_for(tmp_path / "d"))


def test_the_fake_engine_is_refused_when_its_template_is_not_ours(tmp_path: Path) -> None:
    with fake_engine() as engine, pytest.raises(BadInput, match="chat template: the server read"):
        run(engine.url, request_for(tmp_path / "d"), encoder=WordEncoder())


class WordEncoder:
    """The rendering of the scripted server."""

    def prompt_ids(self, messages) -> tuple[int, ...]:
        return tuple(rendered(list(messages)))

    def answer_ids(self, text: str, *, ended: bool) -> tuple[int, ...]:
        return (*map(word_id, text.split()), *([END] if ended else []))


def test_without_server_ids_the_tokenizer_gives_the_same_rows_and_every_prompt_is_compared(
    tmp_path: Path,
) -> None:
    with vllm_like(Script()) as server:
        run(server.url, request_for(tmp_path / "ids"))
    with vllm_like(Script(no_ids=True)) as server:
        manifest = run(server.url, request_for(tmp_path / "text"), encoder=WordEncoder())
    assert rows_of(tmp_path / "ids") == rows_of(tmp_path / "text")
    assert manifest.token_ids_from == {"tokenizer": 40}
    assert manifest.runs[-1].end is not None and manifest.runs[-1].end.num_compared == 40


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_token_ids_are_found_under_each_engines_own_names(engine: str, tmp_path: Path) -> None:
    with vllm_like(Script()) as server:
        run(server.url, request_for(tmp_path / "plain"))
    with vllm_like(Script(shape=engine)) as server:
        manifest = run(server.url, request_for(tmp_path / engine), engine=engine)
    assert manifest.token_ids_from == {"server": 40}
    assert rows_of(tmp_path / engine) == rows_of(tmp_path / "plain")


def test_a_llamacpp_whose_tokenizer_disagrees_with_what_it_read_is_refused(tmp_path: Path) -> None:
    script = Script(shape="llamacpp", prompt_tokens_off_by=1)
    with vllm_like(script) as server, pytest.raises(BadInput, match="cannot be known"):
        run(server.url, request_for(tmp_path / "d"), engine="llamacpp")


def test_a_rendering_that_is_not_the_servers_is_found_out(tmp_path: Path) -> None:
    class Wrong(WordEncoder):
        def prompt_ids(self, messages) -> tuple[int, ...]:
            return (1, *rendered(list(messages)))

    with vllm_like(Script()) as server, pytest.raises(BadInput, match="differ from token 0 on"):
        run(server.url, request_for(tmp_path / "a"), encoder=Wrong())
    with (
        vllm_like(Script(no_ids=True)) as server,
        pytest.raises(BadInput, match="give the tokenizer and template"),
    ):
        run(server.url, request_for(tmp_path / "b"), encoder=Wrong())


def test_reasoning_that_the_server_split_off_is_refused_without_ids(tmp_path: Path) -> None:
    with (
        vllm_like(Script(no_ids=True, reasoning=True)) as server,
        pytest.raises(BadInput, match="without a reasoning parser"),
    ):
        run(server.url, request_for(tmp_path / "d"), encoder=WordEncoder())


# Likelihood


@pytest.fixture
def tiny_target(tmp_path: Path) -> tuple[Path, object]:
    torch = pytest.importorskip("torch", reason="needs the extra drafter")
    transformers = pytest.importorskip("transformers", reason="needs the extra drafter")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=20_011,
        initializer_range=0.5,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.save_pretrained(tmp_path / "target")
    return tmp_path / "target", model


def test_a_row_is_judged_at_the_temperature_of_its_own_prompt(
    tiny_target: tuple[Path, object], tmp_path: Path
) -> None:
    import torch

    from spectune.drafter.data.likelihood import check_likelihood

    folder, model = tiny_target
    sampling = DataSampling(max_tokens=12, temperatures=(0.0, 1.0))

    def continuation(messages: list[dict[str, str]]) -> list[int]:
        ids = torch.tensor([rendered(messages)])
        for _ in range(
            12
        ):  # as likely as samples at 1.0 are, also where the prompt was to be answered greedily
            logits = model(ids).logits[0, -1].float()  # type: ignore[operator]
            chosen = torch.multinomial(torch.softmax(logits, dim=-1), 1)
            ids = torch.cat([ids, chosen[None]], dim=1)
        return ids[0, -12:].tolist()

    script = Script(finish="length")
    script.answer = lambda messages, seed: " ".join(map(str, continuation(messages)))
    script.encode = lambda text: list(map(int, text.split()))
    with torch.inference_mode(), vllm_like(script) as server:
        run(server.url, request_for(tmp_path / "d", generate=24, sampling=sampling, concurrency=1))
    found = check_likelihood(tmp_path / "d", target=str(folder), num_rows=24)
    assert found.own_answers is False


@pytest.mark.parametrize(("temperature", "own"), [(1.0, True), (0.0, True), (1.0, False), (0.0, False)])
def test_own_answers_are_told_from_those_of_another_model(
    temperature: float, own: bool, tiny_target: tuple[Path, object], tmp_path: Path
) -> None:
    import torch

    from spectune.drafter.data.likelihood import check_likelihood

    folder, model = tiny_target

    def continuation(messages: list[dict[str, str]]) -> list[int]:
        if not own:  # likely text, but of a model with other weights
            return [12, 13, *map(word_id, messages[-1]["content"].split())][:12]
        ids = torch.tensor([rendered(messages)])
        for _ in range(12):
            logits = model(ids).logits[0, -1].float()  # type: ignore[operator]
            probabilities = torch.softmax(logits / max(temperature, 1e-6), dim=-1)
            chosen = probabilities.argmax()[None] if temperature == 0 else torch.multinomial(probabilities, 1)
            ids = torch.cat([ids, chosen[None]], dim=1)
        return ids[0, -12:].tolist()

    script = Script(finish="length")
    script.answer = lambda messages, seed: " ".join(map(str, continuation(messages)))
    script.encode = lambda text: list(map(int, text.split()))
    with torch.inference_mode(), vllm_like(script) as server:
        sampling = DataSampling(max_tokens=12, temperatures=(temperature,))
        run(server.url, request_for(tmp_path / "d", generate=72, sampling=sampling, concurrency=1))
    found = check_likelihood(tmp_path / "d", target=str(folder), num_rows=72)
    assert found.own_answers is own
    assert found.num_rows == 72 and found.num_tokens == 72 * 12
    assert (found.top1_frac > 0.85) is (own and temperature == 0.0)  # not 1: bf16 has ties
