"""Heeds requests to stop a trial or a study, which another process leaves in their folders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from spectune.store.abort import is_abort_asked

T = TypeVar("T")
POLL_S = 0.5
ABORTED = "aborted: somebody asked for it while it ran"
"""The cause of a trial that was ended so."""


class Aborted(Exception):
    """The work was stopped as was asked for, and has undone what it did."""


async def unless_aborted(
    work: Coroutine[Any, Any, T],
    *,
    folder: Path,
    may_abort: Callable[[], bool] = lambda: True,
    on_poll: Callable[[], None] = lambda: None,
    every_s: float = POLL_S,
) -> T:
    """The result of ``work``; raises ``Aborted`` if a request in ``folder`` cut it short.

    ``work`` is cancelled, so whatever it shields from cancellation (stopping
    its server, proving it) is done to the end before this returns. Our own
    cancellation is handed on to it in the same way.
    """
    working = asyncio.ensure_future(work)
    asked = cancelled = False
    while not working.done():
        try:
            await asyncio.wait({working}, timeout=every_s)
        except asyncio.CancelledError:
            if working.done() and not working.cancelled() and working.exception() is None:
                raise  # it came too late to be handed on
            if not (asked or cancelled):
                working.cancel()  # once: the second would interrupt what the first began to undo
            cancelled = True
            continue
        if working.done():
            break
        on_poll()
        if not asked and not cancelled and may_abort() and is_abort_asked(folder):
            asked = True
            working.cancel()
    if working.cancelled() and asked and not cancelled:
        raise Aborted
    return working.result()  # or its error, or the cancellation that was handed on
