"""What counts as a leak of the prefix cache, and what every production server caches too."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from spectune.domain.measurement import RequestRecord
from spectune.domain.prompt_cache import cache_use
from spectune.domain.workload import Prompt

LONG_SYSTEM = "You are a careful assistant of the department. " * 40


def prompts(number: int, *, system: str | None = None) -> list[Prompt]:
    """Texts that begin differently."""
    return [
        Prompt(prompt_id=f"p{i}", turns=(f"{i * 7919 % 1000}: tell me",), system=system)
        for i in range(number)
    ]


def requests(lengths: Sequence[int], cached: Callable[[int, int], int]) -> list[RequestRecord]:
    """One a prompt; ``cached`` gives what the cache held, from the place in the order and the prompt's length."""
    return [
        RequestRecord(prompt_id=f"p{i}", start_s=i, prompt_tokens=total, cached_tokens=cached(i, total))
        for i, total in enumerate(lengths)
    ]


_DRAWN = random.Random(4)
LENGTHS = [_DRAWN.randint(60, 400) for _ in range(24)]


def reused_frac(
    lengths: Sequence[int], cached: Callable[[int, int], int], *, system: str | None = None
) -> float:
    use = cache_use(requests(lengths, cached), prompts(len(lengths), system=system))
    assert use is not None
    return use.reused_frac


def test_the_template_that_all_prompts_share_is_no_leak():
    assert reused_frac(LENGTHS, lambda i, _: 31 if i else 0) == 0


def test_a_template_of_hundreds_of_tokens_is_none_either_where_prompts_differ_in_length():
    assert reused_frac([n + 420 for n in LENGTHS], lambda i, _: 417 if i else 0) == 0


def test_nor_is_a_system_prompt_of_the_workload_where_all_prompts_are_as_long():
    assert reused_frac([430] * 12, lambda i, _: 410 if i else 0, system=LONG_SYSTEM) == 0


def test_prompts_that_were_whole_in_the_cache_are_a_leak():
    assert reused_frac(LENGTHS, lambda _, total: total - 1) > 0.6


def test_nor_does_it_hide_behind_prompts_of_one_length():
    assert reused_frac([10163] * 6, lambda _, total: total - 1) > 0.99


def test_whole_pages_of_a_full_cache_are_a_leak():
    assert reused_frac(LENGTHS, lambda _, total: (total - 1) // 16 * 16) > 0.6


def test_a_few_whole_prompts_among_many_are_counted():
    assert reused_frac([400] * 20, lambda i, total: total - 1 if i < 4 else 31) > 0.1


def test_a_document_that_two_prompts_begin_with_is_no_leak():
    document = "word " * 2000
    pair = [Prompt(prompt_id=f"p{i}", turns=(f"{document} question {i}",)) for i in range(2)]
    use = cache_use(requests([2010, 2010], lambda i, _: 2000 if i else 0), pair)
    assert use is not None and use.reused_tokens == 0


def test_the_same_prompt_twice_is():
    asked = requests([2010, 2010], lambda i, _: 2009 if i else 0)
    use = cache_use([r.model_copy(update={"prompt_id": "p0"}) for r in asked], prompts(1))
    assert use is not None and use.reused_frac > 0.45


def test_an_engine_that_does_not_say_is_unknown():
    assert cache_use([RequestRecord(prompt_id="p0", start_s=0, prompt_tokens=9)], prompts(1)) is None


def test_a_later_turn_may_find_the_earlier_one():
    turns = [RequestRecord(prompt_id="p0", turn=1, start_s=0, prompt_tokens=900, cached_tokens=800)]
    assert cache_use(turns, prompts(1)) is None
