"""Where the time of a study's requests goes: before the first token, and in decoding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spectune.analysis import pooling
from spectune.domain.measurement import LoadResult
from spectune.domain.request_time import RequestTimes, against_plain, of_plain


@dataclass(frozen=True)
class PromptTimes:
    """By prompt, over repetitions and trials: the share of a request before its first token, and its tok/s."""

    first_shares: Mapping[str, float]
    tok_per_s: Mapping[str, float]


def prompt_times(loads: Sequence[LoadResult]) -> PromptTimes:
    return PromptTimes(_first_shares(loads), pooling.speed_by_prompt(loads))


def _first_shares(loads: Iterable[LoadResult]) -> dict[str, float]:
    """Of requests with a token after the first: the others decode nothing; at c > 1 in the steady state, as speeds."""
    first: dict[str, list[float]] = {}
    whole: dict[str, list[float]] = {}
    for load in loads:
        for request in pooling.steady_requests(load):
            if request.decode_tok_per_s is None or request.ttft_s is None or request.latency_s is None:
                continue
            first.setdefault(request.prompt_id, []).append(request.ttft_s)
            whole.setdefault(request.prompt_id, []).append(request.latency_s)
    return {prompt: math.fsum(first[prompt]) / math.fsum(whole[prompt]) for prompt in first}


def plain_times(plain: PromptTimes) -> RequestTimes | None:
    """Of requests without speculation."""
    return of_plain([plain.first_shares[prompt] for prompt in sorted(plain.first_shares)])


def arm_times(own: PromptTimes, plain: PromptTimes, *, speedup: float) -> RequestTimes | None:
    """Of an arm's requests; ``speedup`` is the one that is reported."""
    ratios = {p: own.tok_per_s[p] / plain.tok_per_s[p] for p in own.tok_per_s.keys() & plain.tok_per_s.keys()}
    return against_plain(plain.first_shares, own.first_shares, ratios, speedup=speedup)
