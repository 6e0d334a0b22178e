"""Does an arm say the same as plain decoding? Greedy outputs compared prompt by prompt.

Speculation with exact verification must not change greedy text, but engines
whose arithmetic depends on the shape of a batch differ from themselves now and
then: compare an arm's parity with the baseline's own, from its repeated trials.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spectune.domain.measurement import RequestRecord
from spectune.domain.record import Record
from spectune.domain.workload import Sampling

Unit = Literal["tokens", "characters"]
Key = tuple[str, int, int]
"""Prompt id, turn, and the how-many-th time this prompt was asked."""

LEAD_CHARACTERS = 24
EXCERPT_CHARACTERS = 72


class Divergence(Record):
    """The first place where one output leaves the baseline's. Both excerpts begin at the same character."""

    prompt_id: str
    turn: int
    index: int
    """Position of the first difference, in the parity's unit."""
    baseline_excerpt: str
    arm_excerpt: str


class OutputParity(Record):
    """How many outputs equal the baseline's. ``equal_frac`` is ``None`` when nothing was compared."""

    num_compared: int
    num_equal: int
    equal_frac: float | None
    unit: Unit | None
    """``tokens`` when both sides have token ids for every pair, else ``characters``."""
    first_divergences: tuple[Divergence, ...] = ()
    median_first_divergence: float | None = None
    """In ``unit``, over the outputs that differ."""
    not_compared: str | None = None
    """Why nothing was compared."""


@dataclass(frozen=True)
class _Pair:
    key: Key
    baseline: RequestRecord
    arm: RequestRecord


def effective_temperature(sampling: Sampling) -> float:
    """The temperature that reached the server; ``extra_body`` is merged last and wins."""
    value: Any = sampling.extra_body.get("temperature", sampling.temperature)
    return float(value) if isinstance(value, int | float) else sampling.temperature


def output_parity(
    arm_trials: Sequence[Sequence[RequestRecord]],
    *,
    baseline: Sequence[RequestRecord] | None,
    sampling: Sampling,
) -> OutputParity:
    """Every trial of an arm against one baseline trial, pooled.

    For the noise floor give the baseline's later trials as ``arm_trials``.
    A later turn of a conversation is compared only while every earlier turn was
    equal: after a difference the two servers were asked different things.
    """
    temperature = effective_temperature(sampling)
    if temperature > 0:
        return _nothing(f"temperature is {temperature:g}: sampled outputs differ by design")
    if baseline is None:
        return _nothing("the baseline has no complete trial")
    if not arm_trials:
        return _nothing("no second trial to compare with the first")
    reference = _by_key(baseline)
    pairs = [pair for trial in arm_trials for pair in _comparable(_by_key(trial), reference)]
    if not pairs:
        return _nothing("no prompt was answered with text by both")
    with_ids = all(p.baseline.token_ids is not None and p.arm.token_ids is not None for p in pairs)
    unit: Unit = "tokens" if with_ids else "characters"
    divergences = [d for pair in pairs if (d := _divergence(pair, unit)) is not None]
    num_equal = len(pairs) - len(divergences)
    return OutputParity(
        num_compared=len(pairs),
        num_equal=num_equal,
        equal_frac=num_equal / len(pairs),
        unit=unit,
        first_divergences=tuple(divergences),
        median_first_divergence=statistics.median(d.index for d in divergences) if divergences else None,
    )


def _nothing(reason: str) -> OutputParity:
    return OutputParity(num_compared=0, num_equal=0, equal_frac=None, unit=None, not_compared=reason)


def _by_key(requests: Sequence[RequestRecord]) -> dict[Key, RequestRecord]:
    """Answered requests; repetitions of a prompt are numbered in the order they were sent."""
    seen: dict[tuple[str, int], int] = {}
    keyed: dict[Key, RequestRecord] = {}
    for request in sorted(requests, key=lambda r: r.start_s):
        place = (request.prompt_id, request.turn)
        occurrence = seen.get(place, 0)
        seen[place] = occurrence + 1
        if request.ok and (request.text or request.token_ids):
            keyed[(*place, occurrence)] = request
    return keyed


def _comparable(arm: Mapping[Key, RequestRecord], reference: Mapping[Key, RequestRecord]) -> list[_Pair]:
    """Pairs in the order of prompts and turns, without turns that follow a difference."""
    pairs: list[_Pair] = []
    ended: set[tuple[str, int]] = set()
    for key in sorted(arm.keys() & reference.keys(), key=lambda k: (k[0], k[2], k[1])):
        prompt_id, _, occurrence = key
        if (prompt_id, occurrence) in ended:
            continue
        pair = _Pair(key=key, baseline=reference[key], arm=arm[key])
        pairs.append(pair)
        if pair.baseline.text != pair.arm.text or _ids_differ(pair):
            ended.add((prompt_id, occurrence))
    return pairs


def _ids_differ(pair: _Pair) -> bool:
    ours, theirs = pair.arm.token_ids, pair.baseline.token_ids
    return ours is not None and theirs is not None and first_difference(ours, theirs) is not None


def first_difference(ours: Sequence[object], theirs: Sequence[object]) -> int | None:
    """Index of the first difference; the shorter length when one continues the other; ``None`` when equal."""
    for index, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        if left != right:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _divergence(pair: _Pair, unit: Unit) -> Divergence | None:
    in_text = first_difference(pair.arm.text, pair.baseline.text)
    if unit == "tokens":
        assert pair.arm.token_ids is not None and pair.baseline.token_ids is not None
        index = first_difference(pair.arm.token_ids, pair.baseline.token_ids)
    else:
        index = in_text
    if index is None:
        return None
    start = max(0, (in_text or 0) - LEAD_CHARACTERS)
    return Divergence(
        prompt_id=pair.key[0],
        turn=pair.key[1],
        index=index,
        baseline_excerpt=_excerpt(pair.baseline.text, start),
        arm_excerpt=_excerpt(pair.arm.text, start),
    )


def _excerpt(text: str, start: int) -> str:
    end = start + EXCERPT_CHARACTERS
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
