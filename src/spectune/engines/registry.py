"""The engines spectune knows, by name."""

from __future__ import annotations

from spectune.engines.adapter import EngineAdapter
from spectune.engines.fake import FakeAdapter
from spectune.engines.llamacpp import LlamaCpp
from spectune.engines.openai import OpenAICompatible
from spectune.engines.sglang import Sglang
from spectune.engines.vllm import Vllm
from spectune.errors import BadInput

_ALL: tuple[EngineAdapter, ...] = (LlamaCpp(), Vllm(), Sglang(), FakeAdapter(), OpenAICompatible())
_ADAPTERS = {adapter.name: adapter for adapter in _ALL}
ENGINE_NAMES = ("llamacpp", "vllm", "sglang")
"""Engines a study can launch; the fake one is for tests, ``openai`` for measuring what already runs."""


def adapter_for(name: str) -> EngineAdapter:
    """The adapter of an engine; raises ``BadInput`` naming the valid ones."""
    adapter = _ADAPTERS.get(name)
    if adapter is None:
        raise BadInput(f"engine: {name!r} is not known; valid: {', '.join(ENGINE_NAMES)}")
    return adapter
