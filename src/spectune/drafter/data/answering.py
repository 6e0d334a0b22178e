"""Answers from one server, many requests at once; what failed counts once the server is known to live."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from spectune.drafter.data.answers import AnswerFailed, Asker, ServerGone
from spectune.drafter.data.plan_records import DataSampling, PlannedPrompt
from spectune.drafter.data.request import Served
from spectune.drafter.data.samples import Conversation, converse
from spectune.errors import EnvironmentFailed, TransportError
from spectune.race import racing

_SILENT_TRIES = 4
_FAILED_TRIES = 64
"""Beyond one per worker, without an answer in between: no reply at all, and replies of no use."""
_DEATH_WAIT_S = 1.0

Item = tuple[int, PlannedPrompt]


class Unanswered(EnvironmentFailed):
    """The server does not answer any more, or with errors only."""


@dataclass
class Answering:
    """``run`` asks what ``take`` gives until that is nothing, then what failed and is to be asked again.

    A failure now and then is a sample's own; many in a row say something about the server. So ``on_failure`` is
    told of none before the server has answered again, or has shown at the end that it lives.
    """

    asker: Asker
    sampling: DataSampling
    concurrency: int
    take: Callable[[], Item | None]
    """What to ask next; ``None``: nothing now."""
    on_answer: Callable[[int, PlannedPrompt, Conversation], None]
    on_failure: Callable[[int, PlannedPrompt, str], bool]
    """True: the sample is to be asked again."""
    is_open: bool = False
    """Whether ``take`` may give more after it gave nothing; ``wake`` has it asked again."""
    _again: deque[Item] = field(default_factory=deque)
    _since_success: list[tuple[Item, str]] = field(default_factory=list)
    _silent: int = 0
    """Those among them without any reply."""
    _is_in_doubt: bool = False
    """After one of those, nothing more is asked before the server has shown that it lives."""
    _num_busy: int = 0
    _change: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Raises ``Unanswered`` and ``BadInput``; what had no answer then was not told to anybody."""
        workers = [asyncio.create_task(self._work()) for _ in range(self.concurrency)]
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in done:
                worker.result()
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def wake(self) -> None:
        """Something can be taken, or ``is_open`` has changed."""
        self._change.set()
        self._change = asyncio.Event()

    async def _work(self) -> None:
        while (item := await self._next()) is not None:
            self._num_busy += 1
            try:
                await self._ask(item)
            finally:
                self._num_busy -= 1
                self.wake()

    async def _next(self) -> Item | None:
        """New ones first, then those that failed; ``None``: all is done."""
        while True:
            item = None if self._is_in_doubt else self._item()
            if item is not None:
                return item
            if self._num_busy:
                await self._change.wait()
            elif self._is_in_doubt:
                await self._check()
            elif self._since_success:
                await self._check()
                self._settle()
            elif self.is_open:
                await self._change.wait()
            else:
                return None

    def _item(self) -> Item | None:
        return self.take() or (self._again.popleft() if self._again else None)

    async def _ask(self, item: Item) -> None:
        index, planned = item
        try:
            conversation = await converse(self.asker, planned, self.sampling)
        except (ServerGone, AnswerFailed) as error:
            self._note_failure(item, error)
            return
        self._settle()
        self.on_answer(index, planned, conversation)

    def _note_failure(self, item: Item, error: Exception) -> None:
        self._since_success.append((item, str(error)))
        if isinstance(error, ServerGone):
            self._silent += 1
            self._is_in_doubt = True
        if (
            self._silent >= self.concurrency + _SILENT_TRIES
            or len(self._since_success) >= self.concurrency + _FAILED_TRIES
        ):
            raise _unanswered(error)

    async def _check(self) -> None:
        """No answer is under way that could tell whether the server lives."""
        self._num_busy += 1
        try:
            await self.asker.http.request("GET", "/v1/models", timeout_s=30)
        except TransportError as error:
            raise _unanswered(error) from error
        finally:
            self._num_busy -= 1
            self.wake()
        self._is_in_doubt = False

    def _settle(self) -> None:
        """The server lives: what failed since the last answer were failures of those samples."""
        failed, self._since_success = self._since_success, []
        self._silent, self._is_in_doubt = 0, False
        for (index, planned), error in failed:
            if self.on_failure(index, planned, error):
                self._again.append((index, planned))


def _unanswered(error: Exception) -> Unanswered:
    return Unanswered(f"the server stopped answering, or every answer is an error: {error}")


async def until_done_or_dead(work: Coroutine[Any, Any, None], served: Served) -> None:
    """Runs ``work`` to its end; if a watched server is lost, stops it and raises why."""
    if served.died is None:
        await work
        return
    async with racing(work, served.died()) as (working, dying):
        if working.done() and isinstance(working.exception(), EnvironmentFailed):
            # Requests fail before their process is gone: it is given a moment to show it.
            await asyncio.wait({dying}, timeout=_DEATH_WAIT_S)
        if dying.done() and not (working.done() and working.exception() is None):
            raise dying.result()
        await working
