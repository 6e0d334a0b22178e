"""Per-request lists, as ``vllm bench serve`` and SGLang's serving benchmark write them, into request records.

Neither writes prompts. Both keep the order of the data set, so a request is
named by its place and by the prompt lengths of the whole run: two runs are
paired only where every length is equal.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

from spectune.domain.measurement import RequestRecord
from spectune.domain.workload import Prompt
from spectune.exchange.imports.reading import Fields
from spectune.exchange.imports.results import NOT_RECORDED


@dataclass(frozen=True)
class RequestLists:
    requests: tuple[RequestRecord, ...]
    prompts: tuple[Prompt, ...]


def read_requests(fields: Fields, *, cached: str | None = None) -> RequestLists | None:
    """``None`` where the file has no single requests. ``cached``: the list of cached prompt tokens."""
    outputs = fields.numbers("output_lens")
    if outputs is None:
        return None
    n = len(outputs)
    inputs = fields.numbers("input_lens", length=n) or [None] * n
    ttfts_s = fields.numbers("ttfts", length=n) or [None] * n
    latencies_s = fields.numbers("latencies", length=n)
    starts_s = fields.numbers("start_times", length=n)
    first_s = min((s for s in starts_s or [] if s is not None), default=0.0)
    gaps = fields.sequence("itls", length=n) or [None] * n
    texts = fields.sequence("generated_texts", length=n) or [""] * n
    errors = fields.sequence("errors", length=n) or [None] * n
    hits = (fields.numbers(cached, length=n) if cached else None) or [None] * n
    names = _names(inputs)
    requests = []
    for i in range(n):
        gaps_s = _gaps(gaps[i], f"{fields.place}: itls[{i}]")
        error = errors[i] if isinstance(errors[i], str) and errors[i] else None
        ttft_s = ttfts_s[i] or None
        latency_s = latencies_s[i] if latencies_s is not None else None
        if not latency_s and ttft_s is not None:
            latency_s = ttft_s + math.fsum(gaps_s)
        tokens = _whole(outputs[i])
        start_s = starts_s[i] if starts_s is not None else None
        requests.append(
            RequestRecord(
                prompt_id=names[i],
                start_s=0.0 if start_s is None else start_s - first_s,
                ttft_s=None if error else ttft_s,
                latency_s=None if error else latency_s,
                prompt_tokens=_whole(inputs[i]),
                output_tokens=None if error else tokens,
                cached_tokens=_whole(hits[i]),
                chunk_gaps_s=() if error else gaps_s,
                text=texts[i] if isinstance(texts[i], str) else "",
                error=error or (None if tokens else "no token came"),
            )
        )
    return RequestLists(tuple(requests), tuple(Prompt(prompt_id=p, turns=(NOT_RECORDED,)) for p in names))


def _names(inputs: list[float | None]) -> list[str]:
    lengths = ",".join("?" if v is None else f"{v:g}" for v in inputs)
    run = hashlib.sha256(lengths.encode()).hexdigest()[:8]
    return [f"{run}-{i:05d}" for i in range(len(inputs))]


def _whole(value: float | None) -> int | None:
    return None if value is None or not value.is_integer() else int(value)


def _gaps(value: Any, place: str) -> tuple[float, ...]:
    if value is None:
        return ()
    found = Fields({"itls": value}, place).numbers("itls") or []
    return tuple(gap for gap in found if gap is not None)
