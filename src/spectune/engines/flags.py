"""Command-line flags as a mapping: to argument lists and back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from spectune.domain.arm import Arm, FlagValue
from spectune.errors import BadInput

_LENGTH_ENDINGS = ("spec-synth-len", "synthetic-acceptance-length", "simulate-acc-len")
_RATES_ENDINGS = ("spec-synth-rates", "synthetic-acceptance-rates")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def flag_args(flags: Mapping[str, FlagValue]) -> list[str]:
    """``{"metrics": True, "port": 80, "x": False}`` -> ``["--metrics", "--port", "80"]``."""
    args: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        args.append(f"--{name}")
        if value is not True:
            args.append(str(value))
    return args


def normalise(name: str) -> str:
    """``--max_model_len`` and ``max-model-len`` are one flag."""
    return name.lstrip("-").replace("_", "-")


def merge_flags(
    defaults: Mapping[str, FlagValue], *layers: Mapping[str, FlagValue], managed: Iterable[str], engine: str
) -> dict[str, FlagValue]:
    """Later layers win; a flag that spectune itself must set is refused."""
    reserved = {normalise(name) for name in managed}
    merged: dict[str, FlagValue] = dict(defaults)
    for layer in layers:
        for name, value in layer.items():
            key = normalise(name)
            if key in reserved:
                raise BadInput(
                    f"flags.{name}: spectune sets --{key} of {engine} itself; "
                    "use the study's own keys (target, method, drafter, num_draft_tokens, ...) instead"
                )
            merged[key] = value
    return merged


def read_args(argv: Sequence[str]) -> dict[str, str | bool]:
    """``--flag value``, ``--flag=value`` and bare ``--flag`` of a command line; words before them are skipped."""
    found: dict[str, str | bool] = {}
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        if not word.startswith("-") or word == "-":
            continue
        name, equals, value = word.partition("=")
        if equals:
            found[normalise(name)] = value
        elif position < len(argv) and not _looks_like_flag(argv[position]):
            found[normalise(name)] = argv[position]
            position += 1
        else:
            found[normalise(name)] = True
    return found


def _looks_like_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word[1:2] != "."


def int_or_none(value: str | bool | int | None) -> int | None:
    """An integer flag's value, or ``None`` if it is absent or not one."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def chain_draft_tokens(
    *, num_steps: int | None, topk: int | None, num_draft_tokens: int | None, engine: str
) -> int | None:
    """Length of a draft chain, for engines without draft trees; ``None``: the engine's default.

    Raises ``BadInput`` for a tree, and where the two numbers contradict each other.
    """
    if topk not in (None, 1):
        raise BadInput(f"topk: {engine} drafts chains only, so topk must be 1 (or left out), got {topk}")
    if num_steps is not None and num_draft_tokens is not None and num_steps != num_draft_tokens:
        raise BadInput(
            f"num_steps: a chain drafts one token per step, so num_steps must equal num_draft_tokens "
            f"({num_draft_tokens}), got {num_steps}"
        )
    return num_draft_tokens if num_draft_tokens is not None else num_steps


def imposed_rates(arm: Arm) -> tuple[float, ...] | None:
    """Marginal acceptance by position to impose, one per drafted token; ``BadInput`` where they do not fit."""
    rates = arm.synthetic_acceptance_rates
    if rates is None:
        return None
    name = "synthetic_acceptance_rates"
    if arm.synthetic_acceptance_length is not None:
        raise BadInput(f"{name}: give it or synthetic_acceptance_length, not both")
    if arm.is_baseline:
        raise BadInput(f"{name}: plain decoding drafts nothing to accept")
    if (arm.knobs.topk or 1) != 1:
        raise BadInput(f"{name}: positions are those of a chain, and topk is {arm.knobs.topk}")
    length = arm.knobs.num_draft_tokens or arm.knobs.num_steps
    if length is None:
        raise BadInput(f"{name}: num_draft_tokens must be given with it")
    if len(rates) < length:
        raise BadInput(f"{name}: {len(rates)} rates for {length} drafted tokens; give one for each")
    if any(later > earlier for earlier, later in pairwise(rates)):
        raise BadInput(f"{name}: shares of steps never rise with the position, got {list(rates)}")
    return rates[:length]


def imposed_length(arm: Arm) -> float | None:
    """The acceptance length to impose, in either form; ``BadInput`` where there is nothing to impose it on, or it is
    out of reach."""
    rates = imposed_rates(arm)
    if rates is not None:
        return 1 + math.fsum(rates)
    length = arm.synthetic_acceptance_length
    if length is None:
        return None
    if arm.is_baseline:
        raise BadInput("synthetic_acceptance_length: plain decoding drafts nothing to accept")
    most = arm.knobs.num_draft_tokens if (arm.knobs.topk or 1) == 1 else arm.knobs.num_steps
    if most is not None and length > most + 1:
        raise BadInput(
            f"synthetic_acceptance_length: {length:g} is more than the {most + 1} tokens that a step can yield here"
        )
    return length


def length_imposed_on(arm: Arm) -> float | None:
    """The acceptance length that the arm imposes, also by a flag or variable of the engine's own; ``None``: none."""
    if (length := imposed_length(arm)) is not None:
        return length
    drafted = arm.knobs.num_draft_tokens or arm.knobs.num_steps
    for name, value in (*arm.flags.items(), *arm.env.items()):
        numbers = [float(n) for n in _NUMBER.findall(str(value))]
        if numbers and normalise(name).lower().endswith(_LENGTH_ENDINGS):
            return numbers[0] if numbers[0] >= 1 else None
        if numbers and normalise(name).lower().endswith(_RATES_ENDINGS):
            return 1 + math.fsum(numbers[:drafted])
    return None
