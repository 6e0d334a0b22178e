"""A replica: on a node of a cluster, a server of the study's own, and its answers to batches of prompts.

Ray Data makes it, gives it several batches at once, and starts it again wherever it can when its process or its node
is killed. What it says goes to the desk of its driver, and there it hears that it is to stop: then its server is
proven gone. When the replica itself is killed, the server's supervisor ends it by its lease, or the replica, started
again on the same node, takes hold of it.
"""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from spectune.cluster.data_server import server_of_arm
from spectune.cluster.ray_cluster import source_digest
from spectune.cluster.ray_data import Self, own_actor
from spectune.cluster.replica_batches import AnsweredBatch, AnsweredPrompt, AskedBatch, AskedPrompt
from spectune.cluster.worker import (
    models_here,
    on_these_gpus,
    undo_niceness_of_ray,
    undo_variables_of_ray,
)
from spectune.cluster.worker_folders import Scratch
from spectune.domain.study import Study
from spectune.drafter.data.answering import Answering, Item, until_done_or_dead
from spectune.drafter.data.answers import Asker
from spectune.drafter.data.chat_encoder import TokenizerEncoder
from spectune.drafter.data.plan_records import DataSampling, PlannedPrompt
from spectune.drafter.data.request import Served
from spectune.drafter.data.samples import Conversation
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput, EnvironmentFailed, NodeLost, SpectuneError, TeardownUnproven
from spectune.home import data_home
from spectune.hosts.local import local_host
from spectune.runner.launch import ModelPaths
from spectune.runner.trial import is_not_the_arms_fault
from spectune.server.lifecycle import end_server
from spectune.server.probe import read_facts
from spectune.transport import HttpClient

_TALK_EVERY_S = 0.5
_LOG_PIECE_BYTES = 1 << 18
_MOST_FAILURES = 3
"""Servers that end one after the other without an answer; and deaths that one prompt was under way at."""

Phase = Literal["starting", "serving", "gone"]


@dataclass(frozen=True)
class ReplicaSetup:
    """What a replica must know; everything crosses as text."""

    study: str
    """With the one arm that serves."""
    owner: str
    """The data set's folder on the driver."""
    source_digest: str
    num_gpus: float
    concurrency: int
    request_timeout_s: float
    sampling: str
    tokenizer: str | None
    template_kwargs: str
    """A JSON object."""


@dataclass(frozen=True)
class ReplicaServer:
    """The server that answers."""

    engine: str
    version: str | None
    model: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class ReplicaNews:
    """What a replica says, every half second and when it ends."""

    actor_id: str
    process: str
    """Another one after every start of the replica."""
    node_id: str
    pid: int
    phase: Phase
    num_open: int
    """Prompts that it was given and has not answered."""
    num_server_starts: int
    num_compared: int
    server: ReplicaServer | None
    messages: tuple[str, ...] = ()
    logs: str = ""
    """Its folder for the logs of its servers, on its node."""
    log_name: str = ""
    log: bytes = b""
    """Of the server, from where the last news ended."""
    fault: str | None = None
    """Why the replica cannot go on, and so the run cannot."""
    is_bad_input: bool = False
    left: tuple[str, ...] | None = None
    """Of a server that could not be proven gone."""
    handle: Any = field(default=None, repr=False, compare=False)


class Desk:
    """Between a driver and its replicas: an actor beside the driver, which ends with it."""

    def __init__(self) -> None:
        self._news: list[ReplicaNews] = []
        self._stops = False
        self._closed = asyncio.Event()

    async def tell(self, news: ReplicaNews) -> bool:
        """From a replica; true: it is to stop its server."""
        self._news.append(news)
        return self._stops

    async def take(self) -> list[ReplicaNews]:
        """For the driver: what came since it took the last."""
        taken, self._news = self._news, []
        return taken

    async def stop(self) -> None:
        self._stops = True

    async def close(self) -> None:
        """No replica is needed any more."""
        self._stops = True
        self._closed.set()

    async def stops(self) -> bool:
        return self._stops

    async def closed(self) -> None:
        """Returns when it is."""
        await self._closed.wait()


class Line(Protocol):
    """To the desk, from wherever a replica is."""

    async def call(self, method: str, *args: object) -> Any:
        """What the method returns; raises ``NodeLost``."""
        ...


@dataclass
class _Row:
    """A prompt that is to be answered."""

    asked: AskedPrompt
    future: asyncio.Future[AnsweredPrompt | None]
    """``None``: it was left when the replica ended."""
    errors: list[str] = field(default_factory=list)
    num_deaths: int = 0


class Replica:
    """Calls are answered once the server has; they never raise, since Ray Data would end everything at that."""

    def __init__(self, setup: ReplicaSetup, desk: Line, *, me: Callable[[], Self] = own_actor) -> None:
        self._setup = setup
        self._desk = desk
        self._study = Study.model_validate_json(setup.study)
        self._sampling = DataSampling.model_validate_json(setup.sampling)
        self._me = me()
        self._process = uuid.uuid4().hex
        self._logs = Scratch("spectune-replica-")
        self._log_read: dict[str, int] = {}
        self._models = ModelPaths({})
        self._encoder: TokenizerEncoder | None = None
        self._messages: list[str] = []
        self._phase: Phase = "starting"
        self._server: ReplicaServer | None = None
        self._num_server_starts = 0
        self._num_compared = 0
        self._asker: Asker | None = None
        self._answering: Answering | None = None
        self._rows: dict[int, _Row] = {}
        """By index, of prompts without an answer; ``_waiting`` are those not asked at the moment."""
        self._waiting: deque[_Row] = deque()
        self._failures = 0
        """Of servers, since the last answer."""
        self._error: SpectuneError | OSError | None = None
        undo_variables_of_ray()
        if setup.num_gpus:
            self._study = on_these_gpus(self._study)
        # A loop of its own, since a server must be looked after while no call is under way.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="replica", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()

    async def __call__(self, text: str) -> AsyncIterator[str]:
        answer = asyncio.run_coroutine_threadsafe(self._answer(text), self._loop)
        yield await asyncio.wrap_future(answer)

    async def _answer(self, text: str) -> str:
        prompts = AskedBatch.model_validate_json(text).prompts
        answers = await asyncio.gather(*(asyncio.shield(self._row(asked).future) for asked in prompts))
        done = tuple(answer for answer in answers if answer is not None)
        return AnsweredBatch(replica=self._me.actor_id, prompts=done).model_dump_json()

    def _row(self, asked: AskedPrompt) -> _Row:
        """A batch that is repeated while it is under way here is one and the same."""
        row = self._rows.get(asked.index)
        if row is None:
            row = self._rows[asked.index] = _Row(asked, self._loop.create_future())
            if self._phase == "gone":
                self._settle(row, None)
                return row
            self._waiting.append(row)
            if self._answering is not None:
                self._answering.wake()
        return row

    async def _begin(self) -> None:
        """Returns when the first server answers, or none will."""
        self._ready = asyncio.Event()
        self._life = asyncio.create_task(self._live())
        self._talk = asyncio.create_task(self._talk_to_desk())
        await self._ready.wait()

    # the server

    async def _live(self) -> None:
        """Server after server, until it is told to stop or cannot go on; none is left then, or the error says so."""
        try:
            await self._prepare()
            while True:
                try:
                    await self._serve()
                except TeardownUnproven:
                    raise
                except EnvironmentFailed as error:
                    self._note_loss(error)
        except asyncio.CancelledError:
            self._say("stopped, and its server is gone")
        except (SpectuneError, OSError) as error:
            self._error = error
        finally:
            self._phase = "gone"
            for row in list(self._rows.values()):
                self._settle(row, None)
            self._ready.set()

    async def _prepare(self) -> None:
        left = undo_niceness_of_ray()
        if left is not None:
            self._say(left)
        setup = self._setup
        if setup.source_digest != source_digest():
            raise EnvironmentFailed(
                "another spectune is installed there; install the same version on every node"
            )
        await self._end_servers_of_earlier_runs()
        self._models = await models_here(self._study)
        if setup.tokenizer is not None:
            self._encoder = await asyncio.to_thread(
                TokenizerEncoder.load, setup.tokenizer, template_kwargs=json.loads(setup.template_kwargs)
            )

    async def _end_servers_of_earlier_runs(self) -> None:
        """Their drivers are gone, since a data set has one at a time."""
        host = local_host(data_home())
        await host.reconnect()
        for status in await host.servers():
            owner, mark, actor = (status.owner or "").rpartition("#")
            if mark and owner == self._setup.owner and not actor.startswith(self._me.job_id):
                self._say(f"stopping a server that an earlier run left (pid {status.leader_pid})")
                try:
                    await end_server(host, status)
                except TeardownUnproven:
                    raise
                except EnvironmentFailed as error:  # another replica here was faster
                    self._say(str(error))

    async def _serve(self) -> None:
        """From a launch to the loss of the server."""
        self._phase = "starting"
        self._num_server_starts += 1
        arm = self._study.arms[0]
        open_server = server_of_arm(
            arm,
            self._study,
            models=self._models,
            host=local_host(data_home()),
            owner=f"{self._setup.owner}#{self._me.job_id}/{self._me.actor_id}",
            logs=self._logs.folder,
            answer_tokens=self._sampling.max_tokens,
            on_message=self._say,
        )
        async with open_server() as served, HttpClient(served.base_url) as http:
            await self._answer_through(served, http)

    async def _answer_through(self, served: Served, http: HttpClient) -> None:
        assert served.model is not None
        facts = await read_facts(http, adapter_for(served.engine))
        self._server = ReplicaServer(served.engine, facts.version, served.model, served.command)
        self._asker = Asker(
            http,
            served.engine,
            served.model,
            encoder=self._encoder,
            timeout_s=self._setup.request_timeout_s,
        )
        self._answering = Answering(
            self._asker,
            self._sampling,
            self._setup.concurrency,
            take=self._take,
            on_answer=self._note_answer,
            on_failure=self._note_failure,
            is_open=True,
        )
        self._phase = "serving"
        self._ready.set()
        try:
            await until_done_or_dead(self._answering.run(), served)
        finally:
            self._answering = None
            self._num_compared += self._asker.num_compared
            self._asker = None

    def _note_loss(self, error: EnvironmentFailed) -> None:
        """What was under way is asked again of the next server, unless there is to be none: then it raises."""
        self._failures += 1
        may_help = self._server is not None or is_not_the_arms_fault(error)
        if self._failures >= (_MOST_FAILURES if may_help else 1):
            raise error
        waiting = set(map(id, self._waiting))
        lost = [row for row in self._rows.values() if id(row) not in waiting]
        for row in lost:
            row.num_deaths += 1
            if row.num_deaths >= _MOST_FAILURES:
                raise EnvironmentFailed(
                    f"{error}\nprompt {row.asked.planned.prompt.prompt_id} was under way at {row.num_deaths} such ends"
                ) from error
        self._waiting.extendleft(reversed(lost))
        self._say(f"{str(error).splitlines()[0]}; a server is started again")

    # answers

    def _take(self) -> Item | None:
        if not self._waiting:
            return None
        asked = self._waiting.popleft().asked
        return asked.index, asked.planned

    def _note_answer(self, index: int, planned: PlannedPrompt, conversation: Conversation) -> None:
        self._failures = 0
        row = self._rows[index]
        self._settle(
            row,
            AnsweredPrompt(index=index, planned=planned, conversation=conversation, errors=tuple(row.errors)),
        )

    def _note_failure(self, index: int, planned: PlannedPrompt, error: str) -> bool:
        row = self._rows[index]
        row.errors.append(error)
        if len(row.errors) < row.asked.tries_left:
            return True
        self._settle(
            row, AnsweredPrompt(index=index, planned=planned, conversation=None, errors=tuple(row.errors))
        )
        return False

    def _settle(self, row: _Row, answer: AnsweredPrompt | None) -> None:
        self._rows.pop(row.asked.index, None)
        row.future.set_result(answer)

    # the desk

    async def _talk_to_desk(self) -> None:
        is_told = False
        while True:
            news = self._news()
            try:
                stops = await self._desk.call("tell", news)
            except NodeLost:
                stops = True  # the driver is gone, and this process will be
            if news.phase == "gone" and not news.log:
                break
            if stops and not is_told:
                is_told = True
                self._life.cancel()  # once: a second time would disturb what proves the server gone
            await asyncio.wait({self._life}, timeout=_TALK_EVERY_S)
        self._logs.remove()

    def _news(self) -> ReplicaNews:
        messages, self._messages = tuple(self._messages), []
        name, log = self._next_log_piece()
        error = self._error or (self._life.exception() if self._life.done() else None)
        now = self._num_compared + (0 if self._asker is None else self._asker.num_compared)
        return ReplicaNews(
            actor_id=self._me.actor_id,
            process=self._process,
            node_id=self._me.node_id,
            pid=self._me.pid,
            phase=self._phase,
            num_open=len(self._rows),
            num_server_starts=self._num_server_starts,
            num_compared=now,
            server=self._server,
            messages=messages,
            logs=str(self._logs.folder),
            log_name=name,
            log=log,
            fault=None if error is None else str(error) or repr(error),
            is_bad_input=isinstance(error, BadInput),
            left=error.left if isinstance(error, TeardownUnproven) else None,
            handle=self._me.handle,
        )

    def _next_log_piece(self) -> tuple[str, bytes]:
        """Of the oldest log that has more than was read."""
        for path in sorted(self._logs.folder.glob("*.log")):
            begin = self._log_read.get(path.name, 0)
            if path.stat().st_size > begin:
                with path.open("rb") as file:
                    file.seek(begin)
                    piece = file.read(_LOG_PIECE_BYTES)
                self._log_read[path.name] = begin + len(piece)
                return path.name, piece
        return "", b""

    def _say(self, text: str) -> None:
        self._messages.append(text)
