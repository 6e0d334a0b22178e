"""What the fake engine says and how its speculation goes: pure functions of prompt and seed."""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spectune.engines.fake.options import Speculation

WORDS = tuple(
    onset + rime
    for onset in ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z")
    for rime in ("a", "e", "i", "o", "u", "an", "en", "in", "on", "un", "ar", "er", "ir", "or", "ur", "ay")
)
"""Token id -> word; every token is written with one blank before it."""

_ID_OF_WORD = {word: token_id for token_id, word in enumerate(WORDS)}
_BLOCK_TOKENS = 16


def tokenize(text: str) -> list[int]:
    """One token per word; the way back of ``detokenize`` for words of the vocabulary."""
    return [_ID_OF_WORD.get(word, 1000 + zlib.crc32(word.encode()) % 30000) for word in text.split()]


def detokenize(token_ids: Sequence[int]) -> str:
    return "".join([" " + WORDS[token_id] for token_id in token_ids])


def answer_tokens(prompt: str, num_tokens: int, *, seed: int, diverge_after: int | None = None) -> list[int]:
    """The answer to ``prompt``: the same with and without speculation, as greedy decoding should be."""
    tokens = _rng(prompt, f"text-{seed}").choices(range(len(WORDS)), k=num_tokens)
    if diverge_after is not None and diverge_after < num_tokens:
        other = _rng(prompt, f"other-{seed}").choices(range(len(WORDS)), k=num_tokens)
        tokens[diverge_after:] = other[diverge_after:]
    return tokens


@dataclass
class AcceptanceTally:
    """Counts of one request, or of the whole server."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    histogram: list[int] = field(default_factory=list)
    """``[j]``: verify steps that kept exactly j drafted tokens."""

    def add(self, *, drafted: int, accepted: int) -> None:
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.histogram += [0] * (drafted + 1 - len(self.histogram))
        self.histogram[accepted] += 1

    @property
    def num_accepted_tokens(self) -> int:
        return sum(j * steps for j, steps in enumerate(self.histogram))

    @property
    def accepted_per_position(self) -> list[int]:
        return [sum(self.histogram[position + 1 :]) for position in range(len(self.histogram) - 1)]


def accepted_per_step(prompt: str, num_tokens: int, speculation: Speculation, *, seed: int) -> Iterator[int]:
    """Drafted tokens kept in each verify step until ``num_tokens`` are out.

    The first token comes from the prefill. What would run past the end is not
    kept, so that tokens = 1 + steps + accepted, exactly.
    """
    rng = _rng(prompt, f"accept-{seed}")
    remaining = num_tokens - 1
    while remaining > 0:
        accepted = 0
        for chance in speculation.accept:
            if rng.random() >= chance:
                break
            accepted += 1
        accepted = min(accepted, remaining - 1)
        remaining -= 1 + accepted
        yield accepted


class PrefixCache:
    """Prompt prefixes seen so far, in blocks of 16 tokens, as engines keep them."""

    def __init__(self) -> None:
        self._blocks: set[bytes] = set()

    def clear(self) -> None:
        self._blocks.clear()

    def look_up_and_add(self, token_ids: Sequence[int]) -> int:
        """Tokens of ``token_ids`` that an earlier prompt began with; never all of them."""
        cached_blocks = 0
        chain = hashlib.blake2b(digest_size=16)
        blocks = (len(token_ids) - 1) // _BLOCK_TOKENS
        for index in range(blocks):
            chain.update(repr(token_ids[index * _BLOCK_TOKENS : (index + 1) * _BLOCK_TOKENS]).encode())
            digest = chain.copy().digest()
            cached_blocks += digest in self._blocks  # a digest holds all blocks before it, too
            self._blocks.add(digest)
        return cached_blocks * _BLOCK_TOKENS


def _rng(prompt: str, purpose: str) -> random.Random:
    digest = hashlib.blake2b(f"{purpose}\n{prompt}".encode("utf-8", "replace"), digest_size=16).digest()
    return random.Random(digest)  # noqa: S311
