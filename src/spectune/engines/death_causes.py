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
        r"std::bad_alloc|^MemoryError|Cannot allocate memory|can't allocate memory: you tried to allocate",
        "out of host memory: lower the context length, the cache or the number of workers",
    ),
    (
        r"No space left on device.*(?:shm|torch_)|unable to (?:open|resize|mmap) shared memory object"
        r"|insufficient shared memory",
        "/dev/shm is full: --shm-size 16g or --ipc host for a container, or remove what fills it",
    ),
    (
        r"Watchdog caught collective operation timeout|NCCL (?:communicator|operation).*(?:timeout|aborted)"
        r"|wait timeout after \d+ms|c10d.*[Tt]imed? ?out",
        "a rank did not take part in a collective: look for the first rank that failed; slow kernel compilation "
        "needs a longer limit (TORCH_DISTRIBUTED_DEFAULT_TIMEOUT)",
    ),
    (
        r"no kernel image is available for execution on the device",
        "this build or this attention backend was not compiled for this GPU generation",
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
        r"Error while finding module specification for .*|(?<!: )No module named '?[\w.]+'?",
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
        r"Capture cuda graph failed.*|operation not permitted when stream is capturing",
        "lower the memory fraction or the largest captured batch, or set cuda_graphs: false",
    ),
    (
        r"is not supported in decode attention backend torch_native",
        "torch_native does not speculate, and SGLang falls back to it on a processor without Intel AMX tiles: serve on "
        "one that has them, on a GPU, or without speculation",
    ),
    (r"is not supported in decode attention backend.*", "give the draft its own attention backend"),
    (r"Unknown speculative algorithm name.*", "this version of the engine does not know the method"),
    (
        r"Synthetic acceptance not supported with CPU sampling",
        "vLLM imposes acceptance on GPUs only: measure this arm on one, or leave synthetic_acceptance_* out",
    ),
    (
        r"CPU Generator does not use offset",
        "vLLM on a CPU dies of a seeded, sampled request whose prompt it reads in parts: send no seed "
        "(`drafter data --extra-body '{\"seed\": null}'`) or sample at temperature 0",
    ),
    (r"Value error, .*", None),
)
_FATAL = re.compile(
    r"^(?:\([^)]*\) )?(?:[A-Z]+ [\d-]+ [\d:]+ \[[^\]]*\] )?(?:\[[^\]]*\] )?(?:[A-Z]+: +)?(?:"
    r"Received sigquit from a child proces{1,2}\."
    r"|Scheduler hit an exception"
    r"|Rank \d+ scheduler (?:died|is dead)"
    r"|Child process unexpectedly failed with an exit code"
    r"|\[Errno 98\] error while attempting to bind"
    r"|EngineCore (?:encountered a fatal error|failed to start)"
    r"|RuntimeError: Engine core initialization failed"
    r")"
)
"""Lines after which an engine serves nothing any more, though its main process may live on for minutes or for ever."""
_HANG = re.compile(r"No available shared memory broadcast block found in \d+ seconds")
_COMPILED = tuple((re.compile(pattern), remedy) for pattern, remedy in _PATTERNS)
_HARMLESS = re.compile(r"Ignore import error|^usage: |server_args=")
_EXCEPTION = re.compile(
    r"^(?:\(.*?\) )?(?:\S+ )*?((?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt)(?:: .+)?)$"
)
_PREFIX = re.compile(r"^(?:\([^)]*\) )?(?:\[[^\]]*\] )?(?:llama_server: )?(?:ERROR: *|error: )?")
_PYDANTIC_TAIL = re.compile(r" \[type=.*$")


def is_fatal(line: str) -> bool:
    """Whether the engine says with this line that its service is over."""
    return bool(_FATAL.match(line))


def is_hang_report(line: str) -> bool:
    """Whether this line only repeats that the engine waits: no sign of life."""
    return bool(_HANG.search(line))


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
