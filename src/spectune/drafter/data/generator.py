"""The built-in prompt generator: any number of different prompts over the six built-in categories.

For runs that bring no prompts of their own. The same seed gives the same
prompts in the same order, so a larger set begins with a smaller one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from spectune.bench.prompts import CATEGORIES
from spectune.drafter.data import generator_words as words
from spectune.drafter.data.generator_wide import wide_chat, wide_code
from spectune.errors import BadInput

MAX_PROMPTS = 2_000_000
_MAX_TRIES = 200


@dataclass(frozen=True)
class GeneratedPrompt:
    """``group`` names its subject: prompts of one group go to the same split."""

    prompt_id: str
    category: str
    text: str
    group: str


def generate_prompts(
    count: int, *, seed: int = 0, categories: tuple[str, ...] = CATEGORIES
) -> Iterator[GeneratedPrompt]:
    """``count`` different prompts, taking turns through ``categories``; raises ``BadInput``.

    Every category has more than 200,000, so up to 1.2 million are balanced; one that has run out is left
    out from then on. Memory: 16 bytes of hash per prompt, to leave out repetitions.
    """
    unknown = sorted(set(categories) - set(CATEGORIES))
    if unknown or not categories:
        raise BadInput(f"categories: {', '.join(unknown) or 'none'}; valid are {', '.join(CATEGORIES)}")
    if not 1 <= count <= MAX_PROMPTS:
        raise BadInput(f"--generate: must be from 1 to {MAX_PROMPTS}, got {count}")
    streams = {category: _Stream.of(category, seed) for category in categories}
    seen: set[bytes] = set()
    made = 0
    while streams:
        for category in list(streams):
            if made == count:
                return
            prompt = streams[category].next_prompt(seen)
            if prompt is None:
                del streams[category]
                continue
            made += 1
            yield prompt


Maker = Callable[[random.Random], tuple[str, str]]


@dataclass
class _Stream:
    """One category: its first maker until that repeats itself, then the next one."""

    category: str
    makers: list[tuple[Maker, random.Random]]

    @classmethod
    def of(cls, category: str, seed: int) -> _Stream:
        makers = [(_MAKERS[category], random.Random(f"{seed}/{category}"))]  # noqa: S311
        if category in _WIDE:
            makers.append((_WIDE[category], random.Random(f"{seed}/{category}/wide")))  # noqa: S311
        return cls(category, makers)

    def next_prompt(self, seen: set[bytes]) -> GeneratedPrompt | None:
        """``None``: every maker has run out."""
        while self.makers:
            maker, rng = self.makers[0]
            for _ in range(_MAX_TRIES):
                text, group = maker(rng)
                digest = hashlib.sha256(text.encode()).digest()[:16]
                if digest not in seen:
                    seen.add(digest)
                    name = f"{self.category}-{digest.hex()[:12]}"
                    return GeneratedPrompt(name, self.category, text, f"{self.category}/{group}")
            self.makers.pop(0)
        return None


def _code(rng: random.Random) -> tuple[str, str]:
    task = rng.choice(words.CODE_TASKS)
    verb, _, rest = task.partition(" ")
    ask = rng.choice(words.CODE_ASKS).format(
        language=rng.choice(words.LANGUAGES_OF_CODE),
        task=task,
        size=rng.choice((1_000, 20_000, 500_000, 10_000_000)),
        name=f"{verb}_{rest.split()[0]}" if rest else verb,
    )
    return ask, task


def _chat(rng: random.Random) -> tuple[str, str]:
    topic, other = rng.sample(words.TOPICS, 2)
    ask = rng.choice(words.CHAT_ASKS).format(
        topic=topic,
        other=other,
        age=rng.randint(5, 12),
        words=rng.choice((80, 120, 150, 200)),
        days=rng.choice((3, 5, 7, 10, 14)),
        count=rng.choice(("three", "five", "six", "eight")),
        money=rng.choice((20, 50, 80, 150, 300)),
        weekday=rng.choice(words.WEEKDAYS),
    )
    return ask, topic


def _maths(rng: random.Random) -> tuple[str, str]:
    kind = rng.choice(_PROBLEMS)
    ending = rng.choice(
        (
            " Show every step.",
            " Explain your calculation.",
            " Give the result and a short reason.",
            " Check the result at the end.",
        )
    )
    text = kind(rng) + ending
    return text, hashlib.sha256(text.encode()).hexdigest()[:12]


def _speed(rng: random.Random) -> str:
    out, back = rng.randint(8, 90), rng.randint(8, 90)
    distance = rng.randint(4, 60) * 6
    return (
        f"{rng.choice(words.NAMES)} travels {distance} kilometres at {out} kilometres per hour and comes back at "
        f"{back} kilometres per hour. How long does the whole trip take?"
    )


def _shop(rng: random.Random) -> str:
    first, second = rng.sample(words.ITEMS, 2)
    return (
        f"{rng.choice(words.NAMES)} buys {rng.randint(2, 30)} {first} at {rng.randint(1, 40)}.{rng.randint(0, 9)}0 "
        f"euros each and {rng.randint(2, 30)} {second} at {rng.randint(1, 40)} euros each, with "
        f"{rng.randint(5, 40)} per cent off the total. What is the price?"
    )


def _tank(rng: random.Random) -> str:
    return (
        f"A tank holds {rng.randint(20, 900)} litres. One pipe fills it in {rng.randint(3, 40)} minutes, a second "
        f"in {rng.randint(3, 40)} minutes, and a leak loses {rng.randint(1, 9)} litres per minute. After how many "
        "minutes is it full?"
    )


def _numbers(rng: random.Random) -> str:
    values = ", ".join(str(rng.randint(-40, 160)) for _ in range(rng.randint(5, 9)))
    return f"Find the mean, the median and the range of the numbers {values}."


def _equation(rng: random.Random) -> str:
    a, b, c, d = (rng.randint(2, 15) for _ in range(4))
    if rng.random() < 0.5:
        return f"Solve {a}x + {b * c} = {d}x - {b} for x."
    return f"Solve the system {a}x + {b}y = {a * c + b * d} and {b}x - {a}y = {b * c - a * d}."


def _geometry(rng: random.Random) -> str:
    a, b = rng.randint(3, 60), rng.randint(3, 60)
    return rng.choice(
        (
            f"A garden is {a} metres long and {b} metres wide, with a path of {rng.randint(1, 3)} metres around it. "
            "What is the area of the path?",
            f"A right triangle has legs of {a} and {b} centimetres. How long is the third side?",
            f"How many tiles of {rng.choice((20, 25, 30, 40))} centimetres cover a floor of {a} by {b} metres?",
        )
    )


def _chance(rng: random.Random) -> str:
    red, blue, green = (rng.randint(2, 14) for _ in range(3))
    return (
        f"A bag holds {red} red, {blue} blue and {green} green balls. {rng.choice(words.NAMES)} takes "
        f"{rng.choice(('two', 'three'))} without putting any back. What is the chance that all are "
        f"{rng.choice(('red', 'blue', 'green'))}?"
    )


_PROBLEMS = (_speed, _shop, _tank, _numbers, _equation, _geometry, _chance)


def _fill(rng: random.Random, sentence: str, facts: dict[str, Any]) -> str:
    """One sentence; who and how much changes from sentence to sentence, place and thing do not."""
    return sentence.format(
        **facts,
        name=rng.choice(words.NAMES),
        weekday=rng.choice(words.WEEKDAYS),
        month=rng.choice(words.MONTHS),
        years=rng.randint(2, 60),
        months=rng.randint(2, 30),
        money=rng.randint(4, 900) * 500,
        count=rng.randint(12, 900),
        share=rng.randint(6, 94),
        hour=rng.randint(5, 9),
    )


def passage(rng: random.Random, *, num_sentences: int) -> str:
    """A short newspaper text about one place."""
    thing = rng.choice(words.THINGS)
    facts = {"thing": thing, "thing_cap": thing[0].upper() + thing[1:], "place": rng.choice(words.PLACES)}
    middles = rng.sample(words.PASSAGE_MIDDLES, max(0, num_sentences - 2))
    chosen = [rng.choice(words.PASSAGE_OPENINGS), *middles, rng.choice(words.PASSAGE_ENDINGS)]
    return " ".join(_fill(rng, sentence, facts) for sentence in chosen)


def _summary(rng: random.Random) -> tuple[str, str]:
    text = passage(rng, num_sentences=rng.randint(5, 10))
    ask = rng.choice(words.SUMMARY_ASKS).format(
        n=rng.choice(("two", "three", "four")), audience=rng.choice(words.AUDIENCES)
    )
    return f"{ask}\n\n{text}", hashlib.sha256(text.encode()).hexdigest()[:12]


def _translation(rng: random.Random) -> tuple[str, str]:
    text = passage(rng, num_sentences=rng.randint(2, 5))
    ask = rng.choice(words.TRANSLATION_ASKS).format(language=rng.choice(words.TRANSLATION_LANGUAGES))
    return f"{ask}\n\n{text}", hashlib.sha256(text.encode()).hexdigest()[:12]


def _structured(rng: random.Random) -> tuple[str, str]:
    keys = ", ".join(
        rng.sample(("name", "age", "city", "item", "quantity", "price", "date"), rng.randint(3, 6))
    )
    lines = [
        f"{name}, {rng.randint(18, 88)} years old, from {rng.choice(words.PLACES)}, ordered {rng.randint(1, 60)} "
        f"{rng.choice(words.ITEMS)} on {rng.randint(1, 28)} {rng.choice(words.MONTHS)} for {rng.randint(3, 400)}."
        f"{rng.randint(10, 99)} euros."
        for name in rng.sample(words.NAMES, rng.randint(1, 4))
    ]
    note = " ".join(lines)
    ask = rng.choice(words.STRUCTURED_ASKS).format(keys=keys)
    return f"{ask}\n\n{note}", hashlib.sha256(note.encode()).hexdigest()[:12]


_MAKERS: dict[str, Maker] = {
    "code": _code,
    "maths": _maths,
    "chat": _chat,
    "summary": _summary,
    "translation": _translation,
    "structured": _structured,
}
_WIDE: dict[str, Maker] = {"code": wide_code, "chat": wide_chat}
"""Where the first maker has some five thousand prompts; behind it, so that known seeds keep their prompts."""
