"""What the models look at in an arm, worked out once per arm."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spectune.domain.arm import Arm

CHAIN_METHODS = frozenset({"eagle", "eagle3", "mtp", "draft_model"})
VARIABLE_METHODS = frozenset({"ngram", "suffix"})
"""They look drafts up, where there is one, and run no model for it."""
_THRESHOLD_FLAGS = ("p-min", "p_min", "min-prob", "confidence")
_LIMITING_FIELDS = ("speculative.n_max",)
"""Fields of a request that shorten its drafts, where an engine heeds them."""
_MOST_REMEMBERED = 4096

Family = tuple[str, str | None]


@dataclass(frozen=True)
class Shape:
    """Draft steps, branching and tokens of an arm; zeros for plain decoding."""

    steps: int
    topk: int
    tokens: int


@dataclass(frozen=True)
class ArmFacts:
    arm_id: str
    launch_id: str
    shape: Shape
    is_chain: bool
    """Whether shorter drafts of this arm follow from longer ones of its family."""
    stops_early: bool
    """Whether it drafts fewer tokens than it may, where it is unsure or finds nothing."""
    family: Family
    """Method and drafter, and the threshold at which it stops drafting, if it has one."""
    setting: str
    """Family and everything else that may change acceptance; graphs do not."""
    coordinates: tuple[float, ...]
    """Where cost is smooth: one unit apart is half forgotten."""


_remembered: dict[int, tuple[Arm, ArmFacts]] = {}


def arm_facts(arm: Arm) -> ArmFacts:
    """Remembered per arm object: hashing an arm costs more than predicting it."""
    known = _remembered.get(id(arm))
    if known is not None and known[0] is arm:
        return known[1]
    if len(_remembered) >= _MOST_REMEMBERED:
        _remembered.clear()
    facts = _facts(arm)
    _remembered[id(arm)] = (arm, facts)
    return facts


def shape_of(arm: Arm) -> Shape:
    """What an arm drafts; a side not given follows from the other (a chain has one token per step)."""
    return arm_facts(arm).shape


def known_depth(arm: Arm) -> int | None:
    """Draft steps of an arm whose engine's default is not in use; ``None``: nothing says it."""
    knobs = arm.knobs
    steps = knobs.num_steps or (knobs.num_draft_tokens if (knobs.topk or 1) == 1 else None)
    limits = [n for n in (steps, knobs.num_draft_tokens, *_limits(arm)) if n]
    return min(limits) if steps or _limits(arm) else None


def _limits(arm: Arm) -> list[int]:
    """Of the length of a draft, by the fields of its requests."""
    return [v for name in _LIMITING_FIELDS if type(v := arm.request.get(name)) is int and v > 0]


def id_of(arm: Arm) -> str:
    """``arm.arm_id``, remembered."""
    return arm_facts(arm).arm_id


def launch_of(arm: Arm) -> str:
    """``arm.launch_id``, remembered."""
    return arm_facts(arm).launch_id


def log_place(count: float) -> float:
    """Tokens or steps on the scale where costs are alike."""
    return math.log2(count + 1) / 0.4


def _is_on(value: object) -> bool:
    """A threshold of 0 never shortens a draft."""
    try:
        return float(str(value)) > 0
    except ValueError:
        return bool(value)


def _facts(arm: Arm) -> ArmFacts:
    knobs = arm.knobs
    steps = knobs.num_steps or knobs.num_draft_tokens or 4
    limits = _limits(arm)
    shape = (
        Shape(0, 1, 0)
        if arm.is_baseline
        else Shape(min([steps, *limits]), knobs.topk or 1, min([knobs.num_draft_tokens or steps, *limits]))
    )
    fields = {name: value for name, value in sorted(arm.request.items()) if name not in _LIMITING_FIELDS}
    thresholds = [
        f"{name}={value}"
        for name, value in [*sorted(arm.flags.items()), *fields.items()]
        if _is_on(value) and any(word in name for word in _THRESHOLD_FLAGS)
    ]
    others = (
        tuple(sorted(arm.flags.items(), key=str)),
        tuple(sorted(arm.env.items())),
        tuple(fields.items()),
    )
    return ArmFacts(
        arm_id=arm.arm_id,
        launch_id=arm.launch_id,
        shape=shape,
        is_chain=knobs.method in CHAIN_METHODS and shape.topk == 1,
        family=(knobs.method, " ".join([knobs.drafter or "", *thresholds]).strip() or None),
        stops_early=bool(thresholds) or knobs.method in VARIABLE_METHODS,
        setting=repr((knobs.method, knobs.drafter, others)),
        coordinates=(
            log_place(shape.tokens),
            log_place(shape.steps),
            math.log2(shape.topk),
            0.8 if knobs.cuda_graphs is False else 0.0,
        ),
    )
