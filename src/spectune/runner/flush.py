"""Emptying the server's prefix cache before a load point, and refusing a result that comes from a full one."""

from __future__ import annotations

import asyncio

from spectune.domain.measurement import LoadResult
from spectune.domain.prompt_cache import TEMPLATE_TOKENS, CacheUse, cache_use
from spectune.domain.workload import Workload
from spectune.engines.adapter import EngineAdapter
from spectune.errors import EnvironmentFailed, TransportError
from spectune.transport import HttpClient

LEAK_FRAC = 0.05
_TRIES = 3
_PAUSE_S = 0.5
_NO_ROUTE = (404, 405)


async def flush_prefix_cache(http: HttpClient, adapter: EngineAdapter) -> str | None:
    """Empties the cache where the engine can; what was asked and answered if it did not, else ``None``.

    An engine refuses while a request is still being ended, so it is asked again.
    """
    call = adapter.flush_call()
    if call is None:
        return None
    said = ""
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE_S)
        try:
            reply = await http.request(call.method, call.path, body=call.body, timeout_s=30)
        except TransportError as error:
            said = str(error).splitlines()[0]
            continue
        if 200 <= reply.status < 300:
            return None
        said = f"status {reply.status}"
        if reply.status in _NO_ROUTE:
            break
    return f"{call.method} {call.path}: {said}"


def refuse_leak(
    result: LoadResult, *, refused: str | None, workload: Workload, adapter: EngineAdapter
) -> None:
    """Raises ``EnvironmentFailed`` if the cache was not emptied and gave a share of what was measured.

    A server without that call is sound where nothing was cached: an old version, or a cache that is switched off.
    """
    if refused is None:
        return
    call = adapter.flush_call()
    use = cache_use(result.requests, workload.prompts) or _counted(result)
    if use is not None and use.reused_frac > LEAK_FRAC:
        raise EnvironmentFailed(
            f"at {result.load.label} {use.reused_tokens} of {use.prompt_tokens} prompt tokens came from a prefix cache "
            f"that could not be emptied before ({refused}): its times are not those of new prompts.\n"
            f"{call.advice if call is not None else ''}"
        )


def _counted(result: LoadResult) -> CacheUse | None:
    """By the server's counters, where its answers do not say it."""
    before, after = result.counters_before, result.counters_after
    if before is None or after is None or after.cached_tokens is None or after.prompt_tokens is None:
        return None
    prompt_tokens = after.prompt_tokens - (before.prompt_tokens or 0)
    cached_tokens = after.cached_tokens - (before.cached_tokens or 0)
    return CacheUse(prompt_tokens, max(0, cached_tokens - TEMPLATE_TOKENS * len(result.requests)))
