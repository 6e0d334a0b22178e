"""Asynchronous work for callers that are not: a script, the command line, a notebook.

Ctrl-C stops the work cleanly, so that it can stop what it started; further ones are told to wait.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from spectune.errors import Interrupted

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOPPING = "already stopping: waiting until the server is gone"


def run_interruptible(
    work: Coroutine[Any, Any, T], *, on_signal: Callable[[str], None], resume_hint: str
) -> T:
    """Runs ``work``; a signal cancels it and raises ``Interrupted``.

    Where the caller's thread runs an event loop, as a notebook's does, the work gets a thread and a loop of its own,
    and Ctrl-C (the notebook's "interrupt") does the same. In any other thread but the main one no signal arrives.
    """
    if _inside_a_loop():
        return _run_in_thread(work, on_signal=on_signal, resume_hint=resume_hint)
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    return asyncio.run(_until_signal(work, on_signal=on_signal, resume_hint=resume_hint))


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _until_signal(
    work: Coroutine[Any, Any, T], *, on_signal: Callable[[str], None], resume_hint: str
) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    interrupted = False

    def handle(name: str) -> None:
        nonlocal interrupted
        if interrupted:
            on_signal(_STOPPING)
            return
        interrupted = True
        on_signal(_told(name))
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, handle, number.name)
    try:
        return await task
    except asyncio.CancelledError:
        if interrupted:
            raise Interrupted(f"interrupted. {resume_hint}") from None
        raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _run_in_thread(work: Coroutine[Any, Any, T], *, on_signal: Callable[[str], None], resume_hint: str) -> T:
    started: Future[Callable[[], object]] = Future()

    async def supervised() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        started.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await task

    interrupted = False

    def handle(*_: object) -> None:
        nonlocal interrupted
        on_signal(_STOPPING if interrupted else _told("interrupted"))
        if not interrupted:
            interrupted = True
            started.result()()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="spectune") as pool, _on_interrupt(handle):
        ended = pool.submit(asyncio.run, supervised())
        try:
            return ended.result()
        except asyncio.CancelledError:
            if interrupted:
                raise Interrupted(f"interrupted. {resume_hint}") from None
            raise


@contextmanager
def _on_interrupt(handle: Callable[..., None]) -> Iterator[None]:
    """In the main thread SIGINT calls ``handle`` meanwhile: an exception could come before the work is known."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _told(what: str) -> str:
    return f"{what}: stopping the server; what was measured is kept"
