"""Work that goes on until it ends or something else ends first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def racing(*entrants: Coroutine[Any, Any, Any]) -> AsyncIterator[tuple[asyncio.Task[Any], ...]]:
    """The entrants as tasks, as soon as one of them has ended; on leaving, the rest are cancelled and awaited."""
    tasks = tuple(asyncio.create_task(entrant) for entrant in entrants)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ends_before(work: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any]) -> bool:
    """Whether ``work`` came to its end before ``other`` did, which cancels it; what ``work`` raises is raised."""
    async with racing(work, other) as (working, _):
        if working.done():
            working.result()
        return working.done()
