"""One look from outside: does what listens there belong to us, and does it generate?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from spectune.domain.trial import ServerFacts
from spectune.domain.workload import Sampling
from spectune.engines.adapter import EngineAdapter
from spectune.engines.json_bodies import as_dict, as_int, first_model_id
from spectune.errors import TransportError
from spectune.transport import HttpClient

PROBE_TOKENS = 8
MIN_TOKENS = 2


async def probe(
    http: HttpClient, adapter: EngineAdapter, *, is_ours: Callable[[], Awaitable[bool]]
) -> str | None:
    """The served model's name once the server is ours and a real generation returned two tokens; else ``None``.

    Nothing is generated before ``is_ours`` has said so: a stranger on the port is asked for no work.
    """
    try:
        listing = await http.request("GET", "/v1/models", timeout_s=10)
        model = first_model_id(listing.json()) if listing.status == 200 else None
        if model is None or not await is_ours():
            return None
        return model if await generates(http, adapter, model) else None
    except (TransportError, ValueError):
        return None


async def generates(http: HttpClient, adapter: EngineAdapter, model: str) -> bool:
    """Whether one small request is answered with two tokens or more; raises ``TransportError``."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Count from one to nine."}],
        "max_tokens": PROBE_TOKENS,
        "temperature": 0,
        **adapter.request_fields(Sampling(max_tokens=PROBE_TOKENS, ignore_eos=True)),
    }
    reply = await http.request("POST", "/v1/chat/completions", body=body, timeout_s=300)
    if reply.status != 200:
        return False
    tokens = as_int(as_dict(as_dict(reply.json()).get("usage")).get("completion_tokens"))
    return tokens is not None and tokens >= MIN_TOKENS


async def read_facts(http: HttpClient, adapter: EngineAdapter) -> ServerFacts:
    """What the server reports about itself; what it does not offer stays unknown."""
    bodies: dict[str, Any] = {}
    for path in adapter.info_paths:
        try:
            reply = await http.request("GET", path, timeout_s=20)
            if reply.status == 200:
                bodies[path] = reply.json()
        except (TransportError, ValueError):
            continue
    try:
        return adapter.read_facts(bodies)
    except ValueError:  # a report that makes no sense says nothing
        return ServerFacts(engine=adapter.name)
