"""``through_replicas``: a data set's missing prompts, answered by replicas of one arm's server on a Ray cluster.

Ray Data carries batches of prompts to the replicas and their answers back, holds back what they cannot take yet, and
starts replicas again. Exactly once is made here: this process alone writes the journal, by index, so a batch that is
answered twice is written once; and while anything is missing there is another pass over it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spectune.cluster.data_server import next_log
from spectune.cluster.ray_cluster import Cluster, Worker, bundle_words, source_digest
from spectune.cluster.ray_data import Pool, ask_here, desk_here, kill_for_good, stream
from spectune.cluster.replica import Desk, Replica, ReplicaNews, ReplicaSetup
from spectune.cluster.replica_batches import AnsweredBatch, batch_size, calls_at_once, missing_batches
from spectune.cluster.replica_table import ReplicaRow, ReplicaTable
from spectune.domain.study import Study
from spectune.drafter.data.regenerate import DataRun
from spectune.errors import BadInput, EnvironmentFailed, NodeLost, TeardownUnproven
from spectune.runner.lanes import bundle_for
from spectune.runner.parallel import check_fits_nodes
from spectune.server.lifecycle import to_the_end

MAX_REPLICAS = 1024
_LISTEN_EVERY_S = 0.3
_IDLE_S = 60.0
"""Replicas that serve have had nothing to do for so long while prompts are missing: a lost one has those."""
_NONE_LEFT_S = 300.0
_SAY_WAITING_AFTER_S = 30.0
_STOP_S = 90.0
_DRAIN_S = 15.0
_MOST_STARTS = 5
"""Of one replica in a row, without an answer in between."""


@dataclass(frozen=True)
class ReplicaPlan:
    """How many replicas answer, of which server."""

    study: Study
    """With the one arm that serves."""
    count: int
    tokenizer: str | None = None
    """A folder on every node."""
    template_kwargs: str = "{}"
    """A JSON object."""
    target_name: str | None = None


async def through_replicas(run: DataRun, plan: ReplicaPlan, *, cluster: Cluster) -> None:
    """Returns when nothing is missing and every server is proven gone. What has been answered is always kept.

    Raises ``EnvironmentFailed`` if a server cannot be started, if replicas die without an answer in between or none
    is left, and ``TeardownUnproven``, after the others have stopped, if one could not prove it.
    """
    bundle = _bundle(plan, cluster, run.on_message)
    table = ReplicaTable()
    while not run.is_done:
        before = run.journal.tally.done
        await _Pass(run, plan, cluster, bundle, table).to_its_end()
        if run.journal.tally.done == before:
            raise EnvironmentFailed(f"the replicas had nothing to do, and nothing was answered\n{run.kept}")


def _bundle(plan: ReplicaPlan, cluster: Cluster, say: Callable[[str], None]) -> dict[str, float]:
    """What a replica asks of a node: the least that the study's settings make of any node that has enough."""
    nodes = cluster.nodes()
    if plan.study.nodes_per_server > 1:
        raise BadInput(
            f"ray.nodes: {plan.study.nodes_per_server}: replicas are servers on one node each; give "
            "`--set ray.nodes=1`, or generate with a server that was started by hand"
        )
    check_fits_nodes(plan.study, max((n.resources.get("GPU", 0.0) for n in nodes), default=0.0))
    bundles = [b for n in nodes if (b := bundle_for(plan.study, n.resources)) is not None]
    if not bundles:
        raise EnvironmentFailed(
            f"{cluster.address}: none of its {len(nodes)} nodes has room for a replica. One asks for all processors "
            "of a node unless the study says `ray: {cpus: N}`; with vLLM and SGLang for a GPU unless `ray: {gpus: 0}`"
        )
    bundle = min(bundles, key=lambda b: (b.get("GPU", 0.0), b.get("CPU", 0.0)))
    room = sum(min(int(n.resources.get(k, 0.0) // v) for k, v in bundle.items()) for n in nodes)
    say(f"{plan.count} replicas, {bundle_words(bundle)} each, on a cluster of {len(nodes)} nodes")
    if room < plan.count:
        say(f"warning: the cluster has room for {room} of them; the others start when more nodes come")
    return bundle


def _batches(out: Path, tries_left: bytes, size: int, desk: Worker) -> Iterator[str]:
    """Runs in a process of Ray on the driver's machine; lasts until the driver needs no replica any more."""
    for text in missing_batches(out, tries_left, size=size):
        if ask_here(desk, "stops"):
            break
        yield text
    ask_here(desk, "closed")


class _Pass:
    """One pipeline over what is missing."""

    def __init__(
        self,
        run: DataRun,
        plan: ReplicaPlan,
        cluster: Cluster,
        bundle: Mapping[str, float],
        table: ReplicaTable,
    ) -> None:
        self._run = run
        self._plan = plan
        self._cluster = cluster
        self._bundle = bundle
        self._table = table
        self._desk = desk_here(cluster, Desk)
        self._names: dict[str, str] = {}
        self._logs: dict[tuple[str, str], Path] = {}
        self._actors: set[str] = set()
        """Of this pass."""
        self._unproven: TeardownUnproven | None = None
        self._all_done = asyncio.Event()

    async def to_its_end(self) -> None:
        answers = asyncio.create_task(self._write_answers())
        listening = asyncio.create_task(self._listen())
        done = asyncio.create_task(self._all_done.wait())
        try:
            await asyncio.wait({answers, listening, done}, return_when=asyncio.FIRST_COMPLETED)
            if not self._run.is_done:
                await self._hear()  # a replica says more exactly than Ray what went wrong
                for ended in (listening, answers):
                    if ended.done():
                        ended.result()
            else:
                with contextlib.suppress(
                    EnvironmentFailed, BadInput
                ):  # nothing that matters any more, or kept
                    await self._hear()
                compared = sum(row.num_compared for row in self._table.rows)
                self._run.end(num_compared=compared, replicas=self._table.records())
        finally:
            for task in (listening, done):
                task.cancel()
            await asyncio.gather(listening, done, return_exceptions=True)
            await to_the_end(self._stop(answers))
        if self._unproven is not None:
            raise self._unproven

    def _stream(self) -> AsyncIterator[str]:
        run, plan, request = self._run, self._plan, self._run.request
        study = plan.study.model_copy(update={"plan": ()})
        setup = ReplicaSetup(
            study=study.model_dump_json(),
            owner=str(request.out.resolve()),
            source_digest=source_digest(),
            num_gpus=self._bundle.get("GPU", 0.0),
            concurrency=request.concurrency,
            request_timeout_s=request.request_timeout_s,
            sampling=run.plan.sampling.model_dump_json(),
            tokenizer=plan.tokenizer,
            template_kwargs=plan.template_kwargs,
        )
        size = batch_size(
            concurrency=request.concurrency,
            num_missing=run.plan.num_prompts - run.journal.tally.done,
            num_replicas=plan.count,
        )
        pool = Pool(
            kind=Replica,
            args=(setup, self._desk),
            size=plan.count,
            calls_at_once=calls_at_once(concurrency=request.concurrency),
            bundle=self._bundle,
        )
        return stream(partial(_batches, request.out.resolve(), run.tries_left(), size, self._desk), pool)

    async def _write_answers(self) -> None:
        async for text in self._stream():
            batch = AnsweredBatch.model_validate_json(text)
            num_new = tokens = 0
            for answer in batch.prompts:
                if self._run.journal.is_done(answer.index):
                    continue  # the batch was repeated
                for error in answer.errors:
                    self._run.failed(answer.index, answer.planned, error)
                if answer.conversation is not None:
                    self._run.answered(answer.index, answer.planned, answer.conversation)
                    tokens += answer.conversation.completion_tokens
                num_new += 1
            self._table.note_answers(batch.replica, num_samples=num_new, completion_tokens=tokens)
            if self._run.is_done:
                self._all_done.set()

    # what replicas say

    async def _listen(self) -> None:
        """Until those replicas that live have had nothing to do for a while; raises what one of them cannot do."""
        clock = asyncio.get_running_loop().time
        began = busy = seen = clock()
        said = False
        while True:
            await self._hear()
            now = clock()
            alive = self._table.alive(now)
            busy = busy if self._table.is_idle(now) else now
            if now - busy > _IDLE_S:
                self._run.on_message(
                    "prompts are missing that a lost replica had; all replicas are started again"
                )
                return
            if alive or (not self._actors and self._may_start()):
                seen = now
            elif now - seen > _NONE_LEFT_S:
                raise EnvironmentFailed(
                    f"no replica is left, and for {_NONE_LEFT_S:.0f} s there was no node for one\n{self._run.kept}"
                )
            if not self._actors and not said and now - began > _SAY_WAITING_AFTER_S:
                said = True
                self._run.on_message(
                    f"waiting for a node with {bundle_words(self._bundle)} free, and for Ray to start a replica there"
                )
            await asyncio.sleep(_LISTEN_EVERY_S)

    def _may_start(self) -> bool:
        return any(node.has(self._bundle) for node in self._cluster.nodes())

    async def _hear(self) -> None:
        try:
            found: list[ReplicaNews] = await self._desk.call("take")
        except NodeLost as error:
            raise EnvironmentFailed(
                f"this node's Ray has lost the run's own actor: {error}\n{self._run.kept}"
            ) from error
        now = asyncio.get_running_loop().time()
        faults = [fault for news in found if (fault := self._note(news, now)) is not None]
        if faults:
            raise faults[0]

    def _note(self, news: ReplicaNews, now_s: float) -> Exception | None:
        """What the run has to end with, if so."""
        self._actors.add(news.actor_id)
        before = next((row.news for row in self._table.rows if row.news.actor_id == news.actor_id), None)
        row, is_start = self._table.note(news, node=self._name_of(news.node_id), now_s=now_s)
        if is_start:
            again = "" if row.num_starts == 1 else f", start {row.num_starts}"
            self._run.on_message(f"{row.name}: process {news.pid}{again}")
        self._keep_log(news)
        for text in news.messages:
            self._run.on_message(f"{row.name}: {self._with_logs_here(text, news)}")
        if news.fault is not None:
            fault = f"{row.name}: {self._with_logs_here(news.fault, news)}"
            if news.left is not None:
                self._unproven = TeardownUnproven(fault, news.left)
                return self._unproven
            return (BadInput if news.is_bad_input else EnvironmentFailed)(f"{fault}\n{self._run.kept}")
        if news.server is not None and (before is None or before.server != news.server):
            other_model = self._note_server(news, row.name)
            if other_model is not None:
                return other_model
        if row.starts_since_answer > _MOST_STARTS:
            return EnvironmentFailed(
                f"{row.name}: its process was started {row.starts_since_answer} times in a row without an answer\n"
                f"{self._run.kept}"
            )
        return None

    def _note_server(self, news: ReplicaNews, name: str) -> Exception | None:
        server = news.server
        assert server is not None
        self._run.on_message(
            f"{name}: {' '.join(filter(None, (server.engine, server.version)))} serves {server.model}"
        )
        others = [row.news.server for row in self._table.rows if row.news.actor_id != news.actor_id]
        known = next((other for other in others if other is not None), None)
        if known is not None and known.model != server.model:
            return BadInput(f"{name} serves {server.model!r}, and another replica {known.model!r}")
        if known is not None and known.version != server.version:
            self._run.on_message(f"warning: another replica is {server.engine} {known.version}")
        if not self._run.has_begun:
            try:
                self._run.begin(
                    engine=server.engine,
                    version=server.version,
                    model=server.model,
                    target=self._plan.target_name,
                    command=server.command,
                    replicas=self._plan.count,
                )
            except BadInput as error:
                return error
        return None

    def _name_of(self, node_id: str) -> str:
        if node_id not in self._names:
            self._names |= {node.node_id: node.name for node in self._cluster.nodes()}
        return self._names.get(node_id, node_id[:8])

    def _keep_log(self, news: ReplicaNews) -> None:
        if news.log:
            with self._log_path(news, news.log_name).open("ab") as file:
                file.write(news.log)

    def _log_path(self, news: ReplicaNews, name: str) -> Path:
        """Where a log of the replica's node is kept here."""
        key = (news.process, name)
        if key not in self._logs:
            suffix = f"-{self._name_of(news.node_id)}".replace("/", "-")
            self._logs[key] = next_log(self._run.request.out / "servers", suffix=suffix)
            self._logs[key].touch()
        return self._logs[key]

    def _with_logs_here(self, text: str, news: ReplicaNews) -> str:
        found = re.compile(re.escape(news.logs) + r"/(\d{4}\.log)")
        return found.sub(lambda match: str(self._log_path(news, match[1])), text)

    # the end

    async def _stop(self, answers: asyncio.Task[None]) -> None:
        """Every replica that answers proves its server gone; then Ray Data has no more to do, or is made to end."""
        with contextlib.suppress(NodeLost):
            await self._desk.call("stop")
            await self._until_gone()
            await self._desk.call("close")
        await asyncio.wait({answers}, timeout=_DRAIN_S)
        if not answers.done():
            for row in self._mine():
                if row.news.phase != "gone":
                    self._run.on_message(
                        f"{row.name} does not answer: its server, if there is one, ends by its lease"
                    )
                kill_for_good(row.handle)
            await asyncio.wait({answers}, timeout=_DRAIN_S)
        answers.cancel()
        await asyncio.gather(answers, return_exceptions=True)

    async def _until_gone(self) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + _STOP_S
        while clock() < deadline and any(
            r.news.phase != "gone" and not r.is_silent(clock()) for r in self._mine()
        ):
            await asyncio.sleep(_LISTEN_EVERY_S)
            with contextlib.suppress(
                EnvironmentFailed, BadInput
            ):  # the first fault was enough, or it is unproven
                await self._hear()

    def _mine(self) -> list[ReplicaRow]:
        return [row for row in self._table.rows if row.news.actor_id in self._actors]
