"""Known reasons for which servers die, as they stand in logs. A later rule set extends these."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spectune.engines.adapter import Cause

_PATTERNS: tuple[tuple[str, str | None], ...] = (
    (
        r"CUDA out of memory|torch\.OutOfMemoryError|cudaMalloc failed: out of memory",
        "lower the memory fraction, the context length or the number of running requests",
    ),
    (
        r"less than desired (?:GPU|CPU) memory utilization",
        "another process holds memory: wait until it is gone, or lower --gpu-memory-utilization",
    ),
    (
        r"[Aa]ddress already in use|couldn't bind|port \d+ .*is (?:already )?in use|failed to bind",
        "another program holds the port; a study takes a free one, `spectune up` the one of --port",
    ),
    (
        r"unrecognized arguments?: .*|ambiguous option: .*|invalid argument: .*|unknown argument: .*"
        r"|error: argument .*",
        "check the flag against the engine's --help; engines rename flags between versions",
    ),
    (
        r"Repo id must be in the form .*|Invalid repository ID or local directory specified: .*|no such file: .*"
        r"|No such file or directory.*|failed to open (?:GGUF|gguf) file.*|failed to load model.*"
        r"|error loading model.*",
        "check the paths of target and drafter",
    ),
    (
        r"(?<!: )No module named '?[\w.]+'?",
        "the interpreter given for this engine does not have it installed",
    ),
    (r"Illegal instruction", "this build of the engine needs processor instructions that are missing here"),
    (
        r"selected index k out of range",
        "the draft tree is larger than its candidates: num_draft_tokens must be at most "
        "topk + (num_steps - 1) * topk^2",
    ),
    (
        r"greater than the derived context_length.*",
        "the draft was made for a shorter context: lower the context length of the server to the draft's",
    ),
    (
        r"has no attribute 'hot_token_id'",
        "no draft was given, so the target was loaded as its own: name a drafter",
    ),
    (
        r"'>' not supported between instances of 'NoneType' and 'int'",
        "SGLang needs num_steps, topk and num_draft_tokens all three",
    ),
    (
        r"Capture cuda graph failed.*",
        "lower the memory fraction or the largest captured batch, or set cuda_graphs: false",
    ),
    (r"is not supported in decode attention backend.*", "give the draft its own attention backend"),
    (r"Unknown speculative algorithm name.*", "this version of the engine does not know the method"),
    (r"Value error, .*", None),
)
_COMPILED = tuple((re.compile(pattern), remedy) for pattern, remedy in _PATTERNS)
_HARMLESS = re.compile(r"Ignore import error|^usage: |server_args=")
_EXCEPTION = re.compile(
    r"^(?:\(.*?\) )?(?:\S+ )*?((?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt)(?:: .+)?)$"
)
_PREFIX = re.compile(r"^(?:\([^)]*\) )?(?:\[[^\]]*\] )?(?:llama_server: )?(?:ERROR: *|error: )?")
_PYDANTIC_TAIL = re.compile(r" \[type=.*$")


def known_cause(log_tail: Sequence[str]) -> Cause | None:
    """The first known reason in the log, else the last exception line, else ``None``."""
    useful = [line.strip() for line in log_tail if not _HARMLESS.search(line)]
    for line in useful:
        for pattern, remedy in _COMPILED:
            if pattern.search(line):
                return Cause(message=_words_of(line), remedy=remedy)
    for line in reversed(useful):
        if found := _EXCEPTION.match(line):
            return Cause(message=found.group(1)[:500])
    return None


def _words_of(line: str) -> str:
    return _PYDANTIC_TAIL.sub("", _PREFIX.sub("", line))[:500]
