"""The flags an engine's own parser knows, one stored table per engine and version.

The tables are made by ``tools/engines/flag_tables.py`` from the installed
engines; ``tables/renamed.json`` holds the flags of earlier versions.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from spectune.errors import BadInput

Takes = Literal["none", "one", "optional", "many"]

_TABLES: dict[str, tuple[str, ...]] = {
    "sglang": ("sglang-0.5.23.json",),
    "vllm": ("vllm-0.32.0.json",),
    "llamacpp": ("llamacpp-xllamacpp-2026.10.11549.json",),
}
"""Newest first; adding a version is adding a file and its name here."""

NEAR = 0.8
"""How alike two names must be for one to be suggested for the other."""


@dataclass(frozen=True)
class FlagInfo:
    """One flag of one version."""

    name: str
    """The canonical name, without dashes."""
    spellings: tuple[str, ...]
    takes: Takes
    type: str
    """``int``, ``float``, ``size`` (8192, 8k), ``json`` or ``text``."""
    choices: tuple[str, ...] | None = None
    deprecated: bool = False


@dataclass(frozen=True)
class Renamed:
    """A flag of earlier versions that ``gone_in`` no longer knows."""

    old: str
    new: str | None
    """``None``: there is nothing in its place."""
    gone_in: str
    takes: Takes
    advice: str
    source: str


@dataclass(frozen=True)
class FlagTable:
    """Every flag of one engine version."""

    engine: str
    version: str
    source: str
    complete: bool
    """Every flag is here, so one that is not is a mistake."""
    abbreviations: bool
    """argparse takes a unique beginning of a long flag for the flag."""
    underscores: bool
    """``--max_model_len`` is ``--max-model-len``."""
    flags: Mapping[str, FlagInfo]
    speculative_keys: tuple[str, ...] = ()
    """Keys of vLLM's ``--speculative-config``."""
    renamed: Mapping[str, Renamed] = field(default_factory=dict)

    @functools.cached_property
    def by_spelling(self) -> Mapping[str, FlagInfo]:
        return {spelling: flag for flag in self.flags.values() for spelling in flag.spellings}

    def nearest(self, name: str) -> str | None:
        """The flag that ``name`` most resembles, if one is near enough to be what was meant."""
        found = difflib.get_close_matches(name, self.flags, n=1, cutoff=NEAR)
        return found[0] if found else None


def table_for(engine: str, version: str | None = None) -> FlagTable:
    """The table of ``version`` if there is one, else that of the newest version stored."""
    names = _TABLES.get(engine)
    if names is None:
        raise BadInput(f"engine: {engine!r} has no table of flags; valid: {', '.join(_TABLES)}")
    tables = [_load(name) for name in names]
    return next((table for table in tables if table.version == version), tables[0])


@functools.cache
def _load(name: str) -> FlagTable:
    text = _read(name)
    content: dict[str, Any] = json.loads(text)
    flags = [
        FlagInfo(
            name=entry["name"],
            spellings=tuple(entry["spellings"]),
            takes=entry["takes"],
            type=entry["type"],
            choices=tuple(str(choice) for choice in entry["choices"]) if "choices" in entry else None,
            deprecated=entry.get("deprecated", False),
        )
        for entry in content["flags"]
    ]
    engine, version = content["engine"], content["version"]
    renamed = {
        old: Renamed(old, None, version, "one", advice, content["source"])
        for old, advice in content.get("removed", {}).items()
    }
    for entry in json.loads(_read("renamed.json"))[engine]:
        renamed[entry["old"]] = Renamed(**entry)
    return FlagTable(
        engine=engine,
        version=version,
        source=content["source"],
        complete=content["complete"],
        abbreviations=content["abbreviations"],
        underscores=content["underscores"],
        flags={flag.name: flag for flag in flags},
        speculative_keys=tuple(content.get("speculative_keys", ())),
        renamed=renamed,
    )


def _read(name: str) -> str:
    return (resources.files("spectune.preflight") / "tables" / name).read_text(encoding="utf-8")
