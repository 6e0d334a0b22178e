"""Answers for every planned prompt, from one running server, many at once, resumable to the sample.

Memory is bounded by the requests in flight: prompts stream from the plan,
answers go to the journal as they come.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from spectune.domain.sizes import in_bytes
from spectune.drafter.data.answering import Answering, Item, Unanswered, until_done_or_dead
from spectune.drafter.data.answers import Asker, ChatEncoder
from spectune.drafter.data.folder import lock
from spectune.drafter.data.journal import Journal
from spectune.drafter.data.manifest import (
    Manifest,
    ReplicaRecord,
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
from spectune.drafter.data.samples import Conversation
from spectune.drafter.extra import needed
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput, EnvironmentFailed
from spectune.server.detect import detect_engine, served_model
from spectune.server.probe import read_facts
from spectune.transport import HttpClient

MAX_CONCURRENCY = 4096
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
    """Plans, or resumes, and has one server answer what is missing; the manifest of what is on disk at the end.

    A server is opened only once the request is known to be good and something is missing.
    Raises what ``make_data_set`` does.
    """

    async def answer(run: DataRun) -> None:
        async with open_server() as served:
            await _answer_missing(run, served, encoder=encoder, target_name=target_name)

    return await make_data_set(request, answer, on_progress=on_progress, on_message=on_message)


async def make_data_set(
    request: DataRequest,
    answer: Callable[[DataRun], Awaitable[None]],
    *,
    on_progress: OnProgress = lambda _: None,
    on_message: OnMessage = lambda _: None,
) -> Manifest:
    """Plans, or resumes; ``answer`` is given the run if something is missing, and notes in it what was answered.

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
            run = DataRun(request, plan, journal, on_progress=on_progress, on_message=on_message)
            try:
                if not run.is_done:
                    run.check_room()
                    await answer(run)
                manifest = make_manifest(request.out, plan, journal)
                write_manifest(request.out, manifest)
                return manifest
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
class DataRun:
    """One run over what is missing in a data set: whoever has it alone writes the data set."""

    request: DataRequest
    plan: Plan
    journal: Journal
    on_progress: OnProgress
    on_message: OnMessage
    done_before: int = 0
    new_tokens: int = 0
    has_begun: bool = False
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.done_before = self.journal.tally.done

    @property
    def is_done(self) -> bool:
        return self.journal.tally.done >= self.plan.num_prompts

    @property
    def kept(self) -> str:
        """What a run that cannot go on says at its end."""
        done, total = self.journal.tally.done, self.plan.num_prompts
        return f"{done} of {total} samples are done and kept; run the same command again"

    def missing(self) -> Iterator[Item]:
        """In the order of the plan."""
        for index, planned in planned_prompts(self.request.out, self.plan):
            if not self.journal.is_done(index):
                yield index, planned

    def tries_left(self) -> bytes:
        """Of each prompt, in the order of the plan; 0: it is done."""
        journal = self.journal
        return bytes(
            0 if journal.is_done(index) else 1 if index in journal.tries else 2
            for index in range(self.plan.num_prompts)
        )

    def begin(
        self,
        *,
        engine: str,
        version: str | None,
        model: str,
        target: str | None,
        command: tuple[str, ...],
        replicas: int | None = None,
    ) -> None:
        """The servers answer: time counts from now on. Raises ``BadInput`` if earlier answers are another model's."""
        begin = RunBegin(
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            engine=engine,
            engine_version=version,
            model=model,
            target=target,
            concurrency=self.request.concurrency,
            command=command,
            replicas=replicas,
        )
        note_begin(self.request.out, begin)
        self.has_begun = True
        self._began = time.monotonic()

    def end(self, *, num_compared: int, replicas: tuple[ReplicaRecord, ...] = ()) -> None:
        note_end(
            self.request.out,
            RunEnd(
                num_samples=self.journal.tally.done - self.done_before,
                completion_tokens=self.new_tokens,
                elapsed_s=time.monotonic() - self._began,
                num_compared=num_compared,
                replicas=replicas,
            ),
        )

    def answered(self, index: int, planned: PlannedPrompt, conversation: Conversation) -> None:
        self.journal.add(
            index, category=planned.prompt.category, split=planned.split, conversation=conversation
        )
        self.new_tokens += conversation.completion_tokens
        self._report()

    def failed(self, index: int, planned: PlannedPrompt, error: str) -> bool:
        """True: it was the first try, and the sample is to be asked again."""
        again = self.journal.add_failure(index, prompt_id=planned.prompt.prompt_id, error=error)
        self._report()
        return again

    def check_room(self) -> None:
        """A disk that is too small is better known before the first of 500,000 samples than after the last."""
        missing = self.plan.num_prompts - self.done_before
        least = missing * self.plan.sampling.max_tokens // 4 * _BYTES_PER_TOKEN // 2
        free = shutil.disk_usage(self.request.out).free
        if free < least:
            self.on_message(
                f"warning: {missing} samples of up to {self.plan.sampling.max_tokens} tokens may need more than "
                f"the {in_bytes(free)} that are free in {self.request.out}"
            )

    def _report(self) -> None:
        tally = self.journal.tally
        self.on_progress(
            Progress(
                done=tally.done,
                total=self.plan.num_prompts,
                tally=tally,
                elapsed_s=time.monotonic() - self._began,
                new_samples=tally.done - self.done_before,
                new_tokens=self.new_tokens,
            )
        )


async def _answer_missing(
    run: DataRun, served: Served, *, encoder: ChatEncoder | None, target_name: str | None
) -> None:
    request, waiting = run.request, run.missing()
    async with HttpClient(served.base_url, api_key=served.api_key) as http:
        name = await detect_engine(http) if served.engine == "auto" else served.engine
        adapter = adapter_for(name)
        model = served.model or await served_model(http)
        facts = await read_facts(http, adapter)
        run.on_message(f"{' '.join(filter(None, (name, facts.version)))} at {http.base_url} serves {model}")
        run.begin(engine=name, version=facts.version, model=model, target=target_name, command=served.command)
        asker = Asker(http, name, model, encoder=encoder, timeout_s=request.request_timeout_s)
        answering = Answering(
            asker,
            run.plan.sampling,
            request.concurrency,
            take=lambda: next(waiting, None),
            on_answer=run.answered,
            on_failure=run.failed,
        )
        try:
            await until_done_or_dead(answering.run(), served)
        except Unanswered as error:
            raise EnvironmentFailed(f"{error}\n{run.kept} once it serves") from error
        except EnvironmentFailed as error:
            raise EnvironmentFailed(f"{error}\n{run.kept}") from error
    run.end(num_compared=asker.num_compared)
