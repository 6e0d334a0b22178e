"""The engines spectune knows, one line for each. An adapter is imported when it is first asked for."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, cast

from spectune.engines.traits import EngineTraits
from spectune.errors import BadInput

if TYPE_CHECKING:
    from spectune.engines.adapter import EngineAdapter

_LAUNCHED = {
    "llamacpp": "spectune.engines.llamacpp.adapter:LlamaCpp",
    "sglang": "spectune.engines.sglang.adapter:Sglang",
    "vllm": "spectune.engines.vllm.adapter:Vllm",
}
_OTHERS = {
    "fake": "spectune.engines.fake.adapter:FakeAdapter",
    "openai": "spectune.engines.openai:OpenAICompatible",
}
"""The fake engine is for tests, ``openai`` for measuring what already runs."""
ENGINE_NAMES = tuple(_LAUNCHED)
"""The engines that a study can launch."""


@functools.cache
def adapter_for(name: str) -> EngineAdapter:
    """The adapter of an engine; raises ``BadInput`` naming the valid ones."""
    place = _LAUNCHED.get(name) or _OTHERS.get(name)
    if place is None:
        raise BadInput(f"engine: {name!r} is not known; valid: {', '.join(ENGINE_NAMES)}")
    module, _, class_name = place.partition(":")
    return cast("EngineAdapter", getattr(import_module(module), class_name)())


def traits_for(name: str) -> EngineTraits:
    """The constants of an engine; raises ``BadInput`` as ``adapter_for`` does."""
    return adapter_for(name).traits


def launched_traits() -> tuple[EngineTraits, ...]:
    """The constants of every engine that a study can launch."""
    return tuple(traits_for(name) for name in ENGINE_NAMES)


def title_of(name: str) -> str:
    """The engine's name as its makers write it, or the name itself where no engine has it."""
    return traits_for(name).title if name in _LAUNCHED else name
