"""A server's argument list -> canonical flags, the way its own parser reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spectune.preflight.command.shell_words import UNRESOLVED
from spectune.preflight.command.text import known, shown
from spectune.preflight.flags.table import FlagInfo, FlagTable

FlagText = str | bool | None
"""``True``: a bare flag; ``False``: its ``--no-`` form; ``None``: given, but only a shell knows the value."""

_NEGATIVE_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_OPTIMIZATION = re.compile(r"-O=?(\w+)")
_TYPOGRAPHIC = re.compile(
    "[\u2013\u2014\u2018\u2019\u201c\u201d]|-?[\u2013\u2014]|[{\\[][^a-z]*[\u201c\u201d]"
)


@dataclass(frozen=True)
class Repeat:
    """A flag given more than once; the last value counts."""

    name: str
    values: tuple[FlagText, ...]


@dataclass(frozen=True)
class Ambiguous:
    """A beginning that fits several flags; the parser refuses it."""

    written: str
    meant: tuple[str, ...]


@dataclass
class Arguments:
    """What an argument list says, and what is wrong with its form."""

    flags: dict[str, FlagText] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    """By canonical name: the spelling used."""
    model: str | None = None
    """A positional word."""
    unknown: list[str] = field(default_factory=list)
    """Names in ``flags`` that the table does not hold."""
    abbreviated: dict[str, str] = field(default_factory=dict)
    """Spelling used -> canonical name."""
    repeats: list[Repeat] = field(default_factory=list)
    ambiguous: list[Ambiguous] = field(default_factory=list)
    without_value: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    """Words that belong to no flag."""
    typographic: list[str] = field(default_factory=list)
    replaced_config: bool = False
    """vLLM: dotted keys and a JSON value of one flag were both given."""
    open_words: list[str] = field(default_factory=list)
    """Unquoted words that only a shell could fill in: no word, one, or several flags."""


def read_arguments(argv: Sequence[str], table: FlagTable, *, positional_model: bool = False) -> Arguments:
    """The flags of ``argv``. Never raises: every fault of form is in the result."""
    return _Reader(argv, table, positional_model=positional_model).read()


@dataclass
class _Given:
    value: FlagText
    glued: bool


class _Reader:
    def __init__(self, argv: Sequence[str], table: FlagTable, *, positional_model: bool) -> None:
        self.rest = list(argv)
        self.table = table
        self.positional_model = positional_model
        self.result = Arguments()
        self.dotted: dict[tuple[str, str], dict[str, Any]] = {}

    def read(self) -> Arguments:
        self.result.typographic = [shown(word) for word in self.rest if _TYPOGRAPHIC.match(word)]
        while self.rest:
            word = self.rest.pop(0)
            if self._is_flag(word):
                self._flag(word)
            else:
                self._positional(word)
        self._join_dotted()
        return self.result

    def _is_flag(self, word: str) -> bool:
        if self.table.engine == "llamacpp":
            return word.startswith("-") and len(word) > 1
        return word.startswith("-") and len(word) > 1 and " " not in word and not _NEGATIVE_NUMBER.match(word)

    def _positional(self, word: str) -> None:
        if self.positional_model and self.result.model is None:
            self.result.model = shown(word) if known(word) else None
        elif word.startswith(UNRESOLVED):
            self.result.open_words.append(shown(word))
        else:
            self.result.stray.append(shown(word))

    def _flag(self, word: str) -> None:
        if word == "--":
            return
        name, equals, value = word.partition("=")
        if self.table.underscores and name.startswith("--"):
            head, dot, tail = name.partition(".")
            name = head.replace("_", "-") + dot + tail
        if self.table.engine == "vllm":
            optimization = _OPTIMIZATION.fullmatch(word)
            if optimization:
                return self._store("optimization-level", word, optimization.group(1))
            if word == "-O" and self.rest:
                return self._store("optimization-level", word, self.rest.pop(0))
            if "." in name:
                return self._dotted(name, value if equals else None)
        if self.table.engine == "llamacpp" and equals:
            # llama-server matches whole words: --port=1 is a flag it does not know.
            return self._unknown(f"{name}=", value)
        info = self._find(name)
        if info is None:
            return self._unknown(name, value if equals else None)
        self._known(info, name, value if equals else None)

    def _find(self, name: str) -> FlagInfo | None:
        info = self.table.by_spelling.get(name)
        if info is not None or not self.table.abbreviations or name.lstrip("-") in self.table.renamed:
            return info
        if not name.startswith("--"):
            return None
        fitting = [spelling for spelling in self.table.by_spelling if spelling.startswith(name)]
        if len(fitting) > 1:
            self.result.ambiguous.append(Ambiguous(name, tuple(sorted(fitting))))
        if not fitting:
            return None
        info = self.table.by_spelling[fitting[0]]
        if len(fitting) == 1:
            self.result.abbreviated[name] = info.name
        return info

    def _known(self, info: FlagInfo, name: str, value: str | None) -> None:
        if info.takes == "none":
            off = name.startswith("--no-") and not info.name.startswith("no-")
            self._store(info.name, name, not off)
            if value is not None:
                self.result.stray.append(shown(value))
            return
        if value is None:
            value = self._next_value(info)
        if value is None and info.takes != "optional":
            self.result.without_value.append(name)
        if value is not None and info.takes == "many":
            value = " ".join([value, *self._more_values()])
        self._store(info.name, name, True if value is None else value)

    def _next_value(self, info: FlagInfo) -> str | None:
        if not self.rest:
            return None
        following = self.rest[0]
        if self.table.engine == "llamacpp":
            # llama-server takes the next word whatever it is; another flag there is a forgotten value.
            return None if following in self.table.by_spelling else self.rest.pop(0)
        return None if self._is_flag(following) else self.rest.pop(0)

    def _more_values(self) -> Iterator[str]:
        while self.rest and not self._is_flag(self.rest[0]):
            yield self.rest.pop(0)

    def _unknown(self, name: str, value: str | None) -> None:
        bare = name.lstrip("-")
        renamed = self.table.renamed.get(bare)
        takes_value = renamed is None or renamed.takes != "none"
        if value is None and takes_value and self.rest and not self._is_flag(self.rest[0]):
            value = self.rest.pop(0)
            if renamed is not None and renamed.takes == "many":
                value = " ".join([value, *self._more_values()])
        self._store(bare, name, True if value is None else value)
        if bare not in self.result.unknown:
            self.result.unknown.append(bare)

    def _store(self, name: str, written: str, value: FlagText) -> None:
        if isinstance(value, str) and UNRESOLVED in value:
            value = None
        if name in self.result.flags:
            self._repeated(name, value)
        self.result.flags[name] = value
        self.result.written[name] = written

    def _repeated(self, name: str, value: FlagText) -> None:
        earlier = next((repeat for repeat in self.result.repeats if repeat.name == name), None)
        values = earlier.values if earlier else (self.result.flags[name],)
        if earlier:
            self.result.repeats.remove(earlier)
        self.result.repeats.append(Repeat(name, (*values, value)))

    def _dotted(self, name: str, value: str | None) -> None:
        """vLLM: ``--speculative-config.method eagle3``, ``-sc.model X``, ``--config.list+ a,b``."""
        if value is None:
            value = self.rest.pop(0) if self.rest else ""
        flag, *keys = name.split(".")
        listed = keys[-1].endswith("+")
        keys[-1] = keys[-1].removesuffix("+")
        info = self._find(flag)
        canonical = info.name if info else flag.lstrip("-")
        if info is None and canonical not in self.result.unknown:
            self.result.unknown.append(canonical)
        place = self.dotted.setdefault((flag, canonical), {})
        for key in keys[:-1]:
            deeper = place.setdefault(key, {})
            place = deeper if isinstance(deeper, dict) else {}
        place[keys[-1]] = value.split(",") if listed else _plain(value)

    def _join_dotted(self) -> None:
        """vLLM puts one JSON value per spelling behind the command, so the last spelling is all that counts."""
        for (_, name), values in self.dotted.items():
            if name in self.result.flags:
                self.result.replaced_config = True
            self._store(name, f"--{name}.*", json.dumps(values, ensure_ascii=False))


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return text
