"""Makers of code and chat prompts with more slots, for when the plain ones have said everything.

Each gives a text and its subject. A subject of the plain makers keeps its name, so that it stays on its side
of the split.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from spectune.drafter.data import generator_wide_words as wide
from spectune.drafter.data import generator_words as words

_TASKS = (*words.CODE_TASKS, *wide.MORE_TASKS)
_TOPICS = (*words.TOPICS, *wide.MORE_TOPICS)
Made = tuple[str, str]


def wide_code(rng: random.Random) -> Made:
    """Functions, classes, SQL and small programs."""
    return rng.choice(_CODE)(rng)


def wide_chat(rng: random.Random) -> Made:
    """Questions of different people, letters, stories, advice and decisions."""
    return rng.choice(_CHAT)(rng)


def _function(rng: random.Random) -> Made:
    task = rng.choice(_TASKS)
    ask = rng.choice(wide.CODE_ASKS).format(
        language=rng.choice(wide.LANGUAGES),
        task=task,
        limit=rng.choice(wide.LIMITS),
        setting=rng.choice(wide.SETTINGS),
    )
    return ask, task


def _class(rng: random.Random) -> Made:
    entity = rng.choice(list(wide.ENTITIES))
    fields = rng.sample(wide.ENTITIES[entity], rng.randint(3, 6))
    ask = rng.choice(wide.CLASS_ASKS).format(
        language=rng.choice(wide.TYPED),
        entity=entity,
        article="an" if entity[0] in "AEIO" else "a",
        fields=_listed(fields),
        operation=rng.choice(wide.OPERATIONS).format(field=rng.choice(fields)),
    )
    return ask, f"class {entity}"


def _sql(rng: random.Random) -> Made:
    entity = rng.choice(list(wide.ENTITIES))
    columns = rng.sample(wide.ENTITIES[entity], rng.randint(4, 7))
    field, other = rng.sample(columns, 2)
    goal = rng.choice(wide.SQL_GOALS)
    ask = rng.choice(wide.SQL_ASKS).format(
        table=f"{entity.lower()}s" if not entity.endswith("h") else f"{entity.lower()}es",
        columns=", ".join(columns),
        goal=goal.format(field=field, other=other, number=rng.choice((3, 5, 10, 20, 30, 90))),
    )
    return ask, f"sql {entity}"


def _program(rng: random.Random) -> Made:
    entity = rng.choice(list(wide.ENTITIES))
    columns = rng.sample(wide.ENTITIES[entity], rng.randint(3, 6))
    field, other = rng.sample(columns, 2)
    report = rng.choice(wide.REPORTS)
    ask = rng.choice(wide.PROGRAM_ASKS).format(
        language=rng.choice(wide.LANGUAGES),
        source=rng.choice(wide.SOURCES),
        columns=_listed(columns),
        report=report.format(field=field, other=other, number=rng.choice((3, 5, 10, 20))),
    )
    return ask, f"program {entity}"


def _question(rng: random.Random) -> Made:
    topic = rng.choice(_TOPICS)
    ask = rng.choice(wide.CHAT_ASKS).format(
        persona=rng.choice(wide.PERSONAS), topic=topic, manner=rng.choice(wide.MANNERS)
    )
    return ask, topic


def _letter(rng: random.Random) -> Made:
    matter = rng.choice(wide.MATTERS)
    first, second = rng.sample(wide.DETAILS, 2)
    kind, tone = rng.choice(wide.LETTER_KINDS), rng.choice(wide.TONES)
    noun = kind.partition(" ")[2]
    article = "an" if tone[0] in "aeiou" else "a"
    ask = (
        f"Write {article} {tone} {noun} to {rng.choice(wide.RECIPIENTS)}: {matter}. Mention {first} and {second}"
        f"{rng.choice(('.', ', and sign it with my name, ' + rng.choice(words.NAMES) + '.'))}"
    )
    return ask, matter


def _story(rng: random.Random) -> Made:
    hero = rng.choice(wide.HEROES)
    genre = rng.choice(wide.GENRES)
    article = "an" if genre[0] in "aeiou" else "a"
    ask = (
        f"Tell me {article} {genre} story of about {rng.choice((80, 120, 150, 200))} words about {hero} and "
        f"{rng.choice(wide.OBJECTS)}. It is set in {rng.choice(wide.SCENES)}, and {rng.choice(wide.ENDINGS)}."
    )
    return ask, hero


def _advice(rng: random.Random) -> Made:
    situation = rng.choice(wide.SITUATIONS)
    first, second = rng.sample(wide.OBSTACLES, 2)
    ask = (
        f"I have {situation} in {rng.choice(('three', 'five', 'ten', 'twenty'))} days. "
        f"{first[0].upper()}{first[1:]}, and "
        f"{second[0].lower() if not second.startswith('I ') else 'I'}{second[1:]}. {rng.choice(wide.WISHES)} "
        f"{rng.choice(wide.MANNERS)}"
    )
    return ask, situation


def _decision(rng: random.Random) -> Made:
    pair = rng.choice(wide.CHOICES)
    one, other = rng.sample(pair, 2)
    first, second = rng.sample(wide.VALUES, 2)
    ask = (
        f"Should I {one}, or should I {other}? What matters most to me is {first}, then {second}. "
        f"{rng.choice(wide.MANNERS)}"
    )
    return ask, pair[0]


_CODE: tuple[Callable[[random.Random], Made], ...] = (_function, _class, _sql, _program)
_CHAT: tuple[Callable[[random.Random], Made], ...] = (_question, _letter, _story, _advice, _decision)


def _listed(words_: list[str]) -> str:
    return f"{', '.join(words_[:-1])} and {words_[-1]}"
