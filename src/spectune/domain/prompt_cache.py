"""How much of measured prompts came from a prefix cache that should not have held them.

What all prompts begin with (the chat template, a system prompt) is served from
the cache in production too, and in every configuration alike: it is no leak.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from spectune.domain.measurement import RequestRecord
from spectune.domain.workload import Prompt

TEMPLATE_TOKENS = 64
"""A chat template and the system prompt that it adds by itself may take so many, where nothing shows how many."""
_PAGE_TOKENS = 16
"""Caches keep whole pages, of this size in vLLM."""
_MIN_PROMPTS = 3
_NEARLY_ALL = 0.8


@dataclass(frozen=True)
class CacheUse:
    """Prompt tokens of some requests, and how many of them the cache gave beyond what all prompts begin with."""

    prompt_tokens: int
    reused_tokens: int

    @property
    def reused_frac(self) -> float:
        return self.reused_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def cache_use(requests: Iterable[RequestRecord], prompts: Sequence[Prompt]) -> CacheUse | None:
    """Over the first turns of ``requests``; ``None`` where the engine does not say what was cached.

    A later turn finds the earlier ones in the cache, as in production.
    """
    known = [
        (r.prompt_id, r.prompt_tokens, r.cached_tokens)
        for r in requests
        if r.ok and r.turn == 0 and r.prompt_tokens and r.cached_tokens is not None
    ]
    if not known:
        return None
    beginning = _common_beginning(known)
    texts = {p.prompt_id: f"{p.system or ''}\n{p.turns[0]}" for p in prompts}
    shared = _shared_characters(texts.values())

    def begins_alike(prompt_id: str, total: int) -> int:
        """Tokens that another prompt begins with too: at most one a character."""
        text = texts.get(prompt_id, "")
        characters = shared.get(text, 0)
        return max(beginning, min(characters, round(total * characters / len(text)) if text else 0))

    reused = sum(max(0, cached - begins_alike(prompt_id, total)) for prompt_id, total, cached in known)
    return CacheUse(sum(total for _, total, _ in known), reused)


def _common_beginning(known: Sequence[tuple[str, int, int]]) -> int:
    """Tokens that all prompts begin with: shown by equally many cached of prompts of different lengths."""
    first: dict[str, tuple[int, int]] = {}
    for prompt_id, total, cached in known:
        if cached:
            first.setdefault(prompt_id, (total, cached))
    if len(first) < _MIN_PROMPTS:
        return TEMPLATE_TOKENS
    middle = median(cached for _, cached in first.values())
    alike = [(total, cached) for total, cached in first.values() if abs(cached - middle) <= _PAGE_TOKENS]
    lengths, counts = [total for total, _ in alike], [cached for _, cached in alike]
    differ = max(lengths) - min(lengths) > 2 * (max(counts) - min(counts)) + 2 if alike else False
    shown = differ and len(alike) >= _NEARLY_ALL * len(first)
    return max(TEMPLATE_TOKENS, *counts) if shown else TEMPLATE_TOKENS


def _shared_characters(texts: Iterable[str]) -> Mapping[str, int]:
    """By text: the most characters that some other text begins with too."""
    ordered = sorted(set(texts))
    longest = dict.fromkeys(ordered, 0)
    for one, other in pairwise(ordered):
        differ = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        common = next(differ, min(len(one), len(other)))
        longest[one], longest[other] = max(longest[one], common), max(longest[other], common)
    return longest
