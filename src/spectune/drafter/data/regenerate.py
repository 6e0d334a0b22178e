"""Answers for every planned prompt, from one running server, many at once, resumable to the sample.

Memory is bounded by the requests in flight: prompts stream from the plan,
answers go to the journal as they come.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spectune.domain.sizes import in_bytes
from spectune.drafter.data.answers import AnswerFailed, Asker, ChatEncoder, ServerGone
from spectune.drafter.data.folder import lock
from spectune.drafter.data.journal import Journal
from spectune.drafter.data.manifest import (
    Manifest,
    RunBegin,
    RunEnd,
    make_manifest,
    note_begin,
    note_end,
    write_manifest,
)
from spectune.drafter.data.plan import make_plan, planned_prompts
from spectune.drafter.data.plan_records import Plan, PlannedPrompt
from spectune.drafter.data.request import DataRequest, OpenServer, Progress, Served
from spectune.drafter.data.samples import converse
from spectune.drafter.extra import needed
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput, EnvironmentFailed, TransportError
from spectune.server.detect import detect_engine, served_model
from spectune.server.probe import read_facts
from spectune.transport import HttpClient

MAX_CONCURRENCY = 4096
_SILENT_TRIES = 4
_FAILED_TRIES = 64
"""Beyond one per worker, without an answer in between: no reply at all, and replies of no use."""
_DEATH_WAIT_S = 1.0
_BYTES_PER_TOKEN = 7
"""In the journal, before it becomes Parquet."""


OnProgress = Callable[[Progress], None]
OnMessage = Callable[[str], None]


async def regenerate(
    base_url: str,
    request: DataRequest,
    *,
    api_key: str | None = None,
    engine: str = "auto",
    model: str | None = None,
    encoder: ChatEncoder | None = None,
    target_name: str | None = None,
    on_progress: OnProgress = lambda _: None,
    on_message: OnMessage = lambda _: None,
) -> Manifest:
    """``regenerate_from`` a server that is already running."""
    served = Served(base_url, engine=engine, model=model, api_key=api_key)
    return await regenerate_from(
        lambda: nullcontext(served),
        request,
        encoder=encoder,
        target_name=target_name,
        on_progress=on_progress,
        on_message=on_message,
    )


async def regenerate_from(
    open_server: OpenServer,
    request: DataRequest,
    *,
    encoder: ChatEncoder | None = None,
    target_name: str | None = None,
    on_progress: OnProgress = lambda _: None,
    on_message: OnMessage = lambda _: None,
) -> Manifest:
    """Plans, or resumes, and answers what is missing; the manifest of what is on disk at the end.

    A server is opened only once the request is known to be good and something is missing.
    Safe to cancel and to kill at any time: run it again with the same request.
    Raises ``BadInput`` (another request than the one on disk, a damaged part,
    a template that is not the served one) and ``EnvironmentFailed`` (the server
    stopped answering, the disk is full); what was answered is kept.
    """
    needed("pyarrow.parquet")
    if not 1 <= request.concurrency <= MAX_CONCURRENCY:
        raise BadInput(f"--concurrency: must be from 1 to {MAX_CONCURRENCY}, got {request.concurrency}")
    try:
        with lock(request.out):
            plan = make_plan(request.out, request.prompts)
            journal = Journal.recover(
                request.out,
                shards=plan.shards,
                redo_damaged=request.redo_damaged,
                retry_failed=request.retry_failed,
            )
            for note in journal.notes:
                on_message(note)
            run = _Run(request, plan, journal, on_progress=on_progress, on_message=on_message)
            try:
                return await run.answer(open_server, encoder=encoder, target_name=target_name)
            finally:
                journal.close()
    except OSError as error:
        raise EnvironmentFailed(_disk_message(request.out, error)) from error


def _disk_message(out: Path, error: OSError) -> str:
    message = f"{error.filename or out}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        message += "\nall finished samples are kept; free some space and run the same command again"
    return message


@dataclass
class _Run:
    request: DataRequest
    plan: Plan
    journal: Journal
    on_progress: OnProgress
    on_message: OnMessage
    began: float = field(default_factory=time.monotonic)
    done_before: int = 0
    new_tokens: int = 0
    _again: deque[tuple[int, PlannedPrompt]] = field(default_factory=deque)
    _since_success: list[tuple[int, PlannedPrompt, str]] = field(default_factory=list)
    """Failed tries since the last answer; they are journalled only once the server is known to live."""
    _silent: int = 0
    """Those among them without any reply."""

    async def answer(
        self, open_server: OpenServer, *, encoder: ChatEncoder | None, target_name: str | None
    ) -> Manifest:
        self.done_before = self.journal.tally.done
        if self.done_before < self.plan.num_prompts:
            self._check_room()
            async with open_server() as served:
                self.began = time.monotonic()
                await self._answer_missing(served, encoder=encoder, target_name=target_name)
        manifest = make_manifest(self.request.out, self.plan, self.journal)
        write_manifest(self.request.out, manifest)
        return manifest

    async def _answer_missing(
        self, served: Served, *, encoder: ChatEncoder | None, target_name: str | None
    ) -> None:
        async with HttpClient(served.base_url, api_key=served.api_key) as http:
            name = await detect_engine(http) if served.engine == "auto" else served.engine
            adapter = adapter_for(name)
            model = served.model or await served_model(http)
            facts = await read_facts(http, adapter)
            self.on_message(
                f"{' '.join(filter(None, (name, facts.version)))} at {http.base_url} serves {model}"
            )
            begin = RunBegin(
                started=datetime.now(UTC).isoformat(timespec="seconds"),
                engine=name,
                engine_version=facts.version,
                model=model,
                target=target_name,
                concurrency=self.request.concurrency,
                command=served.command,
            )
            note_begin(self.request.out, begin)
            asker = Asker(http, name, model, encoder=encoder, timeout_s=self.request.request_timeout_s)
            await self._until_done_or_dead(self._drive(asker), served)
        note_end(
            self.request.out,
            RunEnd(
                num_samples=self.journal.tally.done - self.done_before,
                completion_tokens=self.new_tokens,
                elapsed_s=time.monotonic() - self.began,
                num_compared=asker.num_compared,
            ),
        )

    async def _until_done_or_dead(self, work: Coroutine[Any, Any, None], served: Served) -> None:
        """Runs ``work`` to its end; if a watched server is lost, stops it and raises why."""
        if served.died is None:
            await work
            return
        working, dying = asyncio.create_task(work), asyncio.ensure_future(served.died())
        try:
            await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
            if working.done() and isinstance(working.exception(), EnvironmentFailed):
                # Requests fail before their process is gone: it is given a moment to show it.
                await asyncio.wait({dying}, timeout=_DEATH_WAIT_S)
            if dying.done() and not (working.done() and working.exception() is None):
                raise EnvironmentFailed(f"{dying.result()}\n{self._kept()}") from dying.result()
            await working
        finally:
            for task in (working, dying):
                task.cancel()
            await asyncio.gather(working, dying, return_exceptions=True)

    def _check_room(self) -> None:
        """A disk that is too small is better known before the first of 500,000 samples than after the last."""
        missing = self.plan.num_prompts - self.done_before
        least = missing * self.plan.sampling.max_tokens // 4 * _BYTES_PER_TOKEN // 2
        free = shutil.disk_usage(self.request.out).free
        if free < least:
            self.on_message(
                f"warning: {missing} samples of up to {self.plan.sampling.max_tokens} tokens may need more than "
                f"the {in_bytes(free)} that are free in {self.request.out}"
            )

    async def _drive(self, asker: Asker) -> None:
        waiting = self._waiting()
        while True:
            await self._work_off(asker, waiting)
            if self._since_success:
                await self._still_there(asker)
                self._settle()
            if not self._again:
                return

    async def _work_off(self, asker: Asker, waiting: Iterator[tuple[int, PlannedPrompt]]) -> None:
        tasks = [asyncio.create_task(self._work(asker, waiting)) for _ in range(self.request.concurrency)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _waiting(self) -> Iterator[tuple[int, PlannedPrompt]]:
        for index, planned in planned_prompts(self.request.out, self.plan):
            if not self.journal.is_done(index):
                yield index, planned

    async def _work(self, asker: Asker, waiting: Iterator[tuple[int, PlannedPrompt]]) -> None:
        """One request after another: new prompts first, then those that failed."""
        while True:
            item = next(waiting, None) or (self._again.popleft() if self._again else None)
            if item is None:
                return
            index, planned = item
            try:
                conversation = await converse(asker, planned, index, self.plan.sampling)
            except (ServerGone, AnswerFailed) as error:
                self._note_failure(index, planned, error)
                continue
            self._settle()
            self.journal.add(
                index, category=planned.prompt.category, split=planned.split, conversation=conversation
            )
            self.new_tokens += conversation.completion_tokens
            self.report()

    def _note_failure(self, index: int, planned: PlannedPrompt, error: Exception) -> None:
        """A failure now and then is a sample's own; many in a row say something about the server."""
        self._since_success.append((index, planned, str(error)))
        self._silent += isinstance(error, ServerGone)
        allowed = self.request.concurrency
        if self._silent >= allowed + _SILENT_TRIES or len(self._since_success) >= allowed + _FAILED_TRIES:
            raise self._gone(str(error))

    async def _still_there(self, asker: Asker) -> None:
        try:
            await asker.http.request("GET", "/v1/models", timeout_s=30)
        except TransportError as error:
            raise self._gone(str(error)) from error

    def _gone(self, error: str) -> EnvironmentFailed:
        return EnvironmentFailed(
            f"the server stopped answering, or every answer is an error: {error}\n{self._kept()} once it serves"
        )

    def _kept(self) -> str:
        done, total = self.journal.tally.done, self.plan.num_prompts
        return f"{done} of {total} samples are done and kept; run the same command again"

    def _settle(self) -> None:
        """The server lives: what failed since the last answer were failures of those samples."""
        failed, self._since_success, self._silent = self._since_success, [], 0
        for index, planned, error in failed:
            self._fail(index, planned, error)

    def _fail(self, index: int, planned: PlannedPrompt, error: str) -> None:
        if self.journal.add_failure(index, prompt_id=planned.prompt.prompt_id, error=error):
            self._again.append((index, planned))
        self.report()

    def report(self) -> None:
        tally = self.journal.tally
        self.on_progress(
            Progress(
                done=tally.done,
                total=self.plan.num_prompts,
                tally=tally,
                elapsed_s=time.monotonic() - self.began,
                new_samples=tally.done - self.done_before,
                new_tokens=self.new_tokens,
            )
        )
