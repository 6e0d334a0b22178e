"""Which engine is behind a URL."""

from __future__ import annotations

from typing import Any

from spectune.engines.bodies import as_dict, as_str, first_model_id
from spectune.errors import EnvironmentFailed, TransportError
from spectune.transport import HttpClient


async def detect_engine(http: HttpClient) -> str:
    """An engine's name, by what only it answers; ``openai`` if it is none of ours."""
    try:
        await http.request("GET", "/v1/models", timeout_s=10)
    except TransportError as error:
        raise EnvironmentFailed(f"no server answers at {http.base_url}: {error}") from error
    props = as_dict(await _json(http, "/props"))
    if "build_info" in props or "default_generation_settings" in props:
        return "llamacpp"
    if "speculative_algorithm" in as_dict(await _json(http, "/server_info")):
        return "sglang"
    version = as_str(as_dict(await _json(http, "/version")).get("version"))
    if version is not None:
        return "vllm"
    return "openai"


async def _json(http: HttpClient, path: str) -> Any:
    try:
        reply = await http.request("GET", path, timeout_s=10)
        return reply.json() if reply.status == 200 else None
    except (TransportError, ValueError):
        return None


async def served_model(http: HttpClient) -> str:
    """The first model the server lists."""
    model = first_model_id(await _json(http, "/v1/models"))
    if model is None:
        raise EnvironmentFailed(f"{http.base_url} lists no model at /v1/models; name it with --model")
    return model
