"""Published acceptance lengths (bonus included), to tell an engine's or a wiring fault from a weak draft."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Golden:
    target: str
    """Pattern of the target's name."""
    draft: str | None
    """Pattern of the draft's name; ``None``: drafting layers inside the target."""
    num_draft_tokens: int
    lowest: float
    """The lowest of the published values for this length, over its data sets."""
    what: str
    source: str


_INFERENCEX = "InferenceX golden_al_distribution (Apache-2.0)"

_TABLE = (
    Golden(
        r"kimi-?k2\.5",
        r"kimi-?k2\.?5-eagle3(?!-mla)",
        3,
        2.295,
        "MT-Bench 2.687, C-Eval 2.295, GSM8K 3.201",
        "huggingface.co/lightseekorg/kimi-k2.5-eagle3",
    ),
    Golden(
        r"kimi-?k2\.5",
        r"kimi-?k2\.?5-eagle3-mla",
        3,
        2.829,
        "MT-Bench 2.940, C-Eval 2.829",
        "huggingface.co/lightseekorg/kimi-k2.5-eagle3-mla",
    ),
    Golden(
        r"llama-3\.1-8b-instruct",
        r"eagle3-llama3\.1-instruct-8b",
        7,
        3.53,
        "MT-Bench, 80 prompts, temperature 0",
        "github.com/vllm-project/vllm/issues/26191",
    ),
    Golden(
        r"gpt-oss-120b",
        r"gpt-oss-120b-eagle3",
        3,
        2.28,
        "MT-Bench",
        "github.com/vllm-project/vllm/pull/28549",
    ),
    Golden(
        r"qwen3-235b-a22b-instruct-2507",
        r"eagle3-qwen3-235b-a22b-instruct-2507",
        7,
        3.18,
        "temperature 1: MT-Bench 3.18, HumanEval 4.42, GSM8K 4.65",
        "huggingface.co/nebius/EAGLE3-Qwen3-235B-A22B-Instruct-2507",
    ),
    Golden(
        r"gpt-oss-20b",
        r"eagle3-gpt-oss-20b",
        5,
        1.547,
        "MT-Bench, temperature 0.7",
        "github.com/sgl-project/sglang/pull/24620",
    ),
    *(
        Golden(r"glm-?5\.2", None, k, value, "SPEED-Bench coding, thinking on", _INFERENCEX)
        for k, value in ((1, 1.84), (2, 2.5), (3, 2.99), (4, 3.33), (5, 3.61))
    ),
)


def published_for(*, target: str | None, draft: str | None, num_draft_tokens: int | None) -> Golden | None:
    """The entry of this pair and length, if one is held."""
    if target is None or num_draft_tokens is None:
        return None
    for entry in _TABLE:
        if entry.num_draft_tokens != num_draft_tokens or not re.search(entry.target, target, re.IGNORECASE):
            continue
        if entry.draft is None and draft is None:
            return entry
        if entry.draft is not None and draft is not None and re.search(entry.draft, draft, re.IGNORECASE):
            return entry
    return None
