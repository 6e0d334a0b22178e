"""What the flag rules of every engine share: reading values, and rules that hold for all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Literal

from spectune.domain.findings import Finding, Severity
from spectune.domain.secrets import REDACTED, is_secret
from spectune.engines.registry import title_of, traits_for
from spectune.findings.catalogue import finding_kind
from spectune.preflight.flags.table import FlagInfo, FlagTable, table_for
from spectune.preflight.rules import Judgement
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older

Known = Literal["exact", "current", "other"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g|t|K|M|G|T|Ki|Mi|Gi|Ti)")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class Flags:
    """Values of one command's flags. A value only a shell knows reads as absent; ``given`` tells."""

    def __init__(self, situation: Situation) -> None:
        self.flags = situation.flags
        self.engine = situation.engine

    def given(self, name: str) -> bool:
        return name in self.flags

    def unclear(self, *names: str) -> bool:
        """One of ``names`` is there, but its value is not known."""
        return any(name in self.flags and self.flags[name] is None for name in names)

    def text(self, name: str) -> str | None:
        value = self.flags.get(name)
        return value if isinstance(value, str) else None

    def on(self, name: str) -> bool:
        """A switch, not its ``--no-`` form."""
        return self.flags.get(name) not in (None, False)

    def off(self, name: str) -> bool:
        return self.flags.get(name) is False

    def integer(self, name: str) -> int | None:
        """A whole number; ``8k`` and ``1M`` too, as the engine reads them."""
        return whole_number(self.text(name), engine=self.engine)

    def number(self, name: str) -> float | None:
        text = self.text(name)
        try:
            return None if text is None else float(text)
        except ValueError:
            return None

    def numbers(self, name: str) -> tuple[int, ...]:
        """The whole numbers of a flag that takes several."""
        found = (whole_number(word, engine=self.engine) for word in (self.text(name) or "").split())
        return tuple(value for value in found if value is not None)


def whole_number(text: str | None, *, engine: str = "vllm") -> int | None:
    """A whole number, also with the suffixes the engine takes: 1M is 1048576 in vLLM and 1000000 in SGLang."""
    if text is None:
        return None
    try:
        size = _SIZE.fullmatch(text)
        if size:
            factor = _factor(size.group(2), engine, whole="." not in size.group(1))
            return None if factor is None else int(float(size.group(1)) * factor)
        return int(text)
    except (ValueError, OverflowError):
        return None


def _factor(suffix: str, engine: str, *, whole: bool) -> int | None:
    """vLLM: k m g t decimal, K M G T binary. SGLang: k M G T decimal, Ki Mi Gi Ti binary. Fractions: decimal only."""
    if engine == "sglang":
        decimal, binary = suffix in ("k", "M", "G", "T"), suffix.endswith("i")
    else:
        decimal, binary = suffix in ("k", "m", "g", "t"), suffix in ("K", "M", "G", "T")
    if decimal:
        return _DECIMAL[suffix[0].lower()]
    return _BINARY[suffix[0].lower()] if binary and whole else None


def how_known(situation: Situation, table: FlagTable) -> Known:
    """Whether ``table`` is that of the version in use, a stand-in for an unknown one, or another's."""
    if situation.version.text is None:
        return "current"
    return "exact" if situation.version.text == table.version else "other"


def version_words(situation: Situation) -> str:
    """``SGLang 0.5.23``, or the version whose rules stand in."""
    name = title_of(situation.engine)
    if situation.version.text is not None:
        return f"{name} {situation.version.text}"
    return f"{name} {table_for(situation.engine).version} (the version is not known; these are its rules)"


def found(*findings: Finding | None, not_checked: Iterable[str] = ()) -> Judgement:
    """A judgement of those findings that are there."""
    return Judgement(tuple(finding for finding in findings if finding is not None), tuple(not_checked))


def flag_evidence(situation: Situation, *names: str) -> list[tuple[str, str]]:
    """``("command", "--name value")`` for each of the flags that is given."""
    evidence = []
    for name in names:
        if name in situation.flags:
            value = situation.flags[name]
            if value is False:
                words = f"--no-{name}"
            elif value is True or value is None:
                words = f"--{name}"
            else:
                words = f"--{name} {REDACTED if is_secret(name) else value}"
            evidence.append(("command", words))
    return evidence


UNKNOWN_FLAG = finding_kind("flag-unknown")
REMOVED_FLAG = finding_kind("flag-removed")
REFUSED_VALUE = finding_kind("flag-value-refused")
DEPRECATED_FLAG = finding_kind("flag-deprecated")
SYNTHETIC_ACCEPTANCE = finding_kind("synthetic-acceptance")
API_KEY = finding_kind("api-key-set")
FLAGS_WITHOUT_METHOD = finding_kind("speculation-not-switched-on")


def flags_are_known(situation: Situation) -> Judgement:
    """Every flag against the table of its engine."""
    table = table_for(situation.engine, situation.version.text)
    how = how_known(situation, table)
    findings: list[Finding] = []
    not_checked: list[str] = []
    for name in situation.flags:
        info = table.flags.get(name)
        if name in table.renamed:
            finding = _removed(situation, table, name, how)
            if finding:
                findings.append(finding)
            else:
                not_checked.append(f"--{name}: a flag of other versions than {table.version}")
        elif info is None:
            finding = _unknown(situation, table, name, how)
            if finding:
                findings.append(finding)
            else:
                not_checked.append(f"--{name}: not known here")
        elif info.deprecated and how != "other":
            findings.append(
                DEPRECATED_FLAG.found(
                    situation.subject,
                    f"--{name} is deprecated in {version_words(situation)}",
                    evidence=flag_evidence(situation, name),
                )
            )
    return Judgement(tuple(findings), tuple(not_checked))


def _removed(situation: Situation, table: FlagTable, name: str, how: Known) -> Finding | None:
    renamed = table.renamed[name]
    if how == "other" and is_older(situation.version.text, renamed.gone_in) is not False:
        return None
    severity: Severity = "warning" if how == "current" else "error"
    return REMOVED_FLAG.found(
        situation.subject,
        f"{version_words(situation)} has no --{name} (gone in {renamed.gone_in} at the latest)",
        evidence=[*flag_evidence(situation, name), (renamed.source, renamed.advice)],
        remedy=renamed.advice,
        severity=severity,
    )


def _unknown(situation: Situation, table: FlagTable, name: str, how: Known) -> Finding | None:
    nearest = table.nearest(name)
    is_error = how == "exact" and table.complete
    if how == "other" or (nearest is None and not is_error):
        return None
    if not is_error and nearest is not None and nearest.removeprefix("no-") == name.removeprefix("no-"):
        return None
    return UNKNOWN_FLAG.found(
        situation.subject,
        f"{version_words(situation)} has no flag --{name}"
        + (f"; did you mean --{nearest}?" if nearest else ""),
        evidence=[("command", f"--{name}"), (table.source, f"{len(table.flags)} flags, not this one")],
        remedy=f"write --{nearest}" if nearest else "leave it out",
        severity="error" if is_error else "warning",
    )


_JUDGED_ELSEWHERE = frozenset({"speculative-config", "spec-method", "spec-tokens"})


def flag_values_are_readable(situation: Situation) -> Judgement:
    """Numbers where numbers are read, words out of the list where there is one."""
    table = table_for(situation.engine, situation.version.text)
    how = how_known(situation, table)
    findings: list[Finding] = []
    not_checked: list[str] = []
    for name, value in situation.flags.items():
        info = table.flags.get(name)
        if info is None or not isinstance(value, str) or info.takes == "none" or name in _JUDGED_ELSEWHERE:
            continue
        problem = _problem_of(info, value, situation.engine)
        if problem is None:
            continue
        if how == "other" and info.type == "text":
            not_checked.append(f"--{name} {value}: {problem} in {table.version}, the version here is another")
            continue
        findings.append(
            REFUSED_VALUE.found(
                situation.subject,
                f"--{name} {value[:120]}: {problem}",
                evidence=[*flag_evidence(situation, name), (table.source, problem)],
                remedy=_remedy(info),
            )
        )
    return Judgement(tuple(findings), tuple(not_checked))


def _problem_of(info: FlagInfo, value: str, engine: str) -> str | None:
    for word in value.split(" ") if info.takes == "many" else [value]:
        if info.type == "int" and whole_number_strictly(word) is None:
            return f"must be a whole number, got {word!r}"
        if info.type == "float" and not is_number(word):
            return f"must be a number, got {word!r}"
        if (
            info.type == "size"
            and whole_number(word, engine=engine) is None
            and (word, engine) != ("auto", "vllm")
        ):
            return f"must be a whole number (8192, 8k), got {word!r}"
        if info.choices is not None and word not in info.choices:
            return f"must be one of {', '.join(info.choices[:12])}{', ...' if len(info.choices) > 12 else ''}"
    return "must be JSON" if info.type == "json" and not is_json(value) else None


def _remedy(info: FlagInfo) -> str | None:
    return f"valid: {', '.join(info.choices)}" if info.choices is not None else None


def whole_number_strictly(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return False
    return True


def attention_dp(situation: Situation) -> bool:
    """Whether the server computes attention data parallel, on the devices of its tensor parallelism."""
    division = traits_for(situation.engine).division(situation.flags)
    return division is not None and division.attention > 1


def api_key_is_known(situation: Situation) -> Judgement:
    """A key that every client must send."""
    if not any(Flags(situation).given(name) for name in ("api-key", "api-key-file", "admin-api-key")):
        return Judgement()
    return found(
        API_KEY.found(
            situation.subject, "an API key is set", evidence=[("command", "--api-key ... (not shown)")]
        )
    )


RULES = (
    flags_are_known,
    flag_values_are_readable,
    api_key_is_known,
)
