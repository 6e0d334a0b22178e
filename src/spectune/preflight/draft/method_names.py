"""The engines' own words for a method."""

from __future__ import annotations

from spectune.engines.registry import ENGINE_NAMES, traits_for
from spectune.preflight.situation import Situation


def drafting_method(family: str) -> str:
    """The method, as ``Knobs.method`` names it, of this kind of draft."""
    return "draft_model" if family == "standalone" else family


def method_flag(engine: str, family: str) -> str | None:
    """The flag that asks this engine for this kind of draft; ``None``: it has none."""
    return _flag(engine, drafting_method(family))


def asked_for(situation: Situation) -> str:
    """The words with which the launch asks for its method."""
    method = situation.knobs.method
    return _flag(situation.engine, method) or f'method "{method}"'


def _flag(engine: str, method: str) -> str | None:
    if engine not in ENGINE_NAMES:
        return None
    traits = traits_for(engine)
    word = traits.methods.get(method)
    return traits.method_flag.format(word=word) if word else None
