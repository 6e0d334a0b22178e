"""Findings about how a command is written: what the shell, the container and the parser make of it."""

from __future__ import annotations

import re

from spectune.domain.findings import Finding, FindingKind
from spectune.domain.secrets import is_secret
from spectune.preflight.command import ReadCommand
from spectune.preflight.flags_common import NAMES
from spectune.preflight.flags_common import whole_number as _whole
from spectune.preflight.rules import Judgement

REPEATED_FLAG = FindingKind(
    code="flag-repeated",
    severity="warning",
    title="A flag is given more than once",
    explanation="The parsers of all three engines keep the last value and say nothing (vLLM logs a warning).",
    effect="the earlier values have no effect",
    remedy="keep one of them",
    holds_for="SGLang 0.5.23, vLLM 0.32.0, llama.cpp (xllamacpp 2026.10.11549)",
    sources=("measured: the engines' parsers",),
)

REPLACED_CONFIG = FindingKind(
    code="speculative-config-replaced",
    severity="warning",
    title="Dotted keys replace another value of the same flag",
    explanation=(
        "vLLM joins dotted keys (--speculative-config.method eagle3) into one JSON value per spelling and puts it "
        "behind the command. It replaces a --speculative-config '{...}' given beside it, and keys written as "
        "-sc.method replace those written as --speculative-config.method: they do not add up."
    ),
    effect="every key of the earlier value is lost",
    remedy="write all keys in one form and one spelling",
    holds_for="vLLM 0.32.0",
    sources=("measured: the parser of vllm 0.32.0",),
)

AMBIGUOUS_FLAG = FindingKind(
    code="flag-ambiguous",
    severity="error",
    title="A shortened flag that fits several",
    explanation="argparse takes a unique beginning of a long flag for the flag, and refuses one that is not.",
    effect="the server exits at once",
    holds_for="SGLang 0.5.23, vLLM 0.32.0",
    sources=("measured: the engines' parsers",),
)

VALUE_MISSING = FindingKind(
    code="flag-value-missing",
    severity="error",
    title="A flag without its value",
    explanation=(
        "The flag needs a word behind it and there is another flag, or nothing. llama.cpp's --flash-attn became "
        "such a flag: it takes on, off or auto now."
    ),
    effect="the server exits at once",
    holds_for="SGLang 0.5.23, vLLM 0.32.0, llama.cpp (xllamacpp 2026.10.11549)",
    sources=("measured: the engines' parsers",),
)

STRAY_WORD = FindingKind(
    code="word-without-flag",
    severity="error",
    title="A word that belongs to no flag",
    explanation=(
        "Mostly a value that lost its quotes (JSON with blanks), a switch that was given a value, or a flag that "
        "lost its dashes. Parsers refuse it."
    ),
    effect="the server exits at once",
    holds_for="SGLang 0.5.23, vLLM 0.32.0, llama.cpp (xllamacpp 2026.10.11549)",
    sources=("measured: the engines' parsers",),
)

TYPOGRAPHIC = FindingKind(
    code="typographic-characters",
    severity="error",
    title="Quotes or dashes of a word processor",
    explanation="Web pages and chats turn ' and \" and -- into typographic characters, which no shell understands.",
    effect="the value is not the one meant, or the flag is not seen at all",
    remedy="type the quotes and dashes anew",
    holds_for="every engine",
    sources=("https://www.gnu.org/software/bash/manual/html_node/Quoting.html",),
)

LOST_LINES = FindingKind(
    code="line-continuation-missing",
    severity="error",
    title="Lines of flags that are not part of the command",
    explanation=(
        "A line of the command does not end in a backslash (or in one that is followed by something), so the "
        "shell starts the server with what came before and runs the next line as a command of its own."
    ),
    effect="the server starts without these flags",
    remedy="end every line but the last with a backslash",
    holds_for="every engine",
    sources=("https://www.gnu.org/software/bash/manual/html_node/Escape-Character.html",),
)

SMALL_SHARED_MEMORY = FindingKind(
    code="container-shared-memory",
    severity="warning",
    title="The container has 64 MB of shared memory",
    explanation=(
        "Docker gives a container 64 MB at /dev/shm. Worker processes of one server exchange data there (NCCL "
        "between the ranks of tensor parallelism above all)."
    ),
    effect="NCCL fails or hangs while the ranks connect",
    remedy="add --ipc=host or --shm-size 16g to docker run",
    holds_for="SGLang and vLLM in a container, tensor parallelism above 1",
    sources=(
        "https://docs.vllm.ai/en/latest/deployment/docker.html",
        "https://docs.sglang.io/get_started/install.html",
    ),
)

PORT_NOT_PUBLISHED = FindingKind(
    code="container-port-not-published",
    severity="warning",
    title="The container publishes another port than the server opens",
    explanation="docker run -p HOST:CONTAINER must name the port the server listens on inside the container.",
    effect="the server runs and cannot be reached",
    holds_for="SGLang (default 30000) and vLLM (default 8000) in a container",
    sources=("https://docs.docker.com/engine/network/port-publishing/",),
)

LOOPBACK_IN_CONTAINER = FindingKind(
    code="container-listens-on-loopback",
    severity="warning",
    title="The server listens on 127.0.0.1 inside its container",
    explanation="A published port reaches the container's own address, not its loopback.",
    effect="the server runs and cannot be reached from outside the container",
    remedy="add --host 0.0.0.0",
    holds_for="SGLang 0.5.23 (its default), and any engine with --host 127.0.0.1",
    sources=(
        "measured: the default of sglang 0.5.23",
        "https://docs.docker.com/engine/network/port-publishing/",
    ),
)

NO_VOLUME = FindingKind(
    code="container-without-volume",
    severity="note",
    title="Nothing the container compiles or downloads is kept",
    explanation=(
        "Kernels compiled at start (DeepGEMM, torch.compile, FlashInfer) and downloaded weights live in the "
        "container's own file system and go with it: the next start takes 10 to 25 minutes again."
    ),
    remedy="mount a cache folder: -v ~/.cache/huggingface:/cache -e HF_HOME=/cache",
    holds_for="SGLang and vLLM in a container",
    sources=("https://github.com/sgl-project/sglang/issues/29170",),
)

NOT_A_SERVER = FindingKind(
    code="program-is-no-server",
    severity="note",
    title="The program answers in the terminal, not over HTTP",
    explanation="llama-cli takes the same model and speculation flags as llama-server, but serves nothing.",
    remedy="use llama-server to measure it",
    holds_for="llama.cpp",
    sources=("https://github.com/ggml-org/llama.cpp",),
)

KINDS: tuple[FindingKind, ...] = (
    REPEATED_FLAG,
    REPLACED_CONFIG,
    AMBIGUOUS_FLAG,
    VALUE_MISSING,
    STRAY_WORD,
    TYPOGRAPHIC,
    LOST_LINES,
    SMALL_SHARED_MEMORY,
    PORT_NOT_PUBLISHED,
    LOOPBACK_IN_CONTAINER,
    NO_VOLUME,
    NOT_A_SERVER,
)

_MANY_IS_FINE = frozenset(
    {"lora", "alias", "spec-type", "api-key", "override-kv", "override-tensor", "middleware"}
)
"""Flags that may be repeated: the parsers collect them."""
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
    if command.other_servers:
        not_checked.append(f"further servers in the same text: {', '.join(command.other_servers)}")
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
    if arguments.stray:
        words = ", ".join(repr(word[:80]) for word in arguments.stray[:6])
        findings.append(
            STRAY_WORD.found(
                name,
                f"{words}: belongs to no flag of {NAMES[command.engine]}",
                evidence=[("command", word[:200]) for word in arguments.stray[:6]],
                remedy="quote values that hold blanks, and give every flag its dashes",
            )
        )
    return findings


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
    if container is None or command.engine == "llamacpp":
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
    host = _text(command, "host") or ("127.0.0.1" if command.engine == "sglang" else "0.0.0.0")  # noqa: S104
    if container.ports and host in ("127.0.0.1", "localhost"):
        findings.append(
            LOOPBACK_IN_CONTAINER.found(
                name,
                f"{NAMES[command.engine]} listens on {host} inside the container",
                evidence=[("command", f"-p {container.ports[0]}")],
            )
        )
    port = _text(command, "port") or {"sglang": "30000", "vllm": "8000"}[command.engine]
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
