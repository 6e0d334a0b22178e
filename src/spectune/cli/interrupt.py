"""Ctrl-C during asynchronous work: the first stops it cleanly, further ones are told to wait."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from spectune.errors import Interrupted

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_interruptible(
    work: Coroutine[Any, Any, T], *, on_signal: Callable[[str], None], resume_hint: str
) -> T:
    """Runs ``work``; a signal cancels it, so that it can stop what it started, and raises ``Interrupted``."""

    async def supervised() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)
        interrupted = False

        def handle(name: str) -> None:
            nonlocal interrupted
            if interrupted:
                on_signal("already stopping: waiting until the server is gone")
                return
            interrupted = True
            on_signal(f"{name}: stopping the server; what was measured is kept")
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

    return asyncio.run(supervised())
