"""The engines' own words for a method."""

from __future__ import annotations

from spectune.preflight.situation import Situation

_SGLANG = {
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "standalone": "STANDALONE",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
_VLLM = {"standalone": "draft_model"}
_LLAMACPP = {
    "standalone": "draft-simple",
    "eagle3": "draft-eagle3",
    "mtp": "draft-mtp",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
}


def method_flag(engine: str, family: str) -> str | None:
    """The flag that asks this engine for this kind of draft; ``None``: it has none."""
    if engine == "sglang":
        return f"--speculative-algorithm {_SGLANG[family]}" if family in _SGLANG else None
    if engine == "llamacpp":
        return f"--spec-type {_LLAMACPP[family]}" if family in _LLAMACPP else None
    if engine == "vllm":
        return f'"method": "{_VLLM.get(family, family)}" in --speculative-config'
    return None


def asked_for(situation: Situation) -> str:
    """The words with which the launch asks for its method."""
    method = situation.knobs.method
    if situation.engine == "sglang":
        given = situation.flags.get("speculative-algorithm")
        family = "standalone" if method == "draft_model" else method
        return f"--speculative-algorithm {given if isinstance(given, str) else _SGLANG.get(family, method)}"
    if situation.engine == "llamacpp":
        family = "standalone" if method == "draft_model" else method
        return f"--spec-type {_LLAMACPP.get(family, method)}"
    return f'method "{method}"'
