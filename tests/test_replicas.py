"""Replicas of a data set: batches, what the driver knows of each replica, and requests for them that make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.cli.main import main
from spectune.cluster.replica import ReplicaNews
from spectune.cluster.replica_batches import (
    AnsweredBatch,
    AnsweredPrompt,
    AskedBatch,
    batch_size,
    calls_at_once,
    missing_batches,
)
from spectune.cluster.replica_table import SILENT_AFTER_S, ReplicaTable
from spectune.domain.workload import Prompt
from spectune.drafter.data.manifest import RunBegin, RunEnd
from spectune.drafter.data.plan import make_plan, planned_prompts
from spectune.drafter.data.plan_records import PlannedPrompt, PlanRequest
from spectune.drafter.data.samples import Conversation, Row
from spectune.drafter.data.sources import PromptSource

STUDY = """
question: none
host: {host}
engine: {{name: fake}}
target: fake-model
arms: [{{method: ngram, num_draft_tokens: 3}}]
"""


@given(st.integers(1, 4096), st.integers(1, 500_000), st.integers(1, 64))
def test_a_replica_always_has_more_than_its_requests_in_flight_and_less_than_twice_that(
    concurrency: int, num_missing: int, num_replicas: int
) -> None:
    size = batch_size(concurrency=concurrency, num_missing=num_missing, num_replicas=num_replicas)
    held = size * calls_at_once(concurrency=concurrency)
    assert held <= 2 * concurrency
    if num_missing >= 2 * concurrency * num_replicas:
        assert held >= 1.5 * concurrency
    else:  # little is left: no replica takes what another could do
        assert size == 1 or held * num_replicas <= num_missing


def test_batches_hold_each_missing_prompt_once_in_order_with_the_tries_it_has(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, PlanRequest(sources=(PromptSource("generated", count=23),)))
    tries = bytearray([2] * 23)
    tries[4], tries[5], tries[22] = 0, 1, 0
    texts = list(missing_batches(tmp_path, bytes(tries), size=4))
    batches = [AskedBatch.model_validate_json(text) for text in texts]
    assert [len(batch.prompts) for batch in batches] == [4, 4, 4, 4, 4, 1]
    asked = [prompt for batch in batches for prompt in batch.prompts]
    assert [prompt.index for prompt in asked] == [i for i in range(23) if i not in (4, 22)]
    assert [prompt.index for prompt in asked if prompt.tries_left == 1] == [5]
    planned = dict(planned_prompts(tmp_path, plan))
    assert all(prompt.planned == planned[prompt.index] for prompt in asked)


def test_answers_cross_unchanged() -> None:
    planned = PlannedPrompt(prompt=Prompt(prompt_id="p", turns=("héllo",)), split="train")
    row = Row("p", (1, 2, 3), ((1, 3),), "text \u2028 with a separator", "stop")
    conversation = Conversation(rows=(row,), seed=7, num_empty=0, ids_from="server", completion_tokens=2)
    answers = (
        AnsweredPrompt(index=3, planned=planned, conversation=conversation, errors=("HTTP 500",)),
        AnsweredPrompt(index=4, planned=planned, conversation=None, errors=("a", "b")),
    )
    batch = AnsweredBatch(replica="r", prompts=answers)
    assert AnsweredBatch.model_validate_json(batch.model_dump_json()) == batch


def news(process: str, *, actor: str = "x", phase: str = "serving", num_open: int = 0) -> ReplicaNews:
    return ReplicaNews(
        actor_id=actor,
        process=process,
        node_id="n",
        pid=1,
        phase=phase,  # type: ignore[arg-type]
        num_open=num_open,
        num_server_starts=2,
        num_compared=5,
        server=None,
    )


def test_a_replica_is_one_through_all_its_starts() -> None:
    table = ReplicaTable()
    row, is_start = table.note(news("first"), node="a", now_s=0)
    assert (is_start, row.name) == (True, "replica 1 on a")
    assert table.note(news("first"), node="a", now_s=1)[1] is False
    table.note_answers("x", num_samples=3, completion_tokens=30)
    assert row.starts_since_answer == 0
    assert table.note(news("second"), node="b", now_s=2) == (row, True)
    assert table.note(news("third"), node="b", now_s=3) == (row, True)
    assert (row.name, row.starts_since_answer, row.num_compared) == ("replica 1 on b", 2, 15)
    (record,) = table.records()
    assert record.nodes == ("a", "b")
    assert (record.num_starts, record.num_server_starts) == (3, 6)
    assert (record.num_samples, record.completion_tokens) == (3, 30)


def test_replicas_are_idle_when_those_that_live_have_nothing_whatever_a_lost_one_had() -> None:
    table = ReplicaTable()
    assert not table.is_idle(0)
    table.note(news("one", num_open=4), node="a", now_s=0)
    table.note(news("two", actor="y", phase="starting"), node="b", now_s=0)
    assert not table.is_idle(1)
    late = SILENT_AFTER_S + 1
    table.note(news("two", actor="y"), node="b", now_s=late)
    assert [row.number for row in table.alive(late)] == [2]
    assert table.is_idle(late)
    table.note(news("two", actor="y", phase="gone"), node="b", now_s=late)
    assert not table.is_idle(late)


@pytest.mark.parametrize(
    ("host", "more", "words"),
    [
        ("local", ["--replicas", "2"], "the study says `host: local`; give `--set host=ray`"),
        ("ray", ["--replicas", "1025"], "--replicas: must be from 1 to 1024, got 1025"),
        ("ray", [], "host ray: say how many of its nodes' servers answer at once: --replicas N"),
        ("ray://head:10001", ["--replicas", "2"], "the driver must be on a node of the cluster"),
        ("ray", ["--replicas", "2", "--template-kwargs", "[1]"], "--template-kwargs: must be a JSON object"),
        ("ray", ["--replicas", "2", "--arm", "best"], "--arm best: no such arm"),
    ],
)
def test_replicas_that_make_no_sense_are_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str, more: list[str], words: str
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(STUDY.format(host=host), encoding="utf-8")
    out = tmp_path / "d"
    assert main(["drafter", "data", "--study", str(study), "--out", str(out), "--generate", "5", *more]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_replicas_need_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["drafter", "data", "--out", str(tmp_path / "d"), "--generate", "5", "--replicas", "2"]
    assert main([*words, "--url", "http://127.0.0.1:9"]) == 2
    assert "--replicas: they are servers of a study; give it with --study FILE" in capsys.readouterr().err
    for value in ("0", "-1", "two", "1.5"):
        with pytest.raises(SystemExit) as ended:
            main([*words[:-1], value])
        assert ended.value.code == 2
        assert "must be a whole number from 1 to 10000000" in capsys.readouterr().err


def test_a_manifest_without_replicas_is_read_as_before() -> None:
    begin = {"started": "t", "engine": "vllm", "engine_version": None, "model": "m", "target": None}
    assert RunBegin.model_validate_json(json.dumps({**begin, "concurrency": 4})).replicas is None
    end = {"num_samples": 1, "completion_tokens": 2, "elapsed_s": 1.0, "num_compared": 0}
    assert RunEnd.model_validate_json(json.dumps(end)).replicas == ()
