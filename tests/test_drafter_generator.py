"""The built-in prompts: the same for a seed, all different, balanced, and enough of every category."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter

import pytest

from spectune.bench.prompts import CATEGORIES
from spectune.drafter.data.generator import generate_prompts
from spectune.drafter.data.plan import split_of
from spectune.drafter.data.plan_records import DataSampling
from spectune.errors import BadInput


def test_the_same_seed_gives_the_same_prompts_and_a_longer_list_begins_with_a_shorter_one() -> None:
    long, short = list(generate_prompts(600, seed=3)), list(generate_prompts(120, seed=3))
    assert long[:120] == short
    assert [p.text for p in generate_prompts(120, seed=4)] != [p.text for p in short]


def test_a_seed_keeps_its_prompts_from_version_to_version() -> None:
    """Data sets on disk grow by the same seed; recorded before code and chat got more slots."""
    texts = [prompt.text for prompt in generate_prompts(30_000, seed=5)]
    digest = hashlib.sha256("|".join(texts).encode()).hexdigest()
    assert digest == "03a2df792ac9bfd2be62d286e6a55ee6050fc3fe6e2e46c5e93d43a0a6aac1d9"


def test_generated_prompts_are_all_different_and_balanced_over_the_six_categories() -> None:
    prompts = list(generate_prompts(90_000))
    assert len({p.text for p in prompts}) == len({p.prompt_id for p in prompts}) == 90_000
    assert Counter(p.category for p in prompts) == dict.fromkeys(CATEGORIES, 15_000)


def test_every_category_is_answered_at_every_temperature() -> None:
    """Six categories take turns, and so would two temperatures: each category at one of them alone."""
    sampling = DataSampling(temperatures=(0.0, 0.8))
    counts = Counter((p.category, sampling.temperature_of(p.prompt_id)) for p in generate_prompts(2400))
    assert len(counts) == 12
    assert all(150 < count < 250 for count in counts.values())  # 200 expected, five standard deviations


@pytest.mark.drafter
@pytest.mark.parametrize("category", CATEGORIES)
def test_every_category_has_two_hundred_thousand_different_prompts(category: str) -> None:
    seen = {
        hashlib.sha256(prompt.text.encode()).digest()[:16]
        for prompt in generate_prompts(200_000, categories=(category,))
    }
    assert len(seen) == 200_000


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_slot_is_filled_and_sentences_are_whole(category: str) -> None:
    # Past the first ten thousand, where code and chat come from the wider makers.
    for prompt in itertools.islice(generate_prompts(14_000, categories=(category,)), 8_000, None):
        assert not re.search(r"[{}]|  |\ban? [aeiou]?\.|\.\.| ,|\ba [aeio]\w", prompt.text), prompt.text
        assert prompt.text[0].isupper() and 20 < len(prompt.text) < 2_000


def test_no_subject_of_code_or_chat_has_more_than_a_tenth_of_the_prompts() -> None:
    for category in ("code", "chat"):
        groups = Counter(p.group for p in generate_prompts(60_000, categories=(category,)))
        assert max(groups.values()) < 6_000 and len(groups) > 100


def test_a_subject_is_on_the_same_side_of_the_split_whichever_maker_it_comes_from() -> None:
    sides: dict[str, set[str]] = {}
    for prompt in generate_prompts(40_000, categories=("code", "chat")):
        sides.setdefault(prompt.group, set()).add(split_of(prompt.group, held_out_frac=0.2))
    assert all(len(side) == 1 for side in sides.values())
    shares = Counter(side for found in sides.values() for side in found)
    assert 0.1 < shares["held-out"] / len(sides) < 0.3


def test_an_unknown_category_is_an_error_that_lists_the_valid_ones() -> None:
    with pytest.raises(BadInput, match="poems; valid are code, maths"):
        list(generate_prompts(3, categories=("poems",)))
