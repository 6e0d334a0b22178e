"""Findings about how a command is written: what the shell, the container and the parser make of it."""

from __future__ import annotations

import re

from spectune.domain.findings import Finding
from spectune.domain.secrets import is_secret
from spectune.engines.registry import title_of, traits_for
from spectune.findings.catalogue import finding_kind
from spectune.preflight.command.forms import KUBERNETES
from spectune.preflight.command.reading import ReadCommand
from spectune.preflight.flags.every_engine import whole_number as _whole
from spectune.preflight.flags.table import table_for
from spectune.preflight.rules import Judgement

REPEATED_FLAG = finding_kind("flag-repeated")
REPLACED_CONFIG = finding_kind("speculative-config-replaced")
AMBIGUOUS_FLAG = finding_kind("flag-ambiguous")
VALUE_MISSING = finding_kind("flag-value-missing")
STRAY_WORD = finding_kind("word-without-flag")
GLUED = finding_kind("words-glued")
TYPOGRAPHIC = finding_kind("typographic-characters")
LOST_LINES = finding_kind("line-continuation-missing")
SMALL_SHARED_MEMORY = finding_kind("container-shared-memory")
PORT_NOT_PUBLISHED = finding_kind("container-port-not-published")
LOOPBACK_IN_CONTAINER = finding_kind("container-listens-on-loopback")
NO_VOLUME = finding_kind("container-without-volume")
NOT_A_SERVER = finding_kind("program-is-no-server")


_MANY_IS_FINE = frozenset(
    {"lora", "alias", "spec-type", "api-key", "override-kv", "override-tensor", "middleware"}
)
"""Flags that may be repeated: the parsers collect them."""
_GLUED = re.compile(r"[\w./-]*?[\w.](--[a-z][a-z0-9-]+)")
_ENOUGH_BYTES = 2**30
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNIT = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def judge_form(command: ReadCommand, *, subject: str | None = None) -> Judgement:
    """What is wrong with the writing of a command, whatever its flags mean."""
    name = subject or command.program
    findings = [
        *_parser_findings(command, name),
        *_shell_findings(command, name),
        *_container_findings(command, name),
    ]
    not_checked = list(command.not_read)
    return Judgement(tuple(findings), tuple(not_checked))


def _parser_findings(command: ReadCommand, name: str) -> list[Finding]:
    arguments = command.arguments
    findings = []
    for repeat in arguments.repeats:
        if repeat.name in _MANY_IS_FINE or (arguments.replaced_config and repeat.name.endswith("-config")):
            continue
        values = [_said(value, secret=is_secret(repeat.name)) for value in repeat.values]
        same = len(set(repeat.values)) == 1
        findings.append(
            REPEATED_FLAG.found(
                name,
                f"--{repeat.name} is given {len(values)} times ({', '.join(values)}); the last one counts",
                evidence=[("command", f"--{repeat.name} {value}") for value in values],
                severity="note" if same else "warning",
            )
        )
    if arguments.replaced_config:
        findings.append(
            REPLACED_CONFIG.found(
                name, "one flag is given in several forms (JSON, dotted, -sc): only the last counts"
            )
        )
    for ambiguous in arguments.ambiguous:
        findings.append(
            AMBIGUOUS_FLAG.found(
                name,
                f"{ambiguous.written} could be {' or '.join(ambiguous.meant[:6])}",
                evidence=[("command", ambiguous.written)],
                remedy=f"write it out: {' or '.join(ambiguous.meant[:6])}",
            )
        )
    for written in arguments.without_value:
        remedy = "write --flash-attn on" if written in ("-fa", "--flash-attn") else f"give {written} a value"
        findings.append(
            VALUE_MISSING.found(
                name,
                f"{written} has no value",
                evidence=[("command", written)],
                remedy=remedy,
                severity="warning"
                if command.engine == "llamacpp" and written in ("-fa", "--flash-attn")
                else None,
            )
        )
    findings += [
        GLUED.found(
            name,
            f"{value[:120]}: a blank is missing before {flag}",
            evidence=[("command", value[:200])],
            remedy=f"write a blank before {flag}",
        )
        for value, flag in _glued(command)
    ]
    if arguments.stray:
        words = ", ".join(repr(word[:80]) for word in arguments.stray[:6])
        findings.append(
            STRAY_WORD.found(
                name,
                f"{words}: belongs to no flag of {title_of(command.engine)}",
                evidence=[("command", word[:200]) for word in arguments.stray[:6]],
                remedy="quote values that hold blanks, and give every flag its dashes",
            )
        )
    return findings


def _glued(command: ReadCommand) -> list[tuple[str, str]]:
    """Values in which a flag of the engine begins without a blank: ``--model=org/name--trust-remote-code``."""
    known = table_for(command.engine).by_spelling
    found = []
    for value in command.flags.values():
        if isinstance(value, str) and (glued := _GLUED.fullmatch(value)) and glued[1] in known:
            found.append((value, glued[1]))
    return found


def _said(value: str | bool | None, *, secret: bool) -> str:
    if value is None:
        return "a shell's value"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "(not shown)" if secret else value[:120]


def _shell_findings(command: ReadCommand, name: str) -> list[Finding]:
    findings = []
    if command.arguments.typographic:
        findings.append(
            TYPOGRAPHIC.found(
                name,
                f"{command.arguments.typographic[0][:80]!r} holds typographic quotes or dashes",
                evidence=[("command", word[:200]) for word in command.arguments.typographic[:6]],
            )
        )
    if command.lost_lines:
        findings.append(
            LOST_LINES.found(
                name,
                f"{len(command.lost_lines)} line(s) behind the command do not belong to it, "
                f"first: {command.lost_lines[0][:120]}",
                evidence=[("command", line[:200]) for line in command.lost_lines[:6]],
            )
        )
    if command.program.endswith("cli"):
        findings.append(NOT_A_SERVER.found(name, f"{command.program} serves no HTTP"))
    return findings


def _container_findings(command: ReadCommand, name: str) -> list[Finding]:
    container = command.container
    if container is None or container.program == KUBERNETES or command.engine == "llamacpp":
        return []
    findings = []
    ranks = max(_whole(_text(command, flag)) or 1 for flag in ("tp-size", "tensor-parallel-size"))
    shared = _bytes(container.shm_size)
    if container.ipc != "host" and (shared is None or shared < _ENOUGH_BYTES) and ranks > 1:
        findings.append(
            SMALL_SHARED_MEMORY.found(
                name,
                f"tensor parallelism {ranks} in a container with {container.shm_size or '64 MB'} of shared memory",
                evidence=[
                    ("command", f"{container.program} run without --ipc=host and --shm-size of 1 GB or more")
                ],
            )
        )
    if not container.volumes and container.program != "docker-compose":
        findings.append(NO_VOLUME.found(name, f"{container.program} run without a volume"))
    if container.network == "host":
        return findings
    host = _text(command, "host") or traits_for(command.engine).host
    if container.ports and host in ("127.0.0.1", "localhost"):
        findings.append(
            LOOPBACK_IN_CONTAINER.found(
                name,
                f"{title_of(command.engine)} listens on {host} inside the container",
                evidence=[("command", f"-p {container.ports[0]}")],
            )
        )
    port = _text(command, "port") or str(traits_for(command.engine).port)
    inside = [word.split("/")[0].rpartition(":")[2] for word in container.ports]
    readable = all(word.isdecimal() for word in inside) and port.isdigit()
    if inside and readable and port not in inside and "port" not in _unclear(command):
        findings.append(
            PORT_NOT_PUBLISHED.found(
                name,
                f"the server listens on {port}; published: {', '.join(container.ports)}",
                evidence=[("command", f"-p {word}") for word in container.ports],
                remedy=f"-p {container.ports[0].partition(':')[0]}:{port}",
            )
        )
    return findings


def _unclear(command: ReadCommand) -> list[str]:
    return [name for name, value in command.flags.items() if value is None]


def _text(command: ReadCommand, name: str) -> str | None:
    value = command.flags.get(name)
    return value if isinstance(value, str) else None


def _bytes(text: str | None) -> float | None:
    found = _BYTES.fullmatch(text or "")
    return float(found.group(1)) * _UNIT[found.group(2).lower()] if found else None
