"""Which engine is behind a URL."""

from __future__ import annotations

from typing import Any

from spectune.engines.json_bodies import as_dict, first_model_id
from spectune.engines.registry import launched_traits
from spectune.errors import EnvironmentFailed, TransportError
from spectune.transport import HttpClient, Response


async def detect_engine(http: HttpClient) -> str:
    """An engine's name, by what only it answers; ``openai`` if it is none of ours."""
    await _models(http)
    for traits in launched_traits():
        path, keys = traits.answers or ("", ())
        if keys and as_dict(await _json(http, path)).keys() & set(keys):
            return traits.name
    return "openai"


async def _models(http: HttpClient) -> Response:
    try:
        return await http.request("GET", "/v1/models", timeout_s=10)
    except TransportError as error:
        raise EnvironmentFailed(f"no server answers at {http.base_url}: {error}") from error


async def _json(http: HttpClient, path: str) -> Any:
    try:
        reply = await http.request("GET", path, timeout_s=10)
        return reply.json() if reply.status == 200 else None
    except (TransportError, ValueError):
        return None


async def served_model(http: HttpClient) -> str:
    """The first model the server lists."""
    reply = await _models(http)
    if reply.status in (401, 403):
        raise EnvironmentFailed(
            f"{http.base_url} refuses /v1/models with status {reply.status}: it wants an API key"
        )
    if reply.status != 200:
        raise EnvironmentFailed(
            f"{http.base_url} answers /v1/models with status {reply.status}: is it the address of a server of a "
            "language model? If so, name the model with --model"
        )
    try:
        model = first_model_id(reply.json())
    except TransportError:
        model = None
    if model is None:
        raise EnvironmentFailed(f"{http.base_url} lists no model at /v1/models; name it with --model")
    return model
