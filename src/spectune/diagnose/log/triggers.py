"""Which lines are worth a closer look: cheap tests on bytes, before anything is parsed."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LOOKED_AT = 4000

HOT = re.compile(
    rb"ecode batch|refill batch|Dec?oding metrics:|ulative metrics:|generation throughput: |raft acceptance|eval time "
    rb"|stop processing: |\"predicted_n\"|tatistics +[\w-]+: *#calls|acc per pos"
)
"""Figures: one in a line is enough to send it to its engine's parser."""
_RARE_WORDS = (
    b"server_args=",
    b"fired up and",
    b"max_total_num",
    b"Load weight end",
    b"avail mem",
    b"avail_mem",
    b"Adaptive",
    b"SIGTERM",
    b"SIGINT",
    b"SIGQUIT",
    b"Gracefully",
    b"Shutting down",
    b"[shutdown]",
    b"startup complete",
    b"non-default args",
    b"with config:",
    b"version",
    b"cache size:",
    b"rchitecture:",
    b"backend",
    b"synchronous scheduling",
    b"listening on",
    b"slots are idle",
    b"build",
    b"n_ctx_slot",
    b"loading model",
    b"loading draft model",
    b"implementation '",
    b"launch_server",
    b"sglang",
    b"vllm serve",
    b"openai.api_server",
    b"llama-server",
    b"spec_",
    b"adjusted",
    b"reset",
    b"isabl",
    b"verrid",
    b"all back",
    b"alling back",
    b"alls back",
    b"turned o",
    b"capped",
    b"clamped",
    b"ignored",
    b"instead",
    b"forced",
    b"set to",
    b"lowered",
    b"owering",
    b"won't work",
    b"ailed",
    b"rror",
    b"xception",
    b"Traceback",
    b"illed",
    b"unexpectedly",
    b"GGML_ASSERT",
    b"exiting",
    b"ault",
    b"dumped",
    b"erminate",
    b"memory",
    b"leak",
    b"atchdog",
    b"JIT",
    b"DeepGEMM",
    b"broadcast block",
    b"etract",
    b"reempt",
    b"LLMatcher",
    b"grammar",
    b"SIMULATE",
    b"imulat",
    b"ynthetic",
    b"FORCE_NUM",
    b"synth",
    b"in use",
    b"bind",
    b"EADDRINUSE",
    b"vocab",
    b"kip",
    b"not found in",
    b"not initialized",
    b"issing",
    b"nexpected",
    b"gnoring",
    b"max_position",
    b"nconsistent",
    b"without spec",
    b"Illegal",
    b"ccept len",
    b"ccept_len",
    b"acceptance",
    b"num_draft",
    b"accepted",
    b"n_drafted",
    b"n_accept",
    b"dropped",
    b"discarded",
    b"enalt",
    b"not used",
    b"derived context",
    b"hidden_states",
    b"ccept_length",
    b"acc_length",
)


def _any_of(words: Iterable[bytes]) -> bytes:
    """A pattern of literals as a tree of their letters: three times as fast as a list of them."""
    by_letter: dict[bytes, list[bytes]] = {}
    for word in words:
        by_letter.setdefault(word[:1], []).append(word[1:])
    branches = []
    for letter, rests in sorted(by_letter.items()):
        rest = b"" if b"" in rests else b"(?:" + _any_of(rests) + b")"
        branches.append(re.escape(letter) + rest)
    return b"|".join(branches)


def _from_rarest_letter(word: bytes) -> bytes:
    """The word from its rarest letter on, at least five letters: a search tries it at fewer places."""
    starts = range(max(len(word) - 4, 1))
    return word[min(starts, key=lambda i: _COMMON.find(word[i : i + 1])) :]


_COMMON = b"zqxjkvbpygfwmucldrhsnioate "
RARE = re.compile(_any_of({_from_rarest_letter(word) for word in _RARE_WORDS}))
PLAIN = re.compile(
    rb"(?:\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z |[+-]\d\d:\d\d | \| )(?:std(?:out|err) F )?)?(?:"
    rb"\[\d{4}-\d\d-\d\d[ T][\d:.,]+( [^\]]{1,40})?\] |INFO \d|\((?:APIServer|EngineCore)\w* pid=\d+\) "
    rb"|\d{1,3}\.\d\d\.\d{3}\.\d{3} [DIWE] |slot )"
)
"""Beginnings of lines that nothing was put around but a time; the rank, if one is named."""
WRAPPED = re.compile(
    rb"(\[pod/[^\]]{1,200}\]) |([A-Za-z0-9][\w.-]{0,100})\s+\| |(\[\d{3,6}\]) "
    rb"|[A-Z][a-z]{2} +\d+ [\d:]{8} \S{1,100} ([\w.@-]{1,100})\[\d+\]: "
)
"""Beginnings that tell servers in one file apart."""
ENGINE_OF_WORD = {
    b"ecode batch": "sglang",
    b"refill batch": "sglang",
    b"Decoding metrics:": "vllm",
    b"generation throughput: ": "vllm",
    b"raft acceptance": "llamacpp",
    b"eval time ": "llamacpp",
    b"stop processing: ": "llamacpp",
}
TRAFFIC = (b"Receive: obj=", b"Finish: obj=", b"Received request ", b"Generated response ")
"""Logged requests: what a prompt says is no symptom of the server."""
_CLAIMS = (
    (
        "vllm",
        re.compile(
            r"SpecDecoding metrics|Speculative metrics|non-default args: |LLM engine \(v|Avg generation throughput"
            r"|vllm/entrypoints|vLLM API server version"
            r"|args: Namespace\(host|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[?\w+\.py:\d+\]"
        ),
    ),
    (
        "sglang",
        re.compile(
            r"server_args=|(?:Decode|Prefill) batch|sglang/srt|fired up and ready|max_total_num_tokens=|sglang serve: "
        ),
    ),
    (
        "llamacpp",
        re.compile(
            r"print_timing|llama_|\bsrv +\w+:|slot +\w+:|draft acceptance|statistics .*#calls|ggml|\"predicted_n\""
            r"|eval time +=|stop processing: n_tokens"
        ),
    ),
)
"""Lines that only this engine writes."""
_HINTS = (
    ("vllm", re.compile(r"\bvllm\b|EngineCore", re.I)),
    ("sglang", re.compile(r"sglang", re.I)),
    ("llamacpp", re.compile(r"llama-server|llama\.cpp")),
)
"""Words that other programs' lines hold too: they count only where nothing better is seen."""


def engine_of(text: str) -> str | None:
    """The engine that alone writes such a line."""
    return next((name for name, pattern in _CLAIMS if pattern.search(text, 0, _LOOKED_AT)), None)


def hinted_engine(text: str) -> str | None:
    """The engine that the text mentions, which proves nothing."""
    return next((name for name, hint in _HINTS if hint.search(text, 0, _LOOKED_AT)), None)
