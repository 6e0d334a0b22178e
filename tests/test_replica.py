"""One replica with real servers, without Ray: what it answers, what it does about a server that dies, and its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from spectune.cluster.ray_cluster import source_digest
from spectune.cluster.ray_data import Self
from spectune.cluster.replica import Desk, Replica, ReplicaNews, ReplicaSetup
from spectune.cluster.replica_batches import AnsweredBatch, AskedBatch, AskedPrompt
from spectune.domain.machine import Machine
from spectune.domain.workload import Prompt
from spectune.drafter.data.plan_records import DataSampling, PlannedPrompt
from spectune.hosts.supervisor import MARKER
from spectune.runner.plan import resolve_study
from spectune.study_file.load import load_study_file

STUDY = """
question: none
engine: {{name: fake, flags: {{{flags}}}}}
target: fake-model
arms: [{{name: draws, method: ngram, num_draft_tokens: 3}}]
lease_s: {lease_s}
"""
MACHINE = Machine(hostname="m", os="linux", cpu="c", cores=2, memory_bytes=1, gpus=(), python="3.11")


class DeskHere:
    """The desk of this process."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.heard: list[ReplicaNews] = []

    async def call(self, method: str, *args: object) -> Any:
        if method == "tell":
            self.heard.extend(news for news in args if isinstance(news, ReplicaNews))
        return await getattr(self.desk, method)(*args)

    def messages(self) -> list[str]:
        return [text for news in list(self.heard) for text in news.messages]

    def end(self) -> ReplicaNews:
        """Tells the replica to stop, and returns its last news."""
        asyncio.run(self.desk.stop())
        until(lambda: self.heard and self.heard[-1].phase == "gone")
        return self.heard[-1]


class Made:
    """Makes replicas of a study, as one run's driver does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.owner = folder, str(folder / "data")
        self.lease_s = 3

    def replica(self, flags: str = "", *, actor: str = "actor", job: str = "job") -> tuple[Replica, DeskHere]:
        path = self.folder / "study.yaml"
        path.write_text(STUDY.format(flags=flags, lease_s=self.lease_s))
        spec, _, document = load_study_file(path, overrides=[])
        study = resolve_study(spec, document, path=path, machine=MACHINE)
        study = study.model_copy(update={"arms": study.arms[:1], "plan": ()})
        setup = ReplicaSetup(
            study=study.model_dump_json(),
            owner=self.owner,
            source_digest=source_digest(),
            num_gpus=0,
            concurrency=4,
            request_timeout_s=30,
            sampling=DataSampling(max_tokens=6).model_dump_json(),
            tokenizer=None,
            template_kwargs="{}",
        )
        desk = DeskHere()
        return Replica(setup, desk, me=lambda: Self(actor, job, "node", 1, None)), desk

    def servers(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                variables = process.environ()
                ours = variables.get("SPECTUNE_HOME") == str(self.folder / "home")
                if MARKER in variables and ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setenv("SPECTUNE_HOME", str(tmp_path / "home"))
    return Made(tmp_path)


def until(condition: Callable[[], object], *, limit_s: float = 60) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s, "it did not happen"
        time.sleep(0.02)


def batch(indexes: range, *, tries_left: int = 2) -> str:
    prompts = tuple(
        AskedPrompt(
            index=i,
            planned=PlannedPrompt(prompt=Prompt(prompt_id=f"p{i}", turns=(f"Say {i}.",)), split="train"),
            tries_left=tries_left,
        )
        for i in indexes
    )
    return AskedBatch(prompts=prompts).model_dump_json()


def answers(replica: Replica, *texts: str) -> list[AnsweredBatch]:
    async def all_at_once() -> list[str]:
        async def one(text: str) -> str:
            (answer,) = [answer async for answer in replica(text)]
            return answer

        return await asyncio.gather(*map(one, texts))

    return [AnsweredBatch.model_validate_json(text) for text in asyncio.run(all_at_once())]


def test_batches_are_answered_at_once_and_a_repeated_one_is_asked_once(made: Made) -> None:
    replica, desk = made.replica()
    first, second, again = answers(replica, batch(range(6)), batch(range(6, 9)), batch(range(6)))
    assert [answer.index for answer in first.prompts] == list(range(6))
    assert [answer.index for answer in second.prompts] == [6, 7, 8]
    assert again.prompts == first.prompts
    assert all(a.conversation is not None and a.conversation.completion_tokens == 6 for a in first.prompts)
    assert len(made.servers()) >= 1
    last = desk.end()
    assert (last.fault, last.left, last.num_server_starts) == (None, None, 1)
    assert desk.messages()[-1] == "stopped, and its server is gone"
    assert made.servers() == []
    assert b"listening on" in b"".join(news.log for news in desk.heard)
    assert not Path(last.logs).exists()
    # What Ray Data still has for it is given back, not answered.
    assert [len(b.prompts) for b in answers(replica, batch(range(9, 12)))] == [0]


def test_a_server_that_dies_is_started_again_and_no_prompt_is_lost(made: Made) -> None:
    replica, desk = made.replica("die-at-request: 12, exit-code: 9")
    texts = [batch(range(i, i + 4)) for i in (0, 4, 8)]
    found = [answer for b in answers(replica, *texts) for answer in b.prompts]
    assert sorted(answer.index for answer in found) == list(range(12)), desk.messages()
    assert all(answer.conversation is not None and not answer.errors for answer in found)
    last = desk.end()
    assert last.num_server_starts == 2
    until(lambda: any("server exited with code 9" in text for text in desk.messages()))
    assert made.servers() == []


def test_servers_that_keep_dying_without_an_answer_end_the_replica(made: Made) -> None:
    replica, desk = made.replica("die-at-request: 2")  # the first is ours, to see that it generates
    (found,) = answers(replica, batch(range(2)))
    assert found.prompts == ()
    last = desk.end()
    assert last.fault is not None
    assert "scripted death" in last.fault
    assert last.num_server_starts == 3
    assert made.servers() == []


def test_a_first_server_that_cannot_start_is_not_tried_again(made: Made) -> None:
    _, desk = made.replica('die-in: load, die-message: "RuntimeError: no such weights"')
    last = desk.end()
    assert last.fault is not None
    assert "no such weights" in last.fault
    assert last.num_server_starts == 1


def test_a_replica_that_was_killed_takes_hold_of_its_server_and_of_no_other(
    made: Made, tmp_path: Path
) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\nfrom test_replica import Made, batch, answers\n"
        f"made = Made(Path({str(tmp_path)!r}))\nmade.lease_s = 30\n"
        "replica, _ = made.replica()\nanswers(replica, batch(range(2)))\n"
        "print('ready', flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as before:
        assert before.stdout is not None
        assert before.stdout.readline() == "ready\n"
        server = {p.pid for p in made.servers()} - {before.pid}
        before.kill()
    made.lease_s = 30
    again, desk = made.replica()
    answers(again, batch(range(2)))
    until(lambda: any("taking hold of the server" in text for text in desk.messages()))
    assert {p.pid for p in made.servers()} == server
    _, later_desk = made.replica(actor="another", job="later-run")
    until(lambda: any("stopping a server that an earlier run left" in text for text in later_desk.messages()))
    assert server.isdisjoint({p.pid for p in made.servers()})
    assert later_desk.end().fault is None
    desk.end()
